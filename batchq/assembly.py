"""Assemble a scheduler from a configuration; the only module that knows every builtin by name.

Third-party actions and plugins come from installed packages, by the entry points `batchq.actions`
and `batchq.plugins`; they cannot take a builtin's name.

A plugin class declares its settings as a struct, `arguments`, and is created with an instance of
it. A plugin without `arguments` gets its settings as keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from batchq.api import notation
from batchq.api.notation import Malformed
from batchq.config import Expansion, SchedulerConfig, expand, named
from batchq.config.load import Known
from batchq.core.extension import POINTS, Plugin, PluginPlaces, implemented, traits_of
from batchq.core.session.open_session import open_session
from batchq.core.session.session import Action, Session
from batchq.core.session.snapshot import Snapshot
from batchq.errors import InvalidInput
from batchq.plugins.capacity import Capacity, Overcommit, Quota
from batchq.plugins.gates import AdmissionChecks, Dependencies, SchedulingGates
from batchq.plugins.nodes import (
    BalancedAllocation,
    BinPack,
    LeastAllocated,
    MostAllocated,
    Predicates,
)
from batchq.plugins.order import Conformance, Drf, Gang, Priority, Proportion, Sla

if TYPE_CHECKING:
    from batchq.scheduler.cycle import Scheduler

#: Creates an action or a plugin.
Maker = Callable[..., Any]

BUILTIN_PLUGINS: dict[str, Maker] = {
    SchedulingGates.name: SchedulingGates,
    Dependencies.name: Dependencies,
    Quota.name: Quota,
    Capacity.name: Capacity,
    AdmissionChecks.name: AdmissionChecks,
    Gang.name: Gang,
    Priority.name: Priority,
    Proportion.name: Proportion,
    Predicates.name: Predicates,
    LeastAllocated.name: LeastAllocated,
    BinPack.name: BinPack,
    Conformance.name: Conformance,
    # Builtin, but off unless configured.
    Drf.name: Drf,
    Sla.name: Sla,
    Overcommit.name: Overcommit,
    MostAllocated.name: MostAllocated,
    BalancedAllocation.name: BalancedAllocation,
}

#: Action -> the point at which plugins vote on its victims.
_VOTES = {"preempt": "preemptable", "reclaim": "reclaimable"}


def assemble(config: SchedulerConfig) -> Scheduler:
    """Return the scheduler that `config` describes.

    Raises InvalidInput for an unknown name, listing the known ones, for a plugin that implements no
    extension point, or not the one at which it is enabled, and for settings that a plugin does not
    take.
    """
    for name, settings in config.plugin_config.items():
        try:
            check_settings(name, settings)
        except Malformed as problem:
            raise InvalidInput(
                str(Malformed(("pluginConfig", name, *problem.path), problem.text)),
                hint="docs/plugins.md lists what each plugin takes",
            ) from None
    from batchq.scheduler.cycle import Scheduler

    actions = tuple(_action(name) for name in config.actions)
    return Scheduler(actions=actions, plugins=_places(config), settings=config.settings)


def open_undecided(config: SchedulerConfig, snapshot: Snapshot, now_ms: int) -> Session:
    """Open a session that decides nothing, for a view: without the actions and the cycle, whose
    modules take a tenth of a short command's time to import.

    Raises InvalidInput, as `assemble` does for plugins.
    """
    return open_session(
        snapshot,
        now_ms=now_ms,
        settings=config.settings,
        plugins=_places(config),
        actions=tuple(config.actions),
    )


def expanded(config: SchedulerConfig) -> Expansion:
    """Return the plugins of each extension point.

    Raises InvalidInput, as `assemble` does for plugins.
    """
    return _expanded(config, _plugins(config))


def without_consent(config: SchedulerConfig) -> list[str]:
    """Return the actions that can find no victims, because no enabled plugin ever agrees to one.

    A plugin agrees to some unless its traits say that it only vetoes.
    """
    plugins = _plugins(config)
    standing = _expanded(config, plugins)
    return [
        action
        for action in config.actions
        if action in _VOTES
        and all(traits_of(plugins[entry.name]).only_vetoes for entry in standing[_VOTES[action]])
    ]


def known_names() -> Known:
    """Return what a configuration file may name here, for `batchq.config.load`."""
    return Known(known_actions(), known_plugins(), check_settings, points_of)


def known_actions() -> list[str]:
    """Return the names of all actions that can be configured."""
    from batchq_actions import BUILTIN_ACTIONS

    return sorted({*BUILTIN_ACTIONS, *_provided("batchq.actions")})


def known_plugins() -> list[str]:
    """Return the names of all plugins that can be configured."""
    return sorted({*BUILTIN_PLUGINS, *_provided("batchq.plugins")})


def _action(name: str) -> Action:
    from batchq_actions import BUILTIN_ACTIONS

    maker = BUILTIN_ACTIONS.get(name) or _load("batchq.actions", name)
    if maker is None:
        raise _unknown("action", name, known_actions())
    action: Action = maker()
    return action


def check_settings(name: str, settings: Mapping[str, object]) -> None:
    """Check that a plugin of this name can be created with these settings.

    Raises Malformed, with a path that starts inside the settings.
    """
    maker = _maker(name)
    if maker is None:
        near = notation.nearest(name, known_plugins())
        raise Malformed(
            (), "there is no such plugin" + (f"; did you mean {near!r}?" if near else "")
        )
    _make(maker, settings)


def arguments_of(name: str, settings: Mapping[str, object]) -> Mapping[str, object]:
    """Return those of a known plugin's settings that differ from its defaults."""
    form = getattr(_maker(name), "arguments", None)
    if form is None:
        return settings
    return notation.write(notation.read(form, settings))


