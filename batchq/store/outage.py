"""Waiting for a store that does not answer: longer each time, and logged once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from batchq.errors import StoreUnavailable

FIRST_WAIT_MS = 200
LONGEST_WAIT_MS = 5000


class Backoff:
    """Waits that double up to a bound, each shortened by a random part of up to a half."""

    def __init__(
        self,
        *,
        first_ms: int = FIRST_WAIT_MS,
        longest_ms: int = LONGEST_WAIT_MS,
        chance: random.Random | None = None,
    ) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._chance = chance
        self._failures = 0

    def next_ms(self) -> int:
        """Return the next wait: between half the step and the whole step."""
        # 2**20 steps exceed any bound; the exponent itself must not grow without end.
        step = min(self._longest_ms, self._first_ms << min(self._failures, 20))
        self._failures += 1
        if self._chance is None:
            # Most never wait, and a new one takes 2,500 bytes of the system's randomness.
            self._chance = random.Random()
        return self._chance.randint(step // 2, step)

    def reset(self) -> None:
        """Start again from the first wait, after a success."""
        self._failures = 0


class Outage:
    """Logs once that the store is unavailable and once that it is back, for any number of threads.

    `unavailable` is the present state; `count` is the number of outages so far.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._past_s = 0.0
        self.count = 0

    @property
    def unavailable(self) -> bool:
        """Whether the last call failed."""
        return self._since is not None

    def lasts_s(self) -> float:
        """How long the present outage has lasted, in seconds; 0 outside one."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def away_s(self) -> float:
        """How long the store has been unavailable in all, in seconds."""
        with self._lock:
            return self._past_s + self.lasts_s()

    def failed(self, error: StoreUnavailable) -> None:
        """Note that a call failed."""
        with self._lock:
            first, self._since = self._since is None, self._since or time.monotonic()
            self.count += first
        if first:
            _log().warning("store.unavailable", error=error.message, hint=error.hint)

    def succeeded(self) -> None:
        """Note that a call succeeded."""
        if self._since is None:
            return
        with self._lock:
            lasted_s, was_away, self._since = self.lasts_s(), self.unavailable, None
            self._past_s += lasted_s
        if was_away:
            _log().info("store.back", away_s=round(lasted_s, 1))


class Patience:
    """Waits for the store on behalf of a user at a terminal, and reports each outage once.

    `tell` is given a sentence. `deadline` is an instant of the monotonic clock, None for no end.
    Owned by one thread.
    """

    def __init__(self, tell: Callable[[str], None], *, deadline: float | None = None) -> None:
        self._tell = tell
        self._deadline = deadline
        self._backoff = Backoff(longest_ms=2000)
        self._since: float | None = None

    def next_wait_s(self, error: StoreUnavailable) -> float | None:
        """Return the seconds to wait before the next try; None if the caller is to give up."""
        now = time.monotonic()
        if error.lasts or (self._deadline is not None and now >= self._deadline):
            return None
        if self._since is None:
            self._since = now
            self._tell(f"{error.message}; waiting for it")
        wait_s = self._backoff.next_ms() / 1000
        return wait_s if self._deadline is None else min(wait_s, self._deadline - now)

    def answered(self) -> None:
        """Note that the store has answered."""
        if self._since is None:
            return
        away_s, self._since = time.monotonic() - self._since, None
        self._backoff.reset()
        self._tell(f"the server is back after {away_s:.0f} s; continuing")


def _log() -> Any:
    # Imported on first use: structlog takes a command as long to load as everything else.
    import structlog

    return structlog.get_logger()
