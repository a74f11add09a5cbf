"""External groups, which a program of yours, a *consumer*, claims and runs.

    with Client() as client:
        while (claim := client.external.next(holder="render-1")) is not None:
            with claim:
                claim.report("running")
                ...                          # now and then: if claim.stop_reason: stop the work
                claim.report("succeeded")

Inside the `with`, a background thread renews the claim. If the work must stop, the thread sets
`claim.stop_reason` and the event `claim.stopping`: the group was suspended or cancelled, its
walltime has passed, or the claim could not be renewed in time. The consumer then stops the work
within `claim.grace_s` and reports `evicted`; leaving the `with` without another report does this.
docs/external.md describes the duties of a consumer.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from batchq.api.objects import DEFAULT, PodGroup, key_of
from batchq.api.reasons import Leaving
from batchq.api.times import parse_duration
from batchq.api.transaction import Transaction
from batchq.client.changes import consumer_leases
from batchq.client.changes.consumer_leases import Renewed, Reported, read_token
from batchq.client.connection import checked_seconds
from batchq.client.consumers import ClaimableGroups, Consumer, Held, Refused
from batchq.client.request_fields import key_named
from batchq.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from batchq.system import RandomIds

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore


__all__ = [
    "Claim",
    "Consumer",
    "External",
    "Held",
    "Refused",
    "Renewed",
    "Reported",
    "read_token",
]

USUAL_TTL = "60s"
#: Bounds the delay after a missed change.
_LOOK_EVERY_S = 5.0

#: Commits what the function returns for the current time; returns whether anything was written.
Change = Callable[[Callable[[int], Transaction | None]], bool]


class External:
    """Claims external groups over a client's connection."""

    def __init__(self, store: RedisStore, change: Change) -> None:
        self._store = store
        self._change = change
        self._groups: ClaimableGroups | None = None

    def waiting(self, *, queue: str = "", namespace: str = "") -> Sequence[PodGroup]:
        """Return the groups that can be claimed now, ordered by priority, then by age."""
        return self._claimable(0, queue, namespace)

    def claim(
        self,
        group: str | None = None,
        *,
        holder: str,
        ttl: str | float = USUAL_TTL,
        queue: str = "",
        namespace: str = "",
    ) -> Claim:
        """Claim `group`, or the first claimable group (of a queue, of a namespace).

        Raises NotFound (no such group, or none can be claimed), Conflict (it cannot be claimed).
        """
        if group is not None:
            return self._claim(key_named(group, namespace or DEFAULT), holder, _ms_of(ttl))
        claim = self._claim_first(self.waiting(queue=queue, namespace=namespace), holder, ttl)
        if claim is None:
            raise NotFound(
                "no external group can be claimed",
                hint="submit one with `batchq submit --external`; `batchq jobs` lists the groups",
            )
        return claim

    def next(
        self,
        *,
        holder: str,
        ttl: str | float = USUAL_TTL,
        queue: str = "",
        namespace: str = "",
        timeout_s: float | None = None,
    ) -> Claim | None:
        """Claim the first claimable group, waiting for one; None if none came in `timeout_s`."""
        lasts_s = checked_seconds(timeout_s)
        deadline = None if lasts_s is None else monotonic() + lasts_s
        wait_s = 0.0
        while True:
            claim = self._claim_first(self._claimable(wait_s, queue, namespace), holder, ttl)
            left_s = _LOOK_EVERY_S if deadline is None else deadline - monotonic()
            if claim is not None or left_s <= 0:
                return claim
            wait_s = min(_LOOK_EVERY_S, left_s)

    def consumer(
        self,
        *,
        holder: str,
        ttl: str | float = USUAL_TTL,
        queue: str = "",
        namespace: str = "",
    ) -> Consumer:
        """Return a consumer of many groups (of a queue, of a namespace), without a thread per
        claim: it claims, reports and renews in batches.

        It belongs to one thread, which must not use this client for anything else meanwhile.
        Raises InvalidInput.
        """
        return Consumer(
            self._store,
            RandomIds().new_uid,
            holder=holder,
            ttl_ms=_ms_of(ttl),
            queue=queue,
            namespace=namespace,
        )

    def renew(self, token: str, ttl: str | float | None = None) -> Renewed:
        """Renew a claim for `ttl` from now (None: as before), or learn why its work must stop.

        Raises Conflict if the claim is over, InvalidInput.
        """
        renewals: list[Renewed] = []

        def build(now_ms: int) -> Transaction | None:
            ttl_ms = None if ttl is None else _ms_of(ttl)
            renewals.append(consumer_leases.renew(self._store, token, ttl_ms=ttl_ms, now_ms=now_ms))
            return renewals[-1].transaction

        self._change(build)
        return renewals[-1]

    def report(self, token: str, phase: Reported, *, pod: str = "", message: str = "") -> bool:
        """Report that the group, or one `pod`, is running, succeeded, failed or evicted.

        Return False if this was reported before.
        Raises Conflict (the claim is over, or the work must stop), InvalidInput.
        """

        def build(now_ms: int) -> Transaction | None:
            return consumer_leases.report(
                self._store, token, phase, pod=pod, message=message, now_ms=now_ms
            )

        return self._change(build)

    def release(self, token: str, *, message: str = "") -> bool:
        """Return a group unfinished, so that it can be claimed at once. False if it was already.

        Raises Conflict if the claim is over, InvalidInput.
        """
        return self._change(
            lambda now_ms: consumer_leases.release(
                self._store, token, message=message, now_ms=now_ms
            )
        )

    # --- parts ------------------------------------------------------------------------------

    def _claimable(self, wait_s: float, queue: str, namespace: str) -> list[PodGroup]:
        if self._groups is None:
            self._groups = ClaimableGroups(self._store)
        self._groups.follow(wait_s)
        return self._groups.first(queue=queue, namespace=namespace)

    def _claim_first(
        self, groups: Sequence[PodGroup], holder: str, ttl: str | float
    ) -> Claim | None:
        """Claim the first of the groups that no other consumer claims at the same time."""
        for group in groups:
            with suppress(Conflict, NotFound):
                return self._claim(key_of(group), holder, _ms_of(ttl))
        return None

    def _claim(self, key: str, holder: str, ttl_ms: int) -> Claim:
        secret = secrets.token_hex(16)
        made: list[consumer_leases.LeaseTaken] = []
        asked_at = monotonic()

        def build(now_ms: int) -> Transaction:
            made.append(
                consumer_leases.claim(
                    self._store, key, holder=holder, ttl_ms=ttl_ms, secret=secret, now_ms=now_ms
                )
            )
            return made[-1].transaction

        self._change(build)
        claimed = made[-1]
        return Claim(self, claimed.group, claimed.token, lasts_until=asked_at + ttl_ms / 1000)


