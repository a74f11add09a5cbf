"""All nodes of a session as columns of numbers: what each has, and what is free on it.

With many nodes and many shapes of request, asking about one node after the other is most of a
session. Over columns, a shape is ranked on a thousand nodes in the time that twenty of them take
one by one. NumPy costs a process 0.1 s and 15 MB: only sessions with many nodes import this
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from batchq.core.extension.points import AtOnce, Plugin, Registration, is_of_others
from batchq.core.session.node_state import NodeState
from batchq.core.session.session import Session, StateKey
from batchq.core.session.settings import Instrument
from batchq.core.session.specs import TaskShape

if TYPE_CHECKING:
    from batchq.core.session.state import GroupState


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


#: Nodes -> whether each takes the shape; or their scores.
Takes: TypeAlias = "Callable[[Sequence[NodeState]], list[bool]]"
Scores: TypeAlias = "Callable[[Sequence[NodeState]], list[int]]"
RowTakes: TypeAlias = "Callable[[NodeRows], Mask]"
RowScores: TypeAlias = "Callable[[NodeRows], Column]"

_METHODS = {"predicate": "predicate_for", "score": "score_for", "groupReady": "pods_short"}
_OF_ROWS = {"predicate": "predicate_rows", "score": "score_rows"}


def at_once(plugin: Plugin, point: str, instrument: Instrument | None) -> AtOnce | None:
    """The plugin's methods of the table above, measured; None if it has none, or is of others."""
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
    """What a plugin at `predicate` says of nodes."""
    if entry.at_once is not None:
        takes: Takes = entry.at_once.many(session, shape)
        return takes
    ask = entry.function
    return lambda nodes: [ask(session, shape, node) is None for node in nodes]


def scores_for(entry: Registration[Any], session: Session, shape: TaskShape) -> Scores | None:
    """What a plugin at `score` says of nodes; None if that is 0 of each."""
    if entry.at_once is not None:
        scores: Scores | None = entry.at_once.many(session, shape)
        return scores
    ask = entry.function
    return lambda nodes: [ask(session, shape, node) for node in nodes]


def pods_short(session: Session, group: GroupState) -> int:
    """How many more pods of the group must be bound at least until it can be ready; 0: unknown."""
    short = 0
    for entry in session.points["groupReady"]:
        if entry.at_once is not None:
            short = max(short, entry.at_once.many(session, group))
    return short


def over_rows(
    session: Session, shape: TaskShape
) -> tuple[list[RowTakes], list[tuple[int, RowScores]]] | None:
    """What all plugins say of a shape over columns, scores with their weights; None if one of them
    is asked node by node.
    """
    predicates, scores = session.points["predicate"], session.points["score"]
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


#: The nodes of a session as columns.
NODE_ROWS: StateKey[NodeRows] = StateKey("node rows", NodeRows)
