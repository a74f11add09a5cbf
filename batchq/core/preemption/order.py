"""The order of preemptors, and the outcome of each attempt, for preempt and reclaim alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.notation import counted, format_instant
from batchq.api.objects import Pledge, Pod, PodGroupStatus
from batchq.api.reasons import Leaving, Verdict, Waiting
from batchq.api.resources import describe_quantity
from batchq.core.eligibility import evicts_late, holds_off, stops_of
from batchq.core.kept_capacity import (
    awaits_victims,
    end_pledge,
    has_lost_nodes,
    hold_capacity,
    nodes_awaited,
    resume_pledge,
    standing_pledges,
)
from batchq.core.pending_queue import blockers, out_of_line_refusals
from batchq.core.preemption.candidates import (
    AT_ACTION_START,
    DECIDED,
    FIRST_SEARCH,
    SearchTerms,
    rank_of,
    stoppable,
)
from batchq.core.preemption.evictions import carry_out, evicted_recently, exceeds_budget, forget
from batchq.core.preemption.preemptors import (
    POINTS,
    PREEMPT,
    RECLAIM,
    FromBoth,
    GangRequest,
    Preemptors,
    fits_in_head_reservations,
    may_preempt,
    propose,
    verdicts_beyond_capacity,
)
from batchq.core.preemption.protection import (
    EVICTION_BUDGET,
    NEVER,
    is_protected,
    may_evict,
    protection_ends_at,
)
from batchq.core.preemption.search import (
    VICTIMS_TRIED,
    Decision,
    PreemptionRequest,
    Takeover,
    find_victims,
    fits_when_victims_end,
    lose_pledge,
    send_off,
)
from batchq.core.quota.fair_shares import deserved_of_queues, note_admission
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.quota.selector import FairShareSelector, borrowers_of
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import roll_back

#: The number of victims tried after which a session serves no more preemptors; a try takes some
#: tenths of a millisecond.
MOST_TRIED = 2_000

_VICTIMS_GONE = "the victims that it waited for can no longer be evicted"
_NO_NODE_LEFT = "a node with capacity pledged to it is gone, and no other node can replace it"
_OUTRANKED = "its victims were taken over by a group that comes before it"


@dataclass(frozen=True, slots=True)
class _WithoutVictims(GangRequest):
    """A gang's request for capacity that is free or being freed. It takes no victims, so the
    deserved share of its queue does not restrict it.
    """

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return False: this request takes no victims."""
        return False

    def may_take_over(self, session: Session, left: Takeover) -> bool:
        """Return False: this request takes over no pledges."""
        return False

    def ends_well(self, session: Session, victims: Iterable[Victim]) -> bool:
        """Return True: its own queue gives everything, and may hold any amount afterwards."""
        return True


def serve_preemptors(
    session: Session,
    preemptors: Preemptors,
    serve: Callable[[Session, GroupState], object],
) -> None:
    """Serve the queue with the lowest share first, chosen again after each preemptor; groups of a
    queue in order.

    After a failure, preemptors with the same request are skipped until something has changed: with
    thousands of them, the session would do little else. After a success, those that are left are
    served by the next session if searches have tried `MOST_TRIED` victims already, since no other
    group starts meanwhile; a success is a decision, so that session follows at once.
    """
    walks = preemptors.by_queue(session)
    if not walks:
        return
    # Computed before any eviction, because evictions do not change what queues deserve.
    deserved_of_queues(session)
    session.get(AT_ACTION_START).begin()
    failed: set[Any] = set()
    turns = FairShareSelector(session, walks, lambda name: walks[name].peek())
    # The iterators in which a preemptor was skipped.
    halted = dict(walks)
    while (name := turns.next()) is not None:
        group = walks[name].next()
        if group is None:
            turns.drop(name)
            continue
        asks = (group.queue, group.namespace, group.priority, group.phase, group.shape.claim)
        key = (*asks, tuple((shape.shape, shape.task.replicas) for shape in group.tasks))
        if walks[name].has_changed(session.refusals.own):
            # It now differs from the others of its class, and is tried separately if it is a
            # preemptor.
            continue
        if key not in failed:
            decided = len(session.effects.joined)
            serve(session, group)
            if len(session.effects.joined) > decided:
                if session.get(VICTIMS_TRIED).victims >= MOST_TRIED:
                    return
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
    """Evict victims for a gang if all rules allow it; return whether they are evicted."""
    found = propose(session, group, action, terms)
    return found is not None and let_happen(session, *found, action=action)


