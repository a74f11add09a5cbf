"""Opening the store behind a URL."""

from __future__ import annotations

from collections.abc import Callable

from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import RedisStore


def open_store(url: str) -> RedisStore:
    """Return the store behind a URL, after checking that the server is usable.

    Raises InvalidInput for a malformed URL, StoreUnavailable for any problem with the server.
    """
    store = RedisStore(url)
    try:
        store.check_server()
    except StoreUnavailable:
        store.close()
        raise
    return store


def open_when_up(url: str, *, pause: Callable[[float], bool]) -> RedisStore | None:
    """Open the store as `open_store` does, waiting until the server answers and is usable; log the
    wait once.

    `pause` waits for the given seconds and returns whether to go on; if not, the result is None.
    Raises InvalidInput for a malformed URL.
    """
    outage, backoff = Outage(), Backoff()
    while True:
        try:
            store = open_store(url)
        except StoreUnavailable as error:
            outage.failed(error)
            if not pause(backoff.next_ms() / 1000):
                return None
        else:
            outage.succeeded()
            return store
