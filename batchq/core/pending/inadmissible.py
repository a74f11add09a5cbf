"""Inadmissible groups: parked because only certain changes can lift their refusal.

An ineligible group is not evaluated again before something happens that could make it eligible:
each plugin declares which changes lift its refusals (`lifted_by`). A parked group is in no pending
queue and costs a session nothing; the changes that unpark it are indexed. Refusals of plugins
without such a declaration are checked in every session.

The set lasts across sessions and changes no decision: without it, every group would be evaluated,
with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.core.extension import LiftedBy, LiftingChange
from batchq.core.pending.eligibility import is_active, retry_at
from batchq.core.session.snapshot import Generation
from batchq.core.session.state import GroupState

if TYPE_CHECKING:
    from batchq.core.session.session import Session


#: Changes that lift the session's own refusals (batchq.core.pending.eligibility).
OF_SESSION: LiftedBy = {
    Waiting.MISCONFIGURED: frozenset(),
    Waiting.QUEUE_NOT_FOUND: frozenset(),
    Waiting.QUEUE_STOPPED: frozenset(),
    Waiting.SUSPENDED: frozenset(),
    Waiting.BACKING_OFF: frozenset({LiftingChange.CLOCK}),
}


#: Changes that lift refusals of nodes (batchq.core.placement.trial), if they are out of line.
OF_NODES: LiftedBy = {Waiting.WAITING_FOR_RESOURCES: frozenset()}


@dataclass(frozen=True, slots=True)
class ParkedGroup:
    """A parked group as of its last evaluation."""

    record: PodGroup
    verdicts: tuple[Verdict, ...]


class InadmissibleGroups:
    """The owner of the parked groups, by uid; belongs to one scheduler."""

    def __init__(self) -> None:
        #: Uid -> the verdicts on a parked group.
        self.parked: dict[str, tuple[Verdict, ...]] = {}
        self._entries: dict[str, ParkedGroup] = {}
        #: Uid -> the groups parked until something happens to that group, by uid, in order.
        self._waiting_for: dict[str, dict[str, None]] = {}
        #: Uid -> its record when the first of those was parked, and whether it had running
        #: processes.
        self._seen: dict[str, tuple[PodGroup, bool] | None] = {}
        #: Groups whose refusal depends on admission checks.
        self._by_checks: dict[str, None] = {}
        #: When to unpark which group; entries of groups already unparked stay.
        self._clock: list[tuple[int, str]] = []
        #: What all groups are judged by, and the admission checks.
        self._configured = Generation()
        self._checked = Generation()

    @property
    def generation(self) -> tuple[int, int]:
        """Return a token that stays equal until all groups are unparked or any check changes."""
        return (self._configured.count, self._checked.count)

    @property
    def awaited(self) -> Iterable[str]:
        """Return the uids of the groups whose ends parked groups wait for."""
        return self._seen.keys()

    def may_park(self) -> bool:
        """Return whether classes may be parked, too."""
        return True

    def stays_parked(self, group: GroupState) -> bool:
        """Return whether a group that was read again is unchanged since it was parked."""
        entry = self._entries.get(group.uid)
        if entry is None:
            return False
        if entry.record is group.record and not group.pods:
            return True
        self.forget(group.uid)
        return False

    def forget(self, uid: str) -> None:
        """Remove a group that is gone or unparked."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        del self.parked[uid]
        self._by_checks.pop(uid, None)
        for other in entry.record.spec.depends_on:
            waiting = self._waiting_for.get(other.uid)
            if waiting is not None:
                waiting.pop(uid, None)
                if not waiting:
                    del self._waiting_for[other.uid]
                    self._seen.pop(other.uid, None)

    def unpark(self, session: Session, changed: Iterable[str]) -> list[str]:
        """Unpark the groups for which something relevant has happened, and return their uids.

        `changed` has the uids of groups whose records or pods have changed since the previous
        session.
        """
        snapshot, unparked = session.snapshot, dict[str, None]()
        everything = self._configured.follow(
            snapshot.queues, snapshot.quotas, snapshot.priority_classes, session.nodes.version
        )
        checks = self._checked.follow(snapshot.admission_checks, _active(session))
        if everything:
            unparked = dict.fromkeys(self._entries)
        elif checks:
            unparked = dict.fromkeys(self._by_checks)
        if self._waiting_for:
            for uid in changed:
                if uid in self._seen and not self._is_as_seen(session, uid):
                    unparked |= self._waiting_for[uid]
        while self._clock and self._clock[0][0] <= session.now_ms:
            _, uid = heappop(self._clock)
            if uid in self._entries:
                unparked[uid] = None
        for uid in unparked:
            self.forget(uid)
        return list(unparked)

    def next_at(self) -> int | None:
        """Return the next instant (ms) at which a group is unparked."""
        while self._clock and self._clock[0][1] not in self._entries:
            heappop(self._clock)
        return self._clock[0][0] if self._clock else None

    def park(self, session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> bool:
        """Park a group with these verdicts if possible; return whether it is parked.

        Call this only if the group's record has these reasons already, so that nothing is left to
        be stored.
        """
        if isinstance(verdicts, Blockers) and verdicts.are_in_line:
            return False
        if group.record.status is not group.status or not _has_nothing_of_its_own(session, group):
            return False
        changes = _lifted_by(session, verdicts)
        if changes is None:
            return False
        uid = group.uid
        self._entries[uid] = ParkedGroup(record=group.record, verdicts=verdicts)
        self.parked[uid] = verdicts
        if LiftingChange.CHECKS in changes:
            self._by_checks[uid] = None
        for other in group.record.spec.depends_on:
            self._waiting_for.setdefault(other.uid, {})[uid] = None
            self._seen.setdefault(other.uid, _standing(session.groups.get(other.uid)))
        if (at := _wake_at(session, group)) is not None:
            heappush(self._clock, (at, uid))
        return True

    def _is_as_seen(self, session: Session, uid: str) -> bool:
        """Return whether a group that others wait for has made no relevant progress: of the changes
        of its pods, only the end of the last one matters.
        """
        seen, now = self._seen[uid], _standing(session.groups.get(uid))
        if seen is None or now is None:
            return seen is now
        return seen[0] is now[0] and seen[1] == now[1]


def _standing(group: GroupState | None) -> tuple[PodGroup, bool] | None:
    """Return the relevant state of a group that others wait for; None if it is gone."""
    if group is None:
        return None
    on_nodes = any(pod.status.phase in ON_NODE for pod in group.given_pods)
    return (group.record, on_nodes)


def _active(session: Session) -> tuple[bool, ...]:
    return tuple(is_active(item, session.now_ms) for item in session.snapshot.admission_checks)


def _has_nothing_of_its_own(session: Session, group: GroupState) -> bool:
    """Return whether a group is only a waiting record."""
    status = group.status
    return (
        group.phase == PodGroupPhase.PENDING
        and not group.reserved
        and not group.pods
        and not status.charge
        and not status.claim.is_open
        and not status.pledge.stands
        and not (status.evictions.recent and session.settings.eviction_budget is not None)
        and not session.ledger.preemptors.get(group.uid)
    )


def _lifted_by(session: Session, verdicts: Iterable[Verdict]) -> set[LiftingChange] | None:
    """Return the changes that can make a group eligible; None if none are declared."""
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


def is_lifted_with_all(session: Session, verdicts: Iterable[Verdict]) -> bool:
    """Return whether only changes that unpark all groups lift the refusals."""
    return _lifted_by(session, verdicts) == set()


def _wake_at(session: Session, group: GroupState) -> int | None:
    """Return the first instant (ms) named in its record that has not passed."""
    named = (group.status.backoff_until, retry_at(session, group))
    return min((at for at in named if at is not None and at > session.now_ms), default=None)
