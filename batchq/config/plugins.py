"""The key `plugins` of `scheduler.yaml`: read, and written again.

A mapping says what differs from the default plugins, after KEP-2891:

    plugins:
      multiPoint:                       # at every point that the plugin implements
        enabled: [sla, {name: binpack, weight: 3}]
        disabled: [conformance]         # of the default ones; "*" is all of them
      groupOrder:                       # at this point alone
        enabled: [sla]                  # before all others there
      score:
        disabled: ["*"]

A plain list is short for `multiPoint` with exactly these: the list, and `disabled: ["*"]`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from batchq.api import notation
from batchq.api.names import shown
from batchq.api.notation import Malformed, Path, mapping_at
from batchq.config.expansion import Expansion
from batchq.config.model import ALL, DEFAULT_PLUGINS, PluginEntry, PluginSet
from batchq.config.words import check_known, check_name, check_once
from batchq.framework.extension import POINTS

FIELD = "plugins"
MULTI_POINT = "multiPoint"
_LARGEST_WEIGHT = 1000
_HIGHEST_TIER = 1000


class Plugins(NamedTuple):
    """What is on at all points, and what is otherwise at single ones."""

    multi_point: tuple[PluginEntry, ...] = DEFAULT_PLUGINS
    points: dict[str, PluginSet] = {}


class _PluginName(Struct, frozen=True, kw_only=True):
    """A disabled plugin, written as Kubernetes does: `- name: xyz`."""

    name: str


def read_plugins(data: object, known: Collection[str] | None) -> Plugins:
    """What stands at the key; names are looked up among the `known`, if these are.

    Raises Malformed.
    """
    if isinstance(data, list):
        return Plugins(_enabled(data, (FIELD,), known, all_allowed=False))
    if not isinstance(data, Mapping):
        text = f"expected a list of plugin names, or a mapping with multiPoint, found {shown(data)}"
        raise Malformed((FIELD,), text)
    multi_point, points = DEFAULT_PLUGINS, {}
    for point, value in data.items():
        if point != MULTI_POINT and point not in POINTS:
            hint = notation.suggestion(point, (MULTI_POINT, *POINTS))
            raise Malformed((FIELD, point), f"there is no such extension point; {hint}")
        stated = _read_set(value, (FIELD, point), known)
        if point == MULTI_POINT:
            multi_point = _with_defaults(stated)
        elif stated != PluginSet():
            points[point] = stated
    # In the order of the points: two files that say the same are equal, and print the same.
    return Plugins(multi_point, {point: points[point] for point in POINTS if point in points})


def place_of(data: object, point: str, plugin: str) -> Path:
    """Where below its point a plugin is enabled, as written."""
    stated = data.get(point) if isinstance(data, Mapping) else None
    items = stated.get("enabled") if isinstance(stated, Mapping) else None
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if _name_in(item) == plugin:
            return ("enabled", place)
    return ()


def write_plugins(plugins: Plugins) -> dict[str, object]:
    """The mapping that says so, whatever the default plugins are."""
    enabled = [_write_entry(entry) for entry in plugins.multi_point]
    written: dict[str, object] = {MULTI_POINT: {"enabled": enabled, "disabled": [ALL]}}
    for point, stated in plugins.points.items():
        both = {
            "enabled": [_write_entry(entry) for entry in stated.enabled],
            "disabled": list(stated.disabled),
        }
        written[point] = {key: names for key, names in both.items() if names}
    return written


def write_expansion(expansion: Expansion) -> dict[str, object]:
    """The mapping that names everybody at each point."""
    points = {
        point: {"enabled": [_write_entry(entry) for entry in standing]}
        for point, standing in expansion.items()
    }
    return {MULTI_POINT: {"disabled": [ALL]}, **points}


def _read_set(data: object, path: Path, known: Collection[str] | None) -> PluginSet:
    if data is None:
        return PluginSet()
    enabled: tuple[PluginEntry, ...] = ()
    disabled: tuple[str, ...] = ()
    for name, value in mapping_at(data, path).items():
        here = (*path, name)
        if name not in ("enabled", "disabled"):
            hint = notation.suggestion(name, ("enabled", "disabled"))
            raise Malformed(here, f"there is no such field; {hint}")
        if value is None:
            continue
        if not isinstance(value, list):
            raise Malformed(here, f"expected a list of plugin names, found {shown(value)}")
        if name == "enabled":
            enabled = _enabled(value, here, known, all_allowed=True)
        else:
            disabled = tuple(_disabled(value, here, known))
    return PluginSet(enabled=enabled, disabled=disabled)


def _enabled(
    items: list[object], path: Path, known: Collection[str] | None, *, all_allowed: bool
) -> tuple[PluginEntry, ...]:
    """The entries of a list. "*" enables nothing that is not on: it is left out."""
    entries: list[PluginEntry] = []
    for place, item in enumerate(items):
        here = (*path, place)
        if all_allowed and _name_in(item) == ALL:
            continue
        entry = _entry(item, here)
        check_known(entry.name, known, here, "plugin")
        check_once(entry.name, {each.name for each in entries}, here)
        entries.append(entry)
    return tuple(entries)


def _entry(item: object, path: Path) -> PluginEntry:
    if not isinstance(item, dict):
        return PluginEntry(name=check_name(item, path, "a plugin"))
    entry = notation.read(PluginEntry, item, path)
    check_name(entry.name, (*path, "name"), "a plugin")
    if not 1 <= entry.weight <= _LARGEST_WEIGHT:
        text = f"expected a weight from 1 to {_LARGEST_WEIGHT}, found {entry.weight}"
        raise Malformed((*path, "weight"), text)
    if not 0 <= entry.tier <= _HIGHEST_TIER:
        text = f"expected a tier from 0 to {_HIGHEST_TIER}, found {entry.tier}"
        raise Malformed((*path, "tier"), text)
    return entry


def _disabled(items: list[object], path: Path, known: Collection[str] | None) -> Iterator[str]:
    seen: set[str] = set()
    for place, item in enumerate(items):
        here = (*path, place)
        name = notation.read(_PluginName, item, here).name if isinstance(item, dict) else item
        if name != ALL:
            check_known(check_name(name, here, "a plugin"), known, here, "plugin")
        check_once(str(name), seen, here)
        seen.add(str(name))
        yield str(name)


def _name_in(item: object) -> object:
    return item.get("name") if isinstance(item, Mapping) else item


def _with_defaults(stated: PluginSet) -> tuple[PluginEntry, ...]:
    """The default plugins that are left, as stated where they are stated, then the others."""
    by_name = {entry.name: entry for entry in stated.enabled}
    left = [
        by_name.get(entry.name, entry)
        for entry in DEFAULT_PLUGINS
        if ALL not in stated.disabled and entry.name not in stated.disabled
    ]
    there = {entry.name for entry in left}
    return (*left, *(entry for entry in stated.enabled if entry.name not in there))


def _write_entry(entry: PluginEntry) -> object:
    written = notation.write(entry, always=frozenset({"name"}))
    return entry.name if len(written) == 1 else written