def choose_new_victims(session: Session, action: str) -> None:
    """Choose new victims for this action's pledges if those that they count on have changed.

    If nothing has been evicted yet, policies may have changed: victims are chosen as if for the
    first time, and once its checks pass, the preemptor has them evicted by this action. If a node
    of its capacity is lost or cordoned, victims on other nodes are chosen. If there are none and
    some are being stopped, the preemptor waits for the node until its pledge expires.
    """
    if session.nodes.binding_refused is not None:
        return
    session.get(AT_ACTION_START).begin()
    waiting = [
        group
        for group, pledge in standing_pledges(session)
        if pledge.action == action and _needs_new_victims(session, group)
    ]
    if not waiting:
        return
    # Computed while they still have their pledges, because their requests are part of the demand.
    deserved_of_queues(session)
    for group in sorted(waiting, key=session.group_key):
        before = group.status
        if not before.pledge.stands or group.uid in session.get(DECIDED).served(session):
            # A preemptor ranked before it has taken over its pledge.
            continue
        with Statement(session) as statement:
            lose_pledge(statement, group)
            statement.commit()
        if not before.pledge.extra:
            # If both actions contributed victims, the other action alone may now suffice.
            others = [name for name in _claiming(session) if name != action]
            _choose_again(session, group, before, [action, *others])


def _needs_new_victims(session: Session, group: GroupState) -> bool:
    if has_lost_nodes(session, group.status.pledge):
        return True
    return (
        group.status.pledge.expires is None
        and evicts_late(session, group)
        and awaits_victims(session, group)
    )


def _choose_again(
    session: Session, group: GroupState, before: PodGroupStatus, actions: list[str]
) -> None:
    """Choose victims for a gang that has lost its pledge. It keeps its former reservation, with or
    without victims, or gives it up.
    """
    said, decided = list(session.intents), len(session.effects.joined)
    session.refusals.pop(group.uid, None)
    # Head reservations apply only to groups without a reservation.
    with session.ledger.regarding(()):
        found = _find_capacity(session, group, before.pledge, actions)
    if not found and session.ledger.head_reservations:
        # Its victims may be those of a group that lacks what is reserved for heads.
        found = _find_capacity(session, group, before.pledge, actions)
    with Statement(session) as statement:
        if found:
            _keep_reservation(statement, group, before, said)
            if group.status is before and session.intents == said:
                # Nothing has changed, so no decision was made, and the group may be a victim
                # itself.
                del session.effects.joined[decided:]
        elif _keeps_its_pledge(session, group, before.pledge):
            statement.put_status(group, before)
            group.confine(before.domain)
            resume_pledge(statement, group, before.pledge)
        else:
            if _was_admitted_now(session, group, before):
                forget(statement, group)
                end_pledge(statement, group)
            else:
                statement.put_status(group, structs.replace(before, pledge=Pledge()))
                group.confine(before.domain)
                statement.say(intents.EndPledge(group=group.key))
            _give_up(statement, group, before.pledge)
        statement.commit()
    if group.status is before and not found and not _is_put_off(session, group):
        _set_own_verdict(session, group)


def _was_admitted_now(session: Session, group: GroupState, before: PodGroupStatus) -> bool:
    """Return whether this session has admitted a group that had this status then."""
    former = session.effects.before.get(group.uid)
    return (
        former is not None
        and former[0].phase == PodGroupPhase.PENDING
        and before.phase != PodGroupPhase.PENDING
    )


