"""The server's clock, by which all leases are measured: machines need not agree on theirs."""

from __future__ import annotations

import threading
import time

from batchq.store.link import Link

REMEASURE_AFTER_MS = 60_000
#: A server whose clock was set back further than this is followed; until then, time stands still.
LONGEST_PAUSE_MS = 5_000


class ServerClock:
    """Milliseconds since the epoch as the server counts them.

    The difference to this machine's monotonic clock is measured again every minute; small steps
    back are not passed on. Any thread may ask.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._ahead_ms = 0
        self._measured_at: int | None = None
        self._last = 0

    def now_ms(self) -> int:
        """Raises StoreUnavailable when the server cannot be asked."""
        here = _monotonic_ms()
        if self._measured_at is None or here - self._measured_at >= REMEASURE_AFTER_MS:
            self._measure()
        with self._lock:
            now = _monotonic_ms() + self._ahead_ms
            if now < self._last - LONGEST_PAUSE_MS:
                self._last = now
            self._last = max(self._last, now)
            return self._last

    def _measure(self) -> None:
        before = _monotonic_ms()
        seconds, microseconds = self._link.ask(lambda client: client.time())
        after = _monotonic_ms()
        with self._lock:
            self._ahead_ms = seconds * 1000 + microseconds // 1000 - (before + after) // 2
            self._measured_at = after


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
