"""Admission checks: the answers of controllers, and the leases that keep checks active; and
scheduling gates: which groups wait for which gates, who set them, and opening them.

    with Client() as client, client.checks.watch("budget") as requests:
        for request in requests:
            if request.kind == "asked":
                client.checks.set(request, "True", message="12 of 40 cpu-hours are left")
            elif request.must_stop:
                ...                          # undo what was started for the group

Inside the `with`, a thread renews the lease of every AdmissionCheck with that controllerName;
leaving it makes them inactive at once. docs/checks.md describes the duties of a controller.

    with Client(component="data-ready") as client:
        for gate in client.gates.list(gate="data"):
            if is_there(gate.group):
                client.gates.open(gate.group, "data")

Several programs may open gates of one group at the same time, in any order: an opening that
conflicts with another is repeated, and the last one lets the group continue.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import Struct, structs

import batchq.client.changes as changes
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    DEFAULT,
    AdmissionCheck,
    CheckState,
    PodGroup,
    Queue,
    gates_of,
    key_of,
)
from batchq.api.resources import Amounts
from batchq.api.transaction import Transaction
from batchq.api.views import CheckPage, CheckView, GateView, ListedCheck
from batchq.client.changes.object_writes import find, title
from batchq.client.overview import Overview
from batchq.client.request import GroupName, duration_of, key_named
from batchq.client.watch import Watch
from batchq.core.eligibility import is_active
from batchq.core.quota import ROOT, QueueTree
from batchq.errors import Conflict, InvalidInput, NotFound, StoreUnavailable, UsageError
from batchq.store.outage import Patience

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

__all__ = [
    "CheckPage",
    "CheckRequest",
    "CheckView",
    "CheckWatch",
    "Checks",
    "GateView",
    "Gates",
    "ListedCheck",
]

LEASE_S = 30.0
#: A shorter lease could expire between two renewals on a busy machine.
SHORTEST_LEASE_S = 1.0
LONGEST_LEASE_S = 3600.0

#: Commits what the function returns for the current time; returns whether anything was written.
Change = Callable[[Callable[[int], Transaction | None]], bool]


class Checks:
    """Lists and answers admission checks over a client's connection."""

    def __init__(self, store: RedisStore, change: Change, tell: Callable[[str], None]) -> None:
        self._store = store
        self._change = change
        self._tell = tell

    def list(self, group: str, *, namespace: str = DEFAULT) -> Sequence[CheckState]:
        """Return the state of each check of a group. Raises NotFound."""
        return find(self._store, PodGroup, key_named(group, namespace)).status.checks

    def views(
        self,
        *,
        group: str = "",
        queue: str = "",
        namespace: str = "",
        waiting: bool = False,
    ) -> Sequence[CheckView]:
        """Return the checks of unfinished groups, those with the oldest reservation first.

        Filtered by `group` (then also a finished one), by `queue` with the queues below it, and by
        namespace. `waiting` returns only checks to be answered now. Raises NotFound.
        """
        tree, now_ms = self._tree(), self._store.now_ms()
        if queue not in ("", ROOT, DEFAULT) and queue not in tree.records:
            find(self._store, Queue, queue)
        known = self._known()
        found = []
        for item in self._groups(group, namespace):
            if queue and queue not in tree.chain(item.spec.queue):
                continue
            for state in item.status.checks:
                listed = listed_check(state.name, item.spec.queue, known, now_ms)
                found.append(CheckView(group=item, state=state, check=listed))
        chosen = [view for view in found if view.waits or not waiting]
        return sorted(chosen, key=_place_in_list)

    def of_queue(self, queue: str) -> Sequence[ListedCheck]:
        """Return the checks that groups of a queue must pass: its ancestors' and its own."""
        tree, known, now_ms = self._tree(), self._known(), self._store.now_ms()
        found: dict[str, ListedCheck] = {}
        for above in tree.chain(queue):
            record = tree.records.get(above)
            for name in record.spec.admission_checks if record is not None else ():
                found.setdefault(name, listed_check(name, above, known, now_ms))
        return tuple(found.values())

    def records(self) -> Sequence[ListedCheck]:
        """Return every AdmissionCheck, by name."""
        known, now_ms = self._known(), self._store.now_ms()
        return [listed_check(name, "", known, now_ms) for name in sorted(known)]

    def page(self, name: str) -> CheckPage:
        """Return one AdmissionCheck in detail. Raises NotFound."""
        find(self._store, AdmissionCheck, name)
        records = self._tree().records
        asking = [one for one, item in records.items() if name in item.spec.admission_checks]
        return CheckPage(
            check=listed_check(name, "", self._known(), self._store.now_ms()),
            queues=tuple(sorted(asking)),
            views=tuple(view for view in self.views() if view.state.name == name),
        )

    def set(
        self,
        group: str | CheckRequest,
        status: str,
        reason: str = "",
        message: str = "",
        *,
        check: str | None = None,
        namespace: str = DEFAULT,
    ) -> bool:
        """Answer a check: `True`, `False` (reason `Retry` or `Reject`), or `Unknown` (reason none
        or `PreemptionRequired`). Return False if this was the answer already.

        `group` is a request, whose answer counts only while the group keeps the reservation that it
        had then, or a group's name with its `check`, which may be left out if there is only one.
        Raises InvalidInput (no such combination), NotFound (no such group or check), Conflict (the
        group has no reservation, a new one, or has ended) or UsageError.
        """
        if isinstance(group, CheckRequest):
            key, reserved_at = group.key, group.reserved_at
            name = check or group.check
        else:
            key, reserved_at = key_named(group, namespace), None
            name = check or self._only_check(key)
        return self._change(
            lambda now_ms: changes.set_check(
                self._store,
                key,
                name,
                status,
                reason,
                message,
                now_ms=now_ms,
                reserved_at=reserved_at,
            )
        )

    def watch(
        self, controller_name: str, *, holder: str | None = None, lease_s: float = LEASE_S
    ) -> CheckWatch:
        """Return a watch on a controller's checks: it keeps them active inside a `with`, and yields
        requests to answer.

        `holder` names this process. A process that uses the name of its predecessor takes over its
        lease at once, without waiting for it to expire. Raises InvalidInput.
        """
        if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
            raise InvalidInput(
                f"lease_s: expected {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g} seconds,"
                f" found {lease_s:g}"
            )
        if not controller_name:
            raise InvalidInput("expected the controllerName of admission checks, found none")
        return CheckWatch(
            self._store,
            self._change,
            self._tell,
            controller_name=controller_name,
            holder=holder or _this_process(),
            lease_ms=round(lease_s * 1000),
        )

    def _only_check(self, key: str) -> str:
        group = find(self._store, PodGroup, key)
        names = [state.name for state in group.status.checks]
        match names:
            case [name]:
                return name
            case []:
                raise NotFound(
                    f"{title(group)} has no admission checks",
                    hint=f"queue {group.spec.queue} requires none",
                )
            case _:
                raise UsageError(
                    f"{title(group)} has {len(names)} admission checks; name one",
                    hint=f"they are: {', '.join(names)}",
                )

    def _groups(self, group: str, namespace: str) -> Sequence[PodGroup]:
        if group:
            return [find(self._store, PodGroup, key_named(group, namespace or DEFAULT))]
        stored = self._store.list("PodGroup", namespace=namespace)
        return [
            item
            for item in stored
            if isinstance(item, PodGroup) and item.status.phase not in TERMINAL
        ]

    def _tree(self) -> QueueTree:
        stored = self._store.list("Queue")
        return QueueTree(item for item in stored if isinstance(item, Queue))

    def _known(self) -> dict[str, AdmissionCheck]:
        stored = self._store.list("AdmissionCheck")
        return {item.metadata.name: item for item in stored if isinstance(item, AdmissionCheck)}


