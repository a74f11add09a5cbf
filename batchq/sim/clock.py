"""Virtual time: it stands still until somebody moves it, and ids that count instead of chance."""

from __future__ import annotations

from batchq.api.times import SECOND
from batchq.errors import InvariantBroken


def whole_second(instant_ms: int) -> int:
    """The first whole second at or after an instant: a world knows no smaller step."""
    return -(-instant_ms // SECOND) * SECOND


class VirtualClock:
    """A Clock that is moved by hand, and never backwards."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since the epoch of the described world."""
        return self._now_ms

    def jump_to(self, instant_ms: int) -> None:
        """Let it be `instant_ms`."""
        if instant_ms < self._now_ms:
            raise InvariantBroken(f"time cannot go back from {self._now_ms} to {instant_ms} ms")
        self._now_ms = instant_ms


class CountedIds:
    """An IdSource without chance: numbers, from `first` on, less those that are taken."""

    def __init__(self, first: int = 1, taken: frozenset[str] = frozenset()) -> None:
        self._next = first
        self._taken = taken

    def new_uid(self) -> str:
        """The next number as text."""
        while str(self._next) in self._taken:
            self._next += 1
        self._next += 1
        return str(self._next - 1)
