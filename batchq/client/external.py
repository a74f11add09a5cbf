"""External groups, which a program of yours, a *consumer*, claims and runs.

    with Client() as client:
        while (claim := client.external.next(holder="render-1")) is not None:
            with claim:
                claim.report("running")
                ...                          # now and then: if claim.stop_reason: stop the work
                claim.report("succeeded")

Inside the `with`, a background thread renews the claim. If the work must stop, the thread sets
`claim.stop_reason` and the event `claim.stopping`: the group was suspended or cancelled, its
walltime has passed, or the claim could not be renewed in time. The consumer then stops the work
within `claim.grace_s` and reports `evicted`; leaving the `with` without another report does this.
docs/external.md describes the duties of a consumer.
"""

from __future__ import annotations

import heapq
import secrets
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from batchq.api.lifecycle import ADMITTED
from batchq.api.objects import (
    DEFAULT,
    Object,
    PodGroup,
    PriorityClass,
    is_claimable,
    key_of,
    stop_reason_of,
)
from batchq.api.reasons import Leaving
from batchq.api.transaction import Refusal, Transaction, Word
from batchq.client.changes import consumer_leases, explain_refusal
from batchq.client.changes.consumer_leases import Renewed, Reported, read_token
from batchq.client.connection import checked_seconds
from batchq.client.request import duration_of, key_named
from batchq.client.requests import TRIES
from batchq.client.watch import Watch
from batchq.core.chunks import UidOrder, uid_order
from batchq.core.scheduler_cache import priorities_of
from batchq.errors import BatchqError, Conflict, NotFound, StoreUnavailable
from batchq.system import RandomIds

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore


__all__ = [
    "Claim",
    "Consumer",
    "External",
    "Held",
    "Refused",
    "Renewed",
    "Reported",
    "read_token",
]

USUAL_TTL = "60s"
#: Bounds the delay after a missed change.
_LOOK_EVERY_S = 5.0

#: Commits what the function returns for the current time; returns whether anything was written.
Change = Callable[[Callable[[int], Transaction | None]], bool]


