"""allocate: bind the pods of admitted groups to nodes.

Gangs come first, queues by share and groups by order: a group that lacks pods to reach minMember
gets all of them in one Statement, with every task's minAvailable, or none. A gang that fails holds
nothing and blocks no other gang, until it has been InQueue for half its timeout. From then on, each
session holds the nodes that it found for the gang until the session ends. The pods beyond minMember
follow, one at a time, from the queue with the lowest share. They are created when they are bound. A
pod that the group's reservation does not cover is bound only if the limits allow it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import Pod
from batchq.api.reasons import CLUSTER_TITLE, Verdict, Waiting
from batchq.core.kept_capacity import (
    amounts_by_node,
    drop_places,
    end_pledge,
    gives_way_to,
    hold_capacity,
    release_to,
    standing_pledges,
)
from batchq.core.placement.elastic import (
    MOST_EXTRAS,
    bind_promised,
    heeding_heads_before,
    node_for_extra,
    waiting_extras,
    waits_behind,
)
from batchq.core.placement.feasibility import why_not_when_empty
from batchq.core.placement.placement import (
    bind_kept,
    bind_kept_together,
    bind_until_ready,
    least_first,
    most_free_text,
)
from batchq.core.placement.topology import domains_for, may_move
from batchq.core.quota import ROOT
from batchq.core.quota.limit_checks import growth_with, over_limit_with
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import bind, create_pods, shape_of_extra

#: The most gangs that are bound in one step.
_MOST_TOGETHER = 1_000


class Allocate:
    """Pending pods of InQueue, Running and Unknown groups -> Bound."""

    name = "allocate"

    def execute(self, session: Session) -> None:
        waiting = _by_queue(session)
        extras: dict[str, _Extras] = {}
        # 1. Gangs come first: pods beyond minMember could take the nodes that a gang needs to
        # start.
        _place_gangs(session, waiting, extras)
        # 2. Pods beyond minMember for which victims were evicted get the capacity of their victims.
        _place_pledged(session)
        # 3. The other pods beyond minMember follow one by one: shares are compared after each pod.
        _place_extras(session, waiting, extras)
        # 4. The reasons why running groups lack pods are stored; those of complete groups are
        # removed.
        _keep_refusals(session, extras.values())
        _drop_outdated_reasons(session)


def _by_queue(session: Session) -> dict[str, list[GroupState]]:
    """Return admitted groups by queue in order; without a queueOrder plugin, all under the root."""
    queues: dict[str, list[GroupState]] = {}
    for group in session.unsettled():
        if not is_admitted(group) or group.is_external or group.has_all_placed:
            continue
        if group.queue in session.queues:
            name = group.queue if session.plugins.points["queueOrder"] else ROOT
            queues.setdefault(name, []).append(group)
    for groups in queues.values():
        groups.sort(key=session.group_key)
    return queues


def _place_gangs(
    session: Session, waiting: dict[str, list[GroupState]], extras: dict[str, _Extras]
) -> None:
    if not waiting:
        return
    lines = {name: deque(groups) for name, groups in waiting.items()}
    turns = FairShareSelector(session, lines, lambda name: next(iter(lines[name]), None))
    most = 1
    while (name := turns.next()) is not None:
        if not lines[name]:
            turns.drop(name)
            continue
        line = lines[name]
        bound = bind_kept_together(session, islice(line, most)) if turns.has_one_line else 0
        # After a gang that is not bound so, few are tried, because all of a step may be undone.
        most = min(2 * most, _MOST_TOGETHER) if bound else 1
        for _ in range(bound):
            line.popleft()
        if bound:
            continue
        group = line.popleft()
        # A group that came back after some of its pods had succeeded is ready, and has kept places.
        has_places = group.uid in session.nodes.kept
        if not has_places and session.group_ready(group):
            continue
        pods = least_first(session, group)
        if has_places and bind_kept(session, group, pods):
            continue
        if has_places and session.group_ready(group):
            drop_places(session, group)
        elif pods:
            _place_extras_above(session, waiting[name], group.priority, extras)
            _place_gang(session, group, pods)


def _place_extras_above(
    session: Session, groups: Sequence[GroupState], priority: int, extras: dict[str, _Extras]
) -> None:
    """Place the pods that more important groups of a queue lack, before a gang takes the nodes."""
    for group in groups:
        if group.priority > priority and _may_grow(session, group):
            mine = _extras_of(session, group, extras)
            placed = 0
            while placed < MOST_EXTRAS and _place_next(session, mine):
                placed += 1


def _place_gang(session: Session, group: GroupState, waiting: Sequence[Pod]) -> None:
    before = dict(group.live_pods)
    if group.record.spec.topology and may_move(group) and _place_in_domain(session, group, waiting):
        return
    with Statement(session) as statement:
        release_to(statement, group)
        refusals = bind_until_ready(session, statement, group, waiting)
        if refusals is None:
            end_pledge(statement, group)
            statement.commit()
            return
        session.refuse(group, refusals)
        bound = [
            pod
            for uid, pod in group.live_pods.items()
            if pod.status.phase in ON_NODE and not _was_on_node(before.get(uid))
        ]
        found = amounts_by_node(session, group, bound)
    if _has_waited_long(session, group) and group.uid not in session.nodes.held:
        hold_capacity(session, group, found)


def _place_in_domain(session: Session, group: GroupState, waiting: Sequence[Pod]) -> bool:
    """Place a gang in the first domain that takes it now; return whether there is one."""
    for domain in domains_for(session, group):
        group.confine(domain)
        with Statement(session) as statement:
            release_to(statement, group)
            if bind_until_ready(session, statement, group, waiting) is None:
                statement.set_status(group, domain=domain)
                end_pledge(statement, group)
                statement.commit()
                return True
    group.confine(group.status.domain)
    return False


def _was_on_node(pod: Pod | None) -> bool:
    return pod is not None and pod.status.phase in ON_NODE


def _has_waited_long(session: Session, group: GroupState) -> bool:
    since = group.status.in_queue_at
    half = session.settings.in_queue_timeout_ms // 2
    if group.phase != PodGroupPhase.IN_QUEUE or since is None:
        return False
    return session.now_ms - since > half


class _Extras:
    """The pods of one group that are still to be tried in this session; owned by the action."""

    def __init__(self, session: Session, group: GroupState) -> None:
        self.group = group
        self.left = waiting_extras(session, group)
        #: Whether the head of its queue comes before more pods of it.
        self.waits_behind = waits_behind(session, group)
        #: Task -> why its next pod is refused. Nothing is freed within a session, so it is not
        #: tried again.
        self.refused: dict[str, list[Verdict]] = {}


def _extras_of(session: Session, group: GroupState, extras: dict[str, _Extras]) -> _Extras:
    found = extras.get(group.uid)
    if found is None:
        found = extras[group.uid] = _Extras(session, group)
    return found


def _may_grow(session: Session, group: GroupState) -> bool:
    return (
        not group.has_all_placed
        and session.group_ready(group)
        and gives_way_to(session, group) is None
    )


def _place_extras(
    session: Session, queues: dict[str, list[GroupState]], extras: dict[str, _Extras]
) -> None:
    """Place one pod at a time for the queue with the lowest share. In a queue, groups of the
    highest priority come first; groups of equal priority take turns.

    At most MOST_EXTRAS are placed: the next session continues, after others had their turn.
    """
    if not queues:
        return
    placed = 0
    lines = {
        name: levels
        for name, groups in queues.items()
        if (levels := _by_priority(session, groups, extras))
    }
    if not lines:
        return
    turns = FairShareSelector(session, lines, lambda name: _first_of(lines[name]))
    while placed < MOST_EXTRAS and (name := turns.next()) is not None:
        levels = lines[name]
        if not levels:
            turns.drop(name)
        elif not levels[0]:
            levels.popleft()
        else:
            mine = levels[0].popleft()
            if _place_next(session, mine):
                placed += 1
                levels[0].append(mine)


def _by_priority(
    session: Session, groups: Sequence[GroupState], extras: dict[str, _Extras]
) -> deque[deque[_Extras]]:
    """Return the groups that may have more pods by priority, the highest first."""
    levels: dict[int, deque[_Extras]] = {}
    for group in groups:
        if _may_grow(session, group):
            mine = _extras_of(session, group, extras)
            levels.setdefault(group.priority, deque()).append(mine)
    return deque(levels[priority] for priority in sorted(levels, reverse=True))


def _first_of(levels: Iterable[Iterable[_Extras]]) -> GroupState | None:
    return next((extras.group for level in levels for extras in level), None)


def _place_pledged(session: Session) -> None:
    """Place pods for which victims have left."""
    for group, pledge in list(standing_pledges(session)):
        if pledge.extra:
            with Statement(session) as statement:
                if bind_promised(statement, group) is not None:
                    statement.commit()


def _place_next(session: Session, extras: _Extras) -> bool:
    """Place the group's next pod that fits; return False if none does."""
    group = extras.group
    for extra in extras.left:
        shape = shape_of_extra(group, extra)
        if shape.task.name in extras.refused:
            continue
        node, verdicts = _node_for_next(session, extras, shape)
        if node is None:
            extras.refused[shape.task.name] = verdicts
            left = (one for one in group.tasks if one.task.replicas and not one.gated)
            if all(one.task.name in extras.refused for one in left):
                return False
            continue
        with Statement(session) as statement:
            pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
            bind(statement, group, pod, node.name)
            statement.commit()
        return True
    return False


