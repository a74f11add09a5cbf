"""Groups that sleep: refused for a reason that only certain changes can lift.

A group that stands out of line is not looked at again before something happens that could let it
in: each plugin says by which changes its refusals are lifted (`lifted_by`). A sleeping group is
in no queue's line, and costs a session a comparison. What a plugin says nothing about is asked
about in every session.

The memory lasts from session to session and changes no decision: without it, every group would be
asked, and would answer the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.framework.checks import is_active, retry_at
from batchq.framework.state import GroupState

if TYPE_CHECKING:
    from batchq.framework.session import Session


class Change(StrEnum):
    """What can lift a refusal, beside a change of the group's own record.

    A change of queues, quotas, nodes or priority classes wakes everybody: it is rare.
    """

    #: An admission check is there, or gone, or its controller's lease has moved.
    CHECKS = "checks"
    #: Another group that this one depends on.
    DEPENDENCIES = "dependencies"
    #: An instant that the group's own record names.
    CLOCK = "clock"


#: Reason -> the changes that can lift a refusal for it.
LiftedBy: TypeAlias = Mapping[Waiting, frozenset[Change]]

#: For what the session itself finds (batchq.framework.eligibility).
OF_SESSION: LiftedBy = {
    Waiting.MISCONFIGURED: frozenset(),
    Waiting.QUEUE_NOT_FOUND: frozenset(),
    Waiting.QUEUE_STOPPED: frozenset(),
    Waiting.SUSPENDED: frozenset(),
    Waiting.BACKING_OFF: frozenset({Change.CLOCK}),
}


@dataclass(frozen=True, slots=True)
class Asleep:
    """A group as it was when it was last asked, and what would wake it."""

    record: PodGroup
    verdicts: tuple[Verdict, ...]
    world: int
    #: The version of the admission checks, if they matter; the records of the groups that it
    #: depends on, as they were; and when to look again.
    checks: int | None
    others: tuple[PodGroup | None, ...]
    wake_at: int | None


class Parking:
    """Owner of what is known of sleeping groups, by uid; belongs to one scheduler."""

    def __init__(self) -> None:
        self._asleep: dict[str, Asleep] = {}
        self._world: tuple[object, ...] = ()
        self._checks: object = None
        self._world_version = 0
        self._checks_version = 0

    @property
    def world(self) -> tuple[int, int]:
        """The same as long as nothing has changed that wakes everybody, nor any check."""
        return (self._world_version, self._checks_version)

    def sleeping(self, session: Session) -> dict[str, tuple[Verdict, ...]]:
        """The groups that nothing has happened to that could let them in: uid -> why not."""
        self._notice(session)
        if not self._asleep:
            return {}
        self._asleep = dict(self._still_asleep(session))
        return {uid: entry.verdicts for uid, entry in self._asleep.items()}

    def park(self, session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> None:
        """Let a group sleep that was refused like this, if it may.

        To be called only when its record says so already: nothing is left to be written.
        """
        if isinstance(verdicts, Blockers) and verdicts.are_in_line:
            return
        if group.record.status is not group.status or not _has_nothing_of_its_own(session, group):
            return
        changes = _lifted_by(session, verdicts)
        if changes is None:
            return
        self._asleep[group.uid] = Asleep(
            record=group.record,
            verdicts=verdicts,
            world=self._world_version,
            checks=self._checks_version if Change.CHECKS in changes else None,
            others=_others(session, group.record),
            wake_at=_wake_at(session, group) if Change.CLOCK in changes else None,
        )

    def _still_asleep(self, session: Session) -> Iterator[tuple[str, Asleep]]:
        for uid, entry in self._asleep.items():
            group = session.groups.get(uid)
            if group is None or group.record is not entry.record:
                continue
            if entry.world != self._world_version:
                continue
            if entry.checks is not None and entry.checks != self._checks_version:
                continue
            if entry.wake_at is not None and entry.wake_at <= session.now_ms:
                continue
            if entry.others and not _same(entry.others, _others(session, entry.record)):
                continue
            yield uid, entry

    def _notice(self, session: Session) -> None:
        snapshot = session.snapshot
        nodes = tuple(
            (node.record.metadata.labels, node.record.spec, node.ready)
            for node in session.nodes.values()
        )
        world = (
            snapshot.queues,
            snapshot.quotas,
            snapshot.priority_classes,
            nodes,
            session.known_resources,
        )
        if world != self._world:
            self._world = world
            self._world_version += 1
        checks = (snapshot.admission_checks, _active(session))
        if checks != self._checks:
            self._checks = checks
            self._checks_version += 1


def _active(session: Session) -> tuple[bool, ...]:
    return tuple(is_active(item, session.now_ms) for item in session.snapshot.admission_checks)


def _same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    return all(one is other for one, other in zip(left, right, strict=True))


def _others(session: Session, record: PodGroup) -> tuple[PodGroup | None, ...]:
    found = (session.groups.get(one.uid) for one in record.spec.depends_on)
    return tuple(None if group is None else group.record for group in found)


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
        and not session.ledger.claimants.get(group.uid)
    )


def _lifted_by(session: Session, verdicts: Iterable[Verdict]) -> set[Change] | None:
    """What can lift the refusals that put a group out of line; None if nobody has said so."""
    found: set[Change] = set()
    known = False
    for verdict in verdicts:
        if verdict.in_line or verdict.reason == Waiting.WAITING_FOR_QUOTA:
            continue
        changes = session.lifted_by.get(verdict.plugin, {}).get(verdict.reason)
        if changes is not None:
            known = True
            found |= changes
    return found if known else None


def _wake_at(session: Session, group: GroupState) -> int | None:
    """The first of the instants that its record names which has not passed."""
    named = (group.status.backoff_until, retry_at(session, group))
    return min((at for at in named if at is not None and at > session.now_ms), default=None)
