"""The nodes of a session as columns of numbers: their totals and what is free on them.

With many nodes and many request shapes, checking one node after another takes most of a session.
With columns, ranking a shape on a thousand nodes takes as long as checking twenty nodes one by one.
NumPy costs a process 0.1 s and 15 MB, so only sessions with many nodes import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from batchq.api.resources import Amounts
from batchq.core.placement.node_order import Judge
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.specs import TaskShape

Column: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

#: The largest amount on one node that can be multiplied by the 1000 of a score and by a few pods
#: without leaving 64 bits.
LARGEST = 2**50


class NodeRows:
    """The nodes of one session in the order of their names; follows its journal of node changes.

    It owns its columns: callers only read them.
    """

    def __init__(self, session: Session) -> None:
        by_name = session.nodes.by_name
        self.nodes: list[NodeState] = [by_name[name] for name in sorted(by_name)]
        self.row_of = {node.name: row for row, node in enumerate(self.nodes)}
        #: Whether all amounts are small enough for 64-bit arithmetic.
        self.are_exact = all(max(node.total.values()) <= LARGEST for node in self.nodes)
        self._changes = session.nodes.changes
        self._seen = len(self._changes)
        self._free: dict[str, Column] = {}
        self._sizes: dict[str, tuple[Column, Column]] = {}
        self._suits: dict[tuple[object, ...], Mask] = {}

    def free(self, name: str) -> Column:
        """Return the free amount of a resource on each node, 0 where the node has none."""
        self._follow()
        column = self._free.get(name)
        if column is None:
            column = self._free[name] = _column(node.free.get(name, 0) for node in self.nodes)
        return column

    def sizes(self, name: str) -> tuple[Column, Column]:
        """Return each node's total of a resource, at least 1, and whether it has any (1, 0)."""
        sizes = self._sizes.get(name)
        if sizes is None:
            column = _column(node.total.get(name, 0) for node in self.nodes)
            sizes = self._sizes[name] = (np.maximum(column, 1), np.minimum(column, 1))
        return sizes

    def suits(self, shape: TaskShape, asked: Callable[[TaskShape, NodeState], bool]) -> Mask:
        """Return a mask of the nodes for which `asked` is True; it must not depend on the shape's
        amounts, because shapes that differ only in these share the mask.
        """
        key = shape.shape[1:]
        mask = self._suits.get(key)
        if mask is None:
            mask = self._suits[key] = np.array([asked(shape, node) for node in self.nodes])
        return mask

    def after(self, requests: Amounts) -> NodeRows:
        """Return the rows as if each node had taken these requests; valid until a node changes."""
        free = {name: self.free(name) - units for name, units in requests.items()}
        rows = copy(self)
        rows._free = free
        return rows

    def _follow(self) -> None:
        changes = self._changes
        if self._seen == len(changes):
            return
        for name in dict.fromkeys(changes[self._seen :]):
            row = self.row_of[name]
            free = self.nodes[row].free
            for resource, column in self._free.items():
                column[row] = free.get(resource, 0)
        self._seen = len(changes)


def _column(amounts: Iterable[int]) -> Column:
    return np.fromiter(amounts, dtype=np.int64)


RowTakes: TypeAlias = "Callable[[NodeRows], Mask]"
RowScores: TypeAlias = "Callable[[NodeRows], Column]"


def over_rows(
    session: Session, shape: TaskShape
) -> tuple[list[RowTakes], list[tuple[int, RowScores]]] | None:
    """Return the column functions of all plugins for a shape, scores with their weights; None if a
    plugin can only be called node by node.
    """
    predicates, scores = session.plugins.points["predicate"], session.plugins.points["score"]
    takes: list[RowTakes] = []
    found: list[tuple[int, RowScores]] = []
    for entry in predicates:
        if entry.at_once is None or entry.at_once.rows is None:
            return None
        takes.append(entry.at_once.rows(session, shape))
    for entry in scores:
        if entry.at_once is None or entry.at_once.rows is None:
            return None
        if (score := entry.at_once.rows(session, shape)) is not None:
            found.append((entry.weight, score))
    return takes, found


#: The score of a node that does not take the shape: below all other scores.
_REFUSED = -(2**62)
#: A full sweep takes as long as ranking one fiftieth of the nodes one by one.
_SWEEP_PART = 50
#: For so many pods, or more, a sweep finds their nodes faster than one search after another.
MANY_PODS = 50


