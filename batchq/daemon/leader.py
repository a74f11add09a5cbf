"""Leader election: of all schedulers on one store, the holder of the leader lease decides.

The lease expires, so a dead leader is succeeded. Each change of leader raises the *epoch*, the
fencing token that every decision carries: the store refuses what a former leader still sends,
whatever that leader believes. The local check of the lease only saves such refusals.
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

from batchq.api.transaction import count_of, generation_of
from batchq.daemon.services import ThreadService
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage
from batchq.system import structlog

_log = structlog.get_logger()

#: How long a successor waits for a dead leader's lease to expire.
LEASE_MS = 5000
#: With three renewals per lease, two may be lost.
_RENEWALS_PER_LEASE = 3


class LeaseStore(Protocol):
    """The part of a store that keeps the leader's lease."""

    def lead(self, identity: str, lease_ms: int) -> int | None:
        """Take or renew the lease; return the epoch, or None if another process leads."""

    def resign(self, identity: str) -> None:
        """Give up the lease if `identity` holds it."""


def new_identity() -> str:
    """Return `host:pid:random`, which identifies the process and differs after a restart."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Leadership:
    """A service that takes the lease, renews it, and resigns at `stop`.

    `fit` is called before each renewal: a leader whose session thread hangs lets its lease expire.
    `elected` is called from the service's thread when this process begins to lead. `attend` is
    called from there after each request for the lease, successful or not, and `depart` at the end:
    they announce this process to the others.
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
        # Written only by the service's thread; one tuple, so that readers see both values or none.
        self._held: tuple[int, float] | None = None
        self._waiting = False
        # Backs off with jitter, so that a server that is back is not asked by all at once.
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
        """Return the epoch while this process leads, else None; None from the lease's end on."""
        held = self._held
        return held[0] if held is not None and time.monotonic() < held[1] else None

    def _keep(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            if self._fit():
                self._ask()
            if self._held is not None and self.epoch() is None:
                self._lose()
            stopping.wait(self._pause_ms() / 1000)
        self._resign()

    def _pause_ms(self) -> int:
        if self._outage.unavailable:
            return self._backoff.next_ms()
        return self._lease_ms // _RENEWALS_PER_LEASE

    def _ask(self) -> None:
        # The lease counts from before the call, so that a slow reply does not seem to extend it.
        asked_at = time.monotonic()
        try:
            epoch = self._store.lead(self.identity, self._lease_ms)
        except StoreUnavailable as error:
            self._outage.failed(error)
            return
        self._outage.succeeded()
        self._backoff.reset()
        self._apply(epoch, asked_at)
        # The announcement only informs people; an outage shows in the next request for the lease.
        with suppress(StoreUnavailable):
            self._attend()

    def _apply(self, epoch: int | None, asked_at: float) -> None:
        if epoch is None:
            self._stand_by()
            return
        before = self._held
        self._held = (epoch, asked_at + self._lease_ms / 1000)
        self._waiting = False
        if before is None or before[0] != epoch:
            _log.info("leader.elected", identity=self.identity, **_epoch_fields(epoch))
            self._elected()

    def _stand_by(self) -> None:
        if self._held is not None:
            self._lose()
        if not self._waiting:
            self._waiting = True
            _log.info("leader.waiting", identity=self.identity)

    def _lose(self) -> None:
        held, self._held = self._held, None
        _log.warning(
            "leader.lost", identity=self.identity, **(_epoch_fields(held[0]) if held else {})
        )

    def _resign(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                self._store.resign(self.identity)
            except StoreUnavailable as error:
                # The lease expires without it.
                _log.warning("leader.not_resigned", error=error.message)
                return
            _log.info("leader.resigned", identity=self.identity, **_epoch_fields(held[0]))
        # A process that cannot announce its end is forgotten within a minute.
        with suppress(StoreUnavailable):
            self._depart()


def _epoch_fields(epoch: int) -> dict[str, int]:
    """Return an epoch's log fields: its count, as `batchq scheduler --status` shows, and its
    generation, the server's start that it belongs to.
    """
    return {"epoch": count_of(epoch), "generation": generation_of(epoch)}
