"""Execution of a decision: victims are stopped, and their capacity is pledged to the preemptor.

What this session had done for the victims is undone without a trace. If no pod has to end first,
the preemptor starts at once; otherwise it gets a pledge and waits. All of this is one commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from batchq.api import intents
from batchq.api.intents import Eviction, Intent
from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.notation import MINUTE, counted
from batchq.api.objects import Pledge, Pod
from batchq.api.reasons import Leaving
from batchq.api.resources import PODS, Amounts, describe, minus, of_pod, plus, times, total
from batchq.api.transaction import CLUSTER, POD_GROUPS
from batchq.core.eligibility import holds_off
from batchq.core.kept_capacity import counts_on_others, make_pledge
from batchq.core.placement.elastic import start_extras
from batchq.core.preemption.preemptors import ExtraRequest, GangRequest, start_gang
from batchq.core.preemption.search import (
    Decision,
    PreemptionRequest,
    Taken,
    lose_pledge,
    put_back,
    unbind,
)
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import evict, reserve, roll_back

#: A preemptor waits for its victims this much longer than their longest termination grace.
PATIENCE_MS = 1 * MINUTE
REASONS = {"preempt": Leaving.PREEMPTED, "reclaim": Leaving.RECLAIMED}
#: Pods that stop for one of these reasons are evicted; pods of an ended group are not.
_LEAVING = frozenset(map(str, Leaving))


def action_against(preemptor: GroupState, victim: GroupState) -> str:
    """Return the action by which a victim is evicted: preempt within a queue, reclaim between
    queues. This does not depend on the action that chose it.
    """
    return "preempt" if victim.queue == preemptor.queue else "reclaim"


def carry_out(
    session: Session, request: PreemptionRequest, decision: Decision, action: str
) -> bool:
    """Carry a decision out; return whether it was.

    A pledge may exceed what the victims will have freed when they end: two preemptors that share a
    victim group both count on its slot in a queue with a limit on groups. Such a pledge is not
    made; the preemptor may find other victims, or waits until the group has left.
    """
    preemptor = request.preemptor
    before = {scope: dict(session.ledger.sums.get(scope, {})) for scope in preemptor.scopes}
    with Statement(session) as statement:
        _take_back(statement, decision.undone)
        for taken in decision.outranked:
            lose_pledge(statement, taken.victim.group)
        # Admission checks may demand that no victim is evicted before they have passed.
        waits = bool(decision.victims) and holds_off(session, preemptor)
        for victim in decision.victims:
            # A victim that counts on others itself and holds only a reservation gives it up now.
            if not waits or counts_on_others(victim.group.status):
                _evict(statement, preemptor, victim)
        left = _still_there(decision)
        if left or _requests_left(decision) or waits:
            _store_pledge(statement, request, decision, left, action, waits=waits)
        else:
            _start(statement, request)
        if _passes_limit(session, before):
            return False
        statement.commit()
    outranked = [taken.victim for taken in decision.outranked]
    gave = (*outranked, *decision.victims, *decision.ending)
    groups = (preemptor, *(victim.group for victim in gave))
    uids = (*(group.uid for group in groups), *_owed_before(session, decision))
    session.effects.joined.append(tuple(dict.fromkeys(uids)))
    return True


def _passes_limit(session: Session, before: Mapping[str, Amounts]) -> bool:
    """Return whether a scope now exceeds both its former sum and its limit."""
    for scope, was in before.items():
        for name, units in session.ledger.sums.get(scope, {}).items():
            if units <= was.get(name, 0) or (scope == CLUSTER and name == POD_GROUPS):
                continue
            limit = session.ledger.limit(scope, name)
            if limit is not None and units > limit:
                return True
    return False


def _owed_before(session: Session, decision: Decision) -> list[str]:
    """Return the preemptors to which any of these victims were pledged before. The end of the old
    pledge and the new pledge are one commit, or both pledges could stand.
    """
    named = [
        uid
        for victim in (*decision.victims, *decision.ending)
        for uid in (victim.group.uid, *(pod.metadata.uid for pod in victim.pods))
    ]
    owners = (session.victims.pledged_before.get(uid) for uid in named)
    return [uid for uid in owners if uid is not None and uid in session.groups]


def _take_back(statement: Statement, undone: list[Taken]) -> None:
    """Undo everything at once, because each pass looks through all intents of the session."""
    groups = {taken.victim.group.key for taken in undone if taken.victim.whole}
    pods = [taken.victim.pods[0] for taken in undone if not taken.victim.whole]
    uids = {pod.metadata.uid for pod in pods}
    names: set[tuple[str, ...]] = {
        (f"{pod.metadata.namespace}/{pod.metadata.name}",) for pod in pods
    }
    if pods:
        statement.retract(lambda intent: not _is_about(intent, groups, uids, names))
    elif groups:
        _retract(statement, groups)
    for taken in undone:
        leave = put_back if taken.victim.whole else unbind
        leave(statement, taken.victim)


def forget(statement: Statement, group: GroupState) -> None:
    """Reset the group to its state before the actions of this session."""
    _retract(statement, {group.key})
    put_back(statement, Victim(group, (), whole=True))


def _retract(statement: Statement, groups: set[str]) -> None:
    statement.retract(
        lambda intent: isinstance(intent, intents.SetNodeReady) or intent.group not in groups
    )


def _is_about(
    intent: Intent, groups: set[str], uids: set[str], names: set[tuple[str, ...]]
) -> bool:
    """Return whether an intent concerns one of these groups, or made or bound one of these pods."""
    match intent:
        case intents.SetNodeReady():
            return False
        case intents.Bind(uid=uid) if uid in uids:
            return True
        case intents.CreatePods(pods=pods) if pods in names:
            return True
        case _:
            return intent.group in groups


def _evict(statement: Statement, preemptor: GroupState, victim: Victim) -> None:
    session, group = statement.session, victim.group
    action = action_against(preemptor, group)
    former = session.effects.before.get(group.uid)
    if victim.whole and former is not None and any(_is_new(pod, former[1]) for pod in victim.pods):
        _forget_all_but_evictions(statement, group)
    stopped = [pod for pod in victim.pods if pod.metadata.uid in group.pods]
    running = [pod for pod in stopped if pod.status.phase in ON_NODE]
    reason, by = REASONS[action], preemptor.key
    _note_cost(statement, group, running, whole=victim.whole, by=by, reason=reason)
    if victim.whole:
        message = f"{_WHY[action]} {by} of queue {preemptor.queue}, priority {preemptor.priority}"
        roll_back(statement, group, reason, message, by=by, action=action)
        return
    for pod in running:
        evict(statement, group, pod, reason, by=by, action=action)


_WHY = {"preempt": "made room for", "reclaim": "gave back what its queue had borrowed, for"}


def _forget_all_but_evictions(statement: Statement, group: GroupState) -> None:
    """Reset the group to its state before the actions, except for pods that preemptors had evicted:
    these are pledged to them.
    """
    stopping = [
        one
        for one in statement.session.intents
        if isinstance(one, intents.Evict) and one.group == group.key and one.by
    ]
    forget(statement, group)
    for one in stopping:
        pod, reason = group.pods[one.uid], Leaving(one.reason)
        if pod.status.terminating:
            # It was being stopped before the actions began.
            continue
        _note_cost(statement, group, [pod], whole=False, by=one.by, reason=reason)
        evict(statement, group, pod, reason, by=one.by, action=one.action)


def _is_new(pod: Pod, former: dict[str, Pod]) -> bool:
    before = former.get(pod.metadata.uid)
    return before is None or before.status.attempt != pod.status.attempt


def _note_cost(
    statement: Statement,
    group: GroupState,
    pods: list[Pod],
    *,
    whole: bool,
    by: str,
    reason: Leaving,
) -> None:
    """Count an eviction of the group, with the lost work in resource-seconds."""
    session, spent = statement.session, group.status.evictions
    window_ms = session.settings.eviction_window_ms
    recent = {
        at: count for at, count in spent.recent.items() if int(at) + window_ms > session.now_ms
    }
    if pods:
        recent[str(session.now_ms)] = recent.get(str(session.now_ms), 0) + len(pods)
    statement.set_status(
        group,
        evictions=structs.replace(
            spent,
            groups=spent.groups + whole,
            pods=spent.pods + len(pods),
            lost=plus(spent.lost, _work_of(pods, session.now_ms)),
            recent=recent,
            last_by=by,
            last_reason=str(reason),
            last_at=session.now_ms,
        ),
    )


def _work_of(pods: Iterable[Pod], now_ms: int) -> Amounts:
    """Return the work of pods until now, in resource-seconds."""
    work = total(
        times(of_pod(pod.spec.requests), max(0, now_ms - pod.status.started_at) // 1000)
        for pod in pods
        if pod.status.started_at is not None
    )
    return {name: units for name, units in work.items() if units}


def evictions_of(session: Session, said: Iterable[Intent]) -> list[Eviction]:
    """Return the evictions among the intents of a session, in the order decided."""
    stopped: dict[str, list[intents.Evict | intents.LosePod]] = {}
    left: dict[str, intents.RollBack] = {}
    for intent in said:
        match intent:
            case intents.Evict(group=key, reason=reason) if reason in _LEAVING:
                stopped.setdefault(key, []).append(intent)
            case intents.LosePod(group=key):
                stopped.setdefault(key, []).append(intent)
            case intents.RollBack(group=key):
                left[key] = intent
            case _:
                pass
    return [
        _eviction(session, session.by_key[key], stopped.get(key, []), left.get(key))
        for key in dict.fromkeys((*stopped, *left))
    ]


def _eviction(
    session: Session,
    group: GroupState,
    stopped: Sequence[intents.Evict | intents.LosePod],
    left: intents.RollBack | None,
) -> Eviction:
    pods = [group.pods[one.uid] for one in stopped if one.uid in group.pods]
    if left is not None:
        reason = left.reason
    elif isinstance(stopped[0], intents.Evict):
        reason = stopped[0].reason
    else:
        reason = (pods[0].status.reason if pods else "") or str(Leaving.NODE_LOST)
    started_at = group.record.status.started_at
    if group.is_external and started_at is not None:
        seconds = max(0, session.now_ms - started_at) // 1000
        lost = times(group.record.status.reservation, seconds)
    else:
        lost = _work_of(pods, session.now_ms)
    return Eviction(
        at=session.now_ms,
        key=group.key,
        queue=group.queue,
        whole=left is not None,
        pods=tuple(one.pod for one in stopped),
        by=preemptor_of(group),
        action=next((name for name, one in REASONS.items() if one == reason), ""),
        reason=str(reason),
        lost=lost,
    )


def preemptor_of(group: GroupState) -> str:
    """Return the preemptor of a group's last eviction, if that is of this session."""
    now, before = group.status.evictions, group.record.status.evictions
    return now.last_by if now != before else ""


