"""One contract for everything that runs beside the main thread: `start()` and `stop()`.

A service is made idle, started once, and stopped once; more calls of either do nothing. `stop`
returns when the service has ended (or its patience has), may be called from any thread, before
`start` too, and then the service never starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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
