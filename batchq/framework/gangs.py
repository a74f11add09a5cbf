"""Placing a gang: minMember pods of a group, with every task's minAvailable, one after the other.

The caller owns the Statement and decides what becomes of a gang that did not find room for all.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Verdict
from batchq.framework.growth import over_limit_with
from batchq.framework.moves import bind
from batchq.framework.placement import explain_no_node, find_node
from batchq.framework.session import Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState, NodeState
from batchq.framework.statement import Statement


def bind_until_ready(session: Session, statement: Statement, group: GroupState) -> list[Verdict]:
    """Bind what fits until the group is ready; else what nodes and limits say against the rest."""
    refused: list[TaskShape] = []
    for pod in least_first(session, group):
        shape = group.shape_of(pod)
        if shape in refused:
            continue
        node = node_for(session, shape, group.status.pledge.plan, shape.first + pod.spec.index)
        if node is None:
            refused.append(shape)
            continue
        if over := over_limit_with(session, group, shape):
            return over
        bind(statement, group, pod, node.name)
        if session.group_ready(group):
            break
    return [explain_no_node(session, shape) for shape in refused]


def node_for(
    session: Session, shape: TaskShape, plan: Mapping[str, str], ordinal: int
) -> NodeState | None:
    """The node that was planned for a pod when victims were chosen, if it takes it; else the best.

    Small pods on the best nodes might leave no node for a large one, and others have been evicted
    for all of them.
    """
    if plan and session.binding_refused is None:
        node = session.nodes.get(plan.get(str(ordinal), ""))
        if node is not None and session.refused_by(shape, node) is None:
            return node
    return find_node(session, shape)


def least_first(session: Session, group: GroupState) -> list[Pod]:
    """Pending pods, those that make up each task's minAvailable first."""
    first: list[Pod] = []
    rest: list[Pod] = []
    placed = dict(group.placed)
    for pod in pending_pods(session, group):
        task = group.shape_of(pod).task
        if placed[task.name] < task.min_available:
            placed[task.name] += 1
            first.append(pod)
        else:
            rest.append(pod)
    return first + rest


def pending_pods(session: Session, group: GroupState) -> list[Pod]:
    """Its pods without a node that no gate holds back, by priority, task, index."""
    pods = [
        pod
        for pod in group.current()
        if pod.status.phase == PodPhase.PENDING and not group.is_held_back(pod)
    ]
    return sorted(pods, key=lambda pod: session.pod_key(group, pod))
