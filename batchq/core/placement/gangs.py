"""Placement of a gang: minMember pods of a group, with minAvailable pods of every task.

The caller owns the Statement and decides what to do with a gang that was only partly placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Verdict
from batchq.api.resources import of_pod, times, total
from batchq.core.placement.node_order import pods_short
from batchq.core.placement.placement import (
    explain_no_node,
    fill_largest_first,
    fill_nodes,
    find_node,
    slots_for,
)
from batchq.core.preemption.pledges import end_pledge
from batchq.core.quota.limit_checks import over_limit_by, over_limit_with
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import KeptPlaces, NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import bind, bind_placed

#: Kept in a module variable, because the loop below reads it for every pod.
_PENDING = PodPhase.PENDING


def bind_until_ready(
    session: Session,
    statement: Statement,
    group: GroupState,
    waiting: Sequence[Pod] | None = None,
) -> list[Verdict] | None:
    """Bind pods until the group is ready and return None; otherwise return why nodes or limits
    refuse the rest. `waiting` is the list of its pods without a node (`least_first`), if the caller
    knows it.

    Pods are tried in their order, each on the best node. If that fails and they differ in size, the
    largest come first, each on the fullest node that takes it.
    """
    if waiting is None:
        waiting = least_first(session, group)
    if len(group.tasks) == 1:
        return _bind_in_order(session, statement, group, waiting)
    with Statement(session) as attempt:
        if _bind_in_order(session, attempt, group, waiting) is None:
            attempt.join(statement)
            return None
    with Statement(session) as attempt:
        if _bind_largest_first(session, attempt, group, waiting):
            attempt.join(statement)
            return None
    return _bind_in_order(session, statement, group, waiting)


def _bind_in_order(
    session: Session, statement: Statement, group: GroupState, waiting: Sequence[Pod]
) -> list[Verdict] | None:
    """Bind pods in their order, each on the best node; see `bind_until_ready`.

    Pods of one task are bound in one batch if the gang needs all of them and its reservation covers
    them: the group cannot become ready, nor a limit refuse, in the middle of such a batch.
    """
    refused: list[TaskShape] = []
    plan = group.status.pledge.plan
    place = 0
    while place < len(waiting):
        pod = waiting[place]
        shape = group.shape_of(pod)
        if shape in refused:
            place += 1
            continue
        alike = [] if plan else _needed_alike(session, group, shape, waiting, place)
        if alike:
            bound = bind_alike(statement, group, shape, alike)
        else:
            alike = [pod]
            node = node_for(session, shape, plan, shape.first + pod.spec.index)
            if node is not None and (over := over_limit_with(session, group, shape)):
                return over
            bound = 0 if node is None else 1
            if node is not None:
                bind(statement, group, pod, node.name)
        place += len(alike)
        if bound < len(alike):
            refused.append(shape)
        if bound and session.group_ready(group):
            return None
    return [explain_no_node(session, shape) for shape in refused]


def _bind_largest_first(
    session: Session, statement: Statement, group: GroupState, waiting: Sequence[Pod]
) -> bool:
    """Bind the pods that a gang lacks, the largest first, each on the fullest node that takes it;
    return whether the group is ready then.
    """
    pods = _lacked(group, waiting)
    parts = [(shape, len(many)) for shape, many in pods]
    if len(parts) < 2 or any(slots_for(session, *part) < part[1] for part in parts):
        return False
    asked = total(times(shape.requests, count) for shape, count in parts)
    if over_limit_by(session, group, asked):
        return False
    found = fill_largest_first(session, parts)
    if found is None:
        return False
    for (_, many), nodes in zip(pods, found, strict=True):
        bind_placed(statement, group, many, nodes)
    return session.group_ready(group)


def _lacked(group: GroupState, waiting: Sequence[Pod]) -> list[tuple[TaskShape, list[Pod]]]:
    """Return the pods without a node that a gang needs to be ready, by task; none if one of them
    was created before its task was edited.
    """
    placed = group.placed
    least = sum(max(0, one.task.min_available - placed[one.task.name]) for one in group.tasks)
    short = max(least, group.min_member - sum(placed.values()))
    found: dict[str, tuple[TaskShape, list[Pod]]] = {}
    for pod in waiting[:short]:
        shape = group.shape_of(pod)
        if group.requests_of(pod) != shape.requests:
            return []
        found.setdefault(shape.task.name, (shape, []))[1].append(pod)
    return list(found.values())


def bind_kept(session: Session, group: GroupState, waiting: Sequence[Pod]) -> bool:
    """Bind the pods of a gang to the places that are kept for it; return whether it is ready then.

    The capacity of the places is already taken. If the group's charge grows, for example beside a
    pod that is being stopped, limits are checked again, because other groups may have been admitted
    meanwhile. `waiting` is the list of its pods without a node.
    """
    places = session.nodes.kept.get(group.uid)
    if places is None or session.nodes.binding_refused is not None:
        return False
    chosen = _pods_for(places, waiting)
    if chosen is None or _grows_over(session, group, places):
        return False
    session.nodes.use_kept(group.uid)
    with Statement(session) as statement:
        statement.also_undo(lambda: session.nodes.keep(group.uid, places))
        for pods, (_, nodes) in zip(chosen, places.parts, strict=True):
            bind_placed(statement, group, pods, nodes)
        if not session.group_ready(group):
            return False
        end_pledge(statement, group)
        if group.status.places:
            statement.set_status(group, places={})
        statement.commit()
    return True


def _grows_over(session: Session, group: GroupState, places: KeptPlaces) -> bool:
    """Return whether its pods on these places would raise the group's charge above a limit."""
    if not group.held and group.status.reservation is group.shape.reservation:
        # Its places are those of its gang, which is what it reserved.
        if not session.ledger.owed(group):
            return False
    elif len(places.parts) == 1:
        ((shape, nodes),) = places.parts
        if _pods_within_charge(session, group, shape) >= len(nodes):
            return False
    asked = total(times(shape.requests, len(nodes)) for shape, nodes in places.parts)
    return bool(over_limit_by(session, group, asked))


