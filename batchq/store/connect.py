"""From a URL to the store behind it."""

from __future__ import annotations

from collections.abc import Callable

from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import RedisStore


def open_store(url: str) -> RedisStore:
    """The store behind a URL, after a look at whether it will do.

    Raises InvalidInput for a malformed URL, StoreUnavailable for anything wrong with the server.
    """
    store = RedisStore(url)
    try:
        store.check_server()
    except StoreUnavailable:
        store.close()
        raise
    return store


def open_when_up(url: str, *, pause: Callable[[float], bool]) -> RedisStore | None:
    """As `open_store`, once the server answers and will do; told in the log, once.

    `pause` waits for so many seconds, and says whether to go on: if not, the answer is None.
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
