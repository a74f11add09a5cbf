"""The nodes that take one shape of request, best first.

A node's rank depends on the shape and the node alone. So all nodes are ranked once, each plugin
asked about all of them at once, and afterwards only those on which something changed are ranked
again, as the session's journal names them: placing a pod costs the logarithm of the number of
nodes, and one node asked about.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from batchq.core.placement.batch_answers import (
    scores_for,
    takes_for,
)
from batchq.core.session.node_state import NodeState
from batchq.core.session.session import Session
from batchq.core.session.specs import TaskShape

#: Lower is better: less the score, and the node's name.
Rank = tuple[int, str]

#: A heap holds up to so many ranks of each node, all but one of them outdated.
_MOST_OUTDATED = 4


def rank_of(session: Session, shape: TaskShape, node: NodeState) -> Rank | None:
    """The node's rank as its plugins say one by one; None if a predicate refuses."""
    if session.refused_by(shape, node) is not None:
        return None
    return (-session.score(shape, node), node.name)


class Judge:
    """What all plugins together say of nodes for one shape: the same as `rank_of` says of each."""

    __slots__ = ("_scores", "_takes")

    def __init__(self, session: Session, shape: TaskShape) -> None:
        self._takes = [
            takes_for(entry, session, shape) for entry in session.plugins.points["predicate"]
        ]
        scores = (
            (entry.weight, scores_for(entry, session, shape))
            for entry in session.plugins.points["score"]
        )
        self._scores = [(weight, found) for weight, found in scores if found is not None]

    def ranks(self, nodes: Sequence[NodeState]) -> list[Rank]:
        """The ranks of those nodes that take the shape."""
        for takes in self._takes:
            nodes = [node for node, taken in zip(nodes, takes(nodes), strict=True) if taken]
        totals = [0] * len(nodes)
        for weight, scores in self._scores:
            found = zip(totals, scores(nodes), strict=True)
            totals = [total - weight * score for total, score in found]
        return [(total, node.name) for total, node in zip(totals, nodes, strict=True)]

    def rank(self, node: NodeState) -> Rank | None:
        """The rank of one node; None if it does not take the shape."""
        alone = (node,)
        for takes in self._takes:
            if not takes(alone)[0]:
                return None
        total = 0
        for weight, scores in self._scores:
            total -= weight * scores(alone)[0]
        return (total, node.name)


class ShapeRanking:
    """The nodes that take one shape, best first; follows the session's journal of node changes."""

    __slots__ = ("_heap", "_judge", "_rank", "_seen", "_session", "_shape")

    def __init__(self, session: Session, shape: TaskShape) -> None:
        self._session = session
        self._shape = shape
        self._judge = Judge(session, shape)
        self._seen = len(session.nodes.changes)
        #: Lowest first: how nodes are ranked now, and how they were, which `_rank` tells apart.
        self._heap = self._judge.ranks(list(session.nodes.by_name.values()))
        self._rank = {rank[1]: rank for rank in self._heap}
        heapq.heapify(self._heap)

    def best(self) -> NodeState | None:
        """The best node now, or None if no node takes the shape."""
        self._follow()
        return self._top()

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods of the shape each take the best node as it is then.

        The nodes are appended to `filled`, one for each pod, as their room is taken; fewer than
        `count` if no node takes the next.
        """
        self._follow()
        nodes, requests = self._session.nodes, self._shape.requests
        heap, ranks, judge = self._heap, self._rank, self._judge
        for _ in range(count):
            node = self._top()
            if node is None:
                break
            nodes.take(node, requests)
            filled.append(node)
            # Only this node's rank has changed, and it is on top.
            rank = judge.rank(node)
            if rank is None:
                del ranks[node.name]
                heapq.heappop(heap)
            else:
                ranks[node.name] = rank
                heapq.heapreplace(heap, rank)
        self._seen = len(nodes.changes)

    def slots(self, most: int) -> int:
        """How many pods of the shape fit now, looking at one shape alone; counts up to `most`."""
        self._follow()
        nodes, requests = self._session.nodes.by_name, list(self._shape.requests.items())
        found = 0
        for name in self._rank:
            free = nodes[name].free
            found += min(free[one] // units for one, units in requests)
            if found >= most:
                return most
        return found

    def _top(self) -> NodeState | None:
        heap, ranks = self._heap, self._rank
        while heap:
            rank = heap[0]
            if ranks.get(rank[1]) == rank:
                return self._session.nodes.by_name[rank[1]]
            heapq.heappop(heap)
        return None

    def _follow(self) -> None:
        changes = self._session.nodes.changes
        if self._seen < len(changes):
            self._rank_anew(changes[self._seen :])
            self._seen = len(changes)

    def _rank_anew(self, names: Iterable[str]) -> None:
        nodes, ranks = self._session.nodes.by_name, self._rank
        for name in dict.fromkeys(names):
            rank = self._judge.rank(nodes[name])
            if rank is None:
                ranks.pop(name, None)
            elif ranks.get(name) != rank:
                ranks[name] = rank
                heapq.heappush(self._heap, rank)
        if len(self._heap) > _MOST_OUTDATED * len(nodes):
            # What is tried and undone leaves ranks behind that no longer hold.
            self._heap[:] = ranks.values()
            heapq.heapify(self._heap)
