"""Signals as facts that a loop looks at: a handler counts and returns, nothing else.

A byte in a pipe wakes the loop that waits on `fileno()`.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType


class Signals:
    """Counts of the signals that came; one per process, owned by its loop."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._counts = dict.fromkeys(numbers, 0)
        self._former: dict[signal.Signals, signal._HANDLER] = {}
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> None:
        """Hear the signals from now on; in the main thread only."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in self._counts:
            self._former[number] = signal.signal(number, self._seen)

    def close(self) -> None:
        """Stop hearing; what heard them before `install` does so again."""
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(-1)
        os.close(self._read_end)
        os.close(self._write_end)

    def fileno(self) -> int:
        """Readable when something came since the last `clear`."""
        return self._read_end

    def clear(self) -> None:
        """Empty the pipe; the counts stay."""
        try:
            while os.read(self._read_end, 512):
                pass
        except BlockingIOError:
            return

    def count(self, number: signal.Signals) -> int:
        """How often `number` came."""
        return self._counts[number]

    def wait(self, within_s: float) -> None:
        """Return when a signal comes, or after `within_s`."""
        is_readable(self._read_end, within_ms=round(within_s * 1000))
        self.clear()

    def _seen(self, number: int, _frame: FrameType | None) -> None:
        self._counts[signal.Signals(number)] += 1


def is_readable(descriptor: int, *, within_ms: int) -> bool:
    """Whether there is something to read, now or within that time; for any descriptor number."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_ms))
