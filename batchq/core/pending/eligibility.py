"""Why a Pending group stands out of line by its own and its queue's state, plugins aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    CheckState,
    Dependency,
    GroupClaim,
)
from batchq.api.reasons import Verdict, Waiting
from batchq.api.times import MINUTE, format_duration, format_instant
from batchq.core.extension.traits import Rule
from batchq.core.preemption.pledges import awaits_victims, nodes_awaited
from batchq.core.quota.queue_tree import ROOT
from batchq.core.session.session import Session
from batchq.core.session.settings import Settings
from batchq.core.session.specs import contradictions
from batchq.core.session.state import GroupState

_PLUGIN = "session"
_QUEUES_SHOWN = 10


def stands_aside(session: Session, group: GroupState) -> list[Verdict]:
    """Every such reason: contradictions, a missing or stopped queue, suspension, back-off."""
    found: list[tuple[Waiting, str]] = []
    shape = group.given_shape
    unsound = [] if shape.is_sound else contradictions(shape.spec, shape.replicas, shape.min_member)
    found += [
        (Waiting.MISCONFIGURED, text) for text in (*unsound, *_stands_for_nothing(session, group))
    ]
    queue = session.queues.get(group.queue)
    if queue is None:
        found.append((Waiting.QUEUE_NOT_FOUND, _which_queues_there_are(session, group.queue)))
    found += [
        (Waiting.QUEUE_STOPPED, f"queue {name} is stopped ({policy})")
        for name, policy in stops_of(session, group)
    ]
    if group.record.spec.suspend:
        found.append((Waiting.SUSPENDED, "the group is suspended"))
    claim = group.status.claim
    if group.is_external and claim.is_open:
        found.append((Waiting.BACKING_OFF, _why_its_claim_counts(claim)))
    if awaits_victims(session, group):
        found.append((Waiting.WAITING_FOR_PREEMPTION, _why_it_is_promised(session, group)))
    if nodes := nodes_awaited(session, group.status.pledge):
        found.append((Waiting.WAITING_FOR_RESOURCES, _why_it_awaits_nodes(group, nodes)))
    until = group.status.backoff_until
    if until is not None and session.now_ms < until:
        found.append((Waiting.BACKING_OFF, _why_it_pauses(session, group)))
    return [Verdict(plugin=_PLUGIN, reason=reason, detail=detail) for reason, detail in found]


def _which_queues_there_are(session: Session, name: str) -> str:
    """The nearest names, if there are too many to be listed."""
    names = list(session.queues)
    near = get_close_matches(name, names, n=1)
    shown = names[:_QUEUES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    meant = f"; did you mean {near[0]}?" if near and more else ""
    return f"there is no queue {name}; there are: {', '.join(shown)}{more}{meant}"


def _why_it_pauses(session: Session, group: GroupState) -> str:
    """What made it leave InQueue, and for how long it pauses: the same words all the while."""
    left = next((one for one in group.status.conditions if one.type == "Evicted"), None)
    why = f"{left.reason}: {left.message}" if left and left.message else "it had to leave InQueue"
    pause = format_duration(pause_ms(session.settings, max(0, group.status.backoff_count - 1)))
    times = group.status.backoff_count
    nth = "the first time" if times < 2 else f"{times} times in a row"
    until = format_instant(group.status.backoff_until or session.now_ms)
    return f"pauses for {pause}, until {until}, {nth}; {why}"


def _why_it_is_promised(session: Session, group: GroupState) -> str:
    """Whose processes have to end first: the same words until the last has."""
    pledge = group.status.pledge
    victims = pledge.victims
    shown = ", ".join(victims[:3]) + (f" and {len(victims) - 3} more" if len(victims) > 3 else "")
    if pledge.expires is None and group.status.checks:
        return f"counts on the room of {shown}, to be evicted once its checks give leave"
    have = "has" if len(victims) == 1 else "have"
    expires = group.status.pledge.expires
    patience = "" if expires is None else f", at the latest at {format_instant(expires)}"
    return f"waits until {shown} {have} stopped for it{patience}"


def _why_it_awaits_nodes(group: GroupState, nodes: list[str]) -> str:
    """Which nodes have to come back: the same words as long as they are away."""
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    until = format_instant(group.status.pledge.expires or 0)
    return f"room was made for it on {shown}, lost or cordoned since: waits until {until}"


def _why_its_claim_counts(claim: GroupClaim) -> str:
    """A group that had to leave cannot be run by two at once: the same words until it is over."""
    until = "" if claim.over_at is None else f", at the latest at {format_instant(claim.over_at)}"
    return (
        f"{claim.holder} has claimed it and was told to stop ({claim.stop_reason}):"
        f" waits until it has{until}"
    )


def pause_ms(settings: Settings, former: int) -> int:
    """10 s x 2^n up to 10 min, after `former` pauses in a row."""
    return min(settings.backoff_first_ms << min(former, 30), settings.backoff_most_ms)


def stops_of(session: Session, group: GroupState) -> list[tuple[str, str]]:
    """Which of its queue and those above are stopped, and how: (name, policy)."""
    above = [session.queues.get(name) for name in reversed(group.chain)]
    stated = [(queue.name, queue.record.spec.stop_policy) for queue in above if queue is not None]
    return [(name, policy) for name, policy in stated if policy != "None"]


def _stands_for_nothing(session: Session, group: GroupState) -> list[str]:
    """Names in it that a submission would have been refused for."""
    spec = group.record.spec
    found = []
    if group.queue == ROOT:
        found.append("queue root stands above all others and holds no groups")
    elif not session.tree.is_leaf(group.queue):
        below = ", ".join(session.tree.children_of[group.queue][:3])
        found.append(
            f"queue {group.queue} has queues below it and holds no groups; choose one of {below}"
        )
    name = spec.priority_class_name
    if name and all(item.metadata.name != name for item in session.snapshot.priority_classes):
        found.append(f"there is no priority class {name}")
    found += [
        f"depends on {dependency.name}, which does not exist, or depends on this group in turn"
        for dependency in spec.depends_on
        if not dependency.uid
    ]
    return found


#: What a condition waits for the other group to do.
WANTED = {"ok": "to complete", "failed": "to fail", "any": "to end"}


class DependencyState(Enum):
    MET = "met"
    OPEN = "open"
    NEVER = "never"


def dependency_state(
    group: GroupState, dependency: Dependency, groups: Mapping[str, GroupState]
) -> DependencyState:
    """Judge one dependency of `group` by the group that it was bound to at submission.

    A group that is gone has ended: that meets `any`, and can never meet `ok` or `failed`, unless
    it has met them before: ends are final, so who was admitted once need not ask again. One that
    is bound to nothing (only a described world has it) stays open, as Misconfigured. What can
    never be met is so at once, whatever still runs.
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
    """Whether processes of a group may still run: of its pods, or of who has claimed it."""
    return bool(group.held) or group.status.claim.is_open


