"""What preempt and reclaim share: in which order claimants come, and what a try amounts to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Verdict, Waiting
from batchq.framework.line import blockers, standing_aside
from batchq.framework.pledges import awaits_victims
from batchq.framework.queue_shares import deserved_of_queues, note_admission
from batchq.framework.search import Claim, Decision, find_victims
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.framework.taking import carry_out, evicted_recently, exceeds_budget
from batchq.framework.tree import ROOT
from batchq.framework.turns import Turns


def serve_claimants(
    session: Session,
    claimants: Iterable[GroupState],
    serve: Callable[[Session, GroupState], None],
) -> None:
    """The queue with the lowest share first, looked at anew after each; groups in order.

    Claimants that ask for the same as one that has just failed are not tried, until something has
    changed: with thousands of them waiting, a session would do little else.
    """
    # Asked before anybody is evicted: what queues deserve does not change by that.
    deserved_of_queues(session)
    session.undoable = None
    lines: dict[str, list[GroupState]] = {}
    for group in claimants:
        lines.setdefault(group.queue if session.points["queueOrder"] else ROOT, []).append(group)
    for line in lines.values():
        line.sort(key=session.group_key, reverse=True)
    failed: set[Any] = set()
    turns = Turns(session, lines)
    while (name := turns.next()) is not None:
        if not lines[name]:
            turns.drop(name)
            continue
        group = lines[name].pop()
        asks = (group.queue, group.namespace, group.priority, group.phase, group.shape.claim)
        key = (*asks, tuple((shape.shape, shape.task.replicas) for shape in group.tasks))
        if key in failed:
            continue
        decided = len(session.joined)
        serve(session, group)
        if len(session.joined) > decided:
            failed.clear()
        else:
            failed.add(key)


def try_claim(session: Session, claim: Claim, queues: list[str], *, action: str) -> bool:
    """Find victims in these queues and let it happen; whether it did."""
    decision = find_victims(session, claim, queues)
    return decision is not None and let_happen(session, claim, decision, action=action)


def let_happen(session: Session, claim: Claim, decision: Decision, *, action: str) -> bool:
    """Carry a decision out, unless the eviction budget is against it; whether it was."""
    if exceeds_budget(session, decision):
        _say_over_budget(session, claim.claimant)
        return False
    was_pending = claim.claimant.phase == PodGroupPhase.PENDING
    carry_out(session, claim, decision, action)
    if was_pending and claim.claimant.phase != PodGroupPhase.PENDING:
        note_admission(session, claim.claimant)
    _tell_what_it_waits_for(session, claim.claimant)
    gave_way = (*(taken.victim for taken in decision.undone), *decision.victims)
    for victim in gave_way:
        _tell_whom_it_made_way_for(session, victim.group, claim.claimant)
    return True


def _tell_whom_it_made_way_for(session: Session, group: GroupState, claimant: GroupState) -> None:
    """Of a group that is Pending again: what stands against it now."""
    if group.phase != PodGroupPhase.PENDING:
        return
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
    session.ledger.drop_aside(group.queue)
    session.refusals.pop(group.uid, None)
    session.asides.pop(group.uid, None)
    if awaits_victims(session, group) and group.phase == PodGroupPhase.PENDING:
        session.refuse(group, standing_aside(session, group))


def _say_over_budget(session: Session, group: GroupState) -> None:
    settings = session.settings
    seconds = settings.eviction_window_ms // 1000
    detail = (
        f"would have others evicted, and the eviction budget of {settings.eviction_budget} pods"
        f" in {seconds}s is spent ({evicted_recently(session)} so far)"
    )
    verdict = Verdict(
        plugin="hygiene", reason=Waiting.WAITING_FOR_PREEMPTION, detail=detail, in_line=True
    )
    known = session.refusals.get(group.uid, ())
    if all(one.detail != detail for one in known):
        session.refuse(group, (*known, verdict))
