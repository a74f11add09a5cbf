"""The scheduler's configuration as values: what `scheduler.yaml` says, after reading.

`SchedulerConfig` is what the rest of batchq works with. `SchedulerFile` is the file's own shape,
one field per key, with the notation of manifests (`90s`, `1.5`); `batchq.config.load` turns one
into the other.
"""

from __future__ import annotations

from msgspec import Struct

from batchq.api.objects import Duration, Factor, Value
from batchq.api.times import format_duration
from batchq.framework.settings import Settings

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
    included; `points` says what is otherwise at single points (`batchq.config.expansion`).
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
