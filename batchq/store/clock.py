"""The server's clock, by which all leases are measured: machines need not agree on theirs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from batchq.store.link import Link

#: All who measure leases agree again so soon after the server's clock was set or its machine slept:
#: well within a lease, or who is first to notice would find the leases of all others over.
REMEASURE_AFTER_MS = 5_000
#: An answer that took longer tells too little of when it was given.
SLOW_ANSWER_MS = 1_000
MOST_TRIES = 3
#: A server whose clock was set back further than this is followed; until then, time stands still.
LONGEST_PAUSE_MS = 5_000


class ServerClock:
    """Milliseconds since the epoch as the server counts them.

    The difference to this machine's monotonic clock is measured again every few seconds, and over
    each new connection, which may lead to another machine; small steps back are not passed on. Any
    thread may ask.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._ahead_ms = 0
        self._measured_at: int | None = None
        self._connections = 0
        self._last = 0

    def now_ms(self) -> int:
        """Raises StoreUnavailable when the server cannot be asked."""
        if self._is_due():
            self._measure()
        with self._lock:
            now = _monotonic_ms() + self._ahead_ms
            if now < self._last - LONGEST_PAUSE_MS:
                self._last = now
            self._last = max(self._last, now)
            return self._last

    def _is_due(self) -> bool:
        measured_at = self._measured_at
        if measured_at is None or self._connections != self._link.connections:
            return True
        return _monotonic_ms() - measured_at >= REMEASURE_AFTER_MS

    def _measure(self) -> None:
        # Asking may make a connection itself; then the next look measures once more.
        self._connections = self._link.connections
        round_trip_ms, ahead_ms = min(self._tries())
        with self._lock:
            self._ahead_ms = ahead_ms
            self._measured_at = None if round_trip_ms > SLOW_ANSWER_MS else _monotonic_ms()

    def _tries(self) -> Iterator[tuple[int, int]]:
        """How long an answer took, and what it tells; asked again at once after a slow one.

        A server that stood still for seconds would be believed to be ahead by half of them.
        """
        for _ in range(MOST_TRIES):
            before = _monotonic_ms()
            seconds, microseconds = self._link.ask(lambda client: client.time())
            after = _monotonic_ms()
            yield after - before, seconds * 1000 + microseconds // 1000 - (before + after) // 2
            if after - before <= SLOW_ANSWER_MS:
                return


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
