"""How a process learns that it is to end: by a signal, or because one of its threads says so; and
SIGHUP, which asks a daemon to read its files again.

The first word counts. A `threading.Event` would not do: its lock is not re-entrant, and a signal
handler that sets it while the main thread is inside `wait` can wait for itself. A byte in a pipe
has no lock.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

#: The process stops because of its own mistake (EX_SOFTWARE): its supervisor may start it anew.
OWN_MISTAKE = 70
_STDERR = 2


def on_hangup(act: Callable[[], object]) -> None:
    """Let SIGHUP do something else than end the process. Main thread only.

    `act` must bear to be called while it is being called. The loss of the terminal that the process
    was started on comes as SIGHUP, too, and ends it as ever.
    """
    had_terminal = os.isatty(_STDERR)

    def handle(number: int, frame: FrameType | None) -> None:
        if had_terminal and not os.isatty(_STDERR):
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGHUP)
            return
        act()

    signal.signal(signal.SIGHUP, handle)


class Ending:
    """The wish that this process ends, and its exit code. Used by any thread; waited for by one."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._codes: list[int] = []

    def ask(self, code: int) -> None:
        """Wish the process to end with this code, unless another was wished before."""
        self._codes.append(code)
        # A pipe that is full of wishes does not miss one more.
        with suppress(BlockingIOError):
            os.write(self._writer, b"x")

    @property
    def asked(self) -> bool:
        """Whether the process is to end."""
        return bool(self._codes)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code once the end is wished; None when the time is over before."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._codes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._reader], [], [], left)
            if ready:
                # What woke it is done with: a handler has run before the next look, and a word is
                # said before its byte is written.
                os.read(self._reader, select.PIPE_BUF)
            elif left is not None:
                return None
        return self._codes[0]

    def on_signals(self, *numbers: signal.Signals) -> None:
        """Let these signals wish the end, with exit code 0. Main thread only."""
        # Python's handlers run in the main thread, which sleeps on if a signal comes just before
        # its system call, or to another thread: so each signal writes a byte at once.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._handle)

    def close(self) -> None:
        """Give the pipe back. No signal may come any more. Main thread only."""
        if (other := signal.set_wakeup_fd(-1)) != self._writer:
            signal.set_wakeup_fd(other)
        os.close(self._reader)
        os.close(self._writer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.ask(0)
