"""The state of a node during one session, and what a gang requests from nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from batchq.api.objects import Node
from batchq.api.resources import Amounts, plus
from batchq.api.transaction import capacity_of
from batchq.core.session.specs import TaskShape

#: The shapes of a gang with their numbers of pods, in placement order.
Gang: TypeAlias = Sequence[tuple[TaskShape, int]]
#: A gang's request to nodes, as shapes and counts; equal for gangs that the same nodes take.
Wanted: TypeAlias = tuple[tuple[tuple[Any, ...], int], ...]


class FreedNodes:
    """The nodes on which something was freed, the latest last; `count` is the number of these
    events.
    """

    __slots__ = ("_at", "count")

    def __init__(self) -> None:
        self.count = 0
        self._at: dict[str, int] = {}

    def note(self, name: str) -> None:
        """Record that something was freed on a node."""
        self.count += 1
        self._at.pop(name, None)
        self._at[name] = self.count

    def since(self, count: int) -> Iterator[str]:
        """Yield the nodes on which something was freed after a former `count`, the latest first."""
        for name, at in reversed(self._at.items()):
            if at <= count:
                return
            yield name


class NodeState:
    """A node during one session, with what is free on it now.

    `ready` says whether its resources count. `heard` is False if the node counts as ready only
    because the scheduler itself was out of touch and could not have heard it
    (batchq.core.session.open_session).
    """

    __slots__ = ("_freed", "free", "heard", "name", "ready", "record", "total")

    def __init__(
        self, record: Node, *, ready: bool, heard: bool = True, freed: FreedNodes | None = None
    ) -> None:
        self.record = record
        self.name = record.metadata.name
        self.ready = ready
        self.heard = heard
        #: The record of freed nodes that `give` updates.
        self._freed = freed
        self.total: Amounts = capacity_of(record)
        self.free: dict[str, int] = dict(self.total)

    @property
    def open(self) -> bool:
        """Return whether new pods may be placed here."""
        return self.ready and not self.record.spec.unschedulable

    def take(self, requests: Mapping[str, int]) -> None:
        """Take the requests of a pod."""
        for name, units in requests.items():
            self.free[name] = self.free.get(name, 0) - units

    def give(self, requests: Mapping[str, int]) -> None:
        """Free the requests of a pod."""
        self.put_back(requests)
        if self._freed is not None:
            self._freed.note(self.name)

    def put_back(self, requests: Mapping[str, int]) -> None:
        """Return an amount that was only held for the length of a session or trial."""
        for name, units in requests.items():
            self.free[name] = self.free.get(name, 0) + units

    def lacks(self, requests: Mapping[str, int]) -> str:
        """Return the first dimension that does not fit, in the order of the request, or ''."""
        free = self.free
        for name, units in requests.items():
            if units > free.get(name, 0):
                return name
        return ""


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """The nodes for the pods of a gang, shape by shape in placement order."""

    parts: tuple[tuple[TaskShape, tuple[NodeState, ...]], ...]

    def by_task(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the nodes by task, as they are stored."""
        found: dict[str, tuple[str, ...]] = {}
        for shape, nodes in self.parts:
            names = tuple([node.name for node in nodes])
            found[shape.task.name] = (*found.get(shape.task.name, ()), *names)
        return found

    def by_node(self) -> dict[str, Amounts]:
        """Return what the pods request, by node."""
        found: dict[str, Amounts] = {}
        for shape, nodes in self.parts:
            for node in nodes:
                found[node.name] = plus(found.get(node.name, {}), shape.requests)
        return found
