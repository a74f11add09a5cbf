"""A consumer of many external groups at once: one thread, a bounded number of round trips a batch.

    with Client() as client:
        consumer = client.external.consumer(holder="farm-1", ttl="2m")
        while True:
            for held in consumer.claim(most=200, wait_s=1.0):
                start(held.group)
            for held in consumer.stopping():
                stop(held.group)
                reports.append((held, "evicted"))
            refused = consumer.report(reports)

`batchq.client.external.External.next` keeps a thread for each claim, which is right for a few long
ones. This keeps none: it hears of what is admitted, and of what is to stop, over the one stream of
changes that it follows, and what it holds is renewed while it is asked to claim or to say what is
to stop. Whoever runs one calls either well within a third of the time to live.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from batchq.api.objects import Object, PodGroup, PriorityClass, is_claimable, key_of, stop_reason_of
from batchq.api.reasons import Leaving
from batchq.api.transaction import Refusal, Transaction, Word
from batchq.changes import consumer_leases, explain_refusal
from batchq.changes.consumer_leases import Reported
from batchq.client.requests import TRIES
from batchq.client.watch import Watch
from batchq.core.cache.chunks import UidOrder, uid_order
from batchq.core.cache.scheduler_cache import priorities_of
from batchq.errors import BatchqError, Conflict

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

#: How often a claim is renewed within its time to live.
_RENEWALS_A_TTL = 3

#: Refusals of what was worked out on something that has changed since.
_OUTDATED = (Word.CONFLICT, Word.FENCED)

#: What to write about a group, by what is known of the groups.
_Build = Callable[..., Transaction | None]


class Line:
    """The external groups that can be claimed, followed from change to change; of one thread."""

    def __init__(self, store: RedisStore) -> None:
        self._watch = Watch(store, ("PodGroup", "PriorityClass"))
        self._waiting: dict[str, PodGroup] = {}
        self._classes: dict[str, PriorityClass] = {}

    def follow(self, wait_s: float) -> dict[str, PodGroup | None]:
        """What has become of groups, after at most `wait_s` of waiting for any change; None: they
        were deleted.

        Raises StoreUnavailable.
        """
        heard: dict[str, PodGroup | None] = {}
        for change in self._watch.poll(round(wait_s * 1000)):
            value = change.value
            if change.kind == "PodGroup":
                group = value if isinstance(value, PodGroup) else None
                heard[change.key] = group
                if group is not None and is_claimable(group):
                    self._waiting[change.key] = group
                else:
                    self._waiting.pop(change.key, None)
            elif isinstance(value, PriorityClass):
                self._classes[change.key] = value
            else:
                self._classes.pop(change.key, None)
        return heard

    def first(
        self, most: int | None = None, *, queue: str = "", namespace: str = ""
    ) -> list[PodGroup]:
        """Those (of a queue, of a namespace) that can be claimed: by priority, then by age."""
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
        # Where nobody has to be left out, the order of claims made in one call says nothing.
        return found if len(found) <= most else heapq.nsmallest(most, found, key=place_in_line)

    def pass_over(self, key: str) -> None:
        """Say no more of a group until it changes."""
        self._waiting.pop(key, None)


class Held:
    """One group that a consumer has claimed. `group` is as it was then."""

    __slots__ = ("group", "key", "renew_at", "stop_reason", "token", "until")

    def __init__(self, group: PodGroup, token: str, *, asked_at: float) -> None:
        self.key = key_of(group)
        self.group = group
        self.token = token
        #: Why the work is to be stopped; empty while it may go on.
        self.stop_reason = ""
        # By this machine's monotonic clock, from before it was asked for: the server's is later.
        self.renewed(asked_at)

    def renewed(self, asked_at: float) -> None:
        """It was renewed by a request that was made at `asked_at`."""
        ttl_s = self.group.status.claim.ttl / 1000
        self.until = asked_at + ttl_s
        self.renew_at = asked_at + ttl_s / _RENEWALS_A_TTL

    @property
    def grace_s(self) -> float:
        """How long the work may take to stop, once it was told to."""
        return self.group.status.claim.grace / 1000


class Refused(Struct, frozen=True, kw_only=True):
    """A report that was not taken, and why: the claim is over, or the work was told to stop."""

    held: Held
    error: BatchqError


class Consumer:
    """Claims, reports and renews for many groups at once. Owned by one thread."""

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
        self._line = Line(store)
        self._held: dict[str, Held] = {}
        #: Of those that are held, the latest that was heard: what a report is made on at first.
        self._known: dict[str, PodGroup] = {}
        self._stopping: dict[str, Held] = {}
        self._look_at = 0.0

    @property
    def held(self) -> Sequence[Held]:
        """What it holds: claimed, and neither its end reported nor the claim heard to be over."""
        return tuple(self._held.values())

    def claim(
        self, *, most: int = 100, wait_s: float = 0.0, reported: consumer_leases.AtOnce = ""
    ) -> list[Held]:
        """Claim up to `most` of the groups that wait, the first of the line; none if there are
        none. With nothing to claim, it waits up to `wait_s` for the next change, whatever it is.

        `reported` "running" says with the claim itself that the work has begun.
        Two round trips. Raises InvalidInput (holder, ttl), StoreUnavailable.
        """
        self._follow(0.0)
        groups = self._line.first(most, queue=self._queue, namespace=self._namespace)
        if not groups and wait_s > 0:
            self._follow(wait_s)
            groups = self._line.first(most, queue=self._queue, namespace=self._namespace)
        if not groups:
            return []
        asked_at, now_ms = monotonic(), self._store.now_ms()
        known = _Copies({key_of(group): group for group in groups})
        made = [self._claimed(known, key, reported, now_ms) for key in known.groups]
        commit = self._store.commit([one.transaction for one in made], request_id=self._new_id())
        # Somebody was faster, or the group has changed: the stream tells what it is now.
        lost = {refusal.transaction.subject for refusal in commit.refused}
        taken = []
        for one in made:
            key = key_of(one.group)
            self._line.pass_over(key)
            if one.transaction.subject in lost:
                continue
            held = Held(one.group, one.token, asked_at=asked_at)
            self._held[key], self._known[key] = held, one.group
            taken.append(held)
        return taken

    def stopping(self, *, wait_s: float = 0.0) -> list[Held]:
        """Those whose work is to be stopped (`stop_reason` says why) since the last call; it waits
        up to `wait_s` for the next change, whatever it is.

        Report each as evicted when nothing of it runs any more, but for those whose claim has
        lapsed. Raises StoreUnavailable; then, what could not be renewed in time is told to stop
        by the next call.
        """
        self._follow(0.0 if self._stopping else wait_s)
        told, self._stopping = list(self._stopping.values()), {}
        return told

    def report(
        self, reports: Iterable[tuple[Held, Reported]], *, message: str = ""
    ) -> list[Refused]:
        """Say of groups that they run, have succeeded, failed or stopped; which could not be said.

        The latest word on a group counts. Two round trips, and two more for those that have changed
        meanwhile. Raises InvalidInput, StoreUnavailable (say all of it again).
        """
        said = {held.key: (held, phase) for held, phase in reports}
        builds: dict[str, _Build] = {
            key: partial(consumer_leases.report, token=held.token, phase=phase, message=message)
            for key, (held, phase) in said.items()
        }
        errors = self._write(builds)
        for key, (held, phase) in said.items():
            if self._held.get(key) is not held:
                continue
            if key in errors:
                self._learn(held, self._known.get(key))
            elif phase != "running":
                self._let_go(key)
        return [Refused(held=said[key][0], error=error) for key, error in errors.items()]

    # --- parts ------------------------------------------------------------------------------

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
        """Renew what is due, and hear what has happened."""
        self._renew()
        for key, group in self._line.follow(wait_s).items():
            if held := self._held.get(key):
                self._learn(held, group)

    def _learn(self, held: Held, group: PodGroup | None) -> None:
        """What has become of a group that is held; None: it was deleted."""
        own = held.group.status
        if group is None or group.status.admission > own.admission:
            self._tell_to_stop(held, Leaving.CLAIM_LAPSED)
        elif group.status.claim.token == own.claim.token:
            self._known[held.key] = group
            lapsed = "" if group.status.claim.is_open else str(Leaving.CLAIM_LAPSED)
            if reason := stop_reason_of(group) or lapsed:
                self._tell_to_stop(held, reason)
        # Else it is from before the claim: one's own writes come over the stream later.

    def _renew(self) -> None:
        now = monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._ttl_ms / 1000 / (4 * _RENEWALS_A_TTL)
        for held in [one for one in self._held.values() if now >= one.until]:
            self._tell_to_stop(held, Leaving.CLAIM_LAPSED)
        due = [one for one in self._held.values() if now >= one.renew_at and not one.stop_reason]
        errors = self._write({held.key: partial(_renewed, token=held.token) for held in due})
        for held in due:
            match errors.get(held.key):
                case None:
                    held.renewed(now)
                case Conflict():
                    self._tell_to_stop(held, Leaving.CLAIM_LAPSED)
                case other:
                    raise other

    def _tell_to_stop(self, held: Held, reason: str) -> None:
        if held.stop_reason:
            return
        held.stop_reason = str(reason)
        self._stopping[held.key] = held
        if reason == Leaving.CLAIM_LAPSED:
            self._let_go(held.key)

    def _let_go(self, key: str) -> None:
        self._held.pop(key, None)
        self._known.pop(key, None)

    def _write(self, builds: Mapping[str, _Build]) -> dict[str, BatchqError]:
        """Commit what is to be written about each group, and what was refused for good.

        First on what was heard last, which saves reading it, and then on what is stored.
        """
        left, known = dict(builds), _Copies(self._known)
        errors: dict[str, BatchqError] = {}
        for tried in range(TRIES):
            if not left:
                break
            if tried:
                known = self._read(list(left))
            wrong, transactions = _built(left, known, self._store.now_ms())
            refused = self._commit(transactions)
            errors.update({key: explain_refusal(one) for key, one in refused.items()} | wrong)
            outdated = [key for key, one in refused.items() if one.answer.word in _OUTDATED]
            left = {key: left[key] for key in (*outdated, *([] if tried else wrong))}
            if tried < TRIES - 1:
                errors = {key: error for key, error in errors.items() if key not in left}
        return errors

    def _commit(self, transactions: Sequence[Transaction]) -> dict[str, Refusal]:
        """Each by itself; what was refused, by the group's key."""
        if not transactions:
            return {}
        commit = self._store.commit(transactions, request_id=self._new_id())
        return {refusal.transaction.writes[0].key: refusal for refusal in commit.refused}

    def _read(self, keys: Sequence[str]) -> _Copies:
        """The groups as they are stored; of those that are held, that is known from now on."""
        found = _groups_of(self._store.get_many("PodGroup", keys))
        for key in keys:
            self._known.pop(key, None)
            if key in self._held and key in found:
                self._known[key] = found[key]
        return _Copies(found)


class _Copies:
    """Some groups as they were a moment ago: a Reader of these alone."""

    def __init__(self, groups: Mapping[str, PodGroup]) -> None:
        self.groups = groups

    def get(self, kind: str, key: str) -> Object | None:
        """The group, or None for any other object."""
        return self.groups.get(key) if kind == "PodGroup" else None

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """The groups, ordered by key; of any other kind nothing."""
        if kind != "PodGroup":
            return ()
        found = [self.groups[key] for key in sorted(self.groups)]
        return [one for one in found if namespace in ("", one.metadata.namespace)]


def _built(
    builds: Mapping[str, _Build], known: _Copies, now_ms: int
) -> tuple[dict[str, BatchqError], list[Transaction]]:
    """What cannot be said, and what is to be written about the others, if anything is."""
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