def end_spare_pledges(session: Session) -> None:
    """End the pledges of preemptors that now fit without their victims and come before all waiting
    groups. What they find is theirs, and victims that are not being stopped yet go on.
    """
    for group in _waiting_for_victims(session):
        # Checked first because it is cheap: usually the victims still hold what the preemptor
        # needs.
        if not over_any_limit(session, group) and not _is_preceded(session, group):
            _end_if_spare(session, group)


def end_pledges_still_spare(session: Session) -> list[GroupState]:
    """End other pledges that are no longer needed; return the groups concerned."""
    return [
        group
        for group in _waiting_for_victims(session)
        if not over_any_limit(session, group) and _end_if_spare(session, group)
    ]


def _waiting_for_victims(session: Session) -> list[GroupState]:
    """Return the Pending gangs with a reservation that wait for victims, in order."""
    pledges = standing_pledges(session)
    if not pledges:
        return []
    waiting = [
        group
        for group, pledge in pledges
        if group.phase == PodGroupPhase.PENDING
        and group.reserved
        and not pledge.extra
        and awaits_victims(session, group)
    ]
    return sorted(waiting, key=session.group_key)


def _end_if_spare(session: Session, group: GroupState) -> bool:
    fit = GangRequest(group).fit(session)
    if fit.fits:
        with Statement(session) as statement:
            end_pledge(statement, group)
            statement.commit()
        session.pending.ineligible.pop(group.uid, None)
        hold_capacity(session, group, fit.by_node)
    return fit.fits


def _is_preceded(session: Session, group: GroupState) -> bool:
    """Return whether any waiting group ranks before this one."""
    rank = rank_of(group)
    return any(
        one.phase == PodGroupPhase.PENDING and not one.reserved and rank_of(one) < rank
        for queue in session.queues.values()
        for one in queue.line.firsts()
    )


def _keeps_its_pledge(session: Session, group: GroupState, pledge: Pledge) -> bool:
    """Return whether a gang that finds no other victims keeps its former pledge. It does not if
    those victims now belong to another preemptor.
    """
    if group.uid in session.get(DECIDED).all(session):
        return False
    return _is_put_off(session, group) or bool(nodes_awaited(session, pledge))


def _is_put_off(session: Session, group: GroupState) -> bool:
    """Return whether only the eviction budget refuses the group."""
    return any(verdict.plugin == EVICTION_BUDGET for verdict in session.refusals.get(group.uid, ()))


def _give_up(statement: Statement, group: GroupState, pledge: Pledge) -> None:
    """Roll back a group whose victims were taken by another preemptor or are gone."""
    session = statement.session
    if group.uid in session.get(DECIDED).all(session):
        roll_back(statement, group, Leaving.PREEMPTED, _OUTRANKED)
    elif has_lost_nodes(session, pledge):
        roll_back(statement, group, Leaving.NODE_LOST, _NO_NODE_LEFT)
    else:
        # If the pledge has just been made, only the choices of other preemptors can have ended it.
        # These may depend on each other in a circle; without a pause, none would ever last.
        age_ms = session.now_ms - (pledge.made_at or 0)
        has_just_chosen = pledge.expires is None and age_ms <= session.settings.schedule_period_ms
        roll_back(statement, group, Leaving.CAPACITY_CUT, _VICTIMS_GONE, backs_off=has_just_chosen)


def _find_capacity(session: Session, group: GroupState, former: Pledge, actions: list[str]) -> bool:
    """Try to find capacity for a gang: in what is free, with its former victims, with others, then
    with the victims of preemptors ranked behind it. Those keep their victims if possible, because
    this gang had some of its own.

    Former victims come first, so that two gangs whose choices depend on each other's pledges do not
    replace their choices for ever.
    """
    if _fits_without_victims(session, group, former.action):
        return True
    if not may_preempt(session, group):
        return False
    return any(
        serve_gang(session, group, action=action, terms=terms)
        for terms in (
            SearchTerms(again=True, spares_pledges=True, former=former),
            SearchTerms(again=True, spares_pledges=True),
            SearchTerms(again=True),
        )
        for action in actions
    )