def _node_for_next(
    session: Session, extras: _Extras, shape: TaskShape
) -> tuple[NodeState | None, list[Verdict]]:
    """Return the node for one more pod of a group, or None and the refusals."""
    group = extras.group
    # What the group has reserved already is not held back by the head of its queue.
    if extras.waits_behind and growth_with(session, group, shape):
        head = session.heads.strict[group.queue]
        text = f"task {shape.task.name}: PodGroup {head.key} comes before more pods of this group"
        return None, [_refused(Waiting.WAITING_FOR_TURN, text)]
    with heeding_heads_before(session, group):
        node = node_for_extra(session, group, shape, {}, 0)
        over = over_limit_with(session, group, shape)
        if node is None and not session.is_taken_when_empty(shape):
            text = f"not even empty nodes take it: {why_not_when_empty(session, [(shape, 1)])}"
            return None, [_refused(Waiting.WAITING_FOR_RESOURCES, text)]
        if node is None:
            # Nodes refuse it with one text, also while they are full in sum. The numbers are not
            # stored: they change with every pod, and each new text is written.
            over = [one for one in over if one.subject != CLUSTER_TITLE or one.detail]
            text = f"task {shape.task.name}: no node has capacity for one more pod"
            lacking = most_free_text(session, shape)
            over.append(_refused(Waiting.WAITING_FOR_RESOURCES, text, lacking))
        return (None, over) if over else (node, [])


def _refused(reason: Waiting, detail: str, passing: str = "") -> Verdict:
    return Verdict(plugin=Allocate.name, reason=reason, detail=detail, passing=passing)


def _keep_refusals(session: Session, extras: Iterable[_Extras]) -> None:
    """Keep why groups run with fewer pods than they ask for."""
    for mine in extras:
        group = mine.group
        if mine.refused and not group.has_all_placed and group.uid not in session.refusals:
            # A limit often refuses the pods of several tasks alike.
            session.refuse(group, dict.fromkeys(chain.from_iterable(mine.refused.values())))


def _drop_outdated_reasons(session: Session) -> None:
    """Drop the reasons of groups that run with all of their pods by now."""
    for group in session.unsettled():
        if group.status.reasons and group.phase == PodGroupPhase.RUNNING and group.has_all_placed:
            with Statement(session) as statement:
                statement.set_status(group, reasons=())
                statement.commit()
