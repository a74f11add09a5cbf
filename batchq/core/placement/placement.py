"""Placement of a gang with the largest pods first, each on the fullest node that takes it.

This is the second attempt, after the gang's own order has failed: small pods on the best nodes may
leave no node for a large one. If it fails too, pods with the fewest possible nodes come first,
because large pods may otherwise fill all of these nodes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from batchq.api.lifecycle import ON_NODE
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS, Amounts, describe_quantity
from batchq.core.placement.node_order import Judge, ShapeRanking
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import Gang, NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState
from batchq.core.session.transitions import pod_of

_PARTS = 1_000_000


def place_largest_first(
    parts: Sequence[tuple[TaskShape, int]],
    nodes: Iterable[NodeState],
    whole: Amounts,
    *,
    choices: Callable[[TaskShape], int],
    takes: Callable[[TaskShape, NodeState], bool],
    take: Callable[[TaskShape, NodeState], None],
    give_back: Callable[[TaskShape, NodeState], None],
) -> list[tuple[NodeState, ...]] | None:
    """Let the pods of each part take nodes; return the nodes of each part, or None, with nothing
    taken, if a pod finds no node.

    `choices` returns how many nodes would take a pod if they were empty: among pods of one size,
    those with fewer choices come first. `takes` says whether a node takes one more pod, and `take`
    places it. Pods are compared by their largest dimension as a fraction of `whole`, then by the
    sum of all. Nodes are compared by how much is free in the requested dimensions, then in the
    others, so that a pod without GPUs leaves GPU nodes free. Pod slots do not count: beside nodes
    without a limit, one with a limit would always be the fullest.
    """
    there = list(nodes)
    sizes = [_size(shape, whole) for shape, _ in parts]
    fewest = [choices(shape) for shape, _ in parts]
    places = [shape.place for shape, _ in parts]
    all_parts = range(len(parts))
    by_size = sorted(all_parts, key=lambda part: (sizes[part], fewest[part], places[part]))
    by_choice = sorted(all_parts, key=lambda part: (fewest[part], sizes[part], places[part]))
    for order in (by_size, by_choice) if by_choice != by_size else (by_size,):
        placed: list[list[NodeState]] = [[] for _ in parts]
        if _place(order, parts, there, whole, takes, take, placed):
            return [tuple(found) for found in placed]
        for (shape, _), found in zip(parts, placed, strict=True):
            for node in found:
                give_back(shape, node)
    return None


def _place(
    order: Iterable[int],
    parts: Sequence[tuple[TaskShape, int]],
    there: Sequence[NodeState],
    whole: Amounts,
    takes: Callable[[TaskShape, NodeState], bool],
    take: Callable[[TaskShape, NodeState], None],
    placed: list[list[NodeState]],
) -> bool:
    """Place the parts in this order, each pod on the fullest node; return whether all pods fit."""
    for part in order:
        shape, count = parts[part]
        asked = [name for name in shape.requests if whole.get(name) and name != PODS]
        others = [name for name in whole if whole[name] and name not in shape.requests]
        takers = sorted(
            (_free_part(asked, node, whole), _free_part(others, node, whole), node.name, node)
            for node in there
            if takes(shape, node)
        )
        found = placed[part]
        for *_, node in takers:
            # A node that takes a pod stays the fullest until it takes no more.
            while len(found) < count and takes(shape, node):
                take(shape, node)
                found.append(node)
        if len(found) < count:
            return False
    return True


def _size(shape: TaskShape, whole: Amounts) -> tuple[int, int]:
    """Return a pod's largest request and the sum of its requests, negated."""
    parts = [
        units * _PARTS // whole[name] for name, units in shape.requests.items() if whole.get(name)
    ]
    return -max(parts, default=0), -sum(parts)


