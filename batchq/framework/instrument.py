"""Who looks on while a session runs: for timings, and for nothing that decides.

The core reads no clock. A scheduler that is given an Instrument lets it stand between itself and
the plugins and actions that it calls; without one there is nothing between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Instrument(Protocol):
    """Wraps what is called; calls it exactly once, with the same arguments, and answers the same.

    Owned by the thread that runs the session.
    """

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A plugin's function at a point, as the session is to call it."""

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        """An action's `execute`, as the scheduler is to call it."""