def _fits_without_victims(session: Session, group: GroupState, action: str) -> bool:
    """Return whether the gang no longer needs victims, because other groups end or nodes were
    added; it is then started, or waits only for these ends.
    """
    request = _WithoutVictims(group)
    decision = find_victims(session, request, [], terms=SearchTerms(again=True))
    return decision is not None and let_happen(session, request, decision, action=action)


def _keep_reservation(
    statement: Statement, group: GroupState, before: PodGroupStatus, said: list[Intent]
) -> None:
    """Keep the reservation of a gang that has found capacity again, perhaps with other victims.
    Events are recorded only for what has changed.
    """
    session, old, new = statement.session, before.pledge, group.status.pledge
    # Some of the earlier intents may have been retracted meanwhile.
    known = set(said)
    session.intents[:] = [
        one
        for one in session.intents
        if one in known or not _is_repeated(one, group.key, old.victims)
    ]
    victims = old.victims if sorted(new.victims) == sorted(old.victims) else new.victims
    if structs.replace(new, made_at=old.made_at, owed=old.owed, victims=victims) == old:
        statement.put_status(group, before)
        return
    statement.set_status(group, reserved_at=before.reserved_at, reservation=before.reservation)
    if not new.stands:
        statement.say(intents.EndPledge(group=group.key))


def _is_repeated(intent: Intent, group: str, victims: tuple[str, ...]) -> bool:
    """Return whether an intent repeats a known reservation, or a pledge with the same victims."""
    match intent:
        case intents.ReserveQuota():
            return intent.group == group
        case intents.Pledge():
            return intent.group == group and sorted(intent.victims) == sorted(victims)
        case _:
            return False


def let_happen(
    session: Session, request: PreemptionRequest, decision: Decision, *, action: str
) -> bool:
    """Carry a decision out unless the eviction budget or a limit forbids it; return whether it was
    carried out.
    """
    if exceeds_budget(session, decision) and not holds_off(session, request.preemptor):
        _say_over_budget(session, request.preemptor)
        return False
    was_pending = request.preemptor.phase == PodGroupPhase.PENDING
    if not carry_out(session, request, decision, action):
        return False
    if was_pending and request.preemptor.phase != PodGroupPhase.PENDING:
        note_admission(session, request.preemptor)
    _set_own_verdict(session, request.preemptor)
    gave_way = (*(taken.victim for taken in decision.undone), *decision.victims)
    for victim in gave_way:
        _set_victim_verdict(session, victim.group, request.preemptor)
    for taken in sorted(decision.outranked, key=lambda one: rank_of(one.victim.group)):
        if not taken.former[0].pledge.extra:
            _choose_again(session, taken.victim.group, taken.former[0], _claiming(session))
    return True


def _claiming(session: Session) -> list[str]:
    """Return the configured actions that evict, in their order."""
    return [name for name in session.actions if name in POINTS]


def _set_victim_verdict(session: Session, group: GroupState, preemptor: GroupState) -> None:
    """Set the verdict of a victim that is Pending again."""
    if group.phase != PodGroupPhase.PENDING:
        return
    # A group that had only reserved quota still has the verdict that it waits for its checks.
    session.pending.ineligible.pop(group.uid, None)
    against = blockers(session, group)
    if any(verdict.plugin == "pledge" for verdict in against):
        session.refuse(group, against)
        return
    detail = f"gave way to {preemptor.key} in this session"
    gave_way = Verdict(
        plugin="pledge", reason=Waiting.WAITING_FOR_TURN, detail=detail, in_line=True
    )
    session.refuse(group, (*against, gave_way))


def _set_own_verdict(session: Session, group: GroupState) -> None:
    session.ledger.drop_head_reservation(group)
    session.refusals.pop(group.uid, None)
    session.pending.ineligible.pop(group.uid, None)
    if group.phase == PodGroupPhase.PENDING:
        session.refuse(group, out_of_line_refusals(session, group))


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