class External:
    """Claims external groups over a client's connection."""

    def __init__(self, store: RedisStore, change: Change) -> None:
        self._store = store
        self._change = change
        self._groups: ClaimableGroups | None = None

    def waiting(self, *, queue: str = "", namespace: str = "") -> Sequence[PodGroup]:
        """Return the groups that can be claimed now, ordered by priority, then by age."""
        return self._claimable(0, queue, namespace)

    def claim(
        self,
        group: str | None = None,
        *,
        holder: str,
        ttl: str | float = USUAL_TTL,
        queue: str = "",
        namespace: str = "",
    ) -> Claim:
        """Claim `group`, or the first claimable group (of a queue, of a namespace).

        Raises NotFound (no such group, or none can be claimed), Conflict (it cannot be claimed).
        """
        if group is not None:
            return self._claim(
                key_named(group, namespace or DEFAULT), holder, duration_of("ttl", ttl)
            )
        claim = self._claim_first(self.waiting(queue=queue, namespace=namespace), holder, ttl)
        if claim is None:
            raise NotFound(
                "no external group can be claimed",
                hint="submit one with `batchq submit --external`; `batchq jobs` lists the groups",
            )
        return claim

    def next(
        self,
        *,
        holder: str,
        ttl: str | float = USUAL_TTL,
        queue: str = "",
        namespace: str = "",
        timeout_s: float | None = None,
    ) -> Claim | None:
        """Claim the first claimable group, waiting for one; None if none came in `timeout_s`."""
        lasts_s = checked_seconds(timeout_s)
        deadline = None if lasts_s is None else monotonic() + lasts_s
        wait_s = 0.0
        while True:
            claim = self._claim_first(self._claimable(wait_s, queue, namespace), holder, ttl)
            left_s = _LOOK_EVERY_S if deadline is None else deadline - monotonic()
            if claim is not None or left_s <= 0:
                return claim
            wait_s = min(_LOOK_EVERY_S, left_s)

    def consumer(
        self,
        *,
        holder: str,
        ttl: str | float = USUAL_TTL,
        queue: str = "",
        namespace: str = "",
    ) -> Consumer:
        """Return a consumer of many groups (of a queue, of a namespace), without a thread per
        claim: it claims, reports and renews in batches.

        It belongs to one thread, which must not use this client for anything else meanwhile.
        Raises InvalidInput.
        """
        return Consumer(
            self._store,
            RandomIds().new_uid,
            holder=holder,
            ttl_ms=duration_of("ttl", ttl),
            queue=queue,
            namespace=namespace,
        )

    def renew(self, token: str, ttl: str | float | None = None) -> Renewed:
        """Renew a claim for `ttl` from now (None: as before), or learn why its work must stop.

        Raises Conflict if the claim is over, InvalidInput.
        """
        renewals: list[Renewed] = []

        def build(now_ms: int) -> Transaction | None:
            ttl_ms = None if ttl is None else duration_of("ttl", ttl)
            renewals.append(consumer_leases.renew(self._store, token, ttl_ms=ttl_ms, now_ms=now_ms))
            return renewals[-1].transaction

        self._change(build)
        return renewals[-1]

    def report(self, token: str, phase: Reported, *, pod: str = "", message: str = "") -> bool:
        """Report that the group, or one `pod`, is running, succeeded, failed or evicted.

        Return False if this was reported before.
        Raises Conflict (the claim is over, or the work must stop), InvalidInput.
        """

        def build(now_ms: int) -> Transaction | None:
            return consumer_leases.report(
                self._store, token, phase, pod=pod, message=message, now_ms=now_ms
            )

        return self._change(build)

    def release(self, token: str, *, message: str = "") -> bool:
        """Return a group unfinished, so that it can be claimed at once. False if it was already.

        Raises Conflict if the claim is over, InvalidInput.
        """
        return self._change(
            lambda now_ms: consumer_leases.release(
                self._store, token, message=message, now_ms=now_ms
            )
        )

    def _claimable(self, wait_s: float, queue: str, namespace: str) -> list[PodGroup]:
        if self._groups is None:
            self._groups = ClaimableGroups(self._store)
        self._groups.follow(wait_s)
        return self._groups.first(queue=queue, namespace=namespace)

    def _claim_first(
        self, groups: Sequence[PodGroup], holder: str, ttl: str | float
    ) -> Claim | None:
        """Claim the first of the groups that no other consumer claims at the same time."""
        for group in groups:
            with suppress(Conflict, NotFound):
                return self._claim(key_of(group), holder, duration_of("ttl", ttl))
        return None

    def _claim(self, key: str, holder: str, ttl_ms: int) -> Claim:
        secret = secrets.token_hex(16)
        made: list[consumer_leases.LeaseTaken] = []
        asked_at = monotonic()

        def build(now_ms: int) -> Transaction:
            made.append(
                consumer_leases.claim(
                    self._store, key, holder=holder, ttl_ms=ttl_ms, secret=secret, now_ms=now_ms
                )
            )
            return made[-1].transaction

        self._change(build)
        claimed = made[-1]
        return Claim(self, claimed.group, claimed.token, lasts_until=asked_at + ttl_ms / 1000)


#: How often a claim is renewed within its time to live.
_RENEWALS_A_TTL = 3
#: The pause between two tries while the server is away.
_RETRY_S = 0.5
#: How long `stop` waits for a renewal under way.
_PATIENCE_S = 30.0


class Registrar(Protocol):
    """What a claim needs of `batchq.client.external.External`."""

    def renew(self, token: str) -> Renewed:
        """Renew a claim, or learn why its work must stop."""

    def report(self, token: str, phase: Reported, *, pod: str = "", message: str = "") -> bool:
        """Report the phase of the group."""


