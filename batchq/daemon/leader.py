"""Who decides: of all schedulers on one store, the one that holds the leader's lease.

The lease runs out by itself, so a scheduler that dies is succeeded. Each change of leader raises
the *epoch*, which every decision carries: what a former leader still sends is refused by the
store, whatever that leader believes. Believing less is only a courtesy.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import structlog

from batchq.api.leases import count_of, generation_of
from batchq.daemon.services import ThreadService
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage

_log = structlog.get_logger()

#: How long a dead leader keeps its successor waiting.
LEASE_MS = 5000
#: Renewed so often that two renewals may be lost.
_RENEWALS_PER_LEASE = 3


class LeaseStore(Protocol):
    """The part of a store that keeps the leader's lease."""

    def lead(self, identity: str, lease_ms: int) -> int | None:
        """Take or renew the lease: the epoch, or None if another leads."""

    def resign(self, identity: str) -> None:
        """Give the lease up, if it is ours."""


def new_identity() -> str:
    """`host:pid:chance`: tells people which process it is, and restarts apart."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Leadership:
    """A service that takes the lease, renews it, and gives it up at `stop`.

    `fit` is asked before each renewal: a leader whose deciding thread hangs lets its lease run
    out. `elected` is called, from the service's thread, when this process begins to lead.
    `attend` is called from there after each request for the lease, whoever got it, and `depart`
    at the end: they tell the others that this process is there.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        outage: Outage,
        lease_ms: int = LEASE_MS,
        fit: Callable[[], bool] = lambda: True,
        elected: Callable[[], None] = lambda: None,
        attend: Callable[[], None] = lambda: None,
        depart: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = identity
        self._store = store
        self._outage = outage
        self._lease_ms = lease_ms
        self._fit = fit
        self._elected = elected
        self._attend = attend
        self._depart = depart
        # Written by the service's thread alone; one tuple, so that readers see both or neither.
        self._held: tuple[int, float] | None = None
        self._waiting = False
        # A server that is back shall not be asked by everybody at once.
        self._backoff = Backoff(longest_ms=max(1, lease_ms // _RENEWALS_PER_LEASE))
        self._thread = ThreadService("leadership", self._keep)

    @property
    def name(self) -> str:
        """For logs."""
        return self._thread.name

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.alive

    def start(self) -> None:
        """Begin to ask for the lease."""
        self._thread.start()

    def stop(self) -> None:
        """Resign, if leading, and end."""
        self._thread.stop()

    def epoch(self) -> int | None:
        """The epoch while this process leads, else None. Never later than the lease's end."""
        held = self._held
        return held[0] if held is not None and time.monotonic() < held[1] else None

    def _keep(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            if self._fit():
                self._ask()
            if self._held is not None and self.epoch() is None:
                self._lose()
            stopping.wait(self._pause_ms() / 1000)
        self._give_up()

    def _pause_ms(self) -> int:
        if self._outage.unavailable:
            return self._backoff.next_ms()
        return self._lease_ms // _RENEWALS_PER_LEASE

    def _ask(self) -> None:
        # The lease counts from before the call: a slow reply must not make it look longer.
        asked_at = time.monotonic()
        try:
            epoch = self._store.lead(self.identity, self._lease_ms)
        except StoreUnavailable as error:
            self._outage.failed(error)
            return
        self._outage.succeeded()
        self._backoff.reset()
        self._take_in(epoch, asked_at)
        # Only people look at it; if the server is away, the next request for the lease says so.
        with suppress(StoreUnavailable):
            self._attend()

    def _take_in(self, epoch: int | None, asked_at: float) -> None:
        if epoch is None:
            self._follow()
            return
        before = self._held
        self._held = (epoch, asked_at + self._lease_ms / 1000)
        self._waiting = False
        if before is None or before[0] != epoch:
            _log.info("leader.elected", identity=self.identity, **_told(epoch))
            self._elected()

    def _follow(self) -> None:
        if self._held is not None:
            self._lose()
        if not self._waiting:
            self._waiting = True
            _log.info("leader.waiting", identity=self.identity)

    def _lose(self) -> None:
        held, self._held = self._held, None
        _log.warning("leader.lost", identity=self.identity, **(_told(held[0]) if held else {}))

    def _give_up(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                self._store.resign(self.identity)
            except StoreUnavailable as error:
                # The lease runs out by itself.
                _log.warning("leader.not_resigned", error=error.message)
                return
            _log.info("leader.resigned", identity=self.identity, **_told(held[0]))
        # Whoever cannot say good-bye is forgotten within a minute.
        with suppress(StoreUnavailable):
            self._depart()


def _told(epoch: int) -> dict[str, int]:
    """An epoch as `batchq scheduler --status` counts it, and the server's start it belongs to."""
    return {"epoch": count_of(epoch), "generation": generation_of(epoch)}
