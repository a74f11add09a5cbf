"""What preempt and reclaim share: in which order claimants come, and what a try amounts to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.notation import counted
from batchq.api.objects import Pledge, Pod, PodGroupStatus
from batchq.api.reasons import Leaving, Verdict, Waiting
from batchq.api.resources import describe_quantity
from batchq.api.times import format_instant
from batchq.core.pending.eligibility import evicts_late, holds_off, stops_of
from batchq.core.pending.queue import blockers, standing_aside
from batchq.core.preemption.candidates import (
    AT_ACTION_START,
    DECIDED,
    FIRST_SEARCH,
    SearchTerms,
    rank_of,
)
from batchq.core.preemption.evictions import carry_out, evicted_recently, exceeds_budget, forget
from batchq.core.preemption.pledges import (
    awaits_victims,
    end_pledge,
    has_lost_room,
    hold_room,
    nodes_awaited,
    resume_pledge,
    standing_pledges,
)
from batchq.core.preemption.preemptors import (
    EVICTION_BUDGET,
    Claimants,
    GangClaim,
    may_claim,
    waits_for_more_than_room,
)
from batchq.core.preemption.protection import NEVER, is_protected, may_evict, protection_ends_at
from batchq.core.preemption.scopes import POINTS, propose
from batchq.core.preemption.search import (
    Decision,
    PreemptionRequest,
    find_victims,
    lose_pledge,
    send_off,
)
from batchq.core.quota.fair_shares import deserved_of_queues, note_admission
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import roll_back

_NOBODY_LEFT = "those that were to make room for it can no longer be taken"
_NO_NODE_LEFT = "a node on which room was made for it is gone, and there is no other"
_OUTRANKED = "those that were to make room for it make room for a group that comes before it"


@dataclass(frozen=True, slots=True)
class _FromNobody(GangClaim):
    """A gang's claim on what is free, or stops anyway: what its queue deserves limits what may be
    taken from others, and nothing is.
    """

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Nobody."""
        return False

    def may_take_over(
        self,
        session: Session,
        other: GroupState,
        told: list[Victim],
        shortage: Shortage,
        *,
        have_ended: bool,
    ) -> bool:
        """Nothing that others count on."""
        return False

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """However much its queue holds then: nobody has given anything for it."""
        return True


def serve_claimants(
    session: Session,
    claimants: Claimants,
    serve: Callable[[Session, GroupState], object],
) -> None:
    """The queue with the lowest share first, looked at anew after each; groups in order.

    Claimants that ask for the same as one that has just failed are not tried, until something has
    changed: with thousands of them waiting, a session would do little else.
    """
    walks = claimants.by_queue(session)
    if not walks:
        return
    # Asked before anybody is evicted: what queues deserve does not change by that.
    deserved_of_queues(session)
    session.get(AT_ACTION_START).begin()
    failed: set[Any] = set()
    turns = FairShareSelector(session, walks)
    # Those along which somebody was passed over.
    halted = dict(walks)
    while (name := turns.next()) is not None:
        group = walks[name].next()
        if group is None:
            turns.drop(name)
            continue
        asks = (group.queue, group.namespace, group.priority, group.phase, group.shape.claim)
        key = (*asks, tuple((shape.shape, shape.task.replicas) for shape in group.tasks))
        if walks[name].has_changed(session.refusals.told):
            # It is not as those are any more, and stands for itself if it claims anything.
            continue
        if key not in failed:
            decided = len(session.effects.joined)
            serve(session, group)
            if len(session.effects.joined) > decided:
                failed.clear()
                for walk in halted.values():
                    walk.take_up()
                halted = {}
                continue
            failed.add(key)
        walks[name].pass_over()
        halted[name] = walks[name]


def serve_gang(
    session: Session, group: GroupState, *, action: str, terms: SearchTerms = FIRST_SEARCH
) -> bool:
    """Let an action make room for a gang, if its rules and the policies allow; whether it has."""
    found = propose(session, group, action, terms)
    return found is not None and let_happen(session, *found, action=action)


