"""Clocks, id sources and structlog.

The simulator has a clock of its own, and a live store its server's.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from batchq.ports import Clock

if TYPE_CHECKING:
    import structlog as structlog


class SystemClock:
    """A `ports.Clock`."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
#: Two digits at a time, because submitting many groups needs as many ids.
_PAIRS = tuple(one + other for one in _DIGITS for other in _DIGITS)
_HALF = 8
#: Eight base-36 digits of milliseconds since 2024 last until 2113.
_FIRST_MS = 1_704_067_200_000
_SPAN = 36**_HALF
#: Ids of one millisecond grow by random steps, so that they stay in order and unique.
_STEP_BITS = 24

#: Seeded by the system once: asking the system for each id costs more than the rest of it. Uids are
#: no secrets, but must differ, so this is independent of `random.seed` and reseeded after a fork.
_CHANCE = random.Random()
os.register_at_fork(after_in_child=_CHANCE.seed)


class RandomIds:
    """Ids of eight characters of time and eight random ones; those of one source rise strictly.

    Thread-safe.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._tick = 0
        self._head = _base36(0)
        self._tail = 0

    def new_uid(self) -> str:
        """Return a new uid."""
        now = max(0, self._clock.now_ms() - _FIRST_MS)
        with self._lock:
            if now > self._tick:
                self._set_tick(now)
            else:
                self._tail += 1 + _CHANCE.getrandbits(_STEP_BITS)
                if self._tail >= _SPAN:
                    self._set_tick(self._tick + 1)
            return self._head + _base36(self._tail)

    def _set_tick(self, tick: int) -> None:
        self._tick, self._head, self._tail = tick, _base36(tick), _CHANCE.randrange(_SPAN)


class CountingIds:
    """0000000000000001, 0000000000000002 …: reproducible ids for tests and simulations."""

    def __init__(self, *, first: int = 1) -> None:
        self._next = first

    def new_uid(self) -> str:
        """Return the next number."""
        number, self._next = self._next, self._next + 1
        return _base36(number, width=2 * _HALF)


def _base36(number: int, *, width: int = _HALF) -> str:
    pairs = []
    for _ in range(width // 2):
        number, pair = divmod(number, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    pairs.reverse()
    return "".join(pairs)


def __getattr__(name: str) -> Any:
    """Load structlog on first use, and without Rich.

    Structlog imports Rich, Pygments and attrs, which format its tracebacks on terminals. They take
    longer to load than structlog itself, and an agent and a scheduler need none of them.
    """
    if name != "structlog":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    is_loaded = "rich" in sys.modules
    if not is_loaded:
        # Python reports a module that is None here as not installed.
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        if not is_loaded:
            del sys.modules["rich"]
    return structlog