def _ms_of(written: str | float) -> int:
    try:
        return parse_duration(written)
    except ValueError as error:
        raise InvalidInput(f"ttl: {error}") from None


#: How often a claim is renewed within its time to live.
_RENEWALS_A_TTL = 3
#: The pause between two tries while the server is away.
_RETRY_S = 0.5
#: How long `stop` waits for a renewal under way.
_PATIENCE_S = 30.0


class Registrar(Protocol):
    """What a claim needs of `batchq.client.external.External`."""

    def renew(self, token: str) -> Renewed:
        """Renew a claim, or learn why its work must stop."""

    def report(self, token: str, phase: Reported, *, pod: str = "", message: str = "") -> bool:
        """Report the phase of the group."""


class Claim:
    """A group held by this process; a context manager that renews the claim in a thread.

    Several threads may use it. `group` is the group as it was when it was claimed.
    """

    def __init__(
        self, registrar: Registrar, group: PodGroup, token: str, *, lasts_until: float
    ) -> None:
        self.group = group
        self.token = token
        #: Set together with `stop_reason`, for threads that wait.
        self.stopping = threading.Event()
        self.stop_reason = ""
        self._registrar = registrar
        #: By this machine's monotonic clock, counted from before the request, so never too late.
        self._lasts_until = lasts_until
        self._stopped = threading.Event()
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
        """How long the work may take to stop."""
        return self.group.status.claim.grace / 1000

    @property
    def alive(self) -> bool:
        """Whether the claim is renewed in the background."""
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
        """Stop renewing; report `evicted` if no end was reported, because the work has stopped."""
        self.stop()
        if not self._ended and self.stop_reason != Leaving.CLAIM_LAPSED:
            # A claim that is over or cannot be released now expires.
            with suppress(Conflict, StoreUnavailable):
                self.release("left unfinished" if error is None else "the consumer failed")

    def start(self) -> None:
        """Start renewing in the background. Does nothing when called again or after `stop`."""
        if not self._stopped.is_set() and self._renewals.ident is None:
            self._renewals.start()

    def stop(self) -> None:
        """Stop renewing; the claim expires unless its end is reported. May be called twice."""
        self._stopped.set()
        if self._renewals.ident is not None and self._renewals is not threading.current_thread():
            self._renewals.join(_PATIENCE_S)

    def renew(self) -> str:
        """Renew once; return the reason to stop, or "".

        Raises Conflict if the claim is over, StoreUnavailable.
        """
        asked_at = monotonic()
        renewed = self._registrar.renew(self.token)
        if renewed.stop_reason:
            if not self._ending:
                self._mark_stopping(renewed.stop_reason)
        else:
            self._lasts_until = asked_at + self.group.status.claim.ttl / 1000
        return renewed.stop_reason

    def report(self, phase: Reported, *, pod: str = "", message: str = "") -> None:
        """Report that the group, or one `pod`, is running, succeeded, failed or evicted.

        While the server is away, the report is repeated for as long as the claim may last.
        Raises Conflict (the claim is over, or the work must stop), StoreUnavailable.
        """
        is_end = not pod and phase != "running"
        self._ending = is_end
        try:
            self._retry(lambda: self._registrar.report(self.token, phase, pod=pod, message=message))
        except Conflict:
            self._ending = False
            raise
        if is_end:
            self._ended = True
            self._stopped.set()

    def release(self, message: str = "") -> None:
        """Return the group unfinished, after all its processes have stopped; same as `evicted`.

        Raises Conflict if the claim is over, StoreUnavailable.
        """
        self.report("evicted", message=message)

    # --- parts ------------------------------------------------------------------------------

    def _renew_on(self) -> None:
        """Renew until the claim has ended; the body of the thread."""
        usual_s = self.group.status.claim.ttl / 1000 / _RENEWALS_A_TTL
        pause_s = usual_s
        while not self._stopped.wait(pause_s):
            try:
                if self.renew():
                    return
                pause_s = usual_s
            except Conflict:
                # Another thread may have reported its end a moment ago.
                if not self._ending:
                    self._mark_stopping(Leaving.CLAIM_LAPSED)
                return
            except StoreUnavailable:
                left_s = self._lasts_until - monotonic()
                if left_s <= 0:
                    self._mark_stopping(Leaving.CLAIM_LAPSED)
                    return
                pause_s = min(_RETRY_S, left_s)

    def _mark_stopping(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or str(reason)
        self.stopping.set()

    def _retry(self, ask: Callable[[], object]) -> None:
        """Repeat a call while the server is away and its answer would still be of use."""
        while True:
            try:
                ask()
            except StoreUnavailable:
                # A consumer that must stop may report it until the grace period is over.
                grace_s = self.grace_s if self.stop_reason else 0.0
                if monotonic() >= self._lasts_until + grace_s:
                    raise
                threading.Event().wait(_RETRY_S)
            else:
                return
