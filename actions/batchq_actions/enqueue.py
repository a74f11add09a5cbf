"""enqueue: admit groups, first come, first served; policy lives in plugins.

The queue with the lowest fair share is served first, and shares follow each admission; without a
queueOrder plugin all groups stand in one line. Within a queue groups are ordered by the groupOrder
plugins, then queue time, then uid. A group that is refused *out of line* (gated, suspended, larger
than a limit, held back by its own namespace only) is skipped, and no other group waits for it. A
group that is refused *in line* (for lack of capacity) keeps its place: under BestEffortFIFO the
groups behind it are tried, under StrictFIFO they wait, and under Backfill they wait for the action
of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import takewhile

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Leaving, Verdict, Waiting
from batchq.api.resources import describe
from batchq.core.kept_capacity import awaits_victims
from batchq.core.node_timeline import nodes_decide
from batchq.core.pending_queue import (
    Candidates,
    blockers,
    candidates,
    candidates_in_one_line,
    refuse,
    refuse_behind,
    victim_refusals,
    waits_in_line,
)
from batchq.core.placement.elastic import GrowingGroups, is_drained, start_extras, waiting_shapes
from batchq.core.placement.feasibility import fits_when_empty, wanted_of, why_not_when_empty
from batchq.core.placement.placement import explain_no_node, gang_of
from batchq.core.placement.topology import choose_domain, may_choose
from batchq.core.placement.trial import PLUGIN as NODES
from batchq.core.placement.trial import keep_places, note_first_waiting, seek, seek_alike
from batchq.core.preemption.order import end_pledges_still_spare, end_spare_pledges
from batchq.core.quota.fair_shares import note_admission
from batchq.core.quota.head_reservation import (
    let_one_exceed,
    may_need_reservations,
    reserve_for_head,
    reserve_from_borrowers,
    store_head_places,
)
from batchq.core.quota.limit_checks import exceeds_ready_beside_siblings, over_limit_with
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import KeptPlaces, Wanted
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import (
    admit,
    admit_all,
    create_pods,
    reserve,
    roll_back,
    wanted_ordinals,
)

#: Strategy -> the verdict on the groups behind a head that waits.
_BEHIND = {
    strategy: Verdict(
        plugin="enqueue",
        reason=Waiting.WAITING_FOR_TURN,
        detail=f"waits behind the head of its queue, {how}",
        in_line=True,
    )
    for strategy, how in {
        "StrictFIFO": "which is first come, first served (StrictFIFO)",
        "Backfill": "which it may overtake only if that delays no group with a reservation",
    }.items()
}


class Enqueue:
    """Pending -> InQueue, with reservation and pods, for every group that may start."""

    name = "enqueue"

    def execute(self, session: Session) -> None:
        # 1. A preemptor that is first in line and fits without its pledge gives it up, so that its
        #    victims continue.
        end_spare_pledges(session)

        # 2. Gangs that lack nothing but nodes look for places, which groups in line then leave
        #    alone.
        of_nodes = nodes_decide(session)
        if of_nodes:
            keep_places(session)

        # 3. Groups that have reserved come before all others: the capacity is theirs already.
        growing = GrowingGroups(session)
        _admit_reserved(session, growing)

        # 4. A running group that holds nothing stands in line with its next pod: it must not pass
        #    the head of its queue, nor must the groups behind pass it.
        drained = _drained(session)

        # 5. The groups in line, the queue with the lowest share first.
        if session.plugins.points["queueOrder"]:
            _serve_queues(session, drained, growing)
            let_one_exceed(session)
        else:
            _serve_one_line(session, drained, growing)

        # 6. As step 1, for preemptors that were not first in line: the groups ahead were tried.
        for group in end_pledges_still_spare(session):
            _try(session, group, growing)

        # 7. The next session needs to know which nodes are reserved for heads, and since when a
        #    gang has waited for nodes.
        if of_nodes:
            store_head_places(session)
            note_first_waiting(session)


def _admit_reserved(session: Session, growing: GrowingGroups) -> None:
    """Try preemptors whose victims have ended, and groups whose checks have passed meanwhile."""
    groups = [group for group in session.unsettled() if _may_start_now(session, group)]
    for group in sorted(groups, key=session.group_key):
        _try(session, group, growing)


def _may_start_now(session: Session, group: GroupState) -> bool:
    pending = group.phase == PodGroupPhase.PENDING
    return pending and group.reserved and not awaits_victims(session, group)


def _drained(session: Session) -> dict[str, list[GroupState]]:
    """Return by queue the groups that run, hold nothing and have a pod to start."""
    found: dict[str, list[GroupState]] = {}
    # Groups that run with all of their pods have none to start.
    for group in session.unsettled():
        group.next_pod = None
        if "allocate" not in session.actions or not is_drained(group):
            continue
        if group.queue in session.queues:
            group.next_pod = _next_pod(session, group)
        if group.next_pod is not None:
            found.setdefault(group.queue, []).append(group)
    return found


def _next_pod(session: Session, group: GroupState) -> TaskShape | None:
    """Return the shape of a group's next pod.

    As in a gang, pods that no empty node takes, or that exceed a limit even if nothing else is
    charged, come last.
    """
    shapes = list(waiting_shapes(session, group))
    could_start = (
        shape
        for shape in shapes
        if session.is_taken_when_empty(shape)
        and not _never_fits(session, group, shape, over_limit_with(session, group, shape))
    )
    return next(could_start, None) or next(iter(shapes), None)


def _never_fits(
    session: Session, group: GroupState, shape: TaskShape, over: Sequence[Verdict]
) -> bool:
    """Return whether limits that refuse a pod would refuse it if nothing were taken."""
    return any(verdict.is_larger_than_limit for verdict in over) or (
        bool(over) and exceeds_ready_beside_siblings(session, group, shape.requests)
    )


def _serve_queues(
    session: Session, drained: Mapping[str, list[GroupState]], growing: GrowingGroups
) -> None:
    """Serve the queue with the lowest share first; shares follow each admission."""
    several = len(session.queues) > 1
    needs_head = may_need_reservations(session)
    lines = candidates(
        session,
        drained,
        whole=lambda name: _is_strict_queue(session, name) or (several and needs_head(name)),
    )
    # An admission changes only the share of its own queue, unless it is that of an elastic group.
    # So it does not matter when the groups at the front of a line are refused once more.
    skips = not any(line.may_grow for line in lines.values())
    turns = FairShareSelector(
        session,
        lines,
        lambda name: _first_in_line(session, lines[name], growing, skips=skips),
        waits=lambda name: bool(session.queues[name].line) or name in drained,
    )
    headed: set[str] = set()
    # 1. Fairness names the queue; its first group that is not skipped is tried.
    while (name := turns.next()) is not None:
        line = lines[name]
        group = line.next()
        if group is None:
            turns.drop(name)
            continue
        if line.is_kept_out(group):
            line.pass_over()
            continue
        if _try(session, group, growing):
            if turns.has_one_line:
                _admit_following(session, line, group, growing)
            continue
        if _is_out_of_line(session, group):
            # 2. No group waits for one that is out of line, nor for those refused like it.
            line.pass_over()
        elif _is_strict_queue(session, name):
            # 3. The queue stops at its head, for which capacity may be reserved against others.
            turns.drop(name)
            _stop_at(session, group, [name], drained)
            if several:
                reserve_for_head(session, group)
        else:
            # 4. The groups behind go on; against other queues, the first refused group is the head.
            line.pass_over()
            if line.is_whole and name not in headed:
                headed.add(name)
                reserve_from_borrowers(session, group)


def _first_in_line(
    session: Session, line: Candidates, growing: GrowingGroups, *, skips: bool
) -> GroupState | None:
    """Refuse the ineligible groups at the front of a line, and return the head after them.

    Between equal shares the older head goes first, and an ineligible group is no head.
    """
    while (group := line.next_ineligible(skips=skips)) is not None:
        _try(session, group, growing)
        line.pass_over()
    return line.head()


def _serve_one_line(
    session: Session, drained: Mapping[str, list[GroupState]], growing: GrowingGroups
) -> None:
    """Serve all groups in one line, which stops at the head of a strict queue."""
    line = candidates_in_one_line(session, drained)
    while (group := line.next()) is not None:
        if _try(session, group, growing):
            _admit_following(session, line, group, growing)
            continue
        if not _is_out_of_line(session, group) and _is_strict_queue(session, group.queue):
            _stop_at(session, group, session.queues, drained)
            reserve_for_head(session, group)
            return
        line.pass_over()


def _is_out_of_line(session: Session, group: GroupState) -> bool:
    return not waits_in_line(session.refusals[group.uid])


def _is_strict_queue(session: Session, name: str) -> bool:
    return session.queues[name].record.spec.strategy.type != "BestEffortFIFO"


def _try(session: Session, group: GroupState, growing: GrowingGroups) -> bool:
    """Admit a group, let it reserve quota and wait for its permit, or store every refusal.

    Return whether the group's state changed.
    """
    # 1. A running group needs no admission, only a node for its next pod.
    if group.next_pod is not None:
        return _start_next_pod(session, group, group.next_pod, growing)
    # 2. Nodes may have changed since a group reserved, so that no empty node takes it any more.
    is_reserved = group.reserved
    if is_reserved and not blockers(session, group) and _cannot_be_placed(session, group):
        return True
    # 3. Limits, plugins and nodes are asked.
    if group.record.spec.topology and may_choose(group):
        choose_domain(session, group)
    places = _judge(session, group, growing)
    if isinstance(places, tuple):
        of_nodes = any(verdict.plugin == NODES for verdict in places)
        wanted = wanted_of(gang_of(session, group)) if of_nodes else None
        _keep_reasons(session, group, places, wanted=wanted)
        return False
    # 4. The group is admitted, unless a permit is missing: then it reserves.
    waits_for = [] if is_reserved else session.refusals_at("permit", group)
    with Statement(session) as statement:
        if waits_for:
            reserve(statement, group, f"reserved {describe(group.reservation)}")
        else:
            admit(statement, group, reservation=group.reservation)
            create_pods(statement, group, wanted_ordinals(group))
        statement.commit()
    # 5. Its places, its reasons and the demand of its queue follow.
    if places is not None:
        session.nodes.keep_taken(group.uid, places)
    if waits_for:
        session.pending.ineligible.pop(group.uid, None)
        session.refuse(group, waits_for)
    if group.is_elastic:
        note_admission(session, group)
        growing.note(group)
    return True


def _admit_following(
    session: Session, line: Candidates, group: GroupState, growing: GrowingGroups
) -> None:
    """Admit the groups that follow an admitted group and equal it, as `_try` would one by one, as
    long as no plugin, limit or node refuses one.
    """
    if not is_admitted(group) or group.is_elastic or group.is_external:
        return
    if not nodes_decide(session):
        return
    with growing.grown(group):
        alike = line.following_alike()
        if session.plugins.points["permit"]:
            alike = list(takewhile(lambda one: not session.refusals_at("permit", one), alike))
        places = seek_alike(session, alike) if alike else []
    if not places:
        return
    admitted = alike[: len(places)]
    with Statement(session) as statement:
        admit_all(statement, admitted)
        statement.commit()
    for one, found in zip(admitted, places, strict=True):
        session.nodes.keep_taken(one.uid, found)
    line.skip(len(admitted))


def _judge(
    session: Session, group: GroupState, growing: GrowingGroups
) -> KeptPlaces | tuple[Verdict, ...] | None:
    """Return the refusals of a group, or places for its gang, or None if it needs no places.

    The pods that more important groups of its queue could bind now count as bound in this test.
    """
    with nullcontext() if group.reserved else growing.grown(group):
        return blockers(session, group) or _places_for(session, group)


def _keep_reasons(
    session: Session,
    group: GroupState,
    verdicts: tuple[Verdict, ...],
    *,
    wanted: Wanted | None = None,
) -> None:
    """Store the refusals of a group for its equivalence class. Refusals that plugins give this
    group only, and those of the head of a strict queue, are stored for the group alone.
    """
    # A group whose queue is missing is out of line.
    is_head = waits_in_line(verdicts) and _is_strict_queue(session, group.queue)
    refuse(session, group, verdicts, wanted=wanted, is_head=is_head)


def _places_for(session: Session, group: GroupState) -> KeptPlaces | tuple[Verdict, ...] | None:
    """Return the places that nodes have for a group's gang, which are taken then, or why they have
    none; None if the gang needs none, or has them.
    """
    if group.is_external or group.status.pledge.victims or not nodes_decide(session):
        return None
    nodes = session.nodes
    if group.uid in nodes.kept or (nodes.binding_refused is not None and group.reserved):
        return None
    found = seek(session, group)
    return (found,) if isinstance(found, Verdict) else found


def _start_next_pod(
    session: Session, group: GroupState, shape: TaskShape, growing: GrowingGroups
) -> bool:
    """Bind the next pod of a group that runs and holds nothing, or keep the reasons against it."""
    against = list(victim_refusals(session, group))
    if not against:
        with growing.grown(group), Statement(session) as trial:
            bound, _ = start_extras(trial, group, 1)
            if not bound:
                against = _against_next_pod(session, group, shape)
    if against:
        session.refuse(group, against)
        return False
    with Statement(session) as statement:
        start_extras(statement, group, 1)
        statement.commit()
    group.next_pod = None
    return True


def _against_next_pod(session: Session, group: GroupState, shape: TaskShape) -> list[Verdict]:
    """Return the refusals of limits and nodes for the next pod of a group.

    They are out of line for a pod that no empty node takes, or that exceeds a limit even if nothing
    else is charged: no other group waits for it.
    """
    if not session.is_taken_when_empty(shape):
        return [explain_no_node(session, shape)]
    over = over_limit_with(session, group, shape)
    if _never_fits(session, group, shape, over):
        return [structs.replace(verdict, in_line=False) for verdict in over]
    return over or [structs.replace(explain_no_node(session, shape), in_line=True)]


def _cannot_be_placed(session: Session, group: GroupState) -> bool:
    """Return whether nodes have changed since the reservation, so that no empty node takes the
    group; it loses its reservation then.
    """
    if group.is_external or group.status.pledge.stands or not session.nodes.by_name:
        return False
    gang = gang_of(session, group)
    if fits_when_empty(session, gang):
        return False
    with Statement(session) as statement:
        roll_back(statement, group, Leaving.UNSCHEDULABLE, why_not_when_empty(session, gang))
        statement.commit()
    # The group backs off from now on, so its former reasons no longer hold.
    session.pending.ineligible.pop(group.uid, None)
    session.refuse(group, blockers(session, group))
    return True


def _stop_at(
    session: Session,
    head: GroupState,
    queues: Iterable[str],
    drained: Mapping[str, list[GroupState]],
) -> None:
    """Let all groups of these queues that come after a head wait for it."""
    session.heads.strict |= dict.fromkeys(queues, head)
    for name in queues:
        _wait_behind(session, name, head, drained.get(name, ()))


def _wait_behind(
    session: Session, name: str, head: GroupState, drained: Sequence[GroupState]
) -> None:
    """Refuse the groups of a queue behind a head, unless they are out of line for other reasons.

    The head is named in `passing`, which is not stored: otherwise every record in line would be
    written again whenever a head is admitted.
    """
    request = describe(head.reservation)
    passing = f"that is {head.key} (priority {head.priority}, {request})"
    strategy = session.queues[head.queue].record.spec.strategy.type
    if "backfill" not in session.actions:
        strategy = "StrictFIFO"
    verdict = structs.replace(_BEHIND[strategy], passing=passing)
    refuse_behind(session, name, head, verdict, drained)
