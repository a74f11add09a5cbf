"""This machine's clock. The simulator has its own, and a live store tells its server's time."""

from __future__ import annotations

import time


class SystemClock:
    """A `ports.Clock`."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