def evicted_recently(session: Session) -> int:
    """Return the number of pods evicted by preempt and reclaim within the window of the budget."""
    since = session.now_ms - session.settings.eviction_window_ms
    return sum(
        count
        for group in session.busy()
        for at, count in group.status.evictions.recent.items()
        if int(at) > since
    )


def exceeds(session: Session, decision: Decision) -> bool:
    """Return whether a decision exceeds the rest of the eviction budget."""
    budget = session.settings.eviction_budget
    cost = sum(len(victim.pods) for victim in decision.victims)
    return budget is not None and cost > 0 and evicted_recently(session) + cost > budget


def exceeds_budget(session: Session, decision: Decision) -> bool:
    """Return whether evictions must wait for the budget, unless it is unused."""
    return exceeds(session, decision) and evicted_recently(session) > 0


def _still_there(decision: Decision) -> list[tuple[GroupState, Pod]]:
    """Return the pods of the victims that must end first."""
    found = []
    for victim in (*decision.victims, *decision.ending):
        for former in victim.pods:
            pod = victim.group.pods.get(former.metadata.uid)
            if pod is not None and pod.status.phase in ON_NODE:
                found.append((victim.group, pod))
    return found


def _requests_left(decision: Decision) -> list[GroupState]:
    """Return external victims whose consumers must release their lease first."""
    return [
        victim.group
        for victim in decision.victims
        if victim.group.is_external and victim.group.status.claim.is_open
    ]


