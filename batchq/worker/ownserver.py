"""Whether the server of this machine is away: dead, or stopped by a signal.

A work-horse that cannot renew its lease must end its pod, since others may reach the server and
take the pod for lost. Not so where the server is a process of this very machine and can be seen
not to run: then nobody reaches it, no lease is judged, and the pods here may go on. When it is
back, the leader gives every lease its full length anew (`batchq.framework.contact`), and so does
the work-horse, counting from the last moment at which it saw the server away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil
from msgspec import Struct

from batchq.errors import StoreUnavailable
from batchq.worker.runfile import started_ms

_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class OwnServer(Struct, frozen=True):
    """A process; its start tells it from a later one with the same pid."""

    pid: int
    started_ms: int | None

    def is_away(self) -> bool:
        """Whether it serves nobody now."""
        if started_ms(self.pid) != self.started_ms:
            return True
        try:
            return psutil.Process(self.pid).status() in _STOPPED
        except psutil.NoSuchProcess:
            return True


class ServerWatch:
    """Which process is the server, found anew after each time it was lost.

    `heard` and `lost` are told by the thread that talks to the server, `is_away` is asked by any.
    """

    def __init__(self, find: Callable[[], int | None]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._server: OwnServer | None = None
        self._is_sure = False

    def heard(self) -> None:
        """The server has answered."""
        if self._is_sure:
            return
        try:
            pid = self._find()
        except StoreUnavailable:
            return
        with self._lock:
            self._server = None if pid is None else OwnServer(pid, started_ms(pid))
            self._is_sure = True

    def lost(self, *, refused: bool = False) -> None:
        """The server has not answered: the next to answer may be another process. If it has
        `refused` to, one is there, and serves others.
        """
        self._is_sure = False
        if refused:
            with self._lock:
                self._server = None

    def is_away(self) -> bool:
        """Whether the server that was heard last is known to serve nobody."""
        with self._lock:
            return self._server is not None and self._server.is_away()