def _free_part(names: Iterable[str], node: NodeState, whole: Amounts) -> int:
    """Return what is free on a node in these dimensions, in millionths of the whole."""
    return sum(node.free.get(name, 0) * _PARTS // whole[name] for name in names)


class Ranking(Protocol):
    """The nodes that take one shape."""

    def best(self) -> NodeState | None:
        """Return the best node now, or None if no node takes the shape."""

    def slots(self, most: int) -> int:
        """Return how many pods of the shape fit now, counting up to `most`."""

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods each take the best node at that moment; append these nodes."""


#: From this number of nodes on, sweeps over columns are faster than checks of one node at a time.
MANY_NODES = 64


def find_node(session: Session, shape: TaskShape) -> NodeState | None:
    """Return the best node that takes a pod of this shape now, or None."""
    return None if session.nodes.binding_refused is not None else _ranking(session, shape).best()


def fill_nodes(session: Session, shape: TaskShape, count: int, filled: list[NodeState]) -> None:
    """Let up to `count` pods of this shape each take the best node; see `ShapeRanking.fill`."""
    if session.nodes.binding_refused is None:
        _ranking(session, shape).fill(count, filled)


def slots_for(session: Session, shape: TaskShape, most: int) -> int:
    """Return how many pods of this shape alone fit on the nodes now, counting up to `most`."""
    return 0 if session.nodes.binding_refused is not None else _ranking(session, shape).slots(most)


def _ranking(session: Session, shape: TaskShape) -> Ranking:
    rankings = session.get(RANKINGS)
    ranking = rankings.get(shape.shape)
    if ranking is None:
        ranking = rankings[shape.shape] = _ranked(session, shape)
    return ranking


def _ranked(session: Session, shape: TaskShape) -> Ranking:
    if len(session.nodes.by_name) < MANY_NODES or shape.sharing is not None:
        return ShapeRanking(session, shape)
    # Only sessions with many nodes load NumPy; small clusters and other commands do without it.
    from batchq.core.placement.node_matrix import NODE_ROWS, row_ranking

    rows = session.get(NODE_ROWS)
    by_rows = row_ranking(session, shape, rows) if rows.are_exact else None
    return by_rows or ShapeRanking(session, shape)


def usable_nodes(session: Session, shape: TaskShape) -> list[NodeState]:
    """Return the nodes that would take a pod of this shape if they were empty; all open nodes if
    none would. Computed once a session.
    """
    known = session.get(USABLE_NODES)
    found = known.get(shape.shape)
    if found is None:
        open_nodes = [node for node in session.nodes.by_name.values() if node.open]
        empty = [NodeState(node.record, ready=True) for node in open_nodes]
        names = {name for _, name in Judge(session, shape).ranks(empty)}
        usable = [node for node in open_nodes if node.name in names]
        found = known[shape.shape] = usable or open_nodes
    return found


def gang_of(session: Session, group: GroupState) -> list[tuple[TaskShape, int]]:
    """Return the pods that a group's gang still lacks, in placement order; for a running group that
    queues again, its next pod.

    Each task's minAvailable comes first; both parts are ordered by pod priority and task.
    """
    if group.next_pod is not None:
        return [(group.next_pod, 1)]
    if group.record_only and len(group.tasks) == 1:
        return [(group.tasks[0], min(group.min_member, group.replicas))]
    chosen = group.lacks_for_gang()
    counts = {shape.task.name: count for shape, count in zip(group.tasks, chosen, strict=True)}
    first: list[tuple[TaskShape, int]] = []
    rest: list[tuple[TaskShape, int]] = []
    for shape in tasks_in_order(session, group):
        count = counts[shape.task.name]
        least = min(shape.task.min_available, count)
        first.append((shape, least))
        rest.append((shape, count - least))
    return [(shape, count) for shape, count in first + rest if count]


def waits_for_its_own(group: GroupState, gang: Gang) -> bool:
    """Return whether pods of a former admission that have not ended leave a group with too few pods
    to start. No pod may run twice at once, so its new places would be idle until then.
    """
    if not group.pods:
        return False
    former = Counter(
        pod.spec.task for pod in group.live_pods.values() if pod.status.phase in ON_NODE
    )
    if not former:
        return False
    needed: Counter[str] = Counter()
    for shape, count in gang:
        needed[shape.task.name] += count
    left = {
        shape.task.name: count for shape, count in zip(group.tasks, group.ungated(), strict=True)
    }
    return any(left[task] - former[task] < count for task, count in needed.items())


def tasks_in_order(session: Session, group: GroupState) -> list[TaskShape]:
    """Return the tasks that have pods, in pod order: by the podOrder plugins, then as specified."""
    shapes = [shape for shape in group.tasks if shape.task.replicas]
    if len(shapes) < 2:
        return shapes
    return sorted(shapes, key=lambda shape: session.pod_key(group, pod_of(group, shape.first)))


def take_best(
    session: Session, shape: TaskShape, nodes: Mapping[str, NodeState], count: int
) -> bool:
    """Let each of `count` pods take the best of these nodes; False if one finds none."""
    if not count:
        return True
    judge = Judge(session, shape)
    heap = judge.ranks(list(nodes.values()))
    heapq.heapify(heap)
    for _ in range(count):
        if not heap:
            return False
        node = nodes[heap[0][1]]
        node.take_pod(shape)
        # Only this node's rank has changed.
        rank = judge.rank(node)
        if rank is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, rank)
    return True


def fill_largest_first(
    session: Session, parts: Sequence[tuple[TaskShape, int]]
) -> list[tuple[NodeState, ...]] | None:
    """Let pods take nodes, the largest pods first, each on the fullest node that takes it; return
    the nodes of each part, or None, with nothing taken; see `place_largest_first`.
    """

    def take(shape: TaskShape, node: NodeState) -> None:
        session.nodes.take_pod(node, shape)

    def give_back(shape: TaskShape, node: NodeState) -> None:
        session.nodes.put_back_pod(node, shape)

    return place_largest_first(
        parts,
        session.nodes.by_name.values(),
        session.nodes.ready,
        choices=lambda shape: len(usable_nodes(session, shape)),
        takes=lambda shape, node: session.refused_by(shape, node) is None,
        take=take,
        give_back=give_back,
    )


def explain_no_node(session: Session, shape: TaskShape) -> Verdict:
    """Return one verdict on all: `0/3 nodes fit: 2 insufficient cpu, 1 cordoned`."""
    detail, fitting = count_fitting(session, shape, session.nodes.by_name.values())
    if fitting and session.nodes.binding_refused is not None:
        return session.nodes.binding_refused
    passing = _most_free(session, shape)
    return Verdict(plugin="allocate", reason=Waiting.UNSCHEDULABLE, detail=detail, passing=passing)


def count_fitting(
    session: Session, shape: TaskShape, nodes: Iterable[NodeState]
) -> tuple[str, int]:
    """Return how many nodes take a pod of a shape: as text, with the refusals of the others, and as
    a number.
    """
    refusals = [session.refused_by(shape, node) for node in nodes]
    counts = Counter(refusal.detail for refusal in refusals if refusal is not None)
    parts = ", ".join(f"{count} {text}" for text, count in sorted(counts.items()))
    fitting = sum(1 for refusal in refusals if refusal is None)
    detail = f"task {shape.task.name}: {fitting}/{len(refusals)} nodes fit"
    return (f"{detail}: {parts}" if parts else detail), fitting


def _most_free(session: Session, shape: TaskShape) -> str:
    """Return, as text, the first dimension in which no node has enough free: the pod's request, and
    the largest free amount with its node.
    """
    nodes = [node for node in session.nodes.by_name.values() if node.open]
    for resource, need in shape.requests.items() if nodes else ():
        most, name = max((node.free.get(resource, 0), node.name) for node in nodes)
        if most < need:
            needs, has = (describe_quantity(resource, units) for units in (need, max(0, most)))
            return f"a pod needs {resource} {needs}, and the most that is free is {has}, on {name}"
    return ""


#: Shape -> the nodes that take it, best first, in a session.
RANKINGS: StateKey[dict[tuple[object, ...], Ranking]] = StateKey(
    "rankings", lambda _: {}, ends_with_session=True
)
#: Shape -> the nodes that would take it if they were empty, in a session.
USABLE_NODES: StateKey[dict[tuple[object, ...], list[NodeState]]] = StateKey(
    "usable nodes", lambda _: {}
)
