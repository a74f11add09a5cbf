"""Extension points: where plugins have a say, and how several answers become one.

One generic class holds what was registered; four combinators read it. A plugin is an object with
a `name` and a method for each point that it implements, named as the point's `method`. Votes are
pure: asked twice about the same state, a plugin answers twice the same, and changes nothing.

| point       | asked                                    | several answers combine by |
|-------------|------------------------------------------|----------------------------|
| preEnqueue  | may this Pending group stand in line?    | every refusal is kept      |
| admissible  | may this group be admitted now?          | every refusal is kept      |
| queueOrder  | which queue is served next?              | sort key, in plugin order  |
| groupOrder  | which group of a queue comes first?      | sort key, in plugin order  |
| podOrder    | which pod of a group comes first?        | sort key, in plugin order  |
| predicate   | may a pod of this shape be on this node? | first refusal              |
| score       | how good is this node for it?            | weighted sum               |
| groupReady  | are this group's placements enough?      | all must agree             |
| preemptable | may this claimant of the same queue take | one at least agrees, and   |
|             | this victim?                             | none refuses               |
| reclaimable | the same, of another queue               | the same                   |
| permit      | its quota is reserved: may it start?     | every refusal is kept      |

`preemptable` and `reclaimable` answer True (agreed), False (refused) or None (no opinion), for one
victim at a time and about the state as it is then: what was chosen before has left already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

F = TypeVar("F")


class Plugin(Protocol):
    """A policy: an object with a name, and a method for each point that it implements."""

    name: str


#: point -> who is asked there, in this order, each with its weight.
Standing: TypeAlias = Mapping[str, Sequence[tuple[Plugin, int]]]


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What a plugin answers for many at once, and over columns (batchq.framework.atonce)."""

    many: Callable[..., Any]
    rows: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Registration(Generic[F]):
    """A plugin's function at a point."""

    plugin: str
    function: F
    weight: int = 1
    at_once: AtOnce | None = None


class ExtensionPoint(list[Registration[F]], Generic[F]):
    """What is registered at one point, in the order in which it is asked.

    A list, as the points are gone through for every group and every pod.
    """

    def __init__(self, name: str, method: str) -> None:
        super().__init__()
        self.name = name
        self.method = method

    def add(
        self,
        plugin: str,
        function: F,
        weight: int = 1,
        at_once: AtOnce | None = None,
    ) -> None:
        """Register; a plugin may stand at a point once."""
        if any(entry.plugin == plugin for entry in self):
            raise ValueError(f"plugin {plugin} is registered at {self.name} already")
        self.append(Registration(plugin, function, weight, at_once))


#: point -> the method of a plugin that implements it.
POINTS: dict[str, str] = {
    "preEnqueue": "pre_enqueue",
    "admissible": "admissible",
    "queueOrder": "queue_order",
    "groupOrder": "group_order",
    "podOrder": "pod_order",
    "predicate": "predicate",
    "score": "score",
    "groupReady": "group_ready",
    "preemptable": "preemptable",
    "reclaimable": "reclaimable",
    "permit": "permit",
}


def implemented(plugin: Plugin) -> tuple[str, ...]:
    """The points that a plugin has a method for."""
    return tuple(
        point for point, method in POINTS.items() if getattr(plugin, method, None) is not None
    )


def everywhere(plugins: Iterable[tuple[Plugin, int]]) -> Standing:
    """Each plugin at every point that it implements, in the order given."""
    all_of_them = tuple(plugins)
    return {
        point: tuple(pair for pair in all_of_them if point in implemented(pair[0]))
        for point in POINTS
    }
