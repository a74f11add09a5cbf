"""Read, write and compare configurations (`scheduler.yaml`), with precise messages for mistakes.

Two configurations are compared by their effect, however each is written: order counts only where it
decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from batchq.api import notation
from batchq.api.notation import (
    SECOND,
    Malformed,
    Path,
    format_duration,
    mapping_at,
    parse_duration,
    shown,
)
from batchq.config import (
    ALL,
    DEFAULT_PLUGINS,
    EvictionBudget,
    Expansion,
    Fairness,
    PluginEntry,
    PluginSet,
    SchedulerConfig,
    SchedulerFile,
    lacks,
)
from batchq.core.extension import POINTS
from batchq.core.session.snapshot import Settings
from batchq.errors import InvalidInput

if TYPE_CHECKING:
    from batchq.config.documents import Document

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


def check_name(name: object, path: Path, what: str) -> str:
    """Return the name, if it is valid. Raises Malformed."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Malformed(path, f"expected the name of {what}, found {shown(name)}")
    return name


def check_once(name: str, seen: Collection[str], path: Path) -> None:
    """Raise Malformed for a name that occurred before."""
    if name in seen:
        raise Malformed(path, f"{name} is named twice")


def check_known(name: str, known: Collection[str] | None, path: Path, what: str) -> None:
    """Raise Malformed, with the nearest known name, for an unknown one."""
    if known is None or name in known:
        return
    near = notation.nearest(name, known)
    meant = f"; did you mean {near!r}?" if near else ""
    raise Malformed(path, f"there is no {what} {name!r}; known: {', '.join(sorted(known))}{meant}")


FIELD = "plugins"
MULTI_POINT = "multiPoint"
_LARGEST_WEIGHT = 1000
_HIGHEST_TIER = 1000


class Plugins(NamedTuple):
    """The plugins enabled at all points, and the exceptions at single points."""

    multi_point: tuple[PluginEntry, ...] = DEFAULT_PLUGINS
    points: dict[str, PluginSet] = {}


class _PluginName(Struct, frozen=True, kw_only=True):
    """A disabled plugin in Kubernetes' notation: `- name: xyz`."""

    name: str


