"""Two configurations side by side: what differs in effect, however each is written.

Order counts where it decides: of actions, and of plugins whose keys or refusals are taken in
order. Elsewhere only who is asked counts; weights count where nodes are scored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from batchq.config.load import as_written
from batchq.config.model import Expansion, PluginEntry, SchedulerConfig

#: Where the answers of several plugins come to the same in any order.
_ANY_ORDER = frozenset({"score", "groupReady", "preemptable", "reclaimable"})
#: A plugin's settings -> those of its arguments that are not at their defaults.
ArgumentsOf = Callable[[str, Mapping[str, object]], Mapping[str, object]]


class SettingDifference(NamedTuple):
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


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[SettingDifference]:
    """What differs between two effects."""
    for what in dict.fromkeys([*a, *b]):
        if a.get(what) != b.get(what):
            yield SettingDifference(what, a.get(what), b.get(what))


def _at(point: str, standing: tuple[PluginEntry, ...]) -> list[object]:
    if point == "score":
        return [
            entry.name if entry.weight == 1 else {"name": entry.name, "weight": entry.weight}
            for entry in sorted(standing, key=lambda entry: entry.name)
        ]
    names: list[object] = [entry.name for entry in standing]
    return sorted(names, key=str) if point in _ANY_ORDER else names


#: So many changes are told one by one, and each so far.
_MOST = 6
_LONGEST = 80
_NOTHING = "nothing"


def what_changed(before: SchedulerConfig, after: SchedulerConfig) -> str:
    """As in `schedulePeriod 1s -> 500ms; plugins +drf`, as the two would be written."""
    changes = _changes(as_written(before), as_written(after))
    told = list(islice(changes, _MOST))
    more = sum(1 for _ in changes)
    if more:
        told.append(f"and {more} more")
    return "; ".join(told) or "as before"


def _changes(
    before: Mapping[str, object], after: Mapping[str, object], *, under: str = ""
) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        place = f"{under}.{name}" if under else name
        if isinstance(old, Mapping | None) and isinstance(new, Mapping | None):
            yield from _changes(old or {}, new or {}, under=place)
        elif isinstance(old, list) and isinstance(new, list):
            yield f"{place} {_of_lists(old, new)}"
        else:
            yield f"{place} {_brief(old)} -> {_brief(new)}"


def _of_lists(before: Sequence[object], after: Sequence[object]) -> str:
    """Both of them; where they are long, what came and went."""
    old, new = [_text(item) for item in before], [_text(item) for item in after]
    whole = f"{', '.join(old) or _NOTHING} -> {', '.join(new) or _NOTHING}"
    if len(whole) <= _LONGEST:
        return whole
    came = [f"+{item}" for item in new if item not in old]
    went = [f"-{item}" for item in old if item not in new]
    return _cut(" ".join((*came, *went))) if came or went else "in another order"


def _brief(value: object) -> str:
    return _NOTHING if value is None else _cut(_text(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