def points_of(name: str, settings: Mapping[str, object]) -> Collection[str]:
    """Return the points that a known plugin implements, created with valid settings."""
    return implemented(_plugin(name, settings))


def _plugins(config: SchedulerConfig) -> dict[str, Plugin]:
    return {name: _plugin(name, config.plugin_config.get(name, {})) for name in named(config)}


def _places(config: SchedulerConfig) -> PluginPlaces:
    plugins = _plugins(config)
    return {
        point: tuple((plugins[entry.name], entry.weight) for entry in entries)
        for point, entries in _expanded(config, plugins).items()
    }


def _expanded(config: SchedulerConfig, plugins: Mapping[str, Plugin]) -> Expansion:
    try:
        return expand(config, lambda name: implemented(plugins[name]))
    except Malformed as problem:
        raise InvalidInput(str(problem)) from None


def _maker(name: str) -> Maker | None:
    return BUILTIN_PLUGINS.get(name) or _load("batchq.plugins", name)


def _make(maker: Maker, settings: Mapping[str, object]) -> Plugin:
    form = getattr(maker, "arguments", None)
    if form is not None:
        typed: Plugin = maker(notation.read(form, settings))
        return typed
    if not settings and _takes_nothing(maker):
        bare: Plugin = maker()
        return bare
    from inspect import signature

    try:
        signature(maker).bind(**settings)
    except TypeError:
        raise _does_not_fit(maker, settings) from None
    try:
        plugin: Plugin = maker(**settings)
    except TypeError as error:
        raise Malformed((), f"the plugin cannot be created with these settings: {error}") from error
    return plugin


def _takes_nothing(maker: Maker) -> bool:
    """Return whether a class has no constructor of its own; `signature` takes 2 ms to find out."""
    own = getattr(maker, "__init__", None), getattr(maker, "__new__", None)
    return own == (object.__init__, object.__new__)


def _does_not_fit(maker: Maker, settings: Mapping[str, object]) -> Malformed:
    """Return a mistake with the constructor's parameters and the given settings."""
    from inspect import signature

    taken = signature(maker).parameters.values()
    known = [one.name for one in taken if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    given = ", ".join(sorted(settings))
    if not known:
        return Malformed((), f"the plugin takes no settings, found {given}")
    needed = [one.name for one in taken if one.name in known and one.default is one.empty]
    must = f" (needed: {', '.join(needed)})" if needed else ""
    return Malformed((), f"expected the settings {', '.join(known)}{must}, found {given or 'none'}")


def _plugin(name: str, settings: Mapping[str, object]) -> Plugin:
    maker = _maker(name)
    if maker is None:
        raise _unknown("plugin", name, known_plugins())
    plugin = _make(maker, settings)
    if not implemented(plugin):
        raise InvalidInput(
            f"plugin {name} implements no extension point; expected one of {', '.join(POINTS)}"
        )
    try:
        traits_of(plugin)
    except TypeError as error:
        raise InvalidInput(f"plugin {name}: {error}") from None
    return plugin


def _provided(group: str) -> list[str]:
    return [entry.name for entry in entry_points(group=group)]


def _load(group: str, name: str) -> Maker | None:
    for entry in entry_points(group=group, name=name):
        maker: Maker = entry.load()
        return maker
    return None


def _unknown(what: str, name: str, known: Iterable[str]) -> InvalidInput:
    from difflib import get_close_matches

    known = list(known)
    near = get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return InvalidInput(
        f"there is no {what} {name!r}; known {what}s: {', '.join(known)}{meant}",
        hint="correct the name in scheduler.yaml, or install the package that provides it",
    )