def listed_check(
    name: str, queue: str, known: Mapping[str, AdmissionCheck], now_ms: int
) -> ListedCheck:
    """Return a check that a queue requires ("" for none), as of an instant."""
    record = known.get(name)
    active = is_active(record, now_ms)
    return ListedCheck(name=name, listed_by=queue, record=record, active=active)


def _place_in_list(view: CheckView) -> tuple[bool, int, str]:
    at = view.group.status.reserved_at
    return (at is None, at or 0, key_of(view.group))


def _this_process() -> str:
    """Return a unique name; containers on one host may share host name and process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


#: How often a lease is renewed within its length.
_RENEWALS_A_LEASE = 3
#: The pause between two tries while the server is away.
_RETRY_S = 0.5
#: Bounds one wait for changes, so that `stop` takes effect.
_LOOK_S = 1.0
#: How long `stop` waits for a renewal under way.
_PATIENCE_S = 30.0

Kind: TypeAlias = Literal["asked", "approved", "admitted", "running", "lost", "finished", "dropped"]


class CheckRequest(Struct, frozen=True, kw_only=True):
    """The state of a group's check, as its controller needs to know it now.

    asked      quota is reserved and the check is Unknown: answer it
    approved   the check is True; the group waits for other checks or for admission
    admitted   the group is InQueue, and its pods are starting
    running    its pods run
    lost       the reservation is gone: undo what was started for the group
    finished   the group has ended or was deleted: clean up
    dropped    its queue no longer requires the check: answers have no effect

    `group` is its current state (or the last one, if it was deleted). `reserved_at`, in
    milliseconds, identifies the reservation; None if none is known.
    """

    kind: Kind
    check: str
    parameters: Mapping[str, str]
    group: PodGroup
    state: CheckState
    reserved_at: int | None

    @property
    def key(self) -> str:
        """`namespace/name` of the group."""
        return key_of(self.group)

    @property
    def uid(self) -> str:
        """The group's uid; another group may have the same name later."""
        return self.group.metadata.uid

    @property
    def namespace(self) -> str:
        """The group's namespace."""
        return self.group.metadata.namespace

    @property
    def name(self) -> str:
        """The group's name within its namespace."""
        return self.group.metadata.name

    @property
    def labels(self) -> Mapping[str, str]:
        """The group's labels."""
        return self.group.metadata.labels

    @property
    def queue(self) -> str:
        """The group's queue."""
        return self.group.spec.queue

    @property
    def walltime_s(self) -> float | None:
        """The group's walltime, in seconds; None if it has no limit."""
        walltime = self.group.spec.walltime
        return None if walltime is None else walltime / 1000

    @property
    def reserved(self) -> Amounts:
        """The reserved amounts, in integer units."""
        return self.group.status.reservation

    @property
    def must_stop(self) -> bool:
        """Whether the controller must undo what it has started for the group."""
        return self.kind in ("lost", "finished")


