"""allocate: pods of admitted groups to nodes.

First the gangs, queues by share and groups by order: a group that lacks pods to reach minMember
gets them all in one Statement, with every task's minAvailable, or none. A gang that fails holds
nothing and blocks nobody, until it has been InQueue for half its timeout: from then on the room
that it found is held for it, node by node, for the rest of each session. Then the pods beyond
minMember, one at a time to the queue with the lowest share; they are created as they are bound,
and only as far as the limits allow what the reservation did not promise.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Verdict
from batchq.framework.growth import over_limit_with
from batchq.framework.moves import bind, create_pods, pod_of, shape_at
from batchq.framework.placement import explain_no_node, find_node, tasks_in_order
from batchq.framework.session import Key, Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState, is_admitted
from batchq.framework.statement import Statement
from batchq.framework.wanted import beyond


class Allocate:
    """Pending pods of InQueue, Running and Unknown groups -> Bound."""

    name = "allocate"

    def execute(self, session: Session) -> None:
        waiting = _by_queue(session)
        _place_gangs(session, {name: deque(groups) for name, groups in waiting.items()})
        _place_extras(session, waiting)


def _by_queue(session: Session) -> dict[str, list[GroupState]]:
    """Admitted groups by queue, in order; without a queueOrder plugin, all in one line."""
    queues: dict[str, list[GroupState]] = {}
    for group in session.groups.values():
        if is_admitted(group) and not group.is_external and group.queue in session.queues:
            name = group.queue if session.points["queueOrder"] else ""
            queues.setdefault(name, []).append(group)
    for groups in queues.values():
        groups.sort(key=session.group_key)
    return queues


def _lowest_share(session: Session, names: Collection[str]) -> str:
    if len(names) == 1:
        return next(iter(names))
    return min(names, key=lambda name: session.queue_key(session.queues[name]))


# --- Gangs ----------------------------------------------------------------------------------


def _place_gangs(session: Session, queues: dict[str, deque[GroupState]]) -> None:
    while queues:
        name = _lowest_share(session, queues)
        groups = queues[name]
        if not groups:
            del queues[name]
            continue
        group = groups.popleft()
        if not session.group_ready(group) and _pending(session, group):
            _place_gang(session, group)


def _place_gang(session: Session, group: GroupState) -> None:
    with Statement(session) as statement:
        refusals = _bind_until_ready(session, statement, group)
        if session.group_ready(group):
            statement.commit()
            return
        session.refuse(group, refusals)
        if _has_waited_long(session, group):
            statement.hold()


def _bind_until_ready(session: Session, statement: Statement, group: GroupState) -> list[Verdict]:
    """Bind what fits until the group is ready; else what nodes and limits say against the rest."""
    refused: list[TaskShape] = []
    for pod in _least_first(session, group):
        shape = group.shape_of(pod)
        if shape in refused:
            continue
        node = find_node(session, shape)
        if node is None:
            refused.append(shape)
            continue
        if over := over_limit_with(session, group, shape):
            return over
        bind(statement, group, pod, node.name)
        if session.group_ready(group):
            break
    return [explain_no_node(session, shape) for shape in refused]


def _least_first(session: Session, group: GroupState) -> list[Pod]:
    """Pending pods, those that make up each task's minAvailable first."""
    first: list[Pod] = []
    rest: list[Pod] = []
    placed = dict(group.placed)
    for pod in _pending(session, group):
        task = group.shape_of(pod).task
        if placed[task.name] < task.min_available:
            placed[task.name] += 1
            first.append(pod)
        else:
            rest.append(pod)
    return first + rest


def _pending(session: Session, group: GroupState) -> list[Pod]:
    """Its pods without a node, by priority, task, index."""
    pods = [pod for pod in group.current() if pod.status.phase == PodPhase.PENDING]
    return sorted(pods, key=lambda pod: session.pod_key(group, pod))


def _has_waited_long(session: Session, group: GroupState) -> bool:
    since = group.status.in_queue_at
    half = session.settings.in_queue_timeout_ms // 2
    if group.phase != PodGroupPhase.IN_QUEUE or since is None:
        return False
    return session.now_ms - since > half


# --- Pods beyond minMember ------------------------------------------------------------------


class _Turn:
    """What is left of one group to be tried in this session; owned by `_place_extras`."""

    def __init__(self, session: Session, group: GroupState) -> None:
        self.group = group
        self.extras = _extras(session, group)
        #: Tasks whose pods no node or no limit takes; neither gets better within a session.
        self.refused: set[str] = set()


def _place_extras(session: Session, queues: dict[str, list[GroupState]]) -> None:
    """One pod at a time to the queue with the lowest share, its groups in turns."""
    turns = {
        name: deque(_Turn(session, group) for group in groups if session.group_ready(group))
        for name, groups in queues.items()
    }
    while turns := {name: line for name, line in turns.items() if line}:
        name = _lowest_share(session, turns)
        turn = turns[name].popleft()
        if _place_next(session, turn):
            turns[name].append(turn)


def _extras(session: Session, group: GroupState) -> Iterator[Pod | int]:
    """Pods without a node, and the ordinals of those that do not exist yet, in pods' order."""
    pending = ((session.pod_key(group, pod), pod) for pod in _pending(session, group))
    for _, extra in heapq.merge(pending, _unborn(session, group), key=lambda pair: pair[0]):
        yield extra


def _unborn(session: Session, group: GroupState) -> Iterator[tuple[Key, Pod | int]]:
    for shape in tasks_in_order(session, group):
        # The pods of a task differ by their index alone.
        *head, _ = session.pod_key(group, pod_of(group, shape.first))
        for ordinal in beyond(group, shape):
            yield (*head, ordinal - shape.first), ordinal


def _place_next(session: Session, turn: _Turn) -> bool:
    """Place the group's next pod that fits; False when it has none."""
    group = turn.group
    for extra in turn.extras:
        shape = shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)
        if shape.task.name in turn.refused:
            continue
        node = find_node(session, shape)
        if node is None or over_limit_with(session, group, shape):
            turn.refused.add(shape.task.name)
            if all(one.task.name in turn.refused for one in group.tasks if one.task.replicas):
                return False
            continue
        with Statement(session) as statement:
            pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
            bind(statement, group, pod, node.name)
            statement.commit()
        return True
    return False