def _holding_no_node(decision: Decision) -> list[GroupState]:
    """Return groups that leave completely and have only a reservation, without processes."""
    return [
        victim.group
        for victim in decision.victims
        if victim.whole
        and victim.group.reserved
        and not victim.pods
        and not victim.group.status.claim.is_open
    ]


def _store_pledge(
    statement: Statement,
    request: PreemptionRequest,
    decision: Decision,
    left: list[tuple[GroupState, Pod]],
    action: str,
    *,
    waits: bool,
) -> None:
    """Store the pledge. With `waits`, nothing is evicted yet, and the pledge does not expire."""
    session, preemptor = statement.session, request.preemptor
    outside = _requests_left(decision)
    idle = _holding_no_node(decision) if waits else []
    ends_at = [(pod.status.terminating_at or 0) + pod.spec.termination_grace for _, pod in left]
    ends_at += [group.status.claim.over_at or session.now_ms for group in outside]
    pledge = Pledge(
        claimant=preemptor.key,
        action="preempt" if action == "preempt" else "reclaim",
        victims=(
            *(f"{pod.metadata.namespace}/{pod.metadata.name}" for _, pod in left),
            *(group.key for group in (*outside, *idle)),
        ),
        holds={
            **{pod.metadata.uid: pod.status.attempt for _, pod in left},
            **{group.uid: group.status.admission for group in (*outside, *idle)},
        },
        groups=tuple(
            dict.fromkeys([group.uid for group, _ in left] + [g.uid for g in (*outside, *idle)])
        ),
        whole=tuple(victim.group.uid for victim in decision.victims if victim.whole),
        room=decision.by_node,
        plan=decision.plan,
        extra=_extra(request, decision),
        made_at=session.now_ms,
        expires=None if waits else max(session.now_ms, *ends_at) + PATIENCE_MS,
    )
    if not preemptor.reserved:
        # A running group was admitted without a reservation; its pledge adds to what it holds.
        held = preemptor.held if pledge.extra else None
        awaited = counted(len(pledge.victims), "victim")
        reserve(statement, preemptor, f"for when {awaited} ended", held)
    make_pledge(statement, preemptor, pledge)