#: The extension point at which only minRuntime protects.
_PREEMPTABLE = "preemptable"


def why_no_request(session: Session, group: GroupState) -> str:
    """Return why a group that lacks capacity is no preemptor; '' if it is one."""
    if (refused := session.nodes.binding_refused) is not None:
        return f"nothing is evicted while nothing may be bound: {refused.message()}"
    if group.status.pledge.stands:
        return "it waits for its victims already"
    if others := verdicts_beyond_capacity(session, group):
        reasons = ", ".join(dict.fromkeys(str(verdict.reason) for verdict in others))
        return f"it waits for more than room ({reasons}), which no eviction would end"
    if stops := stops_of(session, group):
        name, policy = stops[0]
        return f"queue {name} is stopped ({policy}), and nothing is evicted for its groups"
    if not may_evict(session, group):
        name = group.record.spec.priority_class_name
        named = f"its priority class {name}" if name else "the default priority class"
        return f"{named} does not allow evictions (preemptionPolicy Never)"
    return ""


def why_spared(
    session: Session, request: PreemptionRequest, point: str, queues: Sequence[str]
) -> list[str]:
    """Return why the groups of these queues are not taken for a request."""
    groups = _holders(session, request.preemptor, queues)
    if not groups:
        return ["no other group holds anything there"]
    shortage = request.fit(session).shortage()
    may, spared = _divide(session, request, groups, shortage)
    lines = _refusals(session, point, request.preemptor, spared, shortage)
    return [*lines, *_why_not_enough(session, request, may, [list(queues)])]


def why_both_spared(session: Session, group: GroupState) -> list[str]:
    """Return why the victims of preempt and of reclaim are not taken together for a group; nothing
    if one of the two actions may take none, which `spares` of that action explains.
    """
    queue = session.queues.get(group.queue)
    if queue is None or not {PREEMPT, RECLAIM} <= set(session.actions):
        return []
    policy = queue.record.spec.preemption
    if "Never" in (policy.within_queue, policy.reclaim) or why_no_request(session, group):
        return []
    request = FromBoth(group)
    if fits_in_head_reservations(session, request):
        return []
    shortage = request.fit(session).shortage()
    others = borrowers_of(session, POINTS[RECLAIM]).givers(group.queue)
    of_action = {PREEMPT: [queue.name], RECLAIM: others}
    may: list[Victim] = []
    for queues in of_action.values():
        taken, _ = _divide(session, request, _holders(session, group, queues), shortage)
        if not taken:
            return []
        may += taken
    in_order = [of_action[name] for name in session.actions if name in of_action]
    return _why_not_enough(session, request, may, in_order)


def _holders(session: Session, preemptor: GroupState, queues: Iterable[str]) -> list[GroupState]:
    return [
        group
        for queue in queues
        for group in session.ledger.holding.get(queue, {}).values()
        if group is not preemptor and group.phase not in TERMINAL
    ]


def _divide(
    session: Session, request: PreemptionRequest, groups: Sequence[GroupState], shortage: Shortage
) -> tuple[list[Victim], list[Victim]]:
    """Return the victims that may be taken and those that may not: whole groups, or the pods beyond
    minMember of a group that may not be taken whole.
    """
    may: list[Victim] = []
    spared: list[Victim] = []
    for group in groups:
        whole = Victim(group, _not_stopping(group), whole=True)
        if request.may_take(session, whole, shortage):
            may.append(whole)
            continue
        beyond = stoppable(session, group)[group.min_member :] if group.is_elastic else []
        taken = tuple(
            pod
            for pod in beyond
            if request.may_take(session, Victim(group, (pod,), whole=False), shortage)
        )
        if taken:
            may.append(Victim(group, taken, whole=False))
        else:
            spared.append(whole)
    return may, spared


def _not_stopping(group: GroupState) -> tuple[Pod, ...]:
    return tuple(
        pod
        for pod in group.live_pods.values()
        if pod.status.phase in ON_NODE and not pod.status.terminating
    )


