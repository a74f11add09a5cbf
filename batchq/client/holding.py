"""A claim on an external group as its holder has it: renewed by a thread, reported by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Protocol

from batchq.api.objects import PodGroup, key_of
from batchq.api.reasons import Leaving
from batchq.changes.claims import Renewed, Reported
from batchq.errors import Conflict, StoreUnavailable

#: How often a claim is renewed within its time to live.
_RENEWALS_A_TTL = 3
#: Between two tries while the server is away.
_RETRY_S = 0.5
#: How long the end of a renewal under way is waited for.
_PATIENCE_S = 30.0


class Registrar(Protocol):
    """Where claims are kept: `batchq.client.external.External`."""

    def renew(self, token: str) -> Renewed:
        """Hold a claim on, or hear why to stop."""

    def report(self, token: str, phase: Reported, *, pod: str = "", message: str = "") -> bool:
        """Say how far the group is."""


class Claim:
    """One group, held by this process; a context manager that renews it meanwhile.

    May be used from several threads. `group` is as it was when it was claimed.
    """

    def __init__(
        self, registrar: Registrar, group: PodGroup, token: str, *, lasts_until: float
    ) -> None:
        self.group = group
        self.token = token
        #: Set together with `stop_reason`, for whoever waits.
        self.stopping = threading.Event()
        self.stop_reason = ""
        self._registrar = registrar
        #: By this machine's monotonic clock, from before it was asked for: the server's is later.
        self._lasts_until = lasts_until
        self._quiet = threading.Event()
        self._ending = False
        self._ended = False
        self._renewals = threading.Thread(
            target=self._renew_on, name=f"renewals-{group.metadata.name}", daemon=False
        )

    @property
    def key(self) -> str:
        """`namespace/name` of the group."""
        return key_of(self.group)

    @property
    def grace_s(self) -> float:
        """How long the work may take to stop, once it was told to."""
        return self.group.status.claim.grace / 1000

    @property
    def alive(self) -> bool:
        """Whether it is renewed in the background."""
        return self._renewals.is_alive()

    def __enter__(self) -> Claim:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Whoever leaves without having reported an end has stopped working on it."""
        self.stop()
        if not self._ended and self.stop_reason != Leaving.CLAIM_LAPSED:
            # What is over, or cannot be given back now, lapses by itself.
            with suppress(Conflict, StoreUnavailable):
                self.release("left unfinished" if error is None else "the consumer failed")

    def start(self) -> None:
        """Renew in the background from now on. A second call, and one after `stop`, do nothing."""
        if not self._quiet.is_set() and self._renewals.ident is None:
            self._renewals.start()

    def stop(self) -> None:
        """End the renewals: the claim lapses unless its end is reported. Twice does nothing new."""
        self._quiet.set()
        if self._renewals.ident is not None and self._renewals is not threading.current_thread():
            self._renewals.join(_PATIENCE_S)

    def renew(self) -> str:
        """Renew by hand; the reason to stop, or nothing.

        Raises Conflict if the claim is over, StoreUnavailable.
        """
        asked_at = monotonic()
        renewed = self._registrar.renew(self.token)
        if renewed.stop_reason:
            if not self._ending:
                self._tell_to_stop(renewed.stop_reason)
        else:
            self._lasts_until = asked_at + self.group.status.claim.ttl / 1000
        return renewed.stop_reason

    def report(self, phase: Reported, *, pod: str = "", message: str = "") -> None:
        """Say how far the group, or one `pod` of it, is: running, succeeded, failed or evicted.

        While the server is away it is said again, for as long as the claim may last.
        Raises Conflict (the claim is over, or the work was told to stop), StoreUnavailable.
        """
        is_end = not pod and phase != "running"
        self._ending = is_end
        try:
            self._insist(
                lambda: self._registrar.report(self.token, phase, pod=pod, message=message)
            )
        except Conflict:
            self._ending = False
            raise
        if is_end:
            self._ended = True
            self._quiet.set()

    def release(self, message: str = "") -> None:
        """Give it back unfinished, once nothing of it runs any more; the same as `evicted`.

        Raises Conflict if the claim is over, StoreUnavailable.
        """
        self.report("evicted", message=message)

    # --- parts ------------------------------------------------------------------------------

    def _renew_on(self) -> None:
        """The body of the thread: ends when there is nothing to renew any more."""
        usual_s = self.group.status.claim.ttl / 1000 / _RENEWALS_A_TTL
        pause_s = usual_s
        while not self._quiet.wait(pause_s):
            try:
                if self.renew():
                    return
                pause_s = usual_s
            except Conflict:
                # Its end may have been reported a moment ago, by another thread.
                if not self._ending:
                    self._tell_to_stop(Leaving.CLAIM_LAPSED)
                return
            except StoreUnavailable:
                left_s = self._lasts_until - monotonic()
                if left_s <= 0:
                    self._tell_to_stop(Leaving.CLAIM_LAPSED)
                    return
                pause_s = min(_RETRY_S, left_s)

    def _tell_to_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or str(reason)
        self.stopping.set()

    def _insist(self, ask: Callable[[], object]) -> None:
        """Ask until there is an answer, or none would be of use any more."""
        while True:
            try:
                ask()
            except StoreUnavailable:
                # Who was told to stop may say that it has for as long as the grace lasts.
                grace_s = self.grace_s if self.stop_reason else 0.0
                if monotonic() >= self._lasts_until + grace_s:
                    raise
                threading.Event().wait(_RETRY_S)
            else:
                return
