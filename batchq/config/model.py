"""The scheduler's configuration as values: what `scheduler.yaml` says, after reading.

`SchedulerConfig` is what the rest of batchq works with. `SchedulerFile` is the file's own shape,
one field per key, with the notation of manifests (`90s`, `1.5`); `batchq.config.load` turns one
into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from batchq.api.notation import Malformed
from batchq.api.objects import Duration, Factor, Value
from batchq.api.times import format_duration
from batchq.core.extension.points import POINTS
from batchq.core.session.settings import Settings

_TIMES = Settings()


#: In a list of names: all of them.
ALL = "*"


class PluginEntry(Struct, frozen=True, kw_only=True):
    """One plugin that is on. `weight` multiplies its score where it scores nodes.

    Lower tiers are asked first; within one, plugins are asked in the order written.
    """

    name: str
    weight: int = 1
    tier: int = 1


class PluginSet(Struct, frozen=True, kw_only=True):
    """What is said of one extension point beyond what `multiPoint` says of all."""

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
    """Which actions run, in this order, with which plugins, and by which times and factors.

    `plugins` are on at every point that they implement, the default ones that are among them
    included; `points` says what is otherwise at single points (`batchq.config.model`).
    `plugin_config` maps a plugin's name to its own settings, as written in the file.
    """

    actions: tuple[str, ...] = DEFAULT_ACTIONS
    plugins: tuple[PluginEntry, ...] = DEFAULT_PLUGINS
    points: dict[str, PluginSet] = {}
    plugin_config: dict[str, dict[str, object]] = {}
    settings: Settings = Settings()


class EvictionBudget(Value, frozen=True):
    """So many pods may be evicted by preempt and reclaim within any such window."""

    pods: int
    window: Duration = _TIMES.eviction_window_ms


class Fairness(Value, frozen=True):
    """`half_life` is a duration, or `off`."""

    half_life: str = format_duration(_TIMES.half_life_ms or 0)


class SchedulerFile(Value, frozen=True):
    """The keys of `scheduler.yaml` that hold one plain value; every default is `Settings`' own."""

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


#: point -> the plugins that stand there, in the order in which they are asked.
Expansion: TypeAlias = dict[str, tuple[PluginEntry, ...]]
#: Plugin -> the points that it implements.
PointsOf: TypeAlias = Callable[[str], Collection[str]]


class Lacking(NamedTuple):
    """A plugin that is enabled at a point which it does not implement."""

    point: str
    plugin: str
    implements: tuple[str, ...]

    def problem(self, *where: str | int) -> Malformed:
        """What to tell; `where`: the rest of the path below the point."""
        there = f"; it implements {', '.join(self.implements)}" if self.implements else ""
        text = f"{self.plugin} has no say at {self.point}{there}"
        return Malformed(("plugins", self.point, *where), text)


def expand(config: SchedulerConfig, points_of: PointsOf) -> Expansion:
    """Who stands where.

    Raises Malformed for a plugin that is enabled at a point which it lacks.
    """
    for lacking in lacks(config, points_of):
        raise lacking.problem()
    return {point: _standing(config, point, points_of) for point in POINTS}


def lacks(config: SchedulerConfig, points_of: PointsOf) -> Iterator[Lacking]:
    """The entries of single points that cannot be."""
    for point, stated in config.points.items():
        for entry in stated.enabled:
            there = points_of(entry.name)
            if point not in there:
                yield Lacking(point, entry.name, tuple(each for each in POINTS if each in there))


def named(config: SchedulerConfig) -> tuple[str, ...]:
    """Every plugin that is enabled somewhere, those of multiPoint first."""
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


#: Plugin in the box, the point at which it keeps its promise, and what is so without it.
_PROMISES = (
    ("gates", "preEnqueue", "scheduling gates are kept and ignored"),
    ("dependencies", "preEnqueue", "groups do not wait for those in dependsOn"),
    (
        "quota",
        "admissible",
        "the quotas of namespaces still hold, but who can never fit into one waits like others",
    ),
    (
        "capacity",
        "admissible",
        (
            "limits of queues and the cluster still hold, but guarantees are not left to siblings,"
            " and who can never fit waits like others"
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
    """A sentence for each plugin in the box that is not asked where it keeps a promise."""
    return [
        f"plugin {plugin} is off at {point}: {without}"
        for plugin, point, without in _PROMISES
        if all(entry.name != plugin for entry in expansion[point])
    ]