#: After these nothing is left to be looked after.
_OVER: tuple[Kind, ...] = ("lost", "finished", "dropped")


class _LastRequest(NamedTuple):
    """The last request to a controller about one check of one group."""

    kind: Kind
    reserved_at: int | None
    request: CheckRequest


class _Held(NamedTuple):
    """A check that this process has kept active without a break since `since`. Times are of this
    machine's monotonic clock.
    """

    record: AdmissionCheck
    since: float
    until: float


class CheckWatch:
    """The checks of one controller; a context manager and an endless iterator of requests.

    Created by `client.checks.watch`. `poll` returns the next requests; `stop` ends the iteration,
    from any thread or a signal handler. All other methods belong to the client's thread.
    """

    def __init__(
        self,
        store: RedisStore,
        change: Callable[[Callable[[int], Transaction | None]], bool],
        tell: Callable[[str], None],
        *,
        controller_name: str,
        holder: str,
        lease_ms: int,
    ) -> None:
        self.controller_name = controller_name
        self.holder = holder
        self._keeper = _Keeper(store, change, controller_name, holder, lease_ms)
        self._watch = Watch(store, ("PodGroup", "AdmissionCheck"))
        self._tell = tell
        self._stopped = threading.Event()
        #: Groups with checks, by uid; the uids of existing groups, by key; and the last requests.
        self._groups: dict[str, PodGroup] = {}
        self._uids: dict[str, str] = {}
        self._last_requests: dict[str, dict[str, _LastRequest]] = {}
        #: Uids of the groups to look at; a dict, to keep their order.
        self._changed: dict[str, None] = {}
        #: Check -> since when this process has kept it active, as of the last look.
        self._held_since: dict[str, float] = {}

    @property
    def held(self) -> tuple[str, ...]:
        """The checks that this process keeps active; a check may be held by another process."""
        return tuple(self._keeper.held())

    def __enter__(self) -> CheckWatch:
        self._keeper.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Make the checks inactive at once, so that groups do not wait for an absent controller."""
        self.stop()
        self._keeper.stop()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the iteration, and any wait of `poll`."""
        self._stopped.set()

    def __iter__(self) -> Iterator[CheckRequest]:
        while not self._stopped.is_set():
            yield from self.poll(None)

    def poll(self, timeout_s: float | None = 0.0) -> list[CheckRequest]:
        """Return new requests, waiting up to `timeout_s` (None: for ever) for the first one.

        The wait includes a server that is away. Raises StoreUnavailable for a lasting failure, such
        as a user without the necessary rights.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        patience = Patience(self._tell, deadline=deadline)
        wait_s = 0.0
        while True:
            self._keeper.check()
            try:
                self._look(wait_s)
                patience.answered()
            except StoreUnavailable as error:
                if error.lasts:
                    raise
                pause_s = patience.next_wait_s(error)
                if pause_s is None or self._stopped.wait(pause_s):
                    return []
                continue
            found = self._new_requests()
            left_s = _LOOK_S if deadline is None else deadline - monotonic()
            if found or left_s <= 0 or self._stopped.is_set():
                return found
            wait_s = min(_LOOK_S, left_s)

    def _look(self, wait_s: float) -> None:
        for change in self._watch.poll(round(wait_s * 1000)):
            match change.value:
                case PodGroup() as group:
                    self._record_group(change.key, group)
                case None if change.kind == "PodGroup":
                    self._forget_group(change.key)
                case AdmissionCheck() as check if (
                    check.spec.controller_name == self.controller_name
                ):
                    # A check that was just applied or released need not wait for the next renewal.
                    if not check.status.active:
                        self._keeper.wake()
                case _:
                    pass

    def _record_group(self, key: str, group: PodGroup) -> None:
        uid = group.metadata.uid
        if self._uids.get(key, uid) != uid:
            self._forget_group(key)
        if group.status.checks or uid in self._groups:
            self._uids[key] = uid
            self._groups[uid] = group
            self._changed[uid] = None

    def _forget_group(self, key: str) -> None:
        """Report a deleted group as one that has ended, then forget it."""
        uid = self._uids.pop(key, "")
        if uid:
            self._changed[uid] = None

    def _new_requests(self) -> list[CheckRequest]:
        """Return what has changed since the last requests."""
        held = self._keeper.held()
        since = {name: one.since for name, one in held.items()}
        if since != self._held_since:
            # Another controller may have died before it acted, so requests are repeated.
            for last in self._last_requests.values():
                for name in [one for one in last if since.get(one) != self._held_since.get(one)]:
                    del last[name]
            self._held_since = since
            self._changed |= dict.fromkeys(self._groups)
        found: list[CheckRequest] = []
        for uid in self._changed:
            group = self._groups[uid]
            exists = self._uids.get(key_of(group)) == uid
            for name, one in held.items():
                last = self._last_requests.setdefault(uid, {})
                found += _requests_of(group, name, one.record.spec.parameters, last, exists=exists)
            if not exists:
                del self._groups[uid]
                self._last_requests.pop(uid, None)
        self._changed.clear()
        return found


def _requests_of(
    group: PodGroup,
    name: str,
    parameters: Mapping[str, str],
    last_requests: dict[str, _LastRequest],
    *,
    exists: bool,
) -> Iterator[CheckRequest]:
    """Yield the requests about one check of a group, and record them."""
    last = last_requests.get(name)
    state = next((one for one in group.status.checks if one.name == name), None)
    kind: Kind | None
    if not exists:
        kind = None if last is None else "finished"
    elif state is None:
        kind = None if last is None or last.kind in _OVER else "dropped"
    else:
        kind = _kind_of(group, state, last)
    if kind is None:
        return
    reserved_at = (
        group.status.reserved_at if kind not in _OVER or last is None else last.reserved_at
    )
    if last is not None and (last.kind, last.reserved_at) == (kind, reserved_at):
        return
    if last is not None and last.kind not in _OVER and last.reserved_at != reserved_at:
        # Lost and reserved again between two looks.
        yield structs.replace(last.request, kind="lost", group=group)
    request = CheckRequest(
        kind=kind,
        check=name,
        parameters=parameters,
        group=group,
        state=state or CheckState(name=name),
        reserved_at=reserved_at,
    )
    last_requests[name] = _LastRequest(kind, reserved_at, request)
    yield request


def _kind_of(group: PodGroup, state: CheckState, last: _LastRequest | None) -> Kind | None:
    """Return the kind of the request for a group's check; None if there is nothing to request."""
    status = group.status
    waits = status.phase == PodGroupPhase.PENDING
    if status.phase in TERMINAL or (waits and status.reserved_at is None):
        # Without an earlier reservation, no controller was asked.
        if last is None and not _was_reserved(group):
            return None
        return "finished" if status.phase in TERMINAL else "lost"
    if state.status == "False":
        # The scheduler's next session drops the reservation; then the controller is informed.
        return None
    match status.phase:
        case PodGroupPhase.PENDING:
            return "asked" if state.status == "Unknown" else "approved"
        case PodGroupPhase.IN_QUEUE:
            return "admitted"
        case _:
            return "running"


