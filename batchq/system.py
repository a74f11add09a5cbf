"""This machine's clock. The simulator has its own, and a live store tells its server's time."""

from __future__ import annotations

import os
import random
import threading
import time

from batchq.ports import Clock


class SystemClock:
    """A `ports.Clock`."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
#: Two digits at a time: whoever submits many groups needs as many ids.
_PAIRS = tuple(one + other for one in _DIGITS for other in _DIGITS)
_HALF = 8
#: Eight digits of milliseconds last for 89 years; counted from 2024 that is until 2113.
_FIRST_MS = 1_704_067_200_000
_SPAN = 36**_HALF
#: Within one millisecond ids go up by random steps: in order, and not another process's.
_STEP_BITS = 24

#: Its seed is the system's: to be asked for each id costs more than all the rest of it. Uids are no
#: secrets, but must differ: nobody else's `random.seed` counts here, and a fork has its own.
_CHANCE = random.Random()
os.register_at_fork(after_in_child=_CHANCE.seed)


class RandomIds:
    """Eight characters of time, eight of chance. Ids of one source rise strictly.

    Safe to use from several threads.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._tick = 0
        self._head = _base36(0)
        self._tail = 0

    def new_uid(self) -> str:
        """A fresh uid."""
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
    """0000000000000001, 0000000000000002 …: the same in every run, for tests and simulations."""

    def __init__(self, *, first: int = 1) -> None:
        self._next = first

    def new_uid(self) -> str:
        """The next number."""
        number, self._next = self._next, self._next + 1
        return _base36(number, width=2 * _HALF)


def _base36(number: int, *, width: int = _HALF) -> str:
    pairs = []
    for _ in range(width // 2):
        number, pair = divmod(number, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    pairs.reverse()
    return "".join(pairs)