class RowRanking:
    """The nodes that take one shape, by score; follows the session's journal of node changes."""

    __slots__ = ("_judge", "_nodes", "_rows", "_scores", "_seen", "_shape", "_takes", "_values")

    def __init__(
        self,
        session: Session,
        shape: TaskShape,
        rows: NodeRows,
        takes: list[RowTakes],
        scores: list[tuple[int, RowScores]],
    ) -> None:
        self._shape = shape
        self._rows = rows
        self._judge = Judge(session, shape)
        self._takes = takes
        self._scores = scores
        self._nodes = session.nodes
        self._seen = len(self._nodes.changes)
        self._values = self._swept(rows)

    def best(self) -> NodeState | None:
        """Return the best node now, or None if no node takes the shape."""
        self._follow()
        row = int(self._values.argmax())
        return None if self._values[row] == _REFUSED else self._rows.nodes[row]

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods each take the best node; see `ShapeRanking.fill`."""
        self._follow()
        while count >= MANY_PODS and (taken := self._take_in_turn(count)):
            filled += taken
            count -= len(taken)
        values, nodes = self._values, self._rows.nodes
        judge, requests = self._judge, self._shape.requests
        for _ in range(count):
            row = int(values.argmax())
            if values.item(row) == _REFUSED:
                break
            node = nodes[row]
            self._nodes.take(node, requests)
            filled.append(node)
            rank = judge.rank(node)
            values[row] = _REFUSED if rank is None else -rank[0]
        self._seen = len(self._nodes.changes)

    def _take_in_turn(self, count: int) -> list[NodeState]:
        """Let up to `count` pods each take the best node, and return the nodes, as long as none of
        them is the best one again; none if that is so for too few pods.

        With a score that falls with each pod, as most do, that is one round over the best nodes.
        """
        values, nodes, requests = self._values, self._rows.nodes, self._shape.requests
        then = self._swept(self._rows.after(requests))
        # Of equal nodes the first is the best one.
        order = np.argsort(-values, kind="stable")[:count]
        highest = np.maximum.accumulate(then[order])
        again = values[order[1:]] <= highest[:-1]
        turns = int(again.argmax()) + 1 if again.any() else len(order)
        if turns < MANY_PODS:
            return []
        rows = order[:turns]
        taken = [nodes[row] for row in rows.tolist()]
        for node in taken:
            self._nodes.take(node, requests)
        values[rows] = then[rows]
        self._seen = len(self._nodes.changes)
        return taken

    def slots(self, most: int) -> int:
        """Return how many pods of this shape alone fit now, counting up to `most`."""
        self._follow()
        rows = self._rows
        fits = [rows.free(name) // units for name, units in self._shape.requests.items()]
        found = np.minimum.reduce(fits)[self._values != _REFUSED]
        # Each node is capped at `most`, so the sum stays within 64 bits.
        return min(most, int(np.minimum(found, most).sum()))

    def _follow(self) -> None:
        changes = self._nodes.changes
        if self._seen == len(changes):
            return
        changed = dict.fromkeys(changes[self._seen :])
        self._seen = len(changes)
        if len(changed) * _SWEEP_PART > len(self._values):
            self._values = self._swept(self._rows)
            return
        for name in changed:
            row = self._rows.row_of[name]
            rank = self._judge.rank(self._rows.nodes[row])
            self._values[row] = _REFUSED if rank is None else -rank[0]

    def _swept(self, rows: NodeRows) -> Column:
        """Return the score of each node, as these rows have them."""
        values = np.zeros(len(rows.nodes), dtype=np.int64)
        for weight, scores in self._scores:
            values += weight * scores(rows)
        for takes in self._takes:
            values[~takes(rows)] = _REFUSED
        return values


def row_ranking(session: Session, shape: TaskShape, rows: NodeRows) -> RowRanking | None:
    """Return the ranking of a shape by columns; None if a plugin can only be called node by node,
    or a request is too large for 64-bit arithmetic.
    """
    if any(units > LARGEST for units in shape.requests.values()):
        return None
    answers = over_rows(session, shape)
    return None if answers is None else RowRanking(session, shape, rows, *answers)


#: The nodes of a session as columns.
NODE_ROWS: StateKey[NodeRows] = StateKey("node rows", NodeRows)
