"""What plugins in the box answer for many nodes or pods at once; plugins of others are asked one
by one, and the answers are the same.

| point      | method                           | answers                                        |
|------------|----------------------------------|------------------------------------------------|
| predicate  | `predicate_for(session, shape)`  | a function: nodes -> whether each takes a pod  |
|            | `predicate_rows(session, shape)` | the same of NodeRows, as a column              |
| score      | `score_for(session, shape)`      | a function: nodes -> the score of each         |
|            | `score_rows(session, shape)`     | the same of NodeRows, as a column              |
| groupReady | `pods_short(session, group)`     | until at least so many more pods of the group  |
|            |                                  | are bound, `group_ready` is False              |

What follows from the shape alone is worked out once, and not for each node. Such a function is
good for one session, and for as long as the records of its nodes stand.
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

#: Nodes -> whether each takes the shape; or their scores.
Takes: TypeAlias = "Callable[[Sequence[NodeState]], list[bool]]"
Scores: TypeAlias = "Callable[[Sequence[NodeState]], list[int]]"

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
    for entry in session.plugins.points["groupReady"]:
        if entry.at_once is not None:
            short = max(short, entry.at_once.many(session, group))
    return short