def choose_anew(session: Session, action: str) -> None:
    """Choose the victims of this action's pledges anew where what they count on has changed.

    Where nobody has been evicted yet, the policies may have: these are chosen as if for the first
    time, and once its checks give leave the claimant has them evicted by this. Where a node of
    its room is lost or cordoned, others make room elsewhere; if there are none, and some were told
    to stop, the claimant waits for the node until its pledge expires.
    """
    if session.nodes.binding_refused is not None:
        return
    session.get(AT_ACTION_START).begin()
    waiting = [
        group
        for group, pledge in standing_pledges(session)
        if pledge.action == action and _counts_on_what_has_changed(session, group)
    ]
    if waiting:
        # Asked before any of them gives up its pledge: what it asks for is part of the demand.
        deserved_of_queues(session)
    for group in sorted(waiting, key=session.group_key):
        before = group.status
        if not before.pledge.stands or group.uid in session.get(DECIDED).served(session):
            # It has been outranked by one of those before it.
            continue
        with Statement(session) as statement:
            lose_pledge(statement, group)
            statement.commit()
        if not before.pledge.extra:
            # What was completed by the other action may be had by that one alone by now.
            others = [name for name in _claiming(session) if name != action]
            _choose_again(session, group, before, [action, *others])


def _counts_on_what_has_changed(session: Session, group: GroupState) -> bool:
    if has_lost_room(session, group.status.pledge):
        return True
    return (
        group.status.pledge.expires is None
        and evicts_late(session, group)
        and awaits_victims(session, group)
    )


def _choose_again(
    session: Session, group: GroupState, before: PodGroupStatus, actions: list[str]
) -> None:
    """Victims for a gang that has lost its pledge: it keeps the reservation that it had, by others
    or by none, or gives it up.
    """
    said, decided = list(session.intents), len(session.effects.joined)
    session.refusals.pop(group.uid, None)
    # What is set aside for heads of lines is set aside from what was not reserved before.
    with session.ledger.regarding(()):
        found = _finds_room(session, group, before.pledge.action, actions)
    with Statement(session) as statement:
        if found:
            _go_on(statement, group, before, said)
            if group.status is before and session.intents == said:
                # As it was: nothing has been decided, and it may be a victim itself.
                del session.effects.joined[decided:]
        elif _keeps_its_pledge(session, group, before.pledge):
            statement.put_status(group, before)
            resume_pledge(statement, group, before.pledge)
        else:
            if _was_admitted_now(session, group, before):
                forget(statement, group)
                end_pledge(statement, group)
            else:
                statement.put_status(group, structs.replace(before, pledge=Pledge()))
                statement.say(intents.EndPledge(group=group.key))
            _give_up(statement, group, before.pledge)
        statement.commit()
    if group.status is before and not found and not _is_put_off(session, group):
        _tell_what_it_waits_for(session, group)


def _was_admitted_now(session: Session, group: GroupState, before: PodGroupStatus) -> bool:
    """Whether this session has admitted a group that had this status then."""
    former = session.effects.before.get(group.uid)
    return (
        former is not None
        and former[0].phase == PodGroupPhase.PENDING
        and before.phase != PodGroupPhase.PENDING
    )


def end_spare_pledges(session: Session) -> None:
    """Claimants that fit without the room that they wait for, and that no group in line comes
    before: what they find now is theirs, and victims that were not told yet go on.
    """
    for group in _waiting_for_victims(session):
        # Asked first, since it costs little: mostly the victims still hold what it would need.
        if not over_any_limit(session, group) and not _is_preceded(session, group):
            _end_if_spare(session, group)


def end_pledges_still_spare(session: Session) -> list[GroupState]:
    """The same of the others, once those in line have been served; whose pledges have ended."""
    return [
        group
        for group in _waiting_for_victims(session)
        if not over_any_limit(session, group) and _end_if_spare(session, group)
    ]


def _waiting_for_victims(session: Session) -> list[GroupState]:
    """Pending gangs that are promised room, in order."""
    waiting = [
        group
        for group, pledge in standing_pledges(session)
        if group.phase == PodGroupPhase.PENDING
        and group.reserved
        and not pledge.extra
        and awaits_victims(session, group)
    ]
    return sorted(waiting, key=session.group_key)


def _end_if_spare(session: Session, group: GroupState) -> bool:
    fit = GangClaim(group).fit(session)
    if fit.fits:
        with Statement(session) as statement:
            end_pledge(statement, group)
            statement.commit()
        session.pending.ineligible.pop(group.uid, None)
        hold_room(session, group, fit.room)
    return fit.fits


