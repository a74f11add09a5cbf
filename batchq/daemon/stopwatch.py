"""Measures what each action and each plugin takes of a session.

What a plugin takes is without what it makes other plugins do: the order of queues asks who may be
admitted, and that is `capacity`'s time and not `proportion`'s. All times of a session together
are then no more than the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """An Instrument that adds up seconds until it is read. Owned by the deciding thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        #: Seconds that went to calls made from within the call under way.
        self._inner = 0.0
        self._plugins: dict[tuple[str, str], list[float]] = {}
        self._actions: dict[str, list[float]] = {}

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""
        sum_s = self._plugins.setdefault((plugin, point), [0.0])
        clock = self._clock

        def timed(*arguments: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            began = clock()
            try:
                return function(*arguments)
            finally:
                took = clock() - began
                sum_s[0] += took - self._inner
                self._inner = outer + took

        return timed

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        """The action, timed, with all that it asks of plugins."""
        sum_s = self._actions.setdefault(name, [0.0])

        def timed(*arguments: Any) -> None:
            began = self._clock()
            try:
                execute(*arguments)
            finally:
                sum_s[0] += self._clock() - began

        return timed

    def read(self) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
        """Seconds by (plugin, point) and by action, of those that were called at all.

        Since the last reading, which it ends.
        """
        plugins = {key: sum_s[0] for key, sum_s in self._plugins.items() if sum_s[0] > 0}
        actions = {name: sum_s[0] for name, sum_s in self._actions.items() if sum_s[0] > 0}
        # In place: what was handed out goes on counting there.
        for sum_s in (*self._plugins.values(), *self._actions.values()):
            sum_s[0] = 0.0
        self._inner = 0.0
        return plugins, actions
