"""Groups that wait only for nodes: the steps of enqueue before and after other groups are tried.

Before: pods covered by a reservation get their places, and a gang that has waited long, the first
of its queue, holds what nodes have free for it. After: the instant since which the first group of a
queue waits only for nodes is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from batchq.api.lifecycle import PodGroupPhase
from batchq.core.forecast.timeline import timeline_of
from batchq.core.pending.queue import is_in_class, out_of_line_refusals, waits_in_line, wake_class
from batchq.core.placement.feasibility import NODE_REFUSALS, fits_when_empty
from batchq.core.placement.placement import gang_of
from batchq.core.placement.trial import PLUGIN, hold, seek, seek_for_admitted
from batchq.core.preemption.preemptors import EVICTION_BUDGET
from batchq.core.quota.head_reservation import length_of
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.quota.queue_tree import ROOT
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.node_state import KeptPlaces
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement


def keep_places(session: Session) -> None:
    """Keep places for pods covered by a reservation, then for gangs that have waited long."""
    if session.nodes.binding_refused is None:
        _seek_and_hold(session)
    # This is needed even if nothing is held now: former holds are free again and may unpark groups.
    session.nodes.note_held_less()


def _seek_and_hold(session: Session) -> None:
    late: dict[str, GroupState] = {}
    for group in _groups_lacking_places(session):
        if is_admitted(group):
            found = seek_for_admitted(session, group)
            waits = group.phase == PodGroupPhase.IN_QUEUE and not found
            if waits and has_waited_long(session, group, group.status.in_queue_at):
                late.setdefault(group.queue, group)
        elif isinstance(places := seek(session, group), KeptPlaces):
            session.nodes.keep_taken(group.uid, places)
    for group in sorted(session.carried.waits_for_nodes.values(), key=session.group_key):
        if _may_hold(session, group):
            late.setdefault(group.queue, group)
    for group in late.values():
        if not _has_reservation(session, group):
            hold(session, group)
            if group.uid in session.nodes.kept:
                # The group must be tried although another member of its class finds no nodes now.
                wake_class(session, group)


def _groups_lacking_places(session: Session) -> Iterator[GroupState]:
    """Yield groups with a reservation whose gang lacks places, queues by share, groups in order."""
    lines: dict[str, deque[GroupState]] = {}
    groups = [group for group in session.busy() if _lacks_places(session, group)]
    for group in sorted(groups, key=session.group_key):
        queue = group.queue if session.plugins.points["queueOrder"] else ROOT
        lines.setdefault(queue, deque()).append(group)
    turns = FairShareSelector(session, lines)
    while (name := turns.next()) is not None:
        if lines[name]:
            yield lines[name].popleft()
        else:
            turns.drop(name)


def _lacks_places(session: Session, group: GroupState) -> bool:
    if group.is_external or group.status.pledge.stands or group.queue not in session.queues:
        return False
    if group.uid in session.nodes.kept:
        return False
    if is_admitted(group):
        return not group.has_all_placed and not session.group_ready(group)
    return group.phase == PodGroupPhase.PENDING and group.reserved


def has_waited_long(session: Session, group: GroupState, since: int | None) -> bool:
    """Return whether half of inQueueTimeout has passed since an instant (ms)."""
    return since is not None and session.now_ms - since > session.settings.in_queue_timeout_ms // 2


def _may_hold(session: Session, group: GroupState) -> bool:
    """Return whether a group has waited long and lacks only nodes.

    A group refused because of a head reservation holds nothing, since the two would block each
    other for ever. Nor does a group that even empty nodes refuse, because nodes are away. A group
    whose victims are spared only by the eviction budget does hold nodes: without its hold it might
    find no victims, and would hold nodes again, for ever.
    """
    return (
        group.phase == PodGroupPhase.PENDING
        and not group.reserved
        and group.queue in session.queues
        and has_waited_long(session, group, group.status.nodes_lacked_at)
        and all(verdict.plugin in (PLUGIN, EVICTION_BUDGET) for verdict in group.status.reasons)
        and fits_when_empty(session, gang_of(session, group))
        and not out_of_line_refusals(session, group)
        and not over_any_limit(session, group)
    )


def _has_reservation(session: Session, group: GroupState) -> bool:
    """Return whether a waiting group has a reservation in time, which replaces a hold: the head of
    a Backfill queue has one if its start is known.
    """
    strategy = session.queues[group.queue].record.spec.strategy.type
    if is_admitted(group) or strategy != "Backfill" or "backfill" not in session.actions:
        return False
    return timeline_of(session).slot(group, length_of(session, group)) is not None


def note_first_waiting(session: Session) -> None:
    """Store since when the first group in line of a queue waits only for nodes."""
    queues = {peers.queue for peers in session.get(NODE_REFUSALS).sleepers()}
    queues.update(
        session.groups[uid].queue
        for uid, told in session.refusals.told.items()
        if any(verdict.plugin == PLUGIN for verdict in told)
    )
    for name in sorted(queues & session.queues.keys()):
        group = _first_in_line(session, name)
        if group is None or group.status.nodes_lacked_at is not None:
            continue
        told = session.refusals.get(group.uid, ())
        if told and all(verdict.plugin == PLUGIN and verdict.in_line for verdict in told):
            with Statement(session) as statement:
                statement.set_status(group, nodes_lacked_at=session.now_ms)
                statement.commit()
            # From now on, it has verdicts of its own, separate from its class.
            session.refuse(group, told)


def _first_in_line(session: Session, queue: str) -> GroupState | None:
    """Return the first group of a queue that waits in line."""
    line = session.queues[queue].line
    firsts = [
        first
        for peers in line.classes.values()
        if peers.counted and (first := next(filter(is_in_class, peers.members), None)) is not None
    ]
    firsts += [
        group
        for group in line.in_order()
        if group.phase == PodGroupPhase.PENDING
        and not group.reserved
        and waits_in_line(session.refusals.get(group.uid, ()))
    ][:1]
    return min(firsts, key=session.group_key, default=None)