def _is_preceded(session: Session, group: GroupState) -> bool:
    """Whether any group waits in a line that comes before this one."""
    rank = rank_of(group)
    return any(
        one.phase == PodGroupPhase.PENDING and not one.reserved and rank_of(one) < rank
        for queue in session.queues.values()
        for one in queue.line.firsts()
    )


def _keeps_its_pledge(session: Session, group: GroupState, pledge: Pledge) -> bool:
    """Whether a gang without other victims goes on counting on those that it had: not if they are
    another claimant's by now.
    """
    if group.uid in session.get(DECIDED).all(session):
        return False
    return _is_put_off(session, group) or bool(nodes_awaited(session, pledge))


def _is_put_off(session: Session, group: GroupState) -> bool:
    """Whether only the budget is against it."""
    return any(verdict.plugin == EVICTION_BUDGET for verdict in session.refusals.get(group.uid, ()))


def _give_up(statement: Statement, group: GroupState, pledge: Pledge) -> None:
    """What it counted on is somebody else's, or gone."""
    session = statement.session
    if group.uid in session.get(DECIDED).all(session):
        roll_back(statement, group, Leaving.PREEMPTED, _OUTRANKED)
    elif has_lost_room(session, pledge):
        roll_back(statement, group, Leaving.NODE_LOST, _NO_NODE_LEFT)
    else:
        roll_back(statement, group, Leaving.CAPACITY_CUT, _NOBODY_LEFT)


def _finds_room(session: Session, group: GroupState, former: str, actions: list[str]) -> bool:
    """By what is free, by victims of its own, or by those of claimants behind it, in this order:
    it had some, and leaves those of others to them if it still finds any.
    """
    if _has_room_by_now(session, group, former):
        return True
    if not may_claim(session, group):
        return False
    return any(
        serve_gang(session, group, action=action, terms=terms)
        for terms in (SearchTerms(again=True, spares_pledges=True), SearchTerms(again=True))
        for action in actions
    )


def _has_room_by_now(session: Session, group: GroupState, action: str) -> bool:
    """Whether it needs nobody any more, since others have ended or do, or nodes have come; then it
    has what it asks for.
    """
    claim = _FromNobody(group)
    decision = find_victims(session, claim, [], terms=SearchTerms(again=True))
    return decision is not None and let_happen(session, claim, decision, action=action)


def _go_on(
    statement: Statement, group: GroupState, before: PodGroupStatus, said: list[Intent]
) -> None:
    """It has what it counted on, perhaps by other victims, or by none: its reservation is the one
    that it had, and what has not changed is not told again.
    """
    session, old, new = statement.session, before.pledge, group.status.pledge
    # What was said before may have been taken back meanwhile.
    known = set(said)
    session.intents[:] = [
        one
        for one in session.intents
        if one in known or not _is_no_news(one, group.key, old.victims)
    ]
    if structs.replace(new, made_at=old.made_at, owed=old.owed) == old:
        statement.put_status(group, before)
        return
    statement.set_status(group, reserved_at=before.reserved_at, reservation=before.reservation)
    if not new.stands:
        statement.say(intents.EndPledge(group=group.key))


def _is_no_news(intent: Intent, group: str, victims: tuple[str, ...]) -> bool:
    """Whether it tells of a claimant that it has reserved, or counts on those on whom it did."""
    match intent:
        case intents.ReserveQuota():
            return intent.group == group
        case intents.Pledge():
            return intent.group == group and intent.victims == victims
        case _:
            return False


def let_happen(
    session: Session, claim: PreemptionRequest, decision: Decision, *, action: str
) -> bool:
    """Carry a decision out, unless the eviction budget or a limit is against it; return whether it
    was.
    """
    if exceeds_budget(session, decision) and not holds_off(session, claim.claimant):
        _say_over_budget(session, claim.claimant)
        return False
    was_pending = claim.claimant.phase == PodGroupPhase.PENDING
    if not carry_out(session, claim, decision, action):
        return False
    if was_pending and claim.claimant.phase != PodGroupPhase.PENDING:
        note_admission(session, claim.claimant)
    _tell_what_it_waits_for(session, claim.claimant)
    gave_way = (*(taken.victim for taken in decision.undone), *decision.victims)
    for victim in gave_way:
        _tell_whom_it_made_way_for(session, victim.group, claim.claimant)
    for taken in sorted(decision.outranked, key=lambda one: rank_of(one.victim.group)):
        if not taken.former[0].pledge.extra:
            _choose_again(session, taken.victim.group, taken.former[0], _claiming(session))
    return True