class Claim:
    """A group held by this process; a context manager that renews the claim in a thread.

    Several threads may use it. `group` is the group as it was when it was claimed.
    """

    def __init__(
        self, registrar: Registrar, group: PodGroup, token: str, *, lasts_until: float
    ) -> None:
        self.group = group
        self.token = token
        #: Set together with `stop_reason`, for threads that wait.
        self.stopping = threading.Event()
        self.stop_reason = ""
        self._registrar = registrar
        #: By this machine's monotonic clock, counted from before the request, so never too late.
        self._lasts_until = lasts_until
        self._stopped = threading.Event()
        self._ending = False
        self._ended = False
        self._renewals = threading.Thread(
            target=self._renew_on, name=f"renewals-{group.metadata.name}", daemon=False
        )

    @property
    def key(self) -> str:
        """`namespace/name` of the group."""
        return key_of(self.group)

    @property
    def grace_s(self) -> float:
        """How long the work may take to stop."""
        return self.group.status.claim.grace / 1000

    @property
    def alive(self) -> bool:
        """Whether the claim is renewed in the background."""
        return self._renewals.is_alive()

    def __enter__(self) -> Claim:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop renewing; report `evicted` if no end was reported, because the work has stopped."""
        self.stop()
        if not self._ended and self.stop_reason != Leaving.CLAIM_LAPSED:
            # A claim that is over or cannot be released now expires.
            with suppress(Conflict, StoreUnavailable):
                self.release("the consumer failed" if any(error) else "left unfinished")

    def start(self) -> None:
        """Start renewing in the background. Does nothing when called again or after `stop`."""
        if not self._stopped.is_set() and self._renewals.ident is None:
            self._renewals.start()

    def stop(self) -> None:
        """Stop renewing; the claim expires unless its end is reported. May be called twice."""
        self._stopped.set()
        if self._renewals.ident is not None and self._renewals is not threading.current_thread():
            self._renewals.join(_PATIENCE_S)

    def renew(self) -> str:
        """Renew once; return the reason to stop, or "".

        Raises Conflict if the claim is over, StoreUnavailable.
        """
        asked_at = monotonic()
        renewed = self._registrar.renew(self.token)
        if renewed.stop_reason:
            if not self._ending:
                self._mark_stopping(renewed.stop_reason)
        else:
            self._lasts_until = asked_at + self.group.status.claim.ttl / 1000
        return renewed.stop_reason

    def report(self, phase: Reported, *, pod: str = "", message: str = "") -> None:
        """Report that the group, or one `pod`, is running, succeeded, failed or evicted.

        While the server is away, the report is repeated for as long as the claim may last.
        Raises Conflict (the claim is over, or the work must stop), StoreUnavailable.
        """
        is_end = not pod and phase != "running"
        self._ending = is_end
        try:
            self._retry(lambda: self._registrar.report(self.token, phase, pod=pod, message=message))
        except Conflict:
            self._ending = False
            raise
        if is_end:
            self._ended = True
            self._stopped.set()

    def release(self, message: str = "") -> None:
        """Return the group unfinished, after all its processes have stopped; same as `evicted`.

        Raises Conflict if the claim is over, StoreUnavailable.
        """
        self.report("evicted", message=message)

    def _renew_on(self) -> None:
        """Renew until the claim has ended; the body of the thread."""
        usual_s = self.group.status.claim.ttl / 1000 / _RENEWALS_A_TTL
        pause_s = usual_s
        while not self._stopped.wait(pause_s):
            try:
                if self.renew():
                    return
                pause_s = usual_s
            except Conflict:
                # Another thread may have reported its end a moment ago.
                if not self._ending:
                    self._mark_stopping(Leaving.CLAIM_LAPSED)
                return
            except StoreUnavailable:
                left_s = self._lasts_until - monotonic()
                if left_s <= 0:
                    self._mark_stopping(Leaving.CLAIM_LAPSED)
                    return
                pause_s = min(_RETRY_S, left_s)

    def _mark_stopping(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or str(reason)
        self.stopping.set()

    def _retry(self, ask: Callable[[], object]) -> None:
        """Repeat a call while the server is away and its answer would still be of use."""
        while True:
            try:
                ask()
            except StoreUnavailable:
                # A consumer that must stop may report it until the grace period is over.
                grace_s = self.grace_s if self.stop_reason else 0.0
                if monotonic() >= self._lasts_until + grace_s:
                    raise
                threading.Event().wait(_RETRY_S)
            else:
                return


#: Refusals because the state on which the transaction was planned has changed.
_OUTDATED = (Word.CONFLICT, Word.FENCED)

#: The phases of a claim after which a group can be claimed (`is_claimable`).
_CLAIMABLE_AFTER = ("None", "Released", "Lapsed")

#: Builds the transaction for one group from a reader of known groups.
_Build = Callable[..., Transaction | None]


class _Spec(Struct, frozen=True):
    controller: str = ""


class _ClaimPhase(Struct, frozen=True):
    phase: str = "None"


class _Status(Struct, frozen=True):
    phase: str = "Pending"
    claim: _ClaimPhase = _ClaimPhase()


class _Glance(Struct, frozen=True):
    """What a stored group needs at least to be claimable; the rest is not decoded."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