def _was_reserved(group: PodGroup) -> bool:
    statuses = {one.type: one.status for one in group.status.conditions}
    return (
        group.status.admission > 0
        or "Evicted" in statuses
        or statuses.get("QuotaReserved") == "True"
    )


class _Keeper:
    """The thread that renews the leases of one controller's checks, including new checks."""

    def __init__(
        self,
        store: RedisStore,
        change: Callable[[Callable[[int], Transaction | None]], bool],
        controller_name: str,
        holder: str,
        lease_ms: int,
    ) -> None:
        self._store = store
        self._change = change
        self._controller_name = controller_name
        self._holder = holder
        self._lease_ms = lease_ms
        self._ending = threading.Event()
        self._wake = threading.Event()
        #: Set after the first attempt on every check.
        self._begun = threading.Event()
        #: Replaced as a whole by the thread, read by others.
        self._held: Mapping[str, _Held] = {}
        self._failure: StoreUnavailable | None = None
        self._thread = threading.Thread(
            target=self._keep, name=f"checks-{controller_name}", daemon=False
        )

    def held(self) -> dict[str, _Held]:
        """Return the checks whose unexpired lease is ours, by name."""
        now = monotonic()
        held = sorted(self._held.items())
        return {name: one for name, one in held if now < one.until}

    def check(self) -> None:
        """Raise the lasting failure that has ended the thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def wake(self) -> None:
        """Look for new checks now."""
        self._wake.set()

    def start(self) -> None:
        """Acquire the existing checks and start the thread. A second call does nothing."""
        if not self._ending.is_set() and self._thread.ident is None:
            self._thread.start()
            self._begun.wait(_PATIENCE_S)

    def stop(self) -> None:
        """End the thread, which releases the checks. A second call has no further effect."""
        self._ending.set()
        self._wake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_S)

    def _keep(self) -> None:
        pause_s = 0.0
        while not self._ending.is_set():
            try:
                pause_s = self._renew_all()
            except StoreUnavailable as error:
                pause_s = _RETRY_S
                if error.lasts:
                    self._failure = error
                    self._begun.set()
                    return
            self._begun.set()
            self._wake.wait(pause_s)
            self._wake.clear()
        self._release_all()

    def _renew_all(self) -> float:
        """Renew our leases and acquire free ones; return the seconds until the next renewal."""
        held = {}
        before = self._held
        for item in self._store.list("AdmissionCheck"):
            if not isinstance(item, AdmissionCheck):
                continue
            name = item.metadata.name
            if item.spec.controller_name != self._controller_name:
                if name in before:
                    self._release(name)
                continue
            asked_at = monotonic()
            if self._renew(name):
                former = before.get(name)
                lasts = former is not None and asked_at < former.until
                since = former.since if former is not None and lasts else asked_at
                held[name] = _Held(item, since, asked_at + self._lease_ms / 1000)
        self._held = held
        return self._lease_ms / 1000 / _RENEWALS_A_LEASE

    def _renew(self, name: str) -> bool:
        """Return whether the check is ours now."""
        try:
            self._change(
                lambda now_ms: changes.renew_check(
                    self._store,
                    name,
                    holder=self._holder,
                    expires_at=now_ms + self._lease_ms,
                    now_ms=now_ms,
                )
            )
        except (Conflict, NotFound):
            # Another controller holds it, or it was deleted just now.
            return False
        return True

    def _release(self, name: str) -> None:
        try:
            self._change(
                lambda now_ms: changes.release_check(
                    self._store, name, holder=self._holder, now_ms=now_ms
                )
            )
        except (Conflict, NotFound):
            return

    def _release_all(self) -> None:
        names, self._held = tuple(self._held), {}
        for name in names:
            try:
                self._release(name)
            except StoreUnavailable:
                # A lease that cannot be released now expires.
                return


class Gates:
    """The gates of unfinished groups, over a client's connection."""

    def __init__(self, store: RedisStore, change: Change, user: Callable[[], str]) -> None:
        self._store = store
        self._change = change
        self._user = user

    def list(
        self,
        *,
        namespace: str = "",
        queue: str = "",
        gate: str = "",
        older_than: str | float = 0,
    ) -> Sequence[GateView]:
        """Return closed gates, those of the oldest groups first.

        Filtered by namespace, by queue (with the queues below it), by name, and by the age of the
        group ("1d", or seconds). Raises InvalidInput.
        """
        overview = Overview(self._store.snapshot(), self._store.now_ms())
        latest = overview.at - duration_of("older_than", older_than)
        return [
            _view(group, shown, task, name)
            for group, shown in overview.gated(namespace=namespace, queue=queue)
            for task, name in gates_of(group.spec)
            if gate in ("", name) and (group.metadata.creation_timestamp or 0) <= latest
        ]

    def open(
        self, group: GroupName, gate: str, *, task: str = "", namespace: str = DEFAULT
    ) -> bool:
        """Open one gate: the group's own gate of that name, else those of its tasks, or only that
        of one `task`. Return False if it was open already.

        Raises NotFound for the group, the task or the gate, Conflict if the group has ended.
        """
        key, by = key_named(group, namespace), self._user()
        return self._change(
            lambda now: changes.open_gate(self._store, key, gate, task=task, now_ms=now, by=by)
        )

    def open_all(self, group: GroupName, *, task: str = "", namespace: str = DEFAULT) -> bool:
        """Open every gate of a group and its tasks, or of one task. False if none was closed.

        Raises NotFound for the group or the task, Conflict if the group has ended.
        """
        key, by = key_named(group, namespace), self._user()
        return self._change(
            lambda now: changes.open_all_gates(self._store, key, task=task, now_ms=now, by=by)
        )


def _view(group: PodGroup, shown: str, task: str, gate: str) -> GateView:
    return GateView(
        group=key_of(group),
        queue=group.spec.queue,
        shown=shown,
        gate=gate,
        task=task,
        set_at=group.metadata.creation_timestamp or 0,
        set_by=group.status.submitted_by,
        opened=group.status.opened_gates,
    )
