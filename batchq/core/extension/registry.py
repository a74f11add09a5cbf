"""Who is asked at which point: the plugins' functions, gathered once for all sessions of a
scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from batchq.core.extension.points import (
    POINTS,
    ExtensionPoint,
    Plugin,
    PluginPlaces,
    guarded,
    guarded_clock,
    is_of_others,
)
from batchq.core.placement.batch_answers import at_once
from batchq.core.session.settings import Instrument

if TYPE_CHECKING:
    from batchq.core.pending.inadmissible import LiftedBy
    from batchq.core.session.session import Session

#: The plugin by which scheduling gates hold.
GATES = "gates"
#: The plugin that says in line what the cluster and queues lack.
CAPACITY = "capacity"


class PluginRegistry:
    """The plugins in their places. Who stands at any point at all has a clock, and may want to be
    asked about each group.
    """

    def __init__(
        self,
        plugins: PluginPlaces,
        instrument: Instrument | None,
        of_session: Mapping[str, LiftedBy],
    ) -> None:
        self._of = (plugins, instrument)
        self.points = {name: ExtensionPoint[Any](name, method) for name, method in POINTS.items()}
        #: Plugins' `due_at`: instants at which their answers change by the clock alone.
        self.clocks: list[Callable[[Session], Iterable[int]]] = []
        #: Plugin -> by which changes its refusals are lifted (batchq.core.pending.inadmissible).
        self.lifted_by: dict[str, LiftedBy] = dict(of_session)
        #: What plugins of others raised in this session: `plugin at point` -> the first of it.
        self.failures: dict[str, str] = {}
        self.asks_each_group = False
        for plugin in self._registered(plugins, instrument).values():
            if (clock := getattr(plugin, "due_at", None)) is not None:
                ours = not is_of_others(plugin)
                self.clocks.append(clock if ours else guarded_clock(plugin, clock, self.failures))
            self.asks_each_group |= getattr(plugin, "per_group", False)
            if (lifted_by := getattr(plugin, "lifted_by", None)) is not None:
                self.lifted_by[plugin.name] = lifted_by
        #: Whether scheduling gates mean anything, in counting pods too: with the plugin off they
        #: are kept and ignored.
        self.gates_hold = any(entry.plugin == GATES for entry in self.points["preEnqueue"])
        #: Whether everybody who puts groups out of line says what lets them in again.
        self.all_lift = all(entry.plugin in self.lifted_by for entry in self.points["preEnqueue"])
        #: Whether a group keeps its place in line for as long as its record and the classes stay.
        self.order_lasts = _all(plugins, "groupOrder", "order_lasts")
        #: Whether groups that ask for the same are answered the same while limits are full.
        self.goes_by_requests = (
            self.order_lasts
            and self.all_lift
            and not self.asks_each_group
            and _all(plugins, "preEnqueue", "passes_plain")
            and _all(plugins, "admissible", "goes_by_limits")
            and any(entry.plugin == CAPACITY for entry in self.points["admissible"])
        )
        #: Whether nothing is refused but what never fits, and what a limit has no room for.
        self.limits_decide = self.goes_by_requests and _all(plugins, "admissible", "adds_no_limit")

    def is_of(self, plugins: PluginPlaces, instrument: Instrument | None) -> bool:
        """Whether it is made of these."""
        return self._of[0] is plugins and self._of[1] is instrument

    def _registered(
        self, plugins: PluginPlaces, instrument: Instrument | None
    ) -> dict[str, Plugin]:
        on: dict[str, Plugin] = {}
        for name, standing in plugins.items():
            point = self.points[name]
            for plugin, weight in standing:
                function: Callable[..., Any] = getattr(plugin, point.method)
                if is_of_others(plugin):
                    function = guarded(plugin, name, function, self.failures)
                if instrument is not None:
                    function = instrument.plugin(plugin.name, name, function)
                point.add(plugin.name, function, weight, at_once(plugin, name, instrument))
                on[plugin.name] = plugin
        return on


def _all(plugins: PluginPlaces, point: str, attribute: str) -> bool:
    """Whether each plugin at a point says this of itself."""
    return all(getattr(plugin, attribute, False) for plugin, _ in plugins.get(point, ()))
