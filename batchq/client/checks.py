"""Admission checks: what controllers answer about groups, and how they keep their checks active.

    with Client() as client, client.checks.watch("budget") as requests:
        for request in requests:
            if request.kind == "asked":
                client.checks.set(request, "True", message="12 of 40 cpu-hours are left")
            elif request.must_stop:
                ...                          # stop what was started for it

Inside the `with`, a thread keeps the lease of every AdmissionCheck with that controllerName;
leaving it makes them inactive at once. docs/checks.md says what a controller owes.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from batchq import changes
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    DEFAULT,
    AdmissionCheck,
    CheckState,
    PodGroup,
    Queue,
    key_of,
)
from batchq.api.transaction import Transaction
from batchq.changes.lookup import find, title
from batchq.client.answering import CheckRequest, CheckWatch
from batchq.client.naming import key_named
from batchq.errors import InvalidInput, NotFound, UsageError
from batchq.framework.checks import is_active
from batchq.framework.tree import ROOT, QueueTree
from batchq.store.redis import RedisStore

__all__ = ["CheckPage", "CheckRequest", "CheckView", "CheckWatch", "Checks", "ListedCheck"]

LEASE_S = 30.0
#: A shorter one would lapse between two renewals on a machine that is only busy.
SHORTEST_LEASE_S = 1.0
LONGEST_LEASE_S = 3600.0

#: Commits what is to be written at an instant; whether there was anything.
Change = Callable[[Callable[[int], Transaction | None]], bool]


class ListedCheck(Struct, frozen=True, kw_only=True):
    """A check that somebody asks for: who carries it out, and whether anybody does now.

    `record` is None where no such AdmissionCheck exists. `listed_by`: the queue that names it.
    """

    name: str
    listed_by: str
    record: AdmissionCheck | None
    active: bool

    @property
    def active_until(self) -> int | None:
        """When its controller's lease ends unless it is renewed."""
        return self.record.status.expires_at if self.active and self.record is not None else None


class CheckView(Struct, frozen=True, kw_only=True):
    """One check of one group, as `batchq checks list` shows it."""

    group: PodGroup
    state: CheckState
    check: ListedCheck

    @property
    def waits(self) -> bool:
        """Whether its controller is to answer now: quota is reserved, and it has not."""
        status = self.group.status
        return (
            status.phase == PodGroupPhase.PENDING
            and status.reserved_at is not None
            and self.state.status == "Unknown"
        )


class CheckPage(Struct, frozen=True, kw_only=True):
    """All about one check: the queues that list it, and it in each unfinished group."""

    check: ListedCheck
    queues: tuple[str, ...]
    views: tuple[CheckView, ...]


class Checks:
    """Answering admission checks, over a client's connection."""

    def __init__(self, store: RedisStore, change: Change, tell: Callable[[str], None]) -> None:
        self._store = store
        self._change = change
        self._tell = tell

    # --- looking ----------------------------------------------------------------------------

    def list(self, group: str, *, namespace: str = DEFAULT) -> Sequence[CheckState]:
        """What each check says of a group. Raises NotFound."""
        return find(self._store, PodGroup, key_named(group, namespace)).status.checks

    def views(
        self,
        *,
        group: str = "",
        queue: str = "",
        namespace: str = "",
        waiting: bool = False,
    ) -> Sequence[CheckView]:
        """The checks of unfinished groups (of one `group`, finished or not; of one `queue` and
        those below it; of a namespace), those that have been reserved longest first.

        `waiting`: only what a controller is to answer now. Raises NotFound.
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
                listed = _listed(state.name, item.spec.queue, known, now_ms)
                found.append(CheckView(group=item, state=state, check=listed))
        chosen = [view for view in found if view.waits or not waiting]
        return sorted(chosen, key=_place_in_list)

    def of_queue(self, queue: str) -> Sequence[ListedCheck]:
        """The checks that groups of a queue have to pass: its ancestors' and its own."""
        tree, known, now_ms = self._tree(), self._known(), self._store.now_ms()
        found: dict[str, ListedCheck] = {}
        for above in tree.chain(queue):
            record = tree.records.get(above)
            for name in record.spec.admission_checks if record is not None else ():
                found.setdefault(name, _listed(name, above, known, now_ms))
        return tuple(found.values())

    def records(self) -> Sequence[ListedCheck]:
        """Every AdmissionCheck that there is, by name."""
        known, now_ms = self._known(), self._store.now_ms()
        return [_listed(name, "", known, now_ms) for name in sorted(known)]

    def page(self, name: str) -> CheckPage:
        """All about one AdmissionCheck. Raises NotFound."""
        find(self._store, AdmissionCheck, name)
        records = self._tree().records
        asking = [one for one, item in records.items() if name in item.spec.admission_checks]
        return CheckPage(
            check=_listed(name, "", self._known(), self._store.now_ms()),
            queues=tuple(sorted(asking)),
            views=tuple(view for view in self.views() if view.state.name == name),
        )

    # --- answering --------------------------------------------------------------------------

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
        """Answer `True`, `False` (reason `Retry` or `Reject`) or `Unknown` (reason none or
        `PreemptionRequired`). False if it says so already.

        `group` is a request, of which the answer counts only while the group has what it had
        reserved then; or a group's name, with its `check`, which may be left out if it is the
        only one.
        Raises InvalidInput (no such combination), NotFound (no such group or check), Conflict
        (nothing is reserved, it has reserved anew, or it has ended) or UsageError.
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
        """Carry out the checks of a controller: keeps them active inside a `with`, and yields what
        is to be answered and looked after.

        `holder` names this process; one that takes up the name of a former one goes on at once,
        without waiting for its lease to lapse. Raises InvalidInput.
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

    # --- parts ------------------------------------------------------------------------------

    def _only_check(self, key: str) -> str:
        group = find(self._store, PodGroup, key)
        names = [state.name for state in group.status.checks]
        match names:
            case [name]:
                return name
            case []:
                raise NotFound(
                    f"{title(group)} has no admission checks",
                    hint=f"queue {group.spec.queue} asks for none",
                )
            case _:
                raise UsageError(
                    f"{title(group)} has {len(names)} admission checks; say which",
                    hint=f"there are: {', '.join(names)}",
                )

    def _groups(self, group: str, namespace: str) -> Sequence[PodGroup]:
        if group:
            return [find(self._store, PodGroup, key_named(group, namespace or DEFAULT))]
        there = self._store.list("PodGroup", namespace=namespace)
        return [
            item
            for item in there
            if isinstance(item, PodGroup) and item.status.phase not in TERMINAL
        ]

    def _tree(self) -> QueueTree:
        there = self._store.list("Queue")
        return QueueTree(item for item in there if isinstance(item, Queue))

    def _known(self) -> dict[str, AdmissionCheck]:
        there = self._store.list("AdmissionCheck")
        return {item.metadata.name: item for item in there if isinstance(item, AdmissionCheck)}


def _listed(name: str, queue: str, known: dict[str, AdmissionCheck], now_ms: int) -> ListedCheck:
    record = known.get(name)
    active = is_active(record, now_ms)
    return ListedCheck(name=name, listed_by=queue, record=record, active=active)


def _place_in_list(view: CheckView) -> tuple[bool, int, str]:
    at = view.group.status.reserved_at
    return (at is None, at or 0, key_of(view.group))


def _this_process() -> str:
    """Unlike any other, one on the same host that bears the same number in a container too."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
