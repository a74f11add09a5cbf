"""Clocks that tell the real time; the simulator has its own."""

from __future__ import annotations

import time
from typing import Protocol


class SystemClock:
    """This machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


class Timekeeper(Protocol):
    """A store that knows its server's time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch by the server's clock."""


class StoreClock:
    """The server's clock: schedulers and agents on several machines then agree on leases."""

    def __init__(self, store: Timekeeper) -> None:
        self._store = store

    def now_ms(self) -> int:
        """Milliseconds since the epoch.

        Raises StoreUnavailable.
        """
        return self._store.now_ms()
