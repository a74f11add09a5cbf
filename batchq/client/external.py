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
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from batchq.api.objects import DEFAULT, PodGroup, key_of
from batchq.api.times import parse_duration
from batchq.api.transaction import Transaction
from batchq.changes import claims
from batchq.changes.claims import Renewed, Reported, read_token
from batchq.client.connecting import checked_seconds
from batchq.client.consuming import Consumer, Held, Line, Refused
from batchq.client.holding import Claim
from batchq.client.naming import key_named
from batchq.errors import Conflict, InvalidInput, NotFound
from batchq.ids import RandomIds
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
            heard.append(claims.renew(self._store, token, ttl_ms=ttl_ms, now_ms=now_ms))
            return heard[-1].transaction

        self._change(build)
        return heard[-1]

    def report(self, token: str, phase: Reported, *, pod: str = "", message: str = "") -> bool:
        """Say that the group, or a `pod` of it, is running, succeeded, failed or evicted. False
        if that has been said.

        Raises Conflict (the claim is over, the work was told to stop), InvalidInput.
        """

        def build(now_ms: int) -> Transaction | None:
            return claims.report(self._store, token, phase, pod=pod, message=message, now_ms=now_ms)

        return self._change(build)

    def release(self, token: str, *, message: str = "") -> bool:
        """Give a group back unfinished; another may claim it at once. False if it was already.

        Raises Conflict if the claim is over, InvalidInput.
        """
        return self._change(
            lambda now_ms: claims.release(self._store, token, message=message, now_ms=now_ms)
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
        made: list[claims.Claimed] = []
        asked_at = monotonic()

        def build(now_ms: int) -> Transaction:
            made.append(
                claims.claim(
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
