"""What to do while the store does not answer: wait longer each time, and say it once."""

from __future__ import annotations

import random
import threading
import time

import structlog

from batchq.errors import StoreUnavailable

_log = structlog.get_logger()

FIRST_WAIT_MS = 200
LONGEST_WAIT_MS = 5000


class Backoff:
    """Waits that double up to a bound, each with a random half of itself taken off or not."""

    def __init__(
        self,
        *,
        first_ms: int = FIRST_WAIT_MS,
        longest_ms: int = LONGEST_WAIT_MS,
        chance: random.Random | None = None,
    ) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._chance = chance or random.Random()
        self._failures = 0

    def next_ms(self) -> int:
        """How long to wait now: between half the step and the whole step."""
        # 2**20 steps are beyond any bound; the exponent itself must not grow for ever.
        step = min(self._longest_ms, self._first_ms << min(self._failures, 20))
        self._failures += 1
        return self._chance.randint(step // 2, step)

    def reset(self) -> None:
        """It works again."""
        self._failures = 0


class Outage:
    """Says once that the store is away and once that it is back, whichever thread notices.

    `unavailable` is a state for others to look at.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None

    @property
    def unavailable(self) -> bool:
        """Whether the last call failed."""
        return self._since is not None

    def failed(self, error: StoreUnavailable) -> None:
        """A call failed."""
        with self._lock:
            first, self._since = self._since is None, self._since or time.monotonic()
        if first:
            _log.warning("store.unavailable", error=error.message, hint=error.hint)

    def succeeded(self) -> None:
        """A call succeeded."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            _log.info("store.back", away_s=round(time.monotonic() - since, 1))
