"""Batched calls of the built-in plugins: one call answers for many nodes or pods. Third-party
plugins are called once for each node or pod, with the same results.

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

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from batchq.core.extension.points import AtOnce, Plugin, Registration, is_of_others
from batchq.core.session.node_state import NodeState
from batchq.core.session.session import Session
from batchq.core.session.settings import Instrument
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState

#: Functions from nodes to whether each takes the shape, and to the score of each.
Takes: TypeAlias = "Callable[[Sequence[NodeState]], list[bool]]"
Scores: TypeAlias = "Callable[[Sequence[NodeState]], list[int]]"

_METHODS = {"predicate": "predicate_for", "score": "score_for", "groupReady": "pods_short"}
_OF_ROWS = {"predicate": "predicate_rows", "score": "score_rows"}


def at_once(plugin: Plugin, point: str, instrument: Instrument | None) -> AtOnce | None:
    """Return the plugin's batched methods at a point, with time measurement; None if it has none or
    is a third-party plugin.
    """
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
    """Return a function that gives one plugin's scores of nodes for the shape; None if all are
    0.
    """
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
