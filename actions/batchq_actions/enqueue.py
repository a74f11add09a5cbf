"""enqueue: who may have pods. First come, first served; policy lives in plugins.

Queues by fair share, looked at anew after each admission (or, without a queueOrder plugin, one
global line); within a queue by the groupOrder plugins, then queue time, then uid. A group that is
refused *out of line* (gated, suspended, impossible, held back by its own namespace only …) is
passed over: nobody waits for it. A group refused *in line* (by capacity) means for those behind
it: under BestEffortFIFO they are tried, under StrictFIFO they wait, and under Backfill they wait
for the action of that name.
"""

from __future__ import annotations

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Blockers, Leaving, Verdict, Waiting
from batchq.api.resources import describe
from batchq.framework.asides import set_aside, set_aside_from_borrowers
from batchq.framework.line import alike, blockers, waits_in_line
from batchq.framework.moves import admit, create_pods, reserve, roll_back
from batchq.framework.placement import fits_on_empty_nodes, gang_of, why_not_on_empty_nodes
from batchq.framework.pledges import awaits_victims
from batchq.framework.queue_shares import note_admission
from batchq.framework.session import Key, Session
from batchq.framework.state import GroupState
from batchq.framework.statement import Statement
from batchq.framework.turns import Turns
from batchq.framework.wanted import wanted_ordinals

#: Strategy -> what those behind a head that waits are told.
_BEHIND = {
    strategy: Verdict(
        plugin="enqueue",
        reason=Waiting.WAITING_FOR_TURN,
        detail=f"waits behind the head of its queue, {how}",
        in_line=True,
    )
    for strategy, how in {
        "StrictFIFO": "which is first come, first served (StrictFIFO)",
        "Backfill": "past which it goes only where that delays nobody who has a reservation",
    }.items()
}


class Enqueue:
    """Pending -> InQueue, with reservation and pods, for every group that may."""

    name = "enqueue"

    def execute(self, session: Session) -> None:
        _keep_promises(session)
        if session.points["queueOrder"]:
            _serve_queues(session)
        else:
            _serve_one_line(session)


def _keep_promises(session: Session) -> None:
    """Who has reserved comes first: claimants whose victims have ended, and groups whose checks
    have passed meanwhile. What they reserved is nobody else's.
    """
    groups = [group for group in session.busy() if _is_promised(session, group)]
    for group in sorted(groups, key=session.group_key):
        _try(session, group)


def _is_promised(session: Session, group: GroupState) -> bool:
    pending = group.phase == PodGroupPhase.PENDING
    return pending and group.reserved and not awaits_victims(session, group)


def _serve_queues(session: Session) -> None:
    """The queue with the lowest share first; its next group decides when it is served again."""
    lines = {name: iter(queue.line) for name, queue in session.queues.items() if queue.line}
    turns = Turns(session, lines)
    headed: set[str] = set()
    while (name := turns.next()) is not None:
        group = next((one for one in lines[name] if one.phase == PodGroupPhase.PENDING), None)
        if group is None:
            turns.drop(name)
        elif _try(session, group) or not waits_in_line(session.refusals[group.uid]):
            continue
        elif _is_strict(session, group):
            turns.drop(name)
            session.strict_heads[name] = group
            _wait_behind(session, list(lines[name]), group)
            if len(session.queues) > 1:
                set_aside(session, group)
        elif name not in headed and len(session.queues) > 1:
            headed.add(name)
            set_aside_from_borrowers(session, group)


def _serve_one_line(session: Session) -> None:
    """No queueOrder: every group in one line; a strict head stops it."""
    groups = [group for queue in session.queues.values() for group in queue.line]
    line = iter(sorted(groups, key=session.group_key))
    for group in line:
        if group.phase != PodGroupPhase.PENDING:
            continue
        if _try(session, group) or not waits_in_line(session.refusals[group.uid]):
            continue
        if _is_strict(session, group):
            session.strict_heads |= dict.fromkeys(session.queues, group)
            _wait_behind(session, list(line), group)
            set_aside(session, group)
            return


def _try(session: Session, group: GroupState) -> bool:
    """Admit the group, or let it reserve and wait for leave to start, or keep every reason
    against it.
    """
    verdicts = blockers(session, group)
    if verdicts:
        session.refuse(group, verdicts)
        return False
    if group.reserved and _cannot_be_placed(session, group):
        return True
    waits_for = [] if group.reserved else session.refusals_at("permit", group)
    with Statement(session) as statement:
        if waits_for:
            reserve(statement, group, f"reserved {describe(group.reservation)}")
        else:
            admit(statement, group, reservation=group.reservation)
            create_pods(statement, group, wanted_ordinals(group))
        statement.commit()
    if waits_for:
        session.asides.pop(group.uid, None)
        session.refuse(group, waits_for)
    note_admission(session, group)
    return True


def _cannot_be_placed(session: Session, group: GroupState) -> bool:
    """Whether nodes, labels or taints have changed since the reservation, so that not even empty
    nodes take the group: then it goes back to Pending.
    """
    if group.is_external or group.status.pledge.stands or not session.nodes:
        return False
    gang = gang_of(session, group)
    if fits_on_empty_nodes(session, gang):
        return False
    with Statement(session) as statement:
        roll_back(statement, group, Leaving.UNSCHEDULABLE, why_not_on_empty_nodes(session, gang))
        statement.commit()
    # It pauses from now on: what was said of it in this session holds no longer.
    session.asides.pop(group.uid, None)
    session.refuse(group, blockers(session, group))
    return True


def _is_strict(session: Session, group: GroupState) -> bool:
    return session.queues[group.queue].record.spec.strategy.type != "BestEffortFIFO"


def _wait_behind(session: Session, groups: list[GroupState], head: GroupState) -> None:
    """Those behind a blocked head wait for it, unless they are out of line anyway.

    Who that is passes: each of them would be written anew with every head that is admitted.
    """
    request = describe(head.reservation)
    passing = f"that is {head.key} (priority {head.priority}, {request})"
    strategy = session.queues[head.queue].record.spec.strategy.type
    if "backfill" not in session.actions:
        strategy = "StrictFIFO"
    told = structs.replace(_BEHIND[strategy], passing=passing)
    of_all_alike: dict[Key, Blockers] = {}
    for group in groups:
        key = group.asks if alike(session, group) else None
        if key is not None and (known := of_all_alike.get(key)) is not None:
            session.refuse(group, known)
            continue
        verdicts = blockers(session, group)
        behind = (told,) if not verdicts or waits_in_line(verdicts) else ()
        found = session.dated((*verdicts, *behind))
        session.refuse(group, found)
        if key is not None:
            of_all_alike[key] = found
