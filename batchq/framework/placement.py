"""Finding a node for a pod: predicates, then score, ties by name.

Nodes are ranked once for each shape of request, and afterwards only those on which something
changed are ranked again, so that placing a pod costs the logarithm of the number of nodes. That
is why predicates and scores may depend on the shape and the node alone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from batchq.api.reasons import Verdict, Waiting
from batchq.framework.session import Session
from batchq.framework.state import GroupState, NodeState, TaskShape

Rank = tuple[int, str]


class ShapeRanking:
    """The nodes that take one shape, best first; follows the session's journal of node changes."""

    def __init__(self, session: Session, shape: TaskShape) -> None:
        self._session = session
        self._shape = shape
        self._seen = len(session.node_changes)
        self._rank: dict[str, Rank] = {}
        for node in session.nodes.values():
            self._rank_node(node)
        self._heap = sorted(self._rank.values())

    def best(self) -> NodeState | None:
        """The best node now, or None if no node takes the shape."""
        changes = self._session.node_changes
        if self._seen < len(changes):
            for name in set(changes[self._seen :]):
                if (rank := self._rank_node(self._session.nodes[name])) is not None:
                    heapq.heappush(self._heap, rank)
            self._seen = len(changes)
        while self._heap:
            rank = self._heap[0]
            if self._rank.get(rank[1]) == rank:
                return self._session.nodes[rank[1]]
            heapq.heappop(self._heap)
        return None

    def _rank_node(self, node: NodeState) -> Rank | None:
        rank = rank_of(self._session, self._shape, node)
        if rank is None:
            self._rank.pop(node.name, None)
        else:
            self._rank[node.name] = rank
        return rank


def rank_of(session: Session, shape: TaskShape, node: NodeState) -> Rank | None:
    """Lower is better; None if a predicate refuses."""
    if session.refused_by(shape, node) is not None:
        return None
    return (-session.score(shape, node), node.name)


def find_node(session: Session, shape: TaskShape) -> NodeState | None:
    """The best node that takes a pod of this shape now, or None."""
    ranking = session.rankings.get(shape.shape)
    if ranking is None:
        ranking = session.rankings[shape.shape] = ShapeRanking(session, shape)
    return ranking.best()


def fits_on_empty_nodes(session: Session, group: GroupState) -> bool:
    """Whether minMember pods would fit if nothing else ran on the ready nodes."""
    nodes = [NodeState(node.record, ready=True) for node in session.nodes.values() if node.ready]
    for shape, count in zip(group.tasks, group.choose(group.min_member), strict=True):
        for _ in range(count):
            node = _best_of(session, shape, nodes)
            if node is None:
                return False
            node.take(shape.requests)
    return True


def explain_no_node(session: Session, shape: TaskShape) -> Verdict:
    """One verdict out of every node's refusal: `0/3 nodes fit: 2 insufficient cpu, 1 cordoned`."""
    refusals = [session.refused_by(shape, node) for node in session.nodes.values()]
    counts = Counter(refusal.detail for refusal in refusals if refusal is not None)
    parts = ", ".join(f"{count} {text}" for text, count in sorted(counts.items()))
    fitting = sum(1 for refusal in refusals if refusal is None)
    detail = f"task {shape.task.name}: {fitting}/{len(refusals)} nodes fit"
    if parts:
        detail += f": {parts}"
    return Verdict(plugin="allocate", reason=Waiting.UNSCHEDULABLE, detail=detail)


def _best_of(session: Session, shape: TaskShape, nodes: Iterable[NodeState]) -> NodeState | None:
    ranked = ((rank_of(session, shape, node), node) for node in nodes)
    fitting = [(rank, node) for rank, node in ranked if rank is not None]
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else None