_GLANCE = msgspec.json.Decoder(_Glance)


def may_be_claimable(stored: bytes) -> bool:
    """Return whether a stored group may be claimable, at a glance that takes a third of its
    decoding.
    """
    try:
        found = _GLANCE.decode(stored)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # The reader reports it.
        return True
    return (
        found.spec.controller == "external"
        and found.status.phase in ADMITTED
        and found.status.claim.phase in _CLAIMABLE_AFTER
    )


class ClaimableGroups:
    """The claimable external groups, kept up to date from the stream of changes; of one thread."""

    def __init__(self, store: RedisStore, followed: Container[str] = ()) -> None:
        """`followed`: the keys of groups whose changes are returned in any case."""
        self._watch = Watch(store, ("PodGroup", "PriorityClass"), is_wanted=self._is_wanted)
        self._followed = followed
        self._waiting: dict[str, PodGroup] = {}
        #: Groups that a change of the batch just read may have made claimable.
        self._may_wait: set[str] = set()
        self._classes: dict[str, PriorityClass] = {}

    def follow(self, wait_s: float) -> dict[str, PodGroup | None]:
        """Return the groups that have changed, waiting at most `wait_s` for a change; None for a
        group that was deleted.

        Raises StoreUnavailable.
        """
        changed: dict[str, PodGroup | None] = {}
        self._may_wait.clear()
        for change in self._watch.poll(round(wait_s * 1000)):
            value = change.value
            if change.kind == "PodGroup":
                group = value if isinstance(value, PodGroup) else None
                changed[change.key] = group
                if group is not None and is_claimable(group):
                    self._waiting[change.key] = group
                else:
                    self._waiting.pop(change.key, None)
            elif isinstance(value, PriorityClass):
                self._classes[change.key] = value
            else:
                self._classes.pop(change.key, None)
        return changed

    def _is_wanted(self, kind: str, key: str, stored: bytes) -> bool:
        """Return whether a change may change an answer: most are about other groups."""
        if kind != "PodGroup":
            return kind == "PriorityClass"
        if not stored or key in self._followed or key in self._waiting or key in self._may_wait:
            return True
        if not may_be_claimable(stored):
            return False
        # A later change of the same batch may end that.
        self._may_wait.add(key)
        return True

    def first(
        self, most: int | None = None, *, queue: str = "", namespace: str = ""
    ) -> list[PodGroup]:
        """Return claimable groups (of a queue, of a namespace), by priority, then by age."""
        found = [
            group
            for group in self._waiting.values()
            if queue in ("", group.spec.queue) and namespace in ("", group.metadata.namespace)
        ]
        values, default = priorities_of(self._classes.values())

        def place_in_line(group: PodGroup) -> tuple[int, int, UidOrder]:
            since = group.status.queue_time or group.metadata.creation_timestamp or 0
            priority = values.get(group.spec.priority_class_name, default)
            return (-priority, since, uid_order(group.metadata.uid))

        if most is None:
            return sorted(found, key=place_in_line)
        # If all can be claimed in one call, their order is irrelevant.
        return found if len(found) <= most else heapq.nsmallest(most, found, key=place_in_line)

    def skip(self, key: str) -> None:
        """Leave a group out until it changes."""
        self._waiting.pop(key, None)


