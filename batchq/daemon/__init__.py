"""The scheduler daemon. Here: the contract of everything that runs beside its main thread,
`start()` and `stop()`.

A service is created idle, started once, and stopped once; further calls of either do nothing.
`stop` returns when the service has ended, or its patience is over. Any thread may call it, also
before `start`, and then the service never starts.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Protocol

from batchq.system import structlog

_log = structlog.get_logger()

#: How long `stop` waits for a thread before it logs an error and continues, in seconds.
PATIENCE_S = 30.0


class Service(Protocol):
    """Something that runs until it is stopped."""

    @property
    def name(self) -> str:
        """For logs and threads."""

    def start(self) -> None:
        """Start. A second call, and one after `stop`, do nothing."""

    def stop(self) -> None:
        """Ask the service to end and wait for it. A second call does nothing new."""

    @property
    def alive(self) -> bool:
        """Whether any part of the service still runs."""


class ThreadService:
    """A service that is one thread running `body(stopping)` until the event is set.

    An exception that leaves `body` goes to `threading.excepthook`, which decides for the process.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[threading.Event], None],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.name = name
        self._stopping = threading.Event()
        # Guards the choice to start; never held while waiting.
        self._lock = threading.Lock()
        self._patience_s = patience_s
        self._thread = threading.Thread(
            target=body, args=(self._stopping,), name=name, daemon=False
        )

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, once."""
        with self._lock:
            if not self._stopping.is_set() and self._thread.ident is None:
                self._thread.start()

    def stop(self) -> None:
        """Set the event and join the thread, up to the patience."""
        with self._lock:
            self._stopping.set()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            _log.error("service.stuck", service=self.name, waited_s=self._patience_s)


class Services:
    """Several services as one, started in order and stopped in reverse."""

    def __init__(self, members: Sequence[Service], *, name: str = "services") -> None:
        self.name = name
        self._members = tuple(members)

    @property
    def alive(self) -> bool:
        """Whether any member still runs."""
        return any(member.alive for member in self._members)

    def start(self) -> None:
        """Start all; if one fails, stop those before it and raise its error."""
        started = False
        try:
            for member in self._members:
                member.start()
            started = True
        finally:
            if not started:
                self.stop()

    def stop(self) -> None:
        """Stop all, in reverse order."""
        for member in reversed(self._members):
            member.stop()


#: Exit code of an internal error (EX_SOFTWARE): a supervisor may restart the process.
OWN_MISTAKE = 70
_STDERR = 2


def on_hangup(act: Callable[[], object]) -> None:
    """Call `act` on SIGHUP instead of ending the process. Main thread only.

    `act` must be reentrant. If SIGHUP comes because the process has lost the terminal that it was
    started on, it ends the process as usual.
    """
    had_terminal = os.isatty(_STDERR)

    def handle(number: int, frame: FrameType | None) -> None:
        if had_terminal and not os.isatty(_STDERR):
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGHUP)
            return
        act()

    signal.signal(signal.SIGHUP, handle)


class Termination:
    """A request to end this process, with its exit code. Any thread may ask; one waits."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._codes: list[int] = []

    def ask(self, code: int) -> None:
        """Request the end with this code, unless another code was requested before."""
        self._codes.append(code)
        # A full pipe wakes the waiting thread as well.
        with suppress(BlockingIOError):
            os.write(self._writer, b"x")

    @property
    def asked(self) -> bool:
        """Whether the end has been requested."""
        return bool(self._codes)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit code once the end is requested; None if the timeout passes first."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._codes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._reader], [], [], left)
            if ready:
                # Safe to drain: the code is appended before the byte is written, and a signal's
                # handler has run by the next look.
                os.read(self._reader, select.PIPE_BUF)
            elif left is not None:
                return None
        return self._codes[0]

    def on_signals(self, *numbers: signal.Signals) -> None:
        """Let these signals request the end, with exit code 0. Main thread only."""
        # Python runs handlers in the main thread, which stays asleep if a signal arrives just
        # before its system call, or in another thread. The wake-up fd gets a byte at once.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._handle)

    def close(self) -> None:
        """Close the pipe. No signal may arrive after that. Main thread only."""
        if (other := signal.set_wakeup_fd(-1)) != self._writer:
            signal.set_wakeup_fd(other)
        os.close(self._reader)
        os.close(self._writer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.ask(0)