def _has_leave(session: Session, group: GroupState) -> bool:
    """Return whether no admission check holds the group back."""
    return group.phase != PodGroupPhase.PENDING or not session.refusals_at("permit", group)


def _extra(request: PreemptionRequest, decision: Decision) -> Amounts:
    """Return what pods beyond minMember add to the current reservation, once the preemptor's own
    pods that they wait for have ended.
    """
    if not isinstance(request, ExtraRequest):
        return {}
    group = request.preemptor
    own = total(of_pod(pod.spec.requests) for of, pod in _still_there(decision) if of is group)
    held = minus(group.held, own)
    grown = group.charge_holding(plus(held, _planned(group, decision)))
    # An empty value would mark the pledge of a gang.
    return minus(grown, group.charge_holding(held)) or {PODS: 0}


def _planned(group: GroupState, decision: Decision) -> Amounts:
    """Return what the planned pods of a group request."""
    if group.sharing is None:
        return total(decision.by_node.values())
    ordinals = list(map(int, decision.plan))
    return total(
        shape.requests for shape in group.tasks for one in ordinals if one in shape.ordinals
    )


def _start(statement: Statement, request: PreemptionRequest) -> None:
    """Start the preemptor at once, because no victim must end first."""
    match request:
        case ExtraRequest(preemptor=group, count=count):
            start_extras(statement, group, count)
        case GangRequest(preemptor=group) if _has_leave(statement.session, group):
            start_gang(statement, group)
        case GangRequest(preemptor=group):
            if not group.reserved:
                reserve(statement, group, f"reserved {describe(group.reservation)}")
        case _:
            raise TypeError(f"{request} is not a request that can start")