class Held:
    """A group that a consumer has claimed; `group` is its state at that time."""

    __slots__ = ("group", "key", "renew_at", "stop_reason", "token", "until")

    def __init__(self, group: PodGroup, token: str, *, asked_at: float) -> None:
        self.key = key_of(group)
        self.group = group
        self.token = token
        #: Why the work must stop; empty while it may continue.
        self.stop_reason = ""
        # By this machine's monotonic clock, counted from before the request, so never too late.
        self.renewed(asked_at)

    def renewed(self, asked_at: float) -> None:
        """Record a renewal that was requested at `asked_at`."""
        ttl_s = self.group.status.claim.ttl / 1000
        self.until = asked_at + ttl_s
        self.renew_at = asked_at + ttl_s / _RENEWALS_A_TTL

    @property
    def grace_s(self) -> float:
        """How long the work may take to stop."""
        return self.group.status.claim.grace / 1000


class Refused(Struct, frozen=True, kw_only=True):
    """A report that was refused: the claim is over, or the work must stop."""

    held: Held
    error: BatchqError


class Consumer:
    """Claims many groups, reports on them and renews the claims. Belongs to one thread.

        with Client() as client:
            consumer = client.external.consumer(holder="farm-1", ttl="2m")
            while True:
                for held in consumer.claim(most=200, wait_s=1.0):
                    start(held.group)
                for held in consumer.stopping():
                    stop(held.group)
                    reports.append((held, "evicted"))
                refused = consumer.report(reports)

    `External.next` needs a thread per claim, which suits a few long claims. This class needs none:
    it learns of admissions and stop requests from one stream of changes, and it renews its claims
    during calls of `claim` and `stopping`. So the caller must make one of these calls well within a
    third of the time to live. A batch takes a bounded number of round trips.
    """

    def __init__(
        self,
        store: RedisStore,
        new_id: Callable[[], str],
        *,
        holder: str,
        ttl_ms: int,
        queue: str = "",
        namespace: str = "",
    ) -> None:
        self._store = store
        self._new_id = new_id
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._queue = queue
        self._namespace = namespace
        self._held: dict[str, Held] = {}
        self._claimable = ClaimableGroups(store, self._held)
        #: The latest known state of the held groups, on which a report is planned first.
        self._known: dict[str, PodGroup] = {}
        self._stopping: dict[str, Held] = {}
        self._renewal_due_at = 0.0

    @property
    def held(self) -> Sequence[Held]:
        """Return the groups whose claim is not over and whose end has not been reported."""
        return tuple(self._held.values())

    def claim(
        self, *, most: int = 100, wait_s: float = 0.0, reported: consumer_leases.AtOnce = ""
    ) -> list[Held]:
        """Claim up to `most` claimable groups, by priority and age; the list may be empty.

        If there are none, wait up to `wait_s` for the next change of any kind. `reported="running"`
        reports with the claim that the work has begun.
        Two round trips. Raises InvalidInput (holder, ttl), StoreUnavailable.
        """
        self._follow(0.0)
        groups = self._claimable.first(most, queue=self._queue, namespace=self._namespace)
        if not groups and wait_s > 0:
            self._follow(wait_s)
            groups = self._claimable.first(most, queue=self._queue, namespace=self._namespace)
        if not groups:
            return []
        asked_at, now_ms = monotonic(), self._store.now_ms()
        known = _Copies({key_of(group): group for group in groups})
        made = [self._claimed(known, key, reported, now_ms) for key in known.groups]
        commit = self._store.commit([one.transaction for one in made], request_id=self._new_id())
        # Another consumer was faster, or the group has changed: the stream brings its new state.
        lost = {refusal.transaction.subject for refusal in commit.refused}
        taken = []
        for one in made:
            key = key_of(one.group)
            self._claimable.skip(key)
            if one.transaction.subject in lost:
                continue
            held = Held(one.group, one.token, asked_at=asked_at)
            self._held[key], self._known[key] = held, one.group
            taken.append(held)
        return taken

    def stopping(self, *, wait_s: float = 0.0) -> list[Held]:
        """Return the groups whose work must stop since the last call; `stop_reason` says why.

        If there are none, wait up to `wait_s` for the next change of any kind. Report each group as
        evicted after its processes have ended, unless its claim has lapsed. Raises
        StoreUnavailable; the next call then returns the groups whose claims could not be renewed.
        """
        self._follow(0.0 if self._stopping else wait_s)
        stopping, self._stopping = list(self._stopping.values()), {}
        return stopping

    def report(
        self, reports: Iterable[tuple[Held, Reported]], *, message: str = ""
    ) -> list[Refused]:
        """Report phases of groups; return the reports that were refused.

        Of several reports on a group the last counts. Two round trips, and two more if groups have
        changed meanwhile. Raises InvalidInput, StoreUnavailable (repeat all reports then).
        """
        latest = {held.key: (held, phase) for held, phase in reports}
        builds: dict[str, _Build] = {
            key: partial(consumer_leases.report, token=held.token, phase=phase, message=message)
            for key, (held, phase) in latest.items()
        }
        errors = self._write(builds)
        for key, (held, phase) in latest.items():
            if self._held.get(key) is not held:
                continue
            if key in errors:
                self._update(held, self._known.get(key))
            elif phase != "running":
                self._drop(key)
        return [Refused(held=latest[key][0], error=error) for key, error in errors.items()]

    def _claimed(
        self, known: _Copies, key: str, reported: consumer_leases.AtOnce, now_ms: int
    ) -> consumer_leases.LeaseTaken:
        return consumer_leases.claim(
            known,
            key,
            holder=self._holder,
            ttl_ms=self._ttl_ms,
            secret=secrets.token_hex(16),
            now_ms=now_ms,
            reported=reported,
        )

    def _follow(self, wait_s: float) -> None:
        """Renew due claims and process the changes since the last call."""
        self._renew()
        for key, group in self._claimable.follow(wait_s).items():
            if held := self._held.get(key):
                self._update(held, group)

    def _update(self, held: Held, group: PodGroup | None) -> None:
        """Process a new state of a held group; None if it was deleted."""
        own = held.group.status
        if group is None or group.status.admission > own.admission:
            self._mark_stopping(held, Leaving.CLAIM_LAPSED)
        elif group.status.claim.token == own.claim.token:
            self._known[held.key] = group
            lapsed = "" if group.status.claim.is_open else str(Leaving.CLAIM_LAPSED)
            if reason := stop_reason_of(group) or lapsed:
                self._mark_stopping(held, reason)
        # Otherwise the state is older than the claim, which the stream brings later.

    def _renew(self) -> None:
        now = monotonic()
        if now < self._renewal_due_at:
            return
        self._renewal_due_at = now + self._ttl_ms / 1000 / (4 * _RENEWALS_A_TTL)
        for held in [one for one in self._held.values() if now >= one.until]:
            self._mark_stopping(held, Leaving.CLAIM_LAPSED)
        due = [one for one in self._held.values() if now >= one.renew_at and not one.stop_reason]
        errors = self._write({held.key: partial(_renewed, token=held.token) for held in due})
        for held in due:
            match errors.get(held.key):
                case None:
                    held.renewed(now)
                case Conflict():
                    self._mark_stopping(held, Leaving.CLAIM_LAPSED)
                case other:
                    raise other

    def _mark_stopping(self, held: Held, reason: str) -> None:
        if held.stop_reason:
            return
        held.stop_reason = str(reason)
        self._stopping[held.key] = held
        if reason == Leaving.CLAIM_LAPSED:
            self._drop(held.key)

    def _drop(self, key: str) -> None:
        self._held.pop(key, None)
        self._known.pop(key, None)

    def _write(self, builds: Mapping[str, _Build]) -> dict[str, BatchqError]:
        """Commit a transaction per group; return the final refusals.

        The first try is planned on the latest known state, which saves a read; later ones on the
        stored state.
        """
        left, known = dict(builds), _Copies(self._known)
        errors: dict[str, BatchqError] = {}
        for tried in range(TRIES):
            if not left:
                break
            if tried:
                known = self._read(list(left))
            wrong, transactions = _build_all(left, known, self._store.now_ms())
            refused = self._commit(transactions)
            errors.update({key: explain_refusal(one) for key, one in refused.items()} | wrong)
            outdated = [key for key, one in refused.items() if one.answer.word in _OUTDATED]
            left = {key: left[key] for key in (*outdated, *([] if tried else wrong))}
            if tried < TRIES - 1:
                errors = {key: error for key, error in errors.items() if key not in left}
        return errors

    def _commit(self, transactions: Sequence[Transaction]) -> dict[str, Refusal]:
        """Commit each transaction independently; return the refusals by the group's key."""
        if not transactions:
            return {}
        commit = self._store.commit(transactions, request_id=self._new_id())
        return {refusal.transaction.writes[0].key: refusal for refusal in commit.refused}

    def _read(self, keys: Sequence[str]) -> _Copies:
        """Read the stored groups and remember the state of those that are held."""
        found = _groups_of(self._store.get_many("PodGroup", keys))
        for key in keys:
            self._known.pop(key, None)
            if key in self._held and key in found:
                self._known[key] = found[key]
        return _Copies(found)


