"""From what a user says, or does not say, of the server to a store on it, waited for or not."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

from batchq.api.times import describe_age
from batchq.errors import InvalidInput, StoreUnavailable, WaitTimedOut
from batchq.paths import default_url, find_home, resolve_url
from batchq.store.connect import open_store
from batchq.store.outage import Patience
from batchq.store.redis import RedisStore


def target_of(url: str | None) -> str:
    """The URL itself, else BATCHQ_REDIS_URL, else that of this machine's embedded server.

    Raises InvalidInput without a place for a home, StoreUnavailable if that server does not run.
    """
    home = find_home()
    target = resolve_url(url, home)
    if target == default_url(home):
        if not home.has_socket():
            raise StoreUnavailable(
                "no batchq server is running on this machine",
                hint="start one with `batchq up`, or name yours with --redis-url",
            )
        home.check_socket()
    return target


def connect(url: str | None) -> RedisStore:
    """A store on the server.

    Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers or it will not
    do.
    """
    return open_store(target_of(url))


def connect_patiently(
    url: str | None, tell: Callable[[str], None], patience_s: float | None
) -> tuple[RedisStore, float]:
    """As `connect`, once the server answers, and how many seconds it was away until then.

    Raises InvalidInput, StoreUnavailable if waiting does not help, WaitTimedOut.
    """
    started = monotonic()
    patience = patience_of(tell, patience_s)
    away_s = 0.0
    while True:
        try:
            store = connect(url)
        except StoreUnavailable as error:
            wait_s = patience.next_wait_s(error)
            if wait_s is None:
                if error.lasts:
                    raise
                raise _not_in_time(error, patience_s or 0.0) from error
            sleep(wait_s)
            away_s = monotonic() - started
        else:
            patience.answered()
            return store, away_s


def patience_of(tell: Callable[[str], None], timeout_s: float | None) -> Patience:
    """Patience that lasts `timeout_s` seconds from now, or for ever. Raises InvalidInput."""
    lasts_s = checked_seconds(timeout_s)
    return Patience(tell, deadline=None if lasts_s is None else monotonic() + lasts_s)


def checked_seconds(timeout_s: float | None) -> float | None:
    """The number itself. Raises InvalidInput for what is none: nobody has checked its type."""
    if timeout_s is None or isinstance(timeout_s, int | float):
        return timeout_s
    raise InvalidInput(
        f"timeout_s: expected a number of seconds or None, found {timeout_s!r}",
        hint="as in timeout_s=90",
    )


def _not_in_time(error: StoreUnavailable, patience_s: float) -> WaitTimedOut:
    after = describe_age(round(patience_s * 1000))
    return WaitTimedOut(f"nothing could be seen after {after}: {error.message}", hint=error.hint)
