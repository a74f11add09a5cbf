"""All nodes of a session as columns of numbers: what each has, and what is free on it.

With many nodes and many shapes of request, asking about one node after the other is most of a
session. Over columns, a shape is ranked on a thousand nodes in the time that twenty of them take
one by one. NumPy costs a process 0.1 s and 15 MB: only sessions with many nodes import this
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from batchq.framework.session import Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import NodeState

Column: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

#: So much of a resource on one node can be taken several times over, and be multiplied by the 1000
#: of a score, in 64 bits.
LARGEST = 2**50


class NodeRows:
    """The nodes of one session in the order of their names; follows its journal of node changes.

    Columns belong to it: whoever reads one leaves it as it is.
    """

    def __init__(self, session: Session) -> None:
        self.nodes: list[NodeState] = [session.nodes[name] for name in sorted(session.nodes)]
        self.row_of = {node.name: row for row, node in enumerate(self.nodes)}
        #: Whether no node has so much that 64 bits might not do.
        self.are_exact = all(max(node.total.values()) <= LARGEST for node in self.nodes)
        self._changes = session.node_changes
        self._seen = len(self._changes)
        self._free: dict[str, Column] = {}
        self._sizes: dict[str, tuple[Column, Column]] = {}
        self._suits: dict[tuple[object, ...], Mask] = {}

    def free(self, name: str) -> Column:
        """What is free of a resource; 0 where there is none."""
        self._follow()
        column = self._free.get(name)
        if column is None:
            column = self._free[name] = _column(node.free.get(name, 0) for node in self.nodes)
        return column

    def sizes(self, name: str) -> tuple[Column, Column]:
        """What nodes have of a resource, 1 where there is none; and 1 where there is some, or 0."""
        sizes = self._sizes.get(name)
        if sizes is None:
            column = _column(node.total.get(name, 0) for node in self.nodes)
            sizes = self._sizes[name] = (np.maximum(column, 1), np.minimum(column, 1))
        return sizes

    def suits(self, shape: TaskShape, asked: Callable[[TaskShape, NodeState], bool]) -> Mask:
        """Where `asked` says yes, which goes by all that makes a shape but its amounts."""
        key = shape.shape[1:]
        mask = self._suits.get(key)
        if mask is None:
            mask = self._suits[key] = np.array([asked(shape, node) for node in self.nodes])
        return mask

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