def _pods_for(places: KeptPlaces, waiting: Sequence[Pod]) -> list[list[Pod]] | None:
    """Return the pods for each part of kept places; None if a task has fewer pods than places."""
    if len(places.parts) == 1:
        ((shape, nodes),) = places.parts
        pods, task = list(waiting[: len(nodes)]), shape.task.name
        if len(pods) == len(nodes) and not [pod for pod in pods if pod.spec.task != task]:
            return [pods]
    by_task: dict[str, list[Pod]] = {}
    for pod in reversed(waiting):
        by_task.setdefault(pod.spec.task, []).append(pod)
    chosen = []
    for shape, nodes in places.parts:
        left = by_task.get(shape.task.name, [])
        if len(left) < len(nodes):
            return None
        chosen.append([left.pop() for _ in nodes])
    return chosen


def bind_alike(
    statement: Statement, group: GroupState, shape: TaskShape, pods: Sequence[Pod]
) -> int:
    """Bind pods of one task, each to the best node at that moment; return how many were bound."""
    filled: list[NodeState] = []
    fill_nodes(statement.session, shape, len(pods), filled)
    bind_placed(statement, group, pods[: len(filled)], filled)
    return len(filled)


def _needed_alike(
    session: Session, group: GroupState, shape: TaskShape, waiting: Sequence[Pod], place: int
) -> list[Pod]:
    """Return the pods of one task from this place on that can be bound in one batch: the group is
    not ready before the last of them, and its charge does not grow. A pod created before its task
    was edited may request something else and ends the batch.
    """
    most = min(pods_short(session, group), _pods_within_charge(session, group, shape))
    if most < 1:
        return []
    task, requests = shape.task.name, waiting[place].spec.requests
    if requests is not shape.stated and of_pod(requests) != shape.requests:
        return []
    if most == 1:
        return [waiting[place]]
    return list(
        takewhile(
            lambda pod: (
                pod.spec.task == task
                and (pod.spec.requests is requests or pod.spec.requests == requests)
            ),
            waiting[place : place + most],
        )
    )


def _pods_within_charge(session: Session, group: GroupState, shape: TaskShape) -> int:
    """Return how many more pods of a task fit into the group's charge, where no limit applies."""
    if not group.reserved or session.ledger.owed(group):
        return 0
    held, reservation = group.held, group.status.reservation
    most = group.replicas
    for name, units in shape.requests.items():
        fits = (reservation.get(name, 0) - held.get(name, 0)) // units
        if fits < most:
            most = fits
    return most


def node_for(
    session: Session, shape: TaskShape, plan: Mapping[str, str], ordinal: int
) -> NodeState | None:
    """Return the node that was planned for a pod when its victims were chosen, if it still takes
    the pod; otherwise the best node.

    The plan comes first because small pods on the best nodes could leave no node for a large one,
    although victims were evicted for all of them.
    """
    if plan and session.nodes.binding_refused is None:
        node = session.nodes.by_name.get(plan.get(str(ordinal), ""))
        if node is not None and session.refused_by(shape, node) is None:
            return node
    return find_node(session, shape)


def least_first(session: Session, group: GroupState) -> list[Pod]:
    """Return pending pods, with those that make up each task's minAvailable first."""
    pending = pending_pods(session, group)
    if len(group.tasks) == 1 or not any(shape.task.min_available for shape in group.tasks):
        return pending
    first: list[Pod] = []
    rest: list[Pod] = []
    placed = dict(group.placed)
    for pod in pending:
        task = group.shape_of(pod).task
        if placed.get(task.name, 0) < task.min_available:
            placed[task.name] += 1
            first.append(pod)
        else:
            rest.append(pod)
    return first + rest


def pending_pods(session: Session, group: GroupState) -> list[Pod]:
    """Return the pods without a node that no gate holds, by podOrder plugins, task and index."""
    admission, gated = group.status.admission, group.shape.gated
    pods = [
        pod
        for pod in group.live_pods.values()
        if pod.status.phase == _PENDING
        and pod.status.admission == admission
        and not ((gated or pod.spec.scheduling_gates) and group.is_held_back(pod))
    ]
    if len(pods) < 2:
        return pods
    firsts = {shape.task.name: shape.first for shape in group.tasks}
    orders = [entry.function for entry in session.plugins.points["podOrder"]]
    keys = [
        (
            *[order(session, group, pod) for order in orders],
            firsts.get(pod.spec.task, 0),
            pod.spec.index,
            place,
        )
        for place, pod in enumerate(pods)
    ]
    return [pods[key[-1]] for key in sorted(keys)]