def read_plugins(data: object, known: Collection[str] | None) -> Plugins:
    """Read the value of `plugins`; with `known`, unknown names are mistakes too.

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
    # In the order of POINTS, so that equivalent files are equal and print the same.
    return Plugins(multi_point, {point: points[point] for point in POINTS if point in points})


def place_of(data: object, point: str, plugin: str) -> Path:
    """Return the path below its point at which a plugin is enabled, as written."""
    stated = data.get(point) if isinstance(data, Mapping) else None
    items = stated.get("enabled") if isinstance(stated, Mapping) else None
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if _name_in(item) == plugin:
            return ("enabled", place)
    return ()


def write_plugins(plugins: Plugins) -> dict[str, object]:
    """Return the mapping to write for these plugins, independent of the default plugins."""
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
    """Return the mapping that lists all plugins at each point."""
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
    """Return the entries of a list. "*" enables nothing that is not on already: it is dropped."""
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
    """Return the remaining default plugins, as stated if they are stated, then the others."""
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


_LISTS = ("actions", "plugins", "pluginConfig")
_PLAIN = SchedulerFile.__struct_encode_fields__
_NUMBERS = tuple(
    name for name in SchedulerFile.__struct_fields__ if name not in ("eviction_budget", "fairness")
)
#: The value of `fairness.halfLife` under which past usage does not count.
_OFF = "off"
#: Settings that are no durations; they have the same name in Settings.
_COUNTS = ("overcommit", "max_pod_groups_per_namespace")
_LEAST_PER_NAMESPACE, _MOST_PER_NAMESPACE = 1, 1_000_000_000
#: Keys of other programs' files, with a hint.
_ELSEWHERE = {"tiers": "`batchq config convert FILE` converts a kube-batch file"}

#: Least useful values: below these, the daemon would spin, or give up on healthy parts.
_LEAST_MS = {
    "schedulePeriod": 10,
    "inQueueTimeout": SECOND,
    "recoveryTimeout": SECOND,
    "nodeTimeout": SECOND,
    "podLease": SECOND,
    "backoffFirst": 1,
    "backoffMost": 1,
    "nodeMemory": SECOND,
}


class Known(NamedTuple):
    """The known actions and plugins.

    `check_settings` raises Malformed for settings that the named plugin does not take; `points_of`
    returns the points that a plugin with these settings implements.
    """

    actions: Collection[str]
    plugins: Collection[str]
    check_settings: Callable[[str, Mapping[str, object]], None]
    points_of: Callable[[str, Mapping[str, object]], Collection[str]]


def load_config(path: str | FilePath | None, *, known: Known | None = None) -> SchedulerConfig:
    """Load the configuration from the file at `path`; without a path, return the defaults.

    Only the first of several mistakes is reported. With `known`, unknown names are mistakes too.

    Raises InvalidInput.
    """
    if path is None:
        return SchedulerConfig()
    return read_config(read_file(path), str(path), known=known)


def read_file(path: str | FilePath) -> bytes:
    """Return the bytes of the configuration file. Raises InvalidInput."""
    from batchq.config.documents import read_bounded

    try:
        return read_bounded(FilePath(path))
    except OSError as error:
        raise InvalidInput(
            f"{path}: the configuration cannot be read: {error.strerror}",
            hint="`batchq config print` prints one with the defaults",
        ) from None


def read_config(
    content: str | bytes, source: str, *, known: Known | None = None
) -> SchedulerConfig:
    """Parse the configuration in `content`; messages call it `source`. Raises InvalidInput."""
    # Imported late: it loads YAML, which the defaults do not need.
    from batchq.config.documents import read_documents

    documents = read_documents(content, source)
    if not documents:
        return SchedulerConfig()
    if len(documents) > 1:
        raise InvalidInput(f"{source}: expected one document, found {len(documents)}")
    try:
        return _config(documents[0], known)
    except Malformed as problem:
        raise documents[0].problem(problem.path, problem.text) from None


def as_written(config: SchedulerConfig, expansion: Expansion | None = None) -> dict[str, object]:
    """Return the whole configuration as in a file, defaults included.

    With an `expansion`, each extension point lists all of its plugins.
    """
    plain = _as_file(config.settings)
    fields = notation.write(plain, always=frozenset(_PLAIN))
    if plain.eviction_budget is not None:
        both = frozenset(EvictionBudget.__struct_encode_fields__)
        fields["evictionBudget"] = notation.write(plain.eviction_budget, always=both)
    fields["fairness"] = {"halfLife": plain.fairness.half_life, "order": plain.fairness.order}
    return {
        "actions": list(config.actions),
        **fields,
        "plugins": (
            write_plugins(Plugins(config.plugins, config.points))
            if expansion is None
            else write_expansion(expansion)
        ),
        "pluginConfig": {name: dict(fields) for name, fields in config.plugin_config.items()},
    }


def as_text(config: SchedulerConfig, expansion: Expansion | None = None) -> str:
    """Return the same as YAML, which `read_config` parses."""
    import yaml

    written = as_written(config, expansion)
    return yaml.safe_dump(written, sort_keys=False, allow_unicode=True, default_flow_style=None)


def _config(document: Document, known: Known | None) -> SchedulerConfig:
    written = mapping_at(document.data, ())
    for name in _ELSEWHERE:
        if name in written:
            raise Malformed((name,), f"there is no such setting; {_ELSEWHERE[name]}")
    for name, value in written.items():
        # In the order of the file, so that its first mistake is reported.
        _check_field(name, value, known)
    default = SchedulerConfig()
    actions, plugins = written.get("actions"), written.get("plugins")
    on = Plugins() if plugins is None else read_plugins(plugins, None)
    config = SchedulerConfig(
        actions=default.actions if actions is None else _actions(actions, None),
        plugins=on.multi_point,
        points=on.points,
        plugin_config=_plugin_config(written.get("pluginConfig")),
        settings=_settings({name: written[name] for name in written if name in _PLAIN}),
    )
    if known is not None:
        _check_points(config, plugins, known)
    return config


def _check_points(config: SchedulerConfig, written: object, known: Known) -> None:
    """Raise Malformed for a plugin that is enabled at a point that it does not implement."""

    def points_of(plugin: str) -> Collection[str]:
        return known.points_of(plugin, config.plugin_config.get(plugin, {}))

    for lacking in lacks(config, points_of):
        raise lacking.problem(*place_of(written, lacking.point, lacking.plugin))


def _check_field(name: str, value: object, known: Known | None) -> None:
    """Raise Malformed for a field that is wrong regardless of the others."""
    if name not in (*_PLAIN, *_LISTS):
        hint = notation.suggestion(name, (*_PLAIN, *_LISTS))
        raise Malformed((name,), f"there is no such setting; {hint}")
    if value is None:
        return
    match name:
        case "actions":
            _actions(value, known.actions if known else None)
        case "plugins":
            read_plugins(value, known.plugins if known else None)
        case "pluginConfig":
            for plugin, settings in _plugin_config(value).items():
                _check_settings(plugin, settings, known)
        case "evictionBudget":
            _check_budget(notation.read(SchedulerFile, {name: value}).eviction_budget)
        case "fairness":
            _half_life(notation.read(SchedulerFile, {name: value}).fairness)
        case "maxPodGroupsPerNamespace":
            _check_per_namespace(
                notation.read(SchedulerFile, {name: value}).max_pod_groups_per_namespace
            )
        case _:
            read = notation.read(SchedulerFile, {name: value})
            field = SchedulerFile.__struct_fields__[_PLAIN.index(name)]
            _check_least(name, getattr(read, field), value)


def _check_settings(plugin: str, settings: Mapping[str, object], known: Known | None) -> None:
    if known is None:
        return
    try:
        known.check_settings(plugin, settings)
    except Malformed as problem:
        path = ("pluginConfig", plugin, *problem.path)
        raise Malformed(path, problem.text) from None


def _check_budget(budget: EvictionBudget | None) -> None:
    """Raise Malformed for a budget below 1 pod; to evict nothing, leave out the actions."""
    if budget is None:
        return
    if budget.pods < 1:
        text = f"expected at least 1, or no evictionBudget at all, found {budget.pods}"
        raise Malformed(("evictionBudget", "pods"), text)
    if budget.window < SECOND:
        text = f"expected at least 1s, found {format_duration(budget.window)}"
        raise Malformed(("evictionBudget", "window"), text)


def _check_per_namespace(found: int) -> None:
    if not _LEAST_PER_NAMESPACE <= found <= _MOST_PER_NAMESPACE:
        text = f"expected {_LEAST_PER_NAMESPACE} to {_MOST_PER_NAMESPACE}, found {found}"
        raise Malformed(("maxPodGroupsPerNamespace",), text)


def _half_life(fairness: Fairness) -> int | None:
    """Return the half-life in milliseconds; None if it is off. Raises Malformed."""
    path, written = ("fairness", "halfLife"), fairness.half_life
    if written == _OFF:
        if fairness.order == "usage":
            raise Malformed(
                ("fairness", "order"), f"usage needs a half-life, found halfLife: {_OFF}"
            )
        return None
    try:
        half_life_ms = parse_duration(written)
    except ValueError as problem:
        raise Malformed(path, f"{problem}; {_OFF} means that past usage does not count") from None
    if half_life_ms < SECOND:
        raise Malformed(
            path,
            f"expected at least 1s, found {written}; {_OFF} means that past usage does not count",
        )
    return half_life_ms


def _check_least(name: str, found: int, written: object) -> None:
    least = _LEAST_MS.get(name, 0)
    if found < least:
        raise Malformed(
            (name,), f"expected at least {format_duration(least)}, found {shown(written)}"
        )


def _settings(written: Mapping[str, object]) -> Settings:
    plain = notation.read(SchedulerFile, written)
    if plain.backoff_most < plain.backoff_first:
        raise Malformed(
            ("backoffMost",) if "backoffMost" in written else ("backoffFirst",),
            "expected backoffMost to be at least backoffFirst,"
            f" found {format_duration(plain.backoff_most)}"
            f" and {format_duration(plain.backoff_first)}",
        )
    budget = plain.eviction_budget
    return Settings(
        **{_setting(name): getattr(plain, name) for name in _NUMBERS},
        eviction_budget=None if budget is None else budget.pods,
        eviction_window_ms=Settings().eviction_window_ms if budget is None else budget.window,
        half_life_ms=_half_life(plain.fairness),
        orders_by_usage=plain.fairness.order == "usage",
    )


def _as_file(settings: Settings) -> SchedulerFile:
    budget = settings.eviction_budget
    return SchedulerFile(
        **{name: getattr(settings, _setting(name)) for name in _NUMBERS},
        eviction_budget=(
            None
            if budget is None
            else EvictionBudget(pods=budget, window=settings.eviction_window_ms)
        ),
        fairness=Fairness(
            half_life=(
                _OFF if settings.half_life_ms is None else format_duration(settings.half_life_ms)
            ),
            order="usage" if settings.orders_by_usage else "current",
        ),
    )


def _setting(name: str) -> str:
    """Return the field of Settings for a single-number field of SchedulerFile."""
    return name if name in _COUNTS else f"{name}_ms"


def _actions(data: object, known: Collection[str] | None) -> tuple[str, ...]:
    names = [part.strip() for part in data.split(",")] if isinstance(data, str) else data
    if not isinstance(names, list):
        text = f"expected a list such as [enqueue, allocate], or one text, found {shown(data)}"
        raise Malformed(("actions",), text)
    if not names:
        raise Malformed(("actions",), "expected at least one action, found none")
    for place, name in enumerate(names):
        path = ("actions", place)
        check_known(check_name(name, path, "an action"), known, path, "action")
        check_once(name, names[:place], path)
    return tuple(names)


def _plugin_config(data: object) -> dict[str, dict[str, object]]:
    fields = mapping_at(data, ("pluginConfig",))
    return {name: dict(mapping_at(value, ("pluginConfig", name))) for name, value in fields.items()}


#: Points at which the order of plugins does not change the outcome.
_ANY_ORDER = frozenset({"score", "groupReady", "preemptable", "reclaimable"})
#: A plugin's settings -> those of its arguments that differ from the defaults.
ArgumentsOf = Callable[[str, Mapping[str, object]], Mapping[str, object]]


class SettingDifference(NamedTuple):
    """One difference; None where one side does not have the setting."""

    what: str
    a: object
    b: object


def effect(
    config: SchedulerConfig, expansion: Expansion, arguments_of: ArgumentsOf
) -> dict[str, object]:
    """Return everything that determines how a scheduler with this configuration acts, by name."""
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
    """Yield what differs between two effects."""
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


#: The most changes in a summary, and the longest text of one.
_MOST_CHANGES = 6
_LONGEST_CHANGE = 80
_NOTHING = "nothing"


def what_changed(before: SchedulerConfig, after: SchedulerConfig) -> str:
    """Return a summary such as `schedulePeriod 1s -> 500ms; plugins +drf`."""
    changes = _changes(as_written(before), as_written(after))
    shown_changes = list(islice(changes, _MOST_CHANGES))
    more = sum(1 for _ in changes)
    if more:
        shown_changes.append(f"and {more} more")
    return "; ".join(shown_changes) or "unchanged"


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
    """Return both lists; if they are long, only added and removed items."""
    old, new = [_text(item) for item in before], [_text(item) for item in after]
    whole = f"{', '.join(old) or _NOTHING} -> {', '.join(new) or _NOTHING}"
    if len(whole) <= _LONGEST_CHANGE:
        return whole
    came = [f"+{item}" for item in new if item not in old]
    went = [f"-{item}" for item in old if item not in new]
    return _cut(" ".join((*came, *went))) if came or went else "in another order"


def _brief(value: object) -> str:
    return _NOTHING if value is None else _cut(_text(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CHANGE else f"{text[: _LONGEST_CHANGE - 3]}..."
