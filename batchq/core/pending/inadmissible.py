"""Groups that sleep: refused for a reason that only certain changes can lift.

A group that stands out of line is not looked at again before something happens that could let it
in: each plugin says by which changes its refusals are lifted (`lifted_by`). A sleeping group is
in no queue's line, and costs a session nothing; it is found by what wakes it. What a plugin says
nothing about is asked about in every session.

The memory lasts from session to session and changes no decision: without it, every group would be
asked, and would answer the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.core.extension.traits import LiftedBy, LiftingChange
from batchq.core.pending.eligibility import is_active, retry_at
from batchq.core.session.state import GroupState

if TYPE_CHECKING:
    from batchq.core.session.session import Session


#: For what the session itself finds (batchq.core.pending.eligibility).
OF_SESSION: LiftedBy = {
    Waiting.MISCONFIGURED: frozenset(),
    Waiting.QUEUE_NOT_FOUND: frozenset(),
    Waiting.QUEUE_STOPPED: frozenset(),
    Waiting.SUSPENDED: frozenset(),
    Waiting.BACKING_OFF: frozenset({LiftingChange.CLOCK}),
}


#: For what nodes refuse (batchq.core.placement.trial), out of line only.
OF_NODES: LiftedBy = {Waiting.WAITING_FOR_RESOURCES: frozenset()}


@dataclass(frozen=True, slots=True)
class Asleep:
    """A group as it was when it was last asked."""

    record: PodGroup
    verdicts: tuple[Verdict, ...]


class InadmissibleGroups:
    """Owner of what is known of sleeping groups, by uid; belongs to one scheduler."""

    def __init__(self) -> None:
        #: Uid -> why not, of all that sleep.
        self.asleep: dict[str, tuple[Verdict, ...]] = {}
        self._entries: dict[str, Asleep] = {}
        #: Uid -> those that sleep until something happens to it, by uid, in order.
        self._waiting_for: dict[str, dict[str, None]] = {}
        #: Uid -> its record when the first of those fell asleep, and whether processes of it ran.
        self._seen: dict[str, tuple[PodGroup, bool] | None] = {}
        #: Those to whom the admission checks matter.
        self._by_checks: dict[str, None] = {}
        #: When to look again, and at whom; entries of those that have been woken stay.
        self._clock: list[tuple[int, str]] = []
        self._world: tuple[object, ...] = ()
        self._checks: object = None
        self._world_version = 0
        self._checks_version = 0

    @property
    def world(self) -> tuple[int, int]:
        """The same as long as nothing has changed that wakes everybody, nor any check."""
        return (self._world_version, self._checks_version)

    @property
    def awaited(self) -> Iterable[str]:
        """The uids of the groups whose ends sleeping groups wait for."""
        return self._seen.keys()

    def may_sleep(self) -> bool:
        """Whether classes may sleep, too."""
        return True

    def still_sleeps(self, group: GroupState) -> bool:
        """Whether a group whose record has been read again is as it was when it fell asleep."""
        entry = self._entries.get(group.uid)
        if entry is None:
            return False
        if entry.record is group.record and not group.pods:
            return True
        self.forget(group.uid)
        return False

    def forget(self, uid: str) -> None:
        """A group is gone, or awake."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        del self.asleep[uid]
        self._by_checks.pop(uid, None)
        for other in entry.record.spec.depends_on:
            waiting = self._waiting_for.get(other.uid)
            if waiting is not None:
                waiting.pop(uid, None)
                if not waiting:
                    del self._waiting_for[other.uid]
                    self._seen.pop(other.uid, None)

    def wake(self, session: Session, changed: Iterable[str]) -> list[str]:
        """Whom something has happened to that could let them in, by uid; they sleep no more.

        `changed`: the uids of groups that are not what they were in the session before, their
        records or their pods.
        """
        world, checks = self.world
        self._notice(session)
        woken: dict[str, None] = {}
        if world != self._world_version:
            woken = dict.fromkeys(self._entries)
        elif checks != self._checks_version:
            woken = dict.fromkeys(self._by_checks)
        if self._waiting_for:
            for uid in changed:
                if uid in self._seen and not self._is_as_seen(session, uid):
                    woken |= self._waiting_for[uid]
        while self._clock and self._clock[0][0] <= session.now_ms:
            _, uid = heappop(self._clock)
            if uid in self._entries:
                woken[uid] = None
        for uid in woken:
            self.forget(uid)
        return list(woken)

    def next_at(self) -> int | None:
        """When one of them wakes by the clock."""
        while self._clock and self._clock[0][1] not in self._entries:
            heappop(self._clock)
        return self._clock[0][0] if self._clock else None

    def park(self, session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> bool:
        """Let a group sleep that was refused like this, if it may; whether it does.

        To be called only when its record says so already: nothing is left to be written.
        """
        if isinstance(verdicts, Blockers) and verdicts.are_in_line:
            return False
        if group.record.status is not group.status or not _has_nothing_of_its_own(session, group):
            return False
        changes = _lifted_by(session, verdicts)
        if changes is None:
            return False
        uid = group.uid
        self._entries[uid] = Asleep(record=group.record, verdicts=verdicts)
        self.asleep[uid] = verdicts
        if LiftingChange.CHECKS in changes:
            self._by_checks[uid] = None
        for other in group.record.spec.depends_on:
            self._waiting_for.setdefault(other.uid, {})[uid] = None
            self._seen.setdefault(other.uid, _standing(session.groups.get(other.uid)))
        if (at := _wake_at(session, group)) is not None:
            heappush(self._clock, (at, uid))
        return True

    def _is_as_seen(self, session: Session, uid: str) -> bool:
        """Whether a group that others wait for has gone no further: of the steps of its pods, only
        the end of the last one matters.
        """
        seen, now = self._seen[uid], _standing(session.groups.get(uid))
        if seen is None or now is None:
            return seen is now
        return seen[0] is now[0] and seen[1] == now[1]

    def _notice(self, session: Session) -> None:
        snapshot = session.snapshot
        world = (
            snapshot.queues,
            snapshot.quotas,
            snapshot.priority_classes,
            session.nodes.version,
        )
        if not _same(world, self._world):
            self._world = world
            self._world_version += 1
        checks = (snapshot.admission_checks, _active(session))
        if checks != self._checks:
            self._checks = checks
            self._checks_version += 1


def _standing(group: GroupState | None) -> tuple[PodGroup, bool] | None:
    """How a session finds a group that others wait for; None of one that is gone."""
    if group is None:
        return None
    on_nodes = any(pod.status.phase in ON_NODE for pod in group.given_pods)
    return (group.record, on_nodes)


def _active(session: Session) -> tuple[bool, ...]:
    return tuple(is_active(item, session.now_ms) for item in session.snapshot.admission_checks)


def _same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    return len(left) == len(right) and all(
        one is other or one == other for one, other in zip(left, right, strict=True)
    )


def _has_nothing_of_its_own(session: Session, group: GroupState) -> bool:
    """Whether a group is nothing but a record that waits."""
    status = group.status
    return (
        group.phase == PodGroupPhase.PENDING
        and not group.reserved
        and not group.pods
        and not status.charge
        and not status.claim.is_open
        and not status.pledge.stands
        and not (status.evictions.recent and session.settings.eviction_budget is not None)
        and not session.ledger.claimants.get(group.uid)
    )


def _lifted_by(session: Session, verdicts: Iterable[Verdict]) -> set[LiftingChange] | None:
    """What can lift the refusals that put a group out of line; None if nobody has said so."""
    found: set[LiftingChange] = set()
    known = False
    for verdict in verdicts:
        if verdict.in_line or verdict.reason == Waiting.WAITING_FOR_QUOTA:
            continue
        changes = session.plugins.lifted_by.get(verdict.plugin, {}).get(verdict.reason)
        if changes is not None:
            known = True
            found |= changes
    return found if known else None


def only_the_world_helps(session: Session, verdicts: Iterable[Verdict]) -> bool:
    """Whether what put a group out of line is lifted by nothing but what wakes everybody."""
    return _lifted_by(session, verdicts) == set()


def _wake_at(session: Session, group: GroupState) -> int | None:
    """The first of the instants that its record names which has not passed."""
    named = (group.status.backoff_until, retry_at(session, group))
    return min((at for at in named if at is not None and at > session.now_ms), default=None)
