"""Long runs of seeds: they tell their progress, and can be interrupted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

TOLD_EVERY_S = 60.0
INTERRUPTED = 130


class Progress:
    """Counts results as they come, and tells their number once a minute."""

    def __init__(self, total: int, tell: Callable[[str], None]) -> None:
        self._total = total
        self._tell = tell
        self.count = 0
        self.is_interrupted = False

    def through(self, results: Iterable[T]) -> Iterator[T]:
        """Yield the results, up to the first Ctrl-C."""
        tell_at = time.monotonic() + TOLD_EVERY_S
        try:
            for result in results:
                self.count += 1
                yield result
                if time.monotonic() >= tell_at:
                    self._tell(f"{self.count} of {self._total}")
                    tell_at = time.monotonic() + TOLD_EVERY_S
        except KeyboardInterrupt:
            self.is_interrupted = True
            self._tell(f"interrupted after {self.count} of {self._total}")

    def exit_code(self, failed: int) -> int:
        """Return 1 if any has failed, else 130 after Ctrl-C, else 0."""
        return 1 if failed else INTERRUPTED if self.is_interrupted else 0


def leave_to_parent() -> None:
    """Ignore Ctrl-C in a process of a pool, which its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
