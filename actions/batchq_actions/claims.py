"""What preempt and reclaim share: in which order claimants come, and what a try amounts to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Pledge, PodGroupStatus
from batchq.api.reasons import Leaving, Verdict, Waiting
from batchq.framework.checks import evicts_late, holds_off
from batchq.framework.claiming import Claimants, GangClaim, may_claim
from batchq.framework.crowds import Crowd, Walk
from batchq.framework.growth import over_any_limit
from batchq.framework.line import blockers, is_of_crowd, standing_aside
from batchq.framework.moves import roll_back
from batchq.framework.outranked import rank_of, sparing_pledges
from batchq.framework.pledges import (
    awaits_victims,
    end_pledge,
    has_lost_room,
    hold_room,
    nodes_awaited,
    resume_pledge,
    standing_pledges,
)
from batchq.framework.queue_shares import deserved_of_queues, note_admission
from batchq.framework.search import Claim, Decision, find_victims, lose_pledge
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim
from batchq.framework.statement import Statement
from batchq.framework.taking import carry_out, evicted_recently, exceeds_budget, forget
from batchq.framework.tree import ROOT
from batchq.framework.turns import Turns
from batchq_actions.rules import POINTS, propose

_BUDGET = "hygiene"
_NOBODY_LEFT = "those that were to make room for it can no longer be taken"
_NO_NODE_LEFT = "a node on which room was made for it is gone, and there is no other"
_OUTRANKED = "those that were to make room for it make room for a group that comes before it"


@dataclass(frozen=True, slots=True)
class _FromNobody(GangClaim):
    """A gang's claim on what is free, or stops anyway: what its queue deserves limits what may be
    taken from others, and nothing is.
    """

    def may_take(self, session: Session, victim: Victim) -> bool:
        """Nobody."""
        return False

    def may_take_over(
        self, session: Session, other: GroupState, told: list[Victim], *, have_ended: bool
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
    walks = _walks(session, claimants)
    if not walks:
        return
    # Asked before anybody is evicted: what queues deserve does not change by that.
    deserved_of_queues(session)
    session.undoable = session.standing_by_rank = None
    failed: set[Any] = set()
    turns = Turns(session, walks)
    # Those along which somebody was passed over.
    halted = dict(walks)
    while (name := turns.next()) is not None:
        group = walks[name].next()
        if group is None:
            turns.drop(name)
            continue
        asks = (group.queue, group.namespace, group.priority, group.phase, group.shape.claim)
        key = (*asks, tuple((shape.shape, shape.task.replicas) for shape in group.tasks))
        of_crowd = walks[name].crowd is not None
        if of_crowd and (not is_of_crowd(group) or group.uid in session.refusals.told):
            # It is not as those are any more, and stands for itself if it claims anything.
            continue
        if key not in failed:
            decided = len(session.joined)
            serve(session, group)
            if len(session.joined) > decided:
                failed.clear()
                for walk in halted.values():
                    walk.take_up()
                halted = {}
                continue
            failed.add(key)
        walks[name].pass_over()
        halted[name] = walks[name]


def _walks(session: Session, claimants: Claimants) -> dict[str, Walk]:
    """The claimants of each queue, or of all where none comes before another."""
    groups: dict[str, list[GroupState]] = {}
    crowds: dict[str, list[Crowd]] = {}
    hopeless: dict[str, list[Crowd]] = {}
    in_queues = bool(session.points["queueOrder"])
    for group in claimants.groups:
        groups.setdefault(group.queue if in_queues else ROOT, []).append(group)
    for crowd in claimants.crowds:
        crowds.setdefault(crowd.queue if in_queues else ROOT, []).append(crowd)
    for crowd in claimants.hopeless:
        hopeless.setdefault(crowd.queue if in_queues else ROOT, []).append(crowd)
    return {
        name: Walk(
            crowds.get(name, ()), groups.get(name, ()), session.group_key, hopeless.get(name, ())
        )
        for name in dict.fromkeys((*groups, *crowds))
    }


def serve_gang(session: Session, group: GroupState, *, action: str) -> bool:
    """Let an action make room for a gang, if its rules and the policies allow; whether it has."""
    found = propose(session, group, action)
    return found is not None and let_happen(session, *found, action=action)


def choose_anew(session: Session, action: str) -> None:
    """Choose the victims of this action's pledges anew where what they count on has changed.

    Where nobody has been evicted yet, the policies may have: these are chosen as if for the first
    time, and once its checks give leave the claimant has them evicted by this. Where a node of
    its room is lost or cordoned, others make room elsewhere; if there are none, and some were told
    to stop, the claimant waits for the node until its pledge expires.
    """
    if session.binding_refused is not None:
        return
    session.undoable = session.standing_by_rank = None
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
        if not before.pledge.stands or group.uid in session.decided.served(session):
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
    said, decided = list(session.intents), len(session.joined)
    session.refusals.pop(group.uid, None)
    # What is set aside for heads of lines is set aside from what was not reserved before.
    with session.ledger.regarding(()):
        former, session.chooses_again = session.chooses_again, True
        found = _finds_room(session, group, before.pledge.action, actions)
        session.chooses_again = former
    with Statement(session) as statement:
        if found:
            _go_on(statement, group, before, said)
            if group.status is before and session.intents == said:
                # As it was: nothing has been decided, and it may be a victim itself.
                del session.joined[decided:]
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
    former = (session.former or {}).get(group.uid)
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
        session.asides.pop(group.uid, None)
        hold_room(session, group, fit.room)
    return fit.fits


def _is_preceded(session: Session, group: GroupState) -> bool:
    """Whether any group waits in a line that comes before this one."""
    rank = rank_of(group)
    return any(
        one.phase == PodGroupPhase.PENDING and not one.reserved and rank_of(one) < rank
        for queue in session.queues.values()
        for one in (
            *queue.line.in_order(),
            *(crowd.first for crowd in queue.line.crowds.values()),
        )
    )


def _keeps_its_pledge(session: Session, group: GroupState, pledge: Pledge) -> bool:
    """Whether a gang without other victims goes on counting on those that it had: not if they are
    another claimant's by now.
    """
    if group.uid in session.decided.all(session):
        return False
    return _is_put_off(session, group) or bool(nodes_awaited(session, pledge))


def _is_put_off(session: Session, group: GroupState) -> bool:
    """Whether only the budget is against it."""
    return any(verdict.plugin == _BUDGET for verdict in session.refusals.get(group.uid, ()))


def _give_up(statement: Statement, group: GroupState, pledge: Pledge) -> None:
    """What it counted on is somebody else's, or gone."""
    session = statement.session
    if group.uid in session.decided.all(session):
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
    with sparing_pledges(session):
        if any(serve_gang(session, group, action=action) for action in actions):
            return True
    return any(serve_gang(session, group, action=action) for action in actions)


def _has_room_by_now(session: Session, group: GroupState, action: str) -> bool:
    """Whether it needs nobody any more, since others have ended or do, or nodes have come; then it
    has what it asks for.
    """
    return try_claim(session, _FromNobody(group), [], action=action)


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


def try_claim(session: Session, claim: Claim, queues: list[str], *, action: str) -> bool:
    """Find victims in these queues and let it happen; whether it did."""
    decision = find_victims(session, claim, queues)
    return decision is not None and let_happen(session, claim, decision, action=action)


def let_happen(session: Session, claim: Claim, decision: Decision, *, action: str) -> bool:
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
    session.asides.pop(group.uid, None)
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
    session.asides.pop(group.uid, None)
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
        plugin=_BUDGET, reason=Waiting.WAITING_FOR_PREEMPTION, detail=detail, in_line=True
    )
    known = session.refusals.get(group.uid, ())
    if all(one.detail != detail for one in known):
        session.refuse(group, (*known, verdict))