class _Copies:
    """A Reader of some groups as they were a moment ago, and of nothing else."""

    def __init__(self, groups: Mapping[str, PodGroup]) -> None:
        self.groups = groups

    def get(self, kind: str, key: str) -> Object | None:
        """Return the group, or None for any other object."""
        return self.groups.get(key) if kind == "PodGroup" else None

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return the groups, ordered by key; nothing for other kinds."""
        if kind != "PodGroup":
            return ()
        found = [self.groups[key] for key in sorted(self.groups)]
        return [one for one in found if namespace in ("", one.metadata.namespace)]


def _build_all(
    builds: Mapping[str, _Build], known: _Copies, now_ms: int
) -> tuple[dict[str, BatchqError], list[Transaction]]:
    """Build the transactions; return the errors by key, and the transactions that are needed."""
    wrong: dict[str, BatchqError] = {}
    transactions: list[Transaction] = []
    for key, build in builds.items():
        try:
            transaction = build(known, now_ms=now_ms)
        except Conflict as error:
            wrong[key] = error
        else:
            if transaction is not None:
                transactions.append(transaction)
    return wrong, transactions


def _renewed(reader: _Copies, *, token: str, now_ms: int) -> Transaction | None:
    return consumer_leases.renew(reader, token, ttl_ms=None, now_ms=now_ms).transaction


def _groups_of(found: Mapping[str, Object]) -> dict[str, PodGroup]:
    return {key: item for key, item in found.items() if isinstance(item, PodGroup)}