def _claiming(session: Session) -> list[str]:
    """The configured actions that make room, in their order."""
    return [name for name in session.actions if name in POINTS]


def _tell_whom_it_made_way_for(session: Session, group: GroupState, claimant: GroupState) -> None:
    """Of a group that is Pending again: what stands against it now."""
    if group.phase != PodGroupPhase.PENDING:
        return
    # Of one that had only reserved, what was said is that it waits for its checks.
    session.pending.ineligible.pop(group.uid, None)
    against = blockers(session, group)
    if any(verdict.plugin == "pledge" for verdict in against):
        session.refuse(group, against)
        return
    detail = f"gave way to {claimant.key} in this session"
    gave_way = Verdict(
        plugin="pledge", reason=Waiting.WAITING_FOR_TURN, detail=detail, in_line=True
    )
    session.refuse(group, (*against, gave_way))


def _tell_what_it_waits_for(session: Session, group: GroupState) -> None:
    session.ledger.drop_aside(group)
    session.refusals.pop(group.uid, None)
    session.pending.ineligible.pop(group.uid, None)
    if group.phase == PodGroupPhase.PENDING:
        session.refuse(group, standing_aside(session, group))


def _say_over_budget(session: Session, group: GroupState) -> None:
    settings = session.settings
    seconds = settings.eviction_window_ms // 1000
    detail = (
        f"would have others evicted, and the eviction budget of {settings.eviction_budget} pods"
        f" in {seconds}s is spent ({evicted_recently(session)} so far)"
    )
    verdict = Verdict(
        plugin=EVICTION_BUDGET, reason=Waiting.WAITING_FOR_PREEMPTION, detail=detail, in_line=True
    )
    known = session.refusals.get(group.uid, ())
    if all(one.detail != detail for one in known):
        session.refuse(group, (*known, verdict))


#: The point at which minRuntime alone protects.
_PREEMPTABLE = "preemptable"


def claims_nothing(session: Session, group: GroupState) -> str:
    """Why a group that lacks room is no claimant at all; '' if it is one."""
    if (refused := session.nodes.binding_refused) is not None:
        return f"nobody is evicted while nothing may be bound: {refused.message()}"
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


def why_spared(
    session: Session, claim: PreemptionRequest, point: str, queues: Sequence[str]
) -> list[str]:
    """What speaks for the groups of these queues that a claim does not take."""
    groups = _holders(session, claim.claimant, queues)
    if not groups:
        return ["nobody else holds anything there"]
    fit = claim.fit(session)
    shortage = fit.shortage()
    victims = [Victim(group, _stoppable(group), whole=True) for group in groups]
    may = [victim for victim in victims if claim.may_take(session, victim, shortage)]
    spared = [victim for victim in victims if victim not in may]
    lines = _refusals(session, point, claim.claimant, spared, shortage)
    return [*lines, *_why_not_enough(session, claim, may, list(queues))]


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


def _refusals(
    session: Session, point: str, claimant: GroupState, spared: list[Victim], shortage: Shortage
) -> list[str]:
    why = Counter(_why(session, point, claimant, victim, shortage) for victim in spared)
    return [
        f"{counted(count, 'group')} {'is' if count == 1 else 'are'} {words}"
        for words, count in sorted(why.items(), key=lambda item: (-item[1], item[0]))
    ]


def _why(
    session: Session, point: str, claimant: GroupState, victim: Victim, shortage: Shortage
) -> str:
    """Return what the first refusal says."""
    if is_protected(session, victim, point):
        return _protection(session, victim, point)
    for entry in session.plugins.points[point]:
        if entry.function(session, claimant, victim, shortage) is False:
            return entry.traits.spares or f"refused by plugin {entry.plugin}"
    return "outside of what the action may take"


def _protection(session: Session, victim: Victim, point: str) -> str:
    """Which of the two rules protects for longer, and until when."""
    until = protection_ends_at(session, victim, point)
    if until == protection_ends_at(session, victim, _PREEMPTABLE):
        return f"protected by minRuntime until {format_instant(until)}"
    when = f" until {format_instant(until)}" if until < NEVER else ""
    return f"protected{when} by what reclaim took before"


def _why_not_enough(
    session: Session, claim: PreemptionRequest, may: list[Victim], queues: list[str]
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
