"""One contract for everything that runs beside the main thread: `start()` and `stop()`.

A service is made idle, started once, and stopped once; more calls of either do nothing. `stop`
returns when the service has ended (or its patience has), may be called from any thread, before
`start` too, and then the service never starts.
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

import structlog

_log = structlog.get_logger()

#: How long a stop waits for a thread before it says so and goes on, in seconds.
PATIENCE_S = 30.0


class Service(Protocol):
    """Something that runs until it is stopped."""

    @property
    def name(self) -> str:
        """For logs and threads."""

    def start(self) -> None:
        """Begin. A second call, and one after `stop`, do nothing."""

    def stop(self) -> None:
        """Ask to end and wait for it. A second call does nothing new."""

    @property
    def alive(self) -> bool:
        """Whether anything of it still runs."""


class ThreadService:
    """A service that is one thread running `body(stopping)` until the event is set.

    An exception that leaves `body` goes to `threading.excepthook`, where the process decides.
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
        """Set the event and join the thread, for as long as patience lasts."""
        with self._lock:
            self._stopping.set()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            _log.error("service.stuck", service=self.name, waited_s=self._patience_s)


class Services:
    """Several services as one: started in order, stopped in reverse."""

    def __init__(self, members: Sequence[Service], *, name: str = "services") -> None:
        self.name = name
        self._members = tuple(members)

    @property
    def alive(self) -> bool:
        """Whether any member still runs."""
        return any(member.alive for member in self._members)

    def start(self) -> None:
        """Start all; if one fails to, those before it are stopped and its error is raised."""
        started = False
        try:
            for member in self._members:
                member.start()
            started = True
        finally:
            if not started:
                self.stop()

    def stop(self) -> None:
        """Stop all, the last first."""
        for member in reversed(self._members):
            member.stop()


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


class Termination:
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
