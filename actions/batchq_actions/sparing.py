"""Why nobody makes way for a claimant: what preempt and reclaim answer when somebody asks.

Nothing of this is worked out in a session that decides, and nothing is stored. The claims are the
actions' own, and so are the votes; what is added is only the counting of the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.names import counted
from batchq.api.objects import Pod
from batchq.api.quantity import describe_quantity
from batchq.api.times import format_instant
from batchq.framework.claiming import waits_for_more_than_room
from batchq.framework.classes import may_evict
from batchq.framework.eligibility import stops_of
from batchq.framework.hygiene import NEVER, is_protected, protection_ends_at
from batchq.framework.search import Claim, find_victims, send_off
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim
from batchq.framework.statement import Statement
from batchq.framework.taking import evicted_recently, exceeds_budget

#: The point at which minRuntime alone protects.
_PREEMPTABLE = "preemptable"
#: Plugin -> what is true of the groups that it refuses.
_OF_WHOM = {
    "priority": "not of lower priority",
    "conformance": "in a protected namespace",
    "proportion": "of queues that hold no more than they deserve of what it lacks,"
    " would fall below their guarantee, or give nothing back",
    "gang": "too small to give single pods",
    "sla": "overdue",
}


def claims_nothing(session: Session, group: GroupState) -> str:
    """Why a group that lacks room is no claimant at all; '' if it is one."""
    if session.binding_refused is not None:
        return f"nobody is evicted while nothing may be bound: {session.binding_refused.message()}"
    if group.status.pledge.stands:
        return "others have been told to make room for it already"
    if others := waits_for_more_than_room(session, group):
        reasons = ", ".join(dict.fromkeys(str(verdict.reason) for verdict in others))
        return f"it waits for more than room ({reasons}), which no eviction would end"
    if stops := stops_of(session, group):
        name, policy = stops[0]
        return f"queue {name} is stopped ({policy}), and nothing is evicted for its groups"
    if not may_evict(session, group):
        name = group.record.spec.priority_class_name
        named = f"its priority class {name}" if name else "the default priority class"
        return f"{named} evicts nobody (preemptionPolicy Never)"
    return ""


def why_spared(session: Session, claim: Claim, point: str, queues: Sequence[str]) -> list[str]:
    """What speaks for the groups of these queues that a claim does not take."""
    groups = _holders(session, claim.claimant, queues)
    if not groups:
        return ["nobody else holds anything there"]
    fit = claim.fit(session)
    session.lacking = fit.lacking
    try:
        victims = [Victim(group, _stoppable(group), whole=True) for group in groups]
        may = [victim for victim in victims if claim.may_take(session, victim)]
        lines = _refusals(session, point, claim, [one for one in victims if one not in may])
        return [*lines, *_why_not_enough(session, claim, may, list(queues))]
    finally:
        session.lacking = frozenset()


def _holders(session: Session, claimant: GroupState, queues: Iterable[str]) -> list[GroupState]:
    return [
        group
        for queue in queues
        for group in session.ledger.holding.get(queue, {}).values()
        if group is not claimant and group.phase not in TERMINAL
    ]


def _stoppable(group: GroupState) -> tuple[Pod, ...]:
    return tuple(
        pod
        for pod in group.pods.values()
        if pod.status.phase in ON_NODE and not pod.status.terminating
    )


def _refusals(session: Session, point: str, claim: Claim, spared: list[Victim]) -> list[str]:
    why = Counter(_why(session, point, claim.claimant, victim) for victim in spared)
    return [
        f"{counted(count, 'group')} {'is' if count == 1 else 'are'} {words}"
        for words, count in sorted(why.items(), key=lambda item: (-item[1], item[0]))
    ]


def _why(session: Session, point: str, claimant: GroupState, victim: Victim) -> str:
    """What the first who refuses says."""
    if is_protected(session, victim, point):
        return _protection(session, victim, point)
    for entry in session.points[point]:
        if entry.function(session, claimant, victim) is False:
            return _OF_WHOM.get(entry.plugin, f"refused by plugin {entry.plugin}")
    return "outside of what the action may take"


def _protection(session: Session, victim: Victim, point: str) -> str:
    """Which of the two rules protects for longer, and until when."""
    until = protection_ends_at(session, victim, point)
    if until == protection_ends_at(session, victim, _PREEMPTABLE):
        return f"protected by minRuntime until {format_instant(until)}"
    when = f" until {format_instant(until)}" if until < NEVER else ""
    return f"protected{when} by what reclaim took before"


def _why_not_enough(
    session: Session, claim: Claim, may: list[Victim], queues: list[str]
) -> list[str]:
    """Of those that could go: why they do not."""
    if not may:
        return []
    could = f"{counted(len(may), 'group')} could make way"
    decision = find_victims(session, claim, queues)
    if decision is not None:
        if exceeds_budget(session, decision):
            return [f"{could}, but {_budget(session)}"]
        return [f"{could}, and the next session has them do so"]
    with Statement(session) as trial:
        for victim in may:
            send_off(trial, victim)
        fit = claim.fit(session)
        if not fit.fits:
            lacks = f" of {', '.join(sorted(fit.lacking))}" if fit.lacking else ""
            return [f"{could}, but even together they would not leave enough{lacks}"]
        if not claim.ends_well(session, may):
            queue = claim.claimant.queue
            return [f"{could}, but queue {queue} would end above what it deserves"]
    return [f"{could}, but what stops already is going to be enough"]


def _budget(session: Session) -> str:
    settings = session.settings
    seconds = settings.eviction_window_ms // 1000
    return (
        f"the eviction budget of {settings.eviction_budget} pods in {seconds}s is spent"
        f" ({evicted_recently(session)} so far)"
    )


def ends_above_text(queue: str, resource: str, ends_at: int, deserved: int) -> str:
    """That a queue would hold more than it deserves."""
    would, may = (describe_quantity(resource, units) for units in (ends_at, deserved))
    return f"queue {queue} would hold {resource} {would}, more than the {may} that it deserves"
