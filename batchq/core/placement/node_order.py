"""The nodes that take one shape of request, best first, and the batched calls of plugins for it.

A node's rank depends only on the shape and the node. All nodes are ranked once, with one batched
call of each plugin; later, only the nodes named in the session's journal are ranked again. Placing
a pod therefore costs the logarithm of the number of nodes and one check of a node.

A batched call of a built-in plugin answers for many nodes or pods. Third-party plugins are called
once for each node or pod, with the same results.

| point      | method                           | returns                                        |
|------------|----------------------------------|------------------------------------------------|
| predicate  | `predicate_for(session, shape)`  | a function: nodes -> whether each takes a pod  |
|            | `predicate_rows(session, shape)` | the same for NodeRows, as a column             |
| score      | `score_for(session, shape)`      | a function: nodes -> the score of each         |
|            | `score_rows(session, shape)`     | the same for NodeRows, as a column             |
| groupReady | `pods_short(session, group)`     | the least number of pods still to be bound     |
|            |                                  | before `group_ready` can be True               |

Whatever follows from the shape alone is computed once, not for each node. A returned function is
valid for one session, while the records of its nodes stay the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from batchq.core.extension import AtOnce, Plugin, Registration, is_of_others
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.snapshot import Instrument
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState

#: Functions from nodes to whether each takes the shape, and to the score of each.
Takes: TypeAlias = "Callable[[Sequence[NodeState]], list[bool]]"
Scores: TypeAlias = "Callable[[Sequence[NodeState]], list[int]]"

_METHODS = {"predicate": "predicate_for", "score": "score_for", "groupReady": "pods_short"}
_OF_ROWS = {"predicate": "predicate_rows", "score": "score_rows"}


def at_once(plugin: Plugin, point: str, instrument: Instrument | None) -> AtOnce | None:
    """Return a built-in plugin's batched methods at a point, timed; else None."""
    many = getattr(plugin, _METHODS.get(point, ""), None)
    rows = getattr(plugin, _OF_ROWS.get(point, ""), None)
    if many is None or is_of_others(plugin):
        return None
    if instrument is None:
        return AtOnce(many, rows)

    def measured(method: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            answer = method(*arguments)
            return instrument.plugin(plugin.name, point, answer) if callable(answer) else answer

        return ask

    return AtOnce(measured(many), rows and measured(rows))


def takes_for(entry: Registration[Any], session: Session, shape: TaskShape) -> Takes:
    """Return a function that says which nodes one plugin's predicate accepts for the shape."""
    if entry.at_once is not None:
        takes: Takes = entry.at_once.many(session, shape)
        return takes
    ask = entry.function
    return lambda nodes: [ask(session, shape, node) is None for node in nodes]


def scores_for(entry: Registration[Any], session: Session, shape: TaskShape) -> Scores | None:
    """Return a function with one plugin's scores of nodes for the shape; None if all are 0."""
    if entry.at_once is not None:
        scores: Scores | None = entry.at_once.many(session, shape)
        return scores
    ask = entry.function
    return lambda nodes: [ask(session, shape, node) for node in nodes]


def pods_short(session: Session, group: GroupState) -> int:
    """Return the least number of pods to bind before the group can be ready; 0 if unknown."""
    short = 0
    for entry in session.plugins.points["groupReady"]:
        if entry.at_once is not None:
            short = max(short, entry.at_once.many(session, group))
    return short


#: The negated score, then the node's name; the lowest rank is the best.
Rank = tuple[int, str]

#: A heap holds at most this many ranks of each node; all but one are outdated.
_MOST_OUTDATED = 4


def rank_of(session: Session, shape: TaskShape, node: NodeState) -> Rank | None:
    """Return the node's rank from single calls of its plugins; None if a predicate refuses."""
    if session.refused_by(shape, node) is not None:
        return None
    return (-session.score(shape, node) - _preference(shape, node), node.name)


#: More than any sum of scores.
_ABOVE_SCORES = 2**64
#: More slots than any node is taken to have.
_MANY_SLOTS = 2**20


def _preference(shape: TaskShape, node: NodeState) -> int:
    """Return the preference of a group for a node that takes the pod, which precedes all scores.

    Pods of an exclusive group go where others of the group are, as long as they fit; packed pods go
    there, too, and then where most of them fit.
    """
    sharing = shape.sharing
    if sharing is None or not (sharing.exclusive or sharing.pack):
        return 0
    slots = min(node.slots(shape), _MANY_SLOTS) if sharing.pack else 0
    return (slots + 2 * _MANY_SLOTS * (sharing in node.owners)) * _ABOVE_SCORES


class Judge:
    """All plugins' combined answers for one shape; equal to `rank_of` for each node."""

    __slots__ = ("_prefers", "_scores", "_takes")

    def __init__(self, session: Session, shape: TaskShape) -> None:
        self._prefers = None if shape.sharing is None else shape
        self._takes = [
            takes_for(entry, session, shape) for entry in session.plugins.points["predicate"]
        ]
        scores = (
            (entry.weight, scores_for(entry, session, shape))
            for entry in session.plugins.points["score"]
        )
        self._scores = [(weight, found) for weight, found in scores if found is not None]

    def ranks(self, nodes: Sequence[NodeState]) -> list[Rank]:
        """Return the ranks of the nodes that take the shape."""
        for takes in self._takes:
            nodes = [node for node, taken in zip(nodes, takes(nodes), strict=True) if taken]
        totals = [0] * len(nodes)
        for weight, scores in self._scores:
            found = zip(totals, scores(nodes), strict=True)
            totals = [total - weight * score for total, score in found]
        if self._prefers is not None:
            pairs = zip(totals, nodes, strict=True)
            totals = [total - _preference(self._prefers, node) for total, node in pairs]
        return [(total, node.name) for total, node in zip(totals, nodes, strict=True)]

    def rank(self, node: NodeState) -> Rank | None:
        """Return the rank of one node; None if it does not take the shape."""
        alone = (node,)
        for takes in self._takes:
            if not takes(alone)[0]:
                return None
        total = 0
        for weight, scores in self._scores:
            total -= weight * scores(alone)[0]
        if self._prefers is not None:
            total -= _preference(self._prefers, node)
        return (total, node.name)


class ShapeRanking:
    """The nodes that take one shape, best first; follows the session's journal of node changes."""

    __slots__ = ("_heap", "_judge", "_rank", "_seen", "_session", "_shape")

    def __init__(self, session: Session, shape: TaskShape) -> None:
        self._session = session
        self._shape = shape
        self._judge = Judge(session, shape)
        self._seen = len(session.nodes.changes)
        #: A heap of current and outdated ranks, lowest first; `_rank` holds the current ones.
        self._heap = self._judge.ranks(list(session.nodes.by_name.values()))
        self._rank = {rank[1]: rank for rank in self._heap}
        heapq.heapify(self._heap)

    def best(self) -> NodeState | None:
        """Return the best node now, or None if no node takes the shape."""
        self._follow()
        return self._top()

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods of the shape each take the best node at that moment.

        The nodes are appended to `filled`, one for each pod, as their capacity is taken; fewer than
        `count` if no node takes the next pod.
        """
        self._follow()
        nodes, shape = self._session.nodes, self._shape
        heap, ranks, judge = self._heap, self._rank, self._judge
        for left in range(count, 0, -1):
            node = self._top()
            if node is None:
                break
            self._seen = len(nodes.changes)
            nodes.take_pod(node, shape)
            filled.append(node)
            if left == 1:
                # The node is ranked again when the ranking is next used.
                return
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
        """Return how many pods of this shape alone fit now, counting up to `most`."""
        self._follow()
        nodes, requests = self._session.nodes.by_name, list(self._shape.requests.items())
        found = 0
        if self._shape.sharing is not None:
            return min(most, sum(nodes[name].slots(self._shape) for name in self._rank))
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
            self._update_ranks(changes[self._seen :])
            self._seen = len(changes)

    def _update_ranks(self, names: Iterable[str]) -> None:
        nodes, ranks = self._session.nodes.by_name, self._rank
        for name in dict.fromkeys(names):
            rank = self._judge.rank(nodes[name])
            if rank is None:
                ranks.pop(name, None)
            elif ranks.get(name) != rank:
                ranks[name] = rank
                heapq.heappush(self._heap, rank)
        if len(self._heap) > _MOST_OUTDATED * len(nodes):
            # Trials that were undone leave outdated ranks behind.
            self._heap[:] = ranks.values()
            heapq.heapify(self._heap)


class OnlyNode:
    """The same as `ShapeRanking` for a cluster of one node, which needs no rank."""

    __slots__ = ("_alone", "_session", "_shape", "_takes")

    def __init__(self, session: Session, shape: TaskShape, node: NodeState) -> None:
        self._session = session
        self._shape = shape
        self._alone = (node,)
        self._takes = [
            takes_for(entry, session, shape) for entry in session.plugins.points["predicate"]
        ]

    def best(self) -> NodeState | None:
        """Return the node, or None if it does not take the shape now."""
        alone = self._alone
        for takes in self._takes:
            if not takes(alone)[0]:
                return None
        return alone[0]

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods of the shape take the node, which is appended for each."""
        nodes, shape = self._session.nodes, self._shape
        for _ in range(count):
            if (node := self.best()) is None:
                return
            nodes.take_pod(node, shape)
            filled.append(node)

    def slots(self, most: int) -> int:
        """Return how many pods of this shape alone fit now, counting up to `most`."""
        node = self.best()
        return 0 if node is None else min(most, node.slots(self._shape))
