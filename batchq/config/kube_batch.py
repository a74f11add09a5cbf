"""Conversion of kube-batch's configuration file, with notes on what differs.

    actions: "reclaim, allocate, backfill, preempt"
    tiers:
    - plugins:
      - {name: priority, enableJobOrder: true}
      - {name: nodeorder, arguments: {leastrequested.weight: 2}}

| kube-batch                    | batchq                                                     |
|-------------------------------|------------------------------------------------------------|
| actions, in their order       | the same; `backfill` does more here                        |
| tier 1, tier 2                | the entries' `tier`: it orders, and overrides no veto      |
| enableJobOrder: false         | `groupOrder: {disabled: [NAME]}`, likewise for each flag   |
| nodeorder                     | leastAllocated, mostAllocated, balancedAllocation, weights |
| not in kube-batch             | gates, dependencies, quota, capacity, checks: on           |

kube-batch ignores unknown settings; the conversion leaves each one out with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from batchq.api import notation
from batchq.api.notation import Malformed, Path, mapping_at, shown
from batchq.config import DEFAULT_PLUGINS, PluginEntry, PluginSet, SchedulerConfig
from batchq.config.documents import Document
from batchq.config.load import check_known, check_name, check_once
from batchq.core.extension import POINTS

#: kube-batch's default actions.
_ACTIONS = "allocate, backfill"
#: Default plugins for features that kube-batch does not have.
_BESIDE = ("gates", "dependencies", "quota", "capacity", "checks")
_FLAGS = {
    "enableJobOrder": "groupOrder",
    "enableJobReady": "groupReady",
    "enableJobPipelined": "groupReady",
    "enableTaskOrder": "podOrder",
    "enablePreemptable": "preemptable",
    "enableReclaimable": "reclaimable",
    "enableQueueOrder": "queueOrder",
    "enablePredicate": "predicate",
    "enableNodeOrder": "score",
}
_NODE_ORDER = "nodeorder"
#: Plugins whose arguments differ in batchq, and where to set them here.
_SETTINGS = {
    "binpack": "pluginConfig.binpack",
    "overcommit": "the setting overcommit, or pluginConfig.overcommit",
    "sla": "pluginConfig.sla",
}
#: nodeorder's arguments: the equivalent plugin, and kube-batch's default weight.
_SCORES = {
    "leastrequested.weight": ("leastAllocated", 1),
    "mostrequested.weight": ("mostAllocated", 0),
    "balancedresource.weight": ("balancedAllocation", 1),
}
#: kube-batch's plugins that vote on victims. There, the first tier with one of these decides alone.
_VOTERS = {
    "preemptable": ("gang", "priority", "conformance", "drf"),
    "reclaimable": ("gang", "conformance", "proportion"),
}
_LARGEST_WEIGHT = 1000


class Names(NamedTuple):
    """The known actions and plugins."""

    actions: Collection[str]
    plugins: Collection[str]


class Converted(NamedTuple):
    """The configuration, and notes on what differs, in the order of the file."""

    config: SchedulerConfig
    notes: list[str]


class _Named(NamedTuple):
    """A plugin of the file: its tier, from 1, its fields, and its path."""

    name: str
    tier: int
    fields: Mapping[str, object]
    path: Path


def convert(document: Document, known: Names) -> Converted:
    """Convert kube-batch's file in `document`.

    Raises InvalidInput if kube-batch would not start with the file either, or it has no tiers.
    """
    notes: list[tuple[int, str]] = []

    def note(path: Path, text: str) -> None:
        line = document.line_of(path)
        notes.append((line, f"line {line}: {text}") if line else (0, text))

    try:
        written = mapping_at(document.data, ())
        actions = _actions(written, known.actions, note)
        plugins = _plugins(written, note)
        for name in written:
            if name not in ("actions", "tiers"):
                note((name,), f"{name} is left out: kube-batch has no such setting")
        config = _Conversion(known, note).config(actions, plugins)
    except Malformed as problem:
        raise document.problem(problem.path, problem.text) from None
    return Converted(config, [text for _, text in sorted(notes, key=lambda each: each[0])])


Note = Callable[[Path, str], None]


def _actions(written: Mapping[str, object], known: Collection[str], note: Note) -> tuple[str, ...]:
    text = written.get("actions", _ACTIONS)
    if not isinstance(text, str):
        raise Malformed(("actions",), f"expected the names in one text, found {shown(text)}")
    found: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        check_name(name, ("actions",), "an action")
        check_known(name, known, ("actions",), "action")
        check_once(name, found, ("actions",))
        found.append(name)
    if "backfill" in found:
        note(
            ("actions",),
            "backfill does more than in kube-batch: in queues whose strategy is Backfill it lets"
            " groups start ahead of a waiting head that they do not delay",
        )
    if "enqueue" not in found:
        note(
            ("actions",),
            "without enqueue, as in kube-batch, groups get pods before resources are free for them;"
            " put enqueue first to keep them in the queue",
        )
    return tuple(found)


def _plugins(written: Mapping[str, object], note: Note) -> list[_Named]:
    """Return every named plugin; if one is named twice, the later entry replaces the former.

    Raises Malformed.
    """
    found: dict[str, _Named] = {}
    for one in _named(written):
        if one.name in found:
            note(one.path, f"{one.name} is named twice; as in kube-batch, this replaces the other")
        found.pop(one.name, None)
        found[one.name] = one
    return list(found.values())


def _named(written: Mapping[str, object]) -> Iterator[_Named]:
    tiers = written.get("tiers")
    if not isinstance(tiers, list):
        text = f"expected kube-batch's list of tiers, found {shown(tiers)}"
        if tiers is None:
            text = "this is not a kube-batch configuration: it has no tiers"
        raise Malformed(("tiers",) if "tiers" in written else (), text)
    for number, tier in enumerate(tiers):
        path: Path = ("tiers", number)
        plugins = mapping_at(tier, path).get("plugins")
        if not isinstance(plugins, list):
            raise Malformed((*path, "plugins"), f"expected a list, found {shown(plugins)}")
        for place, item in enumerate(plugins):
            here = (*path, "plugins", place)
            fields = mapping_at(item, here)
            name = check_name(fields.get("name"), (*here, "name"), "a plugin")
            yield _Named(name, number + 1, fields, here)


class _Conversion:
    """Collects entries and disabled points, plugin by plugin."""

    def __init__(self, known: Names, note: Note) -> None:
        self._known = known
        self._note = note
        self._entries: list[PluginEntry] = []
        self._disabled: dict[str, list[str]] = {}

    def config(self, actions: tuple[str, ...], plugins: list[_Named]) -> SchedulerConfig:
        """Return the configuration with these actions and plugins."""
        beside = [entry for entry in DEFAULT_PLUGINS if entry.name in _BESIDE]
        names = ", ".join(entry.name for entry in beside)
        self._note((), f"{names} are on beside what the file names: kube-batch has none of them")
        for plugin in plugins:
            self._add(plugin)
        self._note_tiers(plugins)
        if all(entry.name != "predicates" for entry in self._entries):
            self._note((), "predicates is on: here the plugin also checks requests against nodes")
            self._entries.append(PluginEntry(name="predicates"))
        return SchedulerConfig(
            actions=actions,
            plugins=(*beside, *self._entries),
            points={
                point: PluginSet(disabled=tuple(self._disabled[point]))
                for point in POINTS
                if point in self._disabled
            },
        )

    def _add(self, plugin: _Named) -> None:
        if plugin.name == _NODE_ORDER:
            entries = self._scores(plugin)
        elif plugin.name in _BESIDE:
            self._note(plugin.path, f"{plugin.name} is on anyway")
            return
        elif plugin.name not in self._known.plugins:
            near = notation.nearest(plugin.name, [*self._known.plugins, _NODE_ORDER])
            meant = f"; did you mean {near!r}?" if near else ""
            text = f"{plugin.name} is left out: there is no such plugin here{meant}"
            self._note((*plugin.path, "name"), text)
            return
        else:
            entries = [PluginEntry(name=plugin.name, tier=plugin.tier)]
            for name in self._arguments(plugin):
                there = _SETTINGS.get(plugin.name)
                why = f"set {there} instead" if there else "it has no meaning here"
                text = f"{plugin.name}'s argument {name} is left out: {why}"
                self._note((*plugin.path, "arguments", name), text)
        self._entries += entries
        self._switch_off(plugin, [entry.name for entry in entries])

    def _arguments(self, plugin: _Named) -> Mapping[str, object]:
        found = plugin.fields.get("arguments")
        return {} if found is None else mapping_at(found, (*plugin.path, "arguments"))

    def _scores(self, plugin: _Named) -> list[PluginEntry]:
        arguments = self._arguments(plugin)
        for name in arguments:
            if name not in _SCORES:
                text = f"nodeorder's argument {name} is left out: no plugin here scores like that"
                self._note((*plugin.path, "arguments", name), text)
        weights = {
            name: self._weight(plugin, argument, default)
            for argument, (name, default) in _SCORES.items()
        }
        entries = [
            PluginEntry(name=name, weight=weight, tier=plugin.tier)
            for name, weight in weights.items()
            if weight
        ]
        names = ", ".join(entry.name for entry in entries) or "no plugin at all"
        self._note(
            plugin.path,
            f"nodeorder becomes {names}: only the resources that a pod asks for count, and nodes"
            " are not ranked by affinities",
        )
        return entries

    def _weight(self, plugin: _Named, argument: str, default: int) -> int:
        """Return the weight; as in kube-batch, an invalid argument leaves the default."""
        written = self._arguments(plugin).get(argument, default)
        try:
            weight = int(str(written))
        except ValueError:
            weight = -1
        if 0 <= weight <= _LARGEST_WEIGHT:
            return weight
        expected = f"expected 0 to {_LARGEST_WEIGHT}, found {shown(written)}"
        self._note((*plugin.path, "arguments", argument), f"{argument} stays {default}: {expected}")
        return default

    def _switch_off(self, plugin: _Named, names: list[str]) -> None:
        for flag, value in plugin.fields.items():
            path = (*plugin.path, flag)
            if flag in ("name", "arguments"):
                continue
            if flag not in _FLAGS:
                self._note(path, f"{flag} is left out: kube-batch ignores it, too")
            elif not isinstance(value, bool):
                raise Malformed(path, f"expected true or false, found {shown(value)}")
            elif value:
                continue
            elif flag == "enableJobPipelined":
                self._note(path, "enableJobPipelined is left out: enableJobReady is both here")
            elif plugin.name == "predicates":
                text = f"{flag} is left out: predicates checks requests against nodes here"
                self._note(path, text)
            else:
                self._disabled.setdefault(_FLAGS[flag], []).extend(names)

    def _note_tiers(self, plugins: list[_Named]) -> None:
        """Note the plugins that kube-batch never asks about victims: an earlier tier decides."""
        for point, voters in _VOTERS.items():
            asked = [
                plugin
                for plugin in plugins
                if plugin.name in voters and plugin.name not in self._disabled.get(point, ())
            ]
            first = min((plugin.tier for plugin in asked), default=0)
            for plugin in asked:
                if plugin.tier > first:
                    self._note_voter(plugin, point, first)

    def _note_voter(self, plugin: _Named, point: str, first: int) -> None:
        never = f"kube-batch never asks {plugin.name} there, as tier {first} has decided"
        if plugin.name == "drf":
            # Here its vote would spare every group that would be preempted as a whole.
            self._disabled.setdefault(point, []).append(plugin.name)
            self._note(plugin.path, f"drf is disabled at {point}: {never}")
            return
        self._note(plugin.path, f"{plugin.name} is asked at {point}, and its veto holds: {never}")