def never_met(group: GroupState, groups: Mapping[str, GroupState]) -> Dependency | None:
    """The first dependency that can never hold any more."""
    for dependency in group.record.spec.depends_on:
        if dependency_state(group, dependency, groups) is DependencyState.NEVER:
            return dependency
    return None


_LATE = "AfterCheckPassedOrOnDemand"


def are_honoured(session: Session) -> bool:
    """Return whether a plugin enforces admission checks."""
    return Rule.ADMISSION_CHECKS in session.plugins.enforced


def names_for(session: Session, group: GroupState) -> tuple[str, ...]:
    """The checks that a group has to pass, those of the queue nearest to the root first."""
    return names_in(session, group.chain)


def names_in(session: Session, chain: Sequence[str]) -> tuple[str, ...]:
    """The checks that these queues ask for, from the root down."""
    found: dict[str, None] = {}
    for name in chain:
        if (queue := session.queues.get(name)) is not None:
            found |= dict.fromkeys(queue.record.spec.admission_checks)
    return tuple(found)


def spec_of(session: Session, name: str) -> AdmissionCheckSpec:
    """What stands in the AdmissionCheck; of one that is missing, the defaults."""
    check = session.admission_checks.get(name)
    return AdmissionCheckSpec() if check is None else check.spec


def is_active(check: AdmissionCheck | None, now_ms: int) -> bool:
    """Whether the check is there, and its controller has renewed its lease."""
    if check is None or not check.status.active:
        return False
    return check.status.expires_at is None or now_ms < check.status.expires_at


def cleared(session: Session, group: GroupState) -> tuple[CheckState, ...]:
    """All checks of the group as they are before anybody has answered."""
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
    """Those that have not passed."""
    return [state for state in group.status.checks if state.status != "True"]


def refused_with(group: GroupState, reason: str) -> list[CheckState]:
    """Those that say no: `Retry` or `Reject`."""
    return [
        state for state in group.status.checks if state.status == "False" and state.reason == reason
    ]


def retry_delay_ms(session: Session, state: CheckState) -> int:
    """For how long a check that asks for a retry stays False."""
    return spec_of(session, state.name).retry_delay_minutes * MINUTE


def retry_at(session: Session, group: GroupState) -> int | None:
    """When all checks are Unknown again: the longest delay counts. None: nobody asks for one."""
    asked = refused_with(group, "Retry")
    ends = (_since(session, state) + retry_delay_ms(session, state) for state in asked)
    return max(ends, default=None)


def _since(session: Session, state: CheckState) -> int:
    return session.now_ms if state.since is None else state.since


def timeout_at(session: Session, group: GroupState, state: CheckState) -> int | None:
    """When a check that has not answered is given up, counted from the reservation."""
    reserved_at = group.status.reserved_at
    if state.status != "Unknown" or reserved_at is None or group.phase != PodGroupPhase.PENDING:
        return None
    return reserved_at + spec_of(session, state.name).unknown_timeout


def instants(session: Session, group: GroupState) -> Iterator[int]:
    """When something becomes due by the clock alone: a retry, or a timeout."""
    if not group.status.checks or not are_honoured(session):
        return
    if (at := retry_at(session, group)) is not None and group.phase == PodGroupPhase.PENDING:
        yield at
    for state in group.status.checks:
        if (at := timeout_at(session, group, state)) is not None:
            yield at


# --- Preemption -----------------------------------------------------------------------------------


def evicts_late(session: Session, group: GroupState) -> bool:
    """Whether nobody is evicted at the reservation, but once checks have passed or ask for it."""
    if group.phase != PodGroupPhase.PENDING or not are_honoured(session):
        return False
    specs = (spec_of(session, state.name) for state in group.status.checks)
    return any(spec.preemption_policy == _LATE for spec in specs)


def holds_off(session: Session, group: GroupState) -> bool:
    """Whether others may not be evicted for this group yet.

    They may once every AfterCheckPassedOrOnDemand check is True, or any check asks for it
    (PreemptionRequired). A group that has only just come up for its reservation has asked nobody.
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