def _refusals(
    session: Session, point: str, preemptor: GroupState, spared: list[Victim], shortage: Shortage
) -> list[str]:
    why = Counter(_why(session, point, preemptor, victim, shortage) for victim in spared)
    return [
        f"{counted(count, 'group')} {'is' if count == 1 else 'are'} {words}"
        for words, count in sorted(why.items(), key=lambda item: (-item[1], item[0]))
    ]


def _why(
    session: Session, point: str, preemptor: GroupState, victim: Victim, shortage: Shortage
) -> str:
    """Return the message of the first refusal."""
    if is_protected(session, victim, point):
        return _protection(session, victim, point)
    for entry in session.plugins.points[point]:
        if entry.function(session, preemptor, victim, shortage) is False:
            return entry.traits.spares or f"refused by plugin {entry.plugin}"
    return "outside of what the action may take"


def _protection(session: Session, victim: Victim, point: str) -> str:
    """Return which of the two rules protects for longer, and until when."""
    until = protection_ends_at(session, victim, point)
    if until == protection_ends_at(session, victim, _PREEMPTABLE):
        return f"protected by minRuntime until {format_instant(until)}"
    when = f" until {format_instant(until)}" if until < NEVER else ""
    return f"protected{when} by what reclaim took before"


def _why_not_enough(
    session: Session, request: PreemptionRequest, may: list[Victim], queues: list[list[str]]
) -> list[str]:
    """Return why the groups that could be taken are not taken. `queues`: where victims are sought
    first, and where those are sought that complete them, if anywhere.
    """
    if not may:
        return []
    could = f"{counted(len(may), 'group')} could make way"
    decision = find_victims(session, request, *queues)
    if decision is not None:
        if exceeds_budget(session, decision):
            return [f"{could}, but {_budget(session)}"]
        return [f"{could}, and one of the next sessions will evict them"]
    if heads := _heads_in_the_way(session, request, queues):
        return [f"{could}, but part of what they would leave is reserved for the head of {heads}"]
    with Statement(session) as trial:
        for victim in may:
            if victim.whole:
                send_off(trial, victim)
                continue
            for pod in victim.pods:
                trial.drop_pod(victim.group, pod.metadata.uid)
        fit = request.fit(session)
        if not fit.fits:
            lacks = f" of {', '.join(sorted(fit.lacking))}" if fit.lacking else ""
            return [f"{could}, but even together they would not leave enough{lacks}"]
        if not request.ends_well(session, may):
            queue = request.preemptor.queue
            return [f"{could}, but queue {queue} would end above what it deserves"]
    if fits_when_victims_end(session, request):
        return [f"{could}, but pods that are stopping already will free enough"]
    # Each of them may be taken as long as its queue holds more than it deserves, but not all.
    return [f"{could}, but not enough of them before their queues hold only what they deserve"]


def _heads_in_the_way(session: Session, request: PreemptionRequest, queues: list[list[str]]) -> str:
    """Return the queues whose head reservations alone keep the request from its victims, '' if it
    would not get them without these either.
    """
    preemptor = request.preemptor.queue
    names = ", ".join(name for name in session.ledger.head_reservations if name != preemptor)
    if not names:
        return ""
    with session.ledger.regarding(()):
        return names if find_victims(session, request, *queues) is not None else ""


def _budget(session: Session) -> str:
    settings = session.settings
    seconds = settings.eviction_window_ms // 1000
    return (
        f"the eviction budget of {settings.eviction_budget} pods in {seconds}s is spent"
        f" ({evicted_recently(session)} so far)"
    )


def ends_above_text(queue: str, resource: str, ends_at: int, deserved: int) -> str:
    """Return the message that a queue would hold more than it deserves."""
    would, may = (describe_quantity(resource, units) for units in (ends_at, deserved))
    return f"queue {queue} would hold {resource} {would}, more than the {may} that it deserves"
