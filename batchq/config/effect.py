"""Two configurations side by side: what differs in effect, however each is written.

Order counts where it decides: of actions, and of plugins whose keys or refusals are taken in
order. Elsewhere only who is asked counts; weights count where nodes are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from batchq.config.expansion import Expansion
from batchq.config.load import as_written
from batchq.config.model import PluginEntry, SchedulerConfig

#: Where the answers of several plugins come to the same in any order.
_ANY_ORDER = frozenset({"score", "groupReady", "preemptable", "reclaimable"})
#: A plugin's settings -> those of its arguments that are not at their defaults.
ArgumentsOf = Callable[[str, Mapping[str, object]], Mapping[str, object]]


class Difference(NamedTuple):
    """One thing that differs; None where one side does not have it."""

    what: str
    a: object
    b: object


def effect(
    config: SchedulerConfig, expansion: Expansion, arguments_of: ArgumentsOf
) -> dict[str, object]:
    """What decides how a scheduler with this configuration acts, by name."""
    written = as_written(config)
    found = {key: value for key, value in written.items() if not key.startswith("plugin")}
    for point, standing in expansion.items():
        found[f"plugins.{point}"] = _at(point, standing)
    on = dict.fromkeys(entry.name for standing in expansion.values() for entry in standing)
    for plugin in on:
        arguments = arguments_of(plugin, config.plugin_config.get(plugin, {}))
        for name, value in arguments.items():
            found[f"pluginConfig.{plugin}.{name}"] = value
    return found


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[Difference]:
    """What differs between two effects."""
    for what in dict.fromkeys([*a, *b]):
        if a.get(what) != b.get(what):
            yield Difference(what, a.get(what), b.get(what))


def _at(point: str, standing: tuple[PluginEntry, ...]) -> list[object]:
    if point == "score":
        return [
            entry.name if entry.weight == 1 else {"name": entry.name, "weight": entry.weight}
            for entry in sorted(standing, key=lambda entry: entry.name)
        ]
    names: list[object] = [entry.name for entry in standing]
    return sorted(names, key=str) if point in _ANY_ORDER else names
