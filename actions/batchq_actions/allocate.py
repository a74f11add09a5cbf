"""allocate: pods of admitted groups to nodes.

First the gangs, queues by share and groups by order: a group that lacks pods to reach minMember
gets them all in one Statement, with every task's minAvailable, or none. A gang that fails holds
nothing and blocks nobody, until it has been InQueue for half its timeout: from then on the room
that it found is held for it, node by node, for the rest of each session. Then the pods beyond
minMember, one at a time to the queue with the lowest share; they are created as they are bound,
and only as far as the limits allow what the reservation did not promise.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.framework.growth import may_grow
from batchq.framework.moves import bind, create_pods, shape_at
from batchq.framework.placement import explain_no_node, find_node
from batchq.framework.session import Session
from batchq.framework.state import GroupState, TaskShape, is_admitted
from batchq.framework.statement import Statement
from batchq.framework.wanted import beyond


class Allocate:
    """Pending pods of InQueue, Running and Unknown groups -> Bound."""

    name = "allocate"

    def execute(self, session: Session) -> None:
        waiting = _by_queue(session)
        _place_gangs(session, {name: list(groups) for name, groups in waiting.items()})
        _place_extras(session, waiting)


def _by_queue(session: Session) -> dict[str, list[GroupState]]:
    queues: dict[str, list[GroupState]] = {}
    for group in session.groups.values():
        if is_admitted(group) and group.queue in session.queues:
            queues.setdefault(group.queue, []).append(group)
    for groups in queues.values():
        groups.sort(key=session.group_key)
    return queues


def _lowest_share(session: Session, names: Iterator[str]) -> str:
    return min(names, key=lambda name: session.queue_key(session.queues[name]))


# --- Gangs ----------------------------------------------------------------------------------


def _place_gangs(session: Session, queues: dict[str, list[GroupState]]) -> None:
    while queues:
        name = _lowest_share(session, iter(queues))
        groups = queues[name]
        if not groups:
            del queues[name]
            continue
        group = groups.pop(0)
        if not session.group_ready(group) and _pending(session, group):
            _place_gang(session, group)


def _place_gang(session: Session, group: GroupState) -> None:
    with session.statement() as statement:
        refused = _bind_until_ready(session, statement, group)
        if session.group_ready(group):
            statement.commit()
            return
        session.refuse(group, [explain_no_node(session, shape) for shape in refused])
        if _has_waited_long(session, group):
            statement.hold()


def _bind_until_ready(session: Session, statement: Statement, group: GroupState) -> list[TaskShape]:
    """Bind what fits until the group is ready; the shapes that no node took."""
    refused: list[TaskShape] = []
    for pod in _least_first(session, group):
        shape = group.shape_of(pod)
        if shape in refused:
            continue
        node = find_node(session, shape)
        if node is None:
            refused.append(shape)
            continue
        if not may_grow(session, group, shape):
            break
        bind(statement, group, pod, node.name)
        if session.group_ready(group):
            break
    return refused


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
    places = {shape.task.name: place for place, shape in enumerate(group.tasks)}
    pods = [pod for pod in group.current() if pod.status.phase == PodPhase.PENDING]

    def order(pod: Pod) -> tuple[object, ...]:
        keys = tuple(entry.function(session, group, pod) for entry in session.points["podOrder"])
        return (*keys, places[pod.spec.task], pod.spec.index)

    return sorted(pods, key=order)


def _has_waited_long(session: Session, group: GroupState) -> bool:
    since = group.status.in_queue_at
    half = session.settings.in_queue_timeout_ms // 2
    return since is not None and session.now_ms - since > half


# --- Pods beyond minMember ------------------------------------------------------------------


def _place_extras(session: Session, queues: dict[str, list[GroupState]]) -> None:
    """One pod at a time to the queue with the lowest share, its groups in turns."""
    turns = {
        name: [(group, _extras(session, group)) for group in groups if session.group_ready(group)]
        for name, groups in queues.items()
    }
    while turns := {name: line for name, line in turns.items() if line}:
        name = _lowest_share(session, iter(turns))
        group, extras = turns[name].pop(0)
        if _place_next(session, group, extras):
            turns[name].append((group, extras))


def _extras(session: Session, group: GroupState) -> Iterator[Pod | int]:
    """Pods without a node, then the ordinals of pods that do not exist yet."""
    yield from _pending(session, group)
    yield from beyond(group)


def _place_next(session: Session, group: GroupState, extras: Iterator[Pod | int]) -> bool:
    """Place the group's next pod that fits; False when it has none."""
    for extra in extras:
        if all(find_node(session, shape) is None for shape in group.tasks):
            return False
        shape = shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)
        node = find_node(session, shape)
        if node is None:
            continue
        if not may_grow(session, group, shape):
            return False
        with session.statement() as statement:
            pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
            bind(statement, group, pod, node.name)
            statement.commit()
        return True
    return False
