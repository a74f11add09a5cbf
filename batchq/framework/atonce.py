"""What plugins in the box answer for many nodes or pods at once; plugins of others are asked one
by one, and the answers are the same.

| point      | method                          | answers                                         |
|------------|---------------------------------|-------------------------------------------------|
| predicate  | `predicate_for(session, shape)` | a function: nodes -> whether each takes a pod   |
| score      | `score_for(session, shape)`     | a function: nodes -> the score of each          |
| groupReady | `pods_short(session, group)`    | until at least so many more pods of the group   |
|            |                                 | are bound, `group_ready` is False               |

What follows from the shape alone is worked out once, and not for each node. Such a function is
good for one session, and for as long as the records of its nodes stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from batchq.framework.extension import Plugin, Registration
from batchq.framework.guarding import is_of_others
from batchq.framework.instrument import Instrument

if TYPE_CHECKING:
    from batchq.framework.session import Session
    from batchq.framework.shapes import TaskShape
    from batchq.framework.state import GroupState, NodeState

#: Nodes -> whether each takes the shape; or their scores.
Takes = Callable[[Sequence["NodeState"]], list[bool]]
Scores = Callable[[Sequence["NodeState"]], list[int]]

_METHODS = {"predicate": "predicate_for", "score": "score_for", "groupReady": "pods_short"}


def at_once(plugin: Plugin, point: str, instrument: Instrument | None) -> Callable[..., Any] | None:
    """The plugin's method of the table above, measured; None if it has none, or is of others."""
    method = getattr(plugin, _METHODS.get(point, ""), None)
    if method is None or is_of_others(plugin):
        return None
    if instrument is None:
        return method  # type: ignore[no-any-return]  # what a method answers stands in the table

    def measured(*arguments: Any) -> Any:
        answer = method(*arguments)
        return instrument.plugin(plugin.name, point, answer) if callable(answer) else answer

    return measured


def takes_for(entry: Registration[Any], session: Session, shape: TaskShape) -> Takes:
    """What a plugin at `predicate` says of nodes."""
    if entry.at_once is not None:
        return entry.at_once(session, shape)  # type: ignore[no-any-return]  # as the table says
    ask = entry.function
    return lambda nodes: [ask(session, shape, node) is None for node in nodes]


def scores_for(entry: Registration[Any], session: Session, shape: TaskShape) -> Scores | None:
    """What a plugin at `score` says of nodes; None if that is 0 of each."""
    if entry.at_once is not None:
        return entry.at_once(session, shape)  # type: ignore[no-any-return]  # as the table says
    ask = entry.function
    return lambda nodes: [ask(session, shape, node) for node in nodes]


def pods_short(session: Session, group: GroupState) -> int:
    """How many more pods of the group must be bound at least until it can be ready; 0: unknown."""
    return max(
        (
            entry.at_once(session, group)
            for entry in session.points["groupReady"]
            if entry.at_once is not None
        ),
        default=0,
    )
