"""External groups: those that a program of yours, a *consumer*, claims and runs.

    with Client() as client:
        while (claim := client.external.next(holder="render-1")) is not None:
            with claim:
                claim.report("running")
                ...                          # now and then: if claim.stop_reason: stop the work
                claim.report("succeeded")

Inside the `with`, a thread of its own renews the claim. `claim.stop_reason` is set, and the event
`claim.stopping` with it, when the work is to be stopped: somebody has suspended or cancelled the
group, its walltime has passed, or the claim could not be renewed in time. Whoever has been told to
stop stops within `claim.grace_s` and reports `evicted`; leaving the `with` does so where nothing
else was reported. docs/external.md says what a consumer owes.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from batchq.api.objects import DEFAULT, PodGroup, key_of
from batchq.api.reasons import Leaving
from batchq.api.times import parse_duration
from batchq.api.transaction import Transaction
from batchq.changes import consumer_leases
from batchq.changes.consumer_leases import Renewed, Reported, read_token
from batchq.client.connection import checked_seconds
from batchq.client.consumers import Consumer, Held, Line, Refused
from batchq.client.request_fields import key_named
from batchq.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from batchq.system import RandomIds

if TYPE_CHECKING:
    from batchq.client.checks import Checks
    from batchq.client.gates import Gates
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
#: A change that was missed costs no more than this.
_LOOK_EVERY_S = 5.0

#: Commits what is to be written at an instant; whether there was anything.
Change = Callable[[Callable[[int], Transaction | None]], bool]


class External:
    """Claiming external groups, over a client's connection."""

    def __init__(self, store: RedisStore, change: Change) -> None:
        self._store = store
        self._change = change
        self._line: Line | None = None

    def waiting(self, *, queue: str = "", namespace: str = "") -> Sequence[PodGroup]:
        """The groups that can be claimed now, in the order of the line: priority, then age."""
        return self._look(0, queue, namespace)

    def claim(
        self,
        group: str | None = None,
        *,
        holder: str,
        ttl: str | float = USUAL_TTL,
        queue: str = "",
        namespace: str = "",
    ) -> Claim:
        """Claim `group`, or the first that waits (in a queue, in a namespace).

        Raises NotFound (no such group, or none waits), Conflict (that one cannot be claimed).
        """
        if group is not None:
            return self._claim(key_named(group, namespace or DEFAULT), holder, _ms_of(ttl))
        claim = self._first(self.waiting(queue=queue, namespace=namespace), holder, ttl)
        if claim is None:
            raise NotFound(
                "no external group waits to be claimed",
                hint="submit one with `batchq submit --external`; `batchq jobs` says what waits",
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
        """Claim the first that waits, as soon as one does; None if none did within `timeout_s`."""
        lasts_s = checked_seconds(timeout_s)
        deadline = None if lasts_s is None else monotonic() + lasts_s
        wait_s = 0.0
        while True:
            claim = self._first(self._look(wait_s, queue, namespace), holder, ttl)
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
        """A consumer of many groups at once (of a queue, of a namespace), without a thread for
        each claim: it claims, reports and renews in batches. To be used by one thread, beside
        nothing else of this client. Raises InvalidInput.
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
        """Hold a claim for `ttl` from now (None: as long as before), or hear why to stop.

        Raises Conflict if the claim is over, InvalidInput.
        """
        heard: list[Renewed] = []

        def build(now_ms: int) -> Transaction | None:
            ttl_ms = None if ttl is None else _ms_of(ttl)
            heard.append(consumer_leases.renew(self._store, token, ttl_ms=ttl_ms, now_ms=now_ms))
            return heard[-1].transaction

        self._change(build)
        return heard[-1]

    def report(self, token: str, phase: Reported, *, pod: str = "", message: str = "") -> bool:
        """Say that the group, or a `pod` of it, is running, succeeded, failed or evicted. False
        if that has been said.

        Raises Conflict (the claim is over, the work was told to stop), InvalidInput.
        """

        def build(now_ms: int) -> Transaction | None:
            return consumer_leases.report(
                self._store, token, phase, pod=pod, message=message, now_ms=now_ms
            )

        return self._change(build)

    def release(self, token: str, *, message: str = "") -> bool:
        """Give a group back unfinished; another may claim it at once. False if it was already.

        Raises Conflict if the claim is over, InvalidInput.
        """
        return self._change(
            lambda now_ms: consumer_leases.release(
                self._store, token, message=message, now_ms=now_ms
            )
        )

    # --- parts ------------------------------------------------------------------------------

    def _look(self, wait_s: float, queue: str, namespace: str) -> list[PodGroup]:
        if self._line is None:
            self._line = Line(self._store)
        self._line.follow(wait_s)
        return self._line.first(queue=queue, namespace=namespace)

    def _first(self, groups: Sequence[PodGroup], holder: str, ttl: str | float) -> Claim | None:
        """The first of them that nobody else is faster to claim."""
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


class Controlling(ABC):
    """Part of `batchq.client.Client`, whose connection it uses."""

    _store: RedisStore
    _tell: Callable[[str], None]
    _component: str

    @cached_property
    def user(self) -> str:
        """The name under which what this client asks for is remembered: the server's user, or
        whoever runs the program and where, after the `component` that it says it is.
        """
        from batchq.client.connection import user_of

        return user_of(self._store, self._component)

    @cached_property
    def gates(self) -> Gates:
        """The scheduling gates, which people and controllers of yours open."""
        from batchq.client.gates import Gates

        return Gates(self._store, self._change, lambda: self.user)

    @cached_property
    def external(self) -> External:
        """The external groups, which a program of yours claims and runs."""

        return External(self._store, self._change)

    @cached_property
    def checks(self) -> Checks:
        """The admission checks, which controllers of yours keep active and answer."""
        from batchq.client.checks import Checks

        return Checks(self._store, self._change, self._tell)

    @abstractmethod
    def _change(self, build: Callable[[int], Transaction | None]) -> bool:
        """Ask for a change, anew if somebody else was faster; whether anything changed."""
