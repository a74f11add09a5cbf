"""The scheduler's configuration as values.

`SchedulerConfig` is what the rest of batchq uses. `SchedulerFile` has the file's own shape, one
field per key, in the notation of manifests (`90s`, `1.5`); `batchq.config.load` converts between
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from batchq.api.notation import Malformed, format_duration
from batchq.api.objects import Duration, Factor, Value
from batchq.core.extension import POINTS
from batchq.core.session.snapshot import Settings

_TIMES = Settings()


#: Stands for all names in a list of names.
ALL = "*"


class PluginEntry(Struct, frozen=True, kw_only=True):
    """An enabled plugin. `weight` multiplies its score at the point `score`.

    Plugins in lower tiers are asked first; within a tier, in the order written.
    """

    name: str
    weight: int = 1
    tier: int = 1


class PluginSet(Struct, frozen=True, kw_only=True):
    """The changes at one extension point to what `multiPoint` says for all."""

    enabled: tuple[PluginEntry, ...] = ()
    disabled: tuple[str, ...] = ()


DEFAULT_ACTIONS = ("enqueue", "allocate", "reclaim", "preempt", "backfill")
DEFAULT_PLUGINS = tuple(
    PluginEntry(name=name)
    for name in (
        "gates",
        "dependencies",
        "quota",
        "capacity",
        "checks",
        "gang",
        "priority",
        "proportion",
        "predicates",
        "leastAllocated",
        "binpack",
        "conformance",
    )
)


class SchedulerConfig(Struct, frozen=True, kw_only=True):
    """The actions in order, the plugins, and the settings.

    `plugins` are enabled at every point that they implement, and include the default plugins that
    are on; `points` has the exceptions at single points. `plugin_config` maps a plugin's name to
    its own settings, as written in the file.
    """

    actions: tuple[str, ...] = DEFAULT_ACTIONS
    plugins: tuple[PluginEntry, ...] = DEFAULT_PLUGINS
    points: dict[str, PluginSet] = {}
    plugin_config: dict[str, dict[str, object]] = {}
    settings: Settings = Settings()


class EvictionBudget(Value, frozen=True):
    """The most pods that preempt and reclaim may evict within any such window."""

    pods: int
    window: Duration = _TIMES.eviction_window_ms


class Fairness(Value, frozen=True):
    """`half_life` is a duration, or `off`. `order`: whether the queue that holds least of its share
    now is served first, or the one that has used least of it over time.
    """

    half_life: str = format_duration(_TIMES.half_life_ms or 0)
    order: Literal["current", "usage"] = "current"


class SchedulerFile(Value, frozen=True):
    """The keys of `scheduler.yaml` with one plain value; defaults are those of `Settings`."""

    schedule_period: Duration = _TIMES.schedule_period_ms
    min_session_interval: Duration = _TIMES.min_session_interval_ms
    in_queue_timeout: Duration = _TIMES.in_queue_timeout_ms
    recovery_timeout: Duration = _TIMES.recovery_timeout_ms
    node_timeout: Duration = _TIMES.node_timeout_ms
    pod_lease: Duration = _TIMES.pod_lease_ms
    backoff_first: Duration = _TIMES.backoff_first_ms
    backoff_most: Duration = _TIMES.backoff_most_ms
    node_memory: Duration = _TIMES.node_memory_ms
    overcommit: Factor = _TIMES.overcommit
    min_runtime: Duration = _TIMES.min_runtime_ms
    max_pod_groups_per_namespace: int = _TIMES.max_pod_groups_per_namespace
    eviction_budget: EvictionBudget | None = None
    fairness: Fairness = Fairness()


#: Point -> its plugins, in the order in which they are asked.
Expansion: TypeAlias = dict[str, tuple[PluginEntry, ...]]
#: Plugin -> the points that it implements.
PointsOf: TypeAlias = Callable[[str], Collection[str]]


class Lacking(NamedTuple):
    """A plugin that is enabled at a point that it does not implement."""

    point: str
    plugin: str
    implements: tuple[str, ...]

    def problem(self, *where: str | int) -> Malformed:
        """Return the mistake; `where`: the rest of the path below the point."""
        there = f"; it implements {', '.join(self.implements)}" if self.implements else ""
        text = f"{self.plugin} does not implement {self.point}{there}"
        return Malformed(("plugins", self.point, *where), text)


def expand(config: SchedulerConfig, points_of: PointsOf) -> Expansion:
    """Return the plugins of each point.

    Raises Malformed for a plugin that is enabled at a point that it does not implement.
    """
    for lacking in lacks(config, points_of):
        raise lacking.problem()
    return {point: _standing(config, point, points_of) for point in POINTS}


def lacks(config: SchedulerConfig, points_of: PointsOf) -> Iterator[Lacking]:
    """Yield the entries at single points that their plugins do not implement."""
    for point, stated in config.points.items():
        for entry in stated.enabled:
            there = points_of(entry.name)
            if point not in there:
                yield Lacking(point, entry.name, tuple(each for each in POINTS if each in there))


def named(config: SchedulerConfig) -> tuple[str, ...]:
    """Return every enabled plugin, those of multiPoint first."""
    single = (entry.name for stated in config.points.values() for entry in stated.enabled)
    return tuple(dict.fromkeys([*(entry.name for entry in config.plugins), *single]))


def _standing(config: SchedulerConfig, point: str, points_of: PointsOf) -> tuple[PluginEntry, ...]:
    stated = config.points.get(point, PluginSet())
    apart = {*stated.disabled, *(entry.name for entry in stated.enabled)}
    of_all = [
        entry
        for entry in config.plugins
        if ALL not in apart and entry.name not in apart and point in points_of(entry.name)
    ]
    return tuple(sorted([*stated.enabled, *of_all], key=lambda entry: entry.tier))


#: Builtin plugin, the point at which it keeps a promise, and what happens without it.
_PROMISES = (
    ("gates", "preEnqueue", "scheduling gates are kept and ignored"),
    ("dependencies", "preEnqueue", "groups do not wait for those in dependsOn"),
    (
        "quota",
        "admissible",
        "quotas of namespaces still hold, but groups that can never fit one wait like others",
    ),
    (
        "capacity",
        "admissible",
        (
            "limits of queues and the cluster still hold, but guarantees are not left to siblings,"
            " and groups that can never fit wait like others"
        ),
    ),
    ("checks", "permit", "groups start without an answer of their queue's admission checks"),
    ("gang", "groupReady", "groups run with fewer pods than minMember and minAvailable"),
    (
        "predicates",
        "predicate",
        "nodeSelectors, taints and cordons are ignored, and nodes that are full are tried",
    ),
)


def unkept(expansion: Expansion) -> list[str]:
    """Return a sentence for each builtin plugin that is not asked where it keeps a promise."""
    return [
        f"plugin {plugin} is off at {point}: {without}"
        for plugin, point, without in _PROMISES
        if all(entry.name != plugin for entry in expansion[point])
    ]
