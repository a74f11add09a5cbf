"""Eligibility: why a Pending group is out of line because of its own state or its queue's (plugins
are not included); and inadmissible groups, which are parked because only certain changes can lift
their refusal.

An ineligible group is not evaluated again before something happens that could make it eligible:
each plugin declares which changes lift its refusals (`lifted_by`). A parked group is in no pending
queue and costs a session nothing; the changes that unpark it are indexed. Refusals of plugins
without such a declaration are checked in every session.

The set lasts across sessions and changes no decision: without it, every group would be evaluated,
with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.notation import MINUTE, format_duration, format_instant
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    CheckState,
    Dependency,
    GroupClaim,
    PodGroup,
)
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.core.extension import LiftedBy, LiftingChange, Rule
from batchq.core.kept_capacity import awaits_victims, nodes_awaited
from batchq.core.quota import ROOT
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Generation, Settings
from batchq.core.session.specs import contradictions
from batchq.core.session.state import GroupState

if TYPE_CHECKING:
    from batchq.core.session.session import Session


_PLUGIN = "session"
_QUEUES_SHOWN = 10


def state_refusals(session: Session, group: GroupState) -> list[Verdict]:
    """Return all such reasons: contradictions, a missing or stopped queue, suspension, backoff."""
    found: list[tuple[Waiting, str]] = []
    shape = group.given_shape
    unsound = [] if shape.is_sound else contradictions(shape.spec, shape.replicas, shape.min_member)
    found += [(Waiting.MISCONFIGURED, text) for text in (*unsound, *_unknown_names(session, group))]
    queue = session.queues.get(group.queue)
    if queue is None:
        found.append((Waiting.QUEUE_NOT_FOUND, _known_queues_text(session, group.queue)))
    found += [
        (Waiting.QUEUE_STOPPED, f"queue {name} is stopped ({policy})")
        for name, policy in stops_of(session, group)
    ]
    if group.record.spec.suspend:
        found.append((Waiting.SUSPENDED, "the group is suspended"))
    claim = group.status.claim
    if group.is_external and claim.is_open:
        found.append((Waiting.BACKING_OFF, _consumer_text(claim)))
    if awaits_victims(session, group):
        found.append((Waiting.WAITING_FOR_PREEMPTION, _victims_text(session, group)))
    if nodes := nodes_awaited(session, group.status.pledge):
        found.append((Waiting.WAITING_FOR_RESOURCES, _lost_nodes_text(group, nodes)))
    until = group.status.backoff_until
    if until is not None and session.now_ms < until:
        found.append((Waiting.BACKING_OFF, _pause_text(session, group)))
    return [Verdict(plugin=_PLUGIN, reason=reason, detail=detail) for reason, detail in found]


def _known_queues_text(session: Session, name: str) -> str:
    """Return the message about a missing queue, with the nearest name if not all are listed."""
    from difflib import get_close_matches

    names = list(session.queues)
    near = get_close_matches(name, names, n=1)
    shown = names[:_QUEUES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    meant = f"; did you mean {near[0]}?" if near and more else ""
    return f"there is no queue {name}; there are: {', '.join(shown)}{more}{meant}"


def _pause_text(session: Session, group: GroupState) -> str:
    """Return why the group left InQueue and how long it pauses: one text for the pause."""
    left = next((one for one in group.status.conditions if one.type == "Evicted"), None)
    why = f"{left.reason}: {left.message}" if left and left.message else "it had to leave InQueue"
    pause = format_duration(pause_ms(session.settings, max(0, group.status.backoff_count - 1)))
    times = group.status.backoff_count
    nth = "the first time" if times < 2 else f"{times} times in a row"
    until = format_instant(group.status.backoff_until or session.now_ms)
    return f"pauses for {pause}, until {until}, {nth}; {why}"


def _victims_text(session: Session, group: GroupState) -> str:
    """Return which victims must end first; the text stays the same until the last has ended."""
    pledge = group.status.pledge
    victims = pledge.victims
    shown = ", ".join(victims[:3]) + (f" and {len(victims) - 3} more" if len(victims) > 3 else "")
    if pledge.expires is None and group.status.checks:
        return f"waits until its checks allow the eviction of {shown}"
    have = "has" if len(victims) == 1 else "have"
    expires = group.status.pledge.expires
    patience = "" if expires is None else f", at the latest at {format_instant(expires)}"
    return f"waits until {shown} {have} stopped for it{patience}"


def _lost_nodes_text(group: GroupState, nodes: list[str]) -> str:
    """Return which nodes must come back; the text stays the same while they are away."""
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    until = format_instant(group.status.pledge.expires or 0)
    return f"its pledged capacity on {shown} is lost or cordoned: waits until {until}"


def _consumer_text(claim: GroupClaim) -> str:
    """Return why the open lease of an external group keeps it out of line: two consumers must not
    run it at once. The text stays the same until the lease is over.
    """
    until = "" if claim.over_at is None else f", at the latest at {format_instant(claim.over_at)}"
    return (
        f"{claim.holder} has claimed it and was told to stop ({claim.stop_reason}):"
        f" waits until it has stopped{until}"
    )


def pause_ms(settings: Settings, former: int) -> int:
    """Return the backoff in ms after `former` consecutive ones: 10 s x 2^n, at most 10 min."""
    return min(settings.backoff_first_ms << min(former, 30), settings.backoff_most_ms)


def stops_of(session: Session, group: GroupState) -> list[tuple[str, str]]:
    """Return the stopped queues among its queue and those above, as (name, stop policy)."""
    if not session.tree.has_stops:
        return []
    above = [session.queues.get(name) for name in reversed(group.chain)]
    stated = [(queue.name, queue.record.spec.stop_policy) for queue in above if queue is not None]
    return [(name, policy) for name, policy in stated if policy != "None"]


def namespace_refusal(session: Session, group: GroupState) -> str:
    """Return why its queue does not accept groups of its namespace; "" if it does, or if the group
    has a reservation, which it keeps when the queue changes.
    """
    tree = session.tree
    if tree.accepts(group.queue, group.namespace) or group.reserved:
        return ""
    known = group.queue in session.queues
    return tree.why_closed(group.queue, group.namespace) if known else ""


def _unknown_names(session: Session, group: GroupState) -> list[str]:
    """Return the names in its spec for which a submission would be refused."""
    spec = group.record.spec
    found = []
    if group.queue == ROOT:
        found.append("queue root is the root of the queue tree and holds no groups")
    elif not session.tree.is_leaf(group.queue):
        below = ", ".join(session.tree.children_of[group.queue][:3])
        found.append(
            f"queue {group.queue} has queues below it and holds no groups; choose one of {below}"
        )
    if session.tree.has_namespaces and (refusal := namespace_refusal(session, group)):
        found.append(refusal)
    name = spec.priority_class_name
    if name and all(item.metadata.name != name for item in session.snapshot.priority_classes):
        found.append(f"there is no priority class {name}")
    found += [
        f"depends on {dependency.name}, which does not exist, or depends on this group in turn"
        for dependency in spec.depends_on
        if not dependency.uid
    ]
    return found


#: Dependency condition -> what the group waits for the other group to do.
WANTED = {"ok": "to complete", "failed": "to fail", "any": "to end"}


class DependencyState(Enum):
    MET = "met"
    OPEN = "open"
    NEVER = "never"


def dependency_state(
    group: GroupState, dependency: Dependency, groups: Mapping[str, GroupState]
) -> DependencyState:
    """Return the state of one dependency of `group`, given the group that it was bound to at
    submission.

    A group that is gone has ended: this meets `any`, and can never meet `ok` or `failed` unless
    these were met before. Ends are final, so a group that was admitted once need not check again. A
    dependency that is bound to no group, which only a snapshot described by hand contains, stays
    open, as Misconfigured. A dependency that can never be met is NEVER at once, even while
    processes still run.
    """
    if not dependency.uid:
        return DependencyState.OPEN
    other = groups.get(dependency.uid)
    if other is None:
        met = dependency.condition == "any" or group.status.admission > 0
        return DependencyState.MET if met else DependencyState.NEVER
    phase = other.phase
    if phase not in TERMINAL:
        return DependencyState.OPEN
    met = {
        "ok": phase == PodGroupPhase.COMPLETED,
        "failed": phase != PodGroupPhase.COMPLETED,
        "any": True,
    }[dependency.condition]
    if not met:
        return DependencyState.NEVER
    return DependencyState.OPEN if has_processes(other) else DependencyState.MET


def has_processes(group: GroupState) -> bool:
    """Return whether processes of a group may still run: of its pods, or of its consumer."""
    return bool(group.held) or group.status.claim.is_open


def never_met(group: GroupState, groups: Mapping[str, GroupState]) -> Dependency | None:
    """Return the first dependency that can never be met any more."""
    for dependency in group.record.spec.depends_on:
        if dependency_state(group, dependency, groups) is DependencyState.NEVER:
            return dependency
    return None


_LATE = "AfterCheckPassedOrOnDemand"


def are_honoured(session: Session) -> bool:
    """Return whether a plugin enforces admission checks."""
    return Rule.ADMISSION_CHECKS in session.plugins.enforced


def names_for(session: Session, group: GroupState) -> tuple[str, ...]:
    """Return the checks that a group must pass, those of the queue nearest to the root first."""
    return names_in(session, group.chain)


def names_in(session: Session, chain: Sequence[str]) -> tuple[str, ...]:
    """Return the checks that these queues require, from the root down."""
    found: dict[str, None] = {}
    for name in chain:
        if (queue := session.queues.get(name)) is not None:
            found |= dict.fromkeys(queue.record.spec.admission_checks)
    return tuple(found)


def spec_of(session: Session, name: str) -> AdmissionCheckSpec:
    """Return the spec of an AdmissionCheck, or the defaults if it does not exist."""
    check = session.admission_checks.get(name)
    return AdmissionCheckSpec() if check is None else check.spec


def is_active(check: AdmissionCheck | None, now_ms: int) -> bool:
    """Return whether the check exists and its controller has renewed its lease."""
    if check is None or not check.status.active:
        return False
    return check.status.expires_at is None or now_ms < check.status.expires_at


def cleared(session: Session, group: GroupState) -> tuple[CheckState, ...]:
    """Return all checks of the group in their initial state, Unknown."""
    known = {state.name: state for state in group.status.checks}
    names = names_for(session, group) if group.queue in session.queues else tuple(known)
    return tuple(_unknown(known.get(name), name, session.now_ms) for name in names)


def _unknown(known: CheckState | None, name: str, now_ms: int) -> CheckState:
    if known is not None and known.status == "Unknown" and not known.reason:
        if not known.message:
            return known
        return CheckState(name=name, since=known.since)
    return CheckState(name=name, since=now_ms)


def open_checks(group: GroupState) -> list[CheckState]:
    """Return the checks that have not passed."""
    return [state for state in group.status.checks if state.status != "True"]


def refused_with(group: GroupState, reason: str) -> list[CheckState]:
    """Return the checks that refuse with this reason, `Retry` or `Reject`."""
    return [
        state for state in group.status.checks if state.status == "False" and state.reason == reason
    ]


def retry_delay_ms(session: Session, state: CheckState) -> int:
    """Return how long (ms) a check that requests a retry stays False."""
    return spec_of(session, state.name).retry_delay_minutes * MINUTE


def retry_at(session: Session, group: GroupState) -> int | None:
    """Return when (ms) the longest retry delay ends; None if no check asks for a retry."""
    asked = refused_with(group, "Retry")
    ends = (_since(session, state) + retry_delay_ms(session, state) for state in asked)
    return max(ends, default=None)


def _since(session: Session, state: CheckState) -> int:
    return session.now_ms if state.since is None else state.since


def timeout_at(session: Session, group: GroupState, state: CheckState) -> int | None:
    """Return when (ms) waiting for an unanswered check ends, counted from the reservation."""
    reserved_at = group.status.reserved_at
    if state.status != "Unknown" or reserved_at is None or group.phase != PodGroupPhase.PENDING:
        return None
    return reserved_at + spec_of(session, state.name).unknown_timeout


def instants(session: Session, group: GroupState) -> Iterator[int]:
    """Yield the instants (ms) at which a retry or a timeout becomes due."""
    if not group.status.checks or not are_honoured(session):
        return
    if (at := retry_at(session, group)) is not None and group.phase == PodGroupPhase.PENDING:
        yield at
    for state in group.status.checks:
        if (at := timeout_at(session, group, state)) is not None:
            yield at


def evicts_late(session: Session, group: GroupState) -> bool:
    """Return whether evictions wait for checks instead of starting at the reservation."""
    if group.phase != PodGroupPhase.PENDING or not are_honoured(session):
        return False
    specs = (spec_of(session, state.name) for state in group.status.checks)
    return any(spec.preemption_policy == _LATE for spec in specs)


def holds_off(session: Session, group: GroupState) -> bool:
    """Return whether groups may not be evicted for this group yet.

    Evictions may start when every AfterCheckPassedOrOnDemand check is True, or any check requests
    them (PreemptionRequired). A group whose reservation has just been made has no answers yet.
    """
    if not evicts_late(session, group):
        return False
    states = group.status.checks
    if any(state.reason == "PreemptionRequired" for state in states):
        return False
    return any(
        spec_of(session, state.name).preemption_policy == _LATE and state.status != "True"
        for state in states
    )


#: Changes that lift the session's own refusals (batchq.core.eligibility).
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
