"""The nodes that take one shape of request, by columns: for sessions with many nodes.

The same answers as `batchq.framework.ranking` gives. All nodes are ranked in one sweep over the
columns; those on which something changed since are ranked one by one, or in a sweep again if they
are many. The best node is the first of the highest, and rows are in the order of names.
"""

from __future__ import annotations

import numpy as np

from batchq.framework.atonce import RowScores, RowTakes, over_rows
from batchq.framework.noderows import LARGEST, NodeRows
from batchq.framework.ranking import Judge
from batchq.framework.session import Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import NodeState

#: The score of a node that does not take the shape: below all others.
_NOBODY = -(2**62)
#: A sweep takes as long as so much of the nodes asked one by one.
_SWEEP_PART = 50


class RowRanking:
    """The nodes that take one shape, by score; follows the session's journal of node changes."""

    __slots__ = ("_changes", "_judge", "_rows", "_scores", "_seen", "_shape", "_takes", "_values")

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
        self._changes = session.node_changes
        self._seen = len(self._changes)
        self._values = np.empty(len(rows.nodes), dtype=np.int64)
        self._sweep()

    def best(self) -> NodeState | None:
        """The best node now, or None if no node takes the shape."""
        self._follow()
        row = int(self._values.argmax())
        return None if self._values[row] == _NOBODY else self._rows.nodes[row]

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods each take the best node as it is then; see `ShapeRanking.fill`."""
        self._follow()
        values, nodes, changes = self._values, self._rows.nodes, self._changes
        judge, requests = self._judge, self._shape.requests
        for _ in range(count):
            row = int(values.argmax())
            if values[row] == _NOBODY:
                break
            node = nodes[row]
            node.take(requests)
            filled.append(node)
            changes.append(node.name)
            rank = judge.rank(node)
            values[row] = _NOBODY if rank is None else -rank[0]
        self._seen = len(changes)

    def slots(self, most: int) -> int:
        """How many pods of the shape fit now, looking at one shape alone; counts up to `most`."""
        self._follow()
        rows = self._rows
        fits = [rows.free(name) // units for name, units in self._shape.requests.items()]
        found = np.minimum.reduce(fits)[self._values != _NOBODY]
        # No more than asked for of each node: the sum stays within 64 bits.
        return min(most, int(np.minimum(found, most).sum()))

    def _follow(self) -> None:
        changes = self._changes
        if self._seen == len(changes):
            return
        changed = dict.fromkeys(changes[self._seen :])
        self._seen = len(changes)
        if len(changed) * _SWEEP_PART > len(self._values):
            self._sweep()
            return
        for name in changed:
            row = self._rows.row_of[name]
            rank = self._judge.rank(self._rows.nodes[row])
            self._values[row] = _NOBODY if rank is None else -rank[0]

    def _sweep(self) -> None:
        rows, values = self._rows, self._values
        values.fill(0)
        for weight, scores in self._scores:
            values += weight * scores(rows)
        for takes in self._takes:
            values[~takes(rows)] = _NOBODY


def row_ranking(session: Session, shape: TaskShape, rows: NodeRows) -> RowRanking | None:
    """The ranking of a shape by columns; None if a plugin has to be asked node by node, or if more
    is asked for than 64 bits are sure to hold.
    """
    if any(units > LARGEST for units in shape.requests.values()):
        return None
    answers = over_rows(session, shape)
    return None if answers is None else RowRanking(session, shape, rows, *answers)
