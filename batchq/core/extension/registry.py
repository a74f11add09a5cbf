"""The plugin registry: the functions called at each point, collected once for all sessions of a
scheduler, and the combined traits of the plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchq.core.extension.points import (
    POINTS,
    VOTES,
    ExtensionPoint,
    Plugin,
    PluginPlaces,
    Registration,
    guarded,
    guarded_clock,
    is_of_others,
    with_shortage,
)
from batchq.core.extension.traits import POINT_OF_RULE, LiftedBy, RefusesBy, Rule, traits_of
from batchq.core.placement.node_order import at_once
from batchq.core.session.snapshot import Instrument

if TYPE_CHECKING:
    from batchq.core.session.session import Session


class PluginRegistry:
    """The registered plugins. The `due_at` of every plugin that is configured at any point is
    called, too.
    """

    def __init__(
        self,
        plugins: PluginPlaces,
        instrument: Instrument | None,
        of_session: Mapping[str, LiftedBy],
    ) -> None:
        self._of = (plugins, instrument)
        self.points = {name: ExtensionPoint[Any](name, method) for name, method in POINTS.items()}
        #: The `due_at` of plugins: instants at which their answers change with time alone.
        self.clocks: list[Callable[[Session], Iterable[int]]] = []
        #: Plugin -> the changes that lift its refusals, by reason.
        self.lifted_by: dict[str, LiftedBy] = dict(of_session)
        #: Errors of third-party plugins in this session: `plugin at point` -> the first one.
        self.failures: dict[str, str] = {}
        for plugin in self._registered(plugins, instrument).values():
            if (clock := getattr(plugin, "due_at", None)) is not None:
                ours = not is_of_others(plugin)
                self.clocks.append(clock if ours else guarded_clock(plugin, clock, self.failures))
            if (lifted_by := traits_of(plugin).lifted_by) is not None:
                self.lifted_by[plugin.name] = lifted_by
        #: The rules that a plugin enforces.
        self.enforced = frozenset(
            rule
            for rule, point in POINT_OF_RULE.items()
            if any(rule in entry.traits.enforces for entry in self.points[point])
        )
        before, admissible = self.points["preEnqueue"], self.points["admissible"]
        #: At preEnqueue: plugins whose answers last, and those called in every session.
        self.lasting: Sequence[Registration[Any]] = [
            one for one in before if one.traits.lifted_by is not None
        ]
        self.passing: Sequence[Registration[Any]] = [
            one for one in before if one.traits.lifted_by is None
        ]
        #: At admissible: plugins called once for a class of groups, and those called for each
        #: group.
        self.for_classes: Sequence[Registration[Any]] = [
            one for one in admissible if one.traits.refuses_by is not RefusesBy.ANYTHING
        ]
        self.for_groups: Sequence[Registration[Any]] = [
            one for one in admissible if one.traits.refuses_by is RefusesBy.ANYTHING
        ]
        #: Plugins that may refuse one group of a class and pass another.
        self.dividing: Sequence[Registration[Any]] = [
            *(one for one in before if not one.traits.passes_plain),
            *self.for_groups,
        ]
        #: Whether a waiting group keeps its place while its record and the priority classes stay.
        self.order_lasts = all(one.traits.order_lasts for one in self.points["groupOrder"])
        #: Whether groups with equal requests get equal answers while limits are full.
        self.may_form_classes = Rule.CAPACITY in self.enforced
        #: Whether a class is refused only for what never fits and for full limits.
        self.limits_decide = self.may_form_classes and all(
            one.traits.refuses_by is RefusesBy.LEDGER for one in self.for_classes
        )

    def is_of(self, plugins: PluginPlaces, instrument: Instrument | None) -> bool:
        """Return whether the registry was built from these objects."""
        return self._of[0] is plugins and self._of[1] is instrument

    def _registered(
        self, plugins: PluginPlaces, instrument: Instrument | None
    ) -> dict[str, Plugin]:
        on: dict[str, Plugin] = {}
        for name, standing in plugins.items():
            point = self.points[name]
            for plugin, weight in standing:
                function: Callable[..., Any] = getattr(plugin, point.method)
                if name in VOTES:
                    function = with_shortage(function)
                if is_of_others(plugin):
                    function = guarded(plugin, name, function, self.failures)
                if instrument is not None:
                    function = instrument.plugin(plugin.name, name, function)
                many = at_once(plugin, name, instrument)
                point.add(plugin.name, function, weight, many, traits_of(plugin))
                on[plugin.name] = plugin
        return on
