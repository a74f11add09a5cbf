"""Which plugins stand at which extension point, once everything that is written is put together.

At each point come first the plugins that are enabled there by name, in the order written; then
those of `multiPoint` that implement the point, in their order, but for those that the point names
itself or disables. Lower tiers then go before higher ones. Pure: what a plugin implements is told
by whoever has made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeAlias

from batchq.api.notation import Malformed
from batchq.config.model import ALL, PluginEntry, PluginSet, SchedulerConfig
from batchq.framework.extension import POINTS

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
