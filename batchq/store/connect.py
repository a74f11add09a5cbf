"""From a URL to what stands behind it: a store for us, a connection for RQ."""

from __future__ import annotations

from collections.abc import Callable

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from batchq.errors import StoreUnavailable
from batchq.store.link import ANSWER_TIMEOUT_S, FIRST_DELAY_S, new_client
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


def rq_connection(url: str) -> redis.Redis:
    """A connection for RQ alone: it repeats on its own, since RQ would give up and lose a result.

    What RQ then does twice is harmless: an attempt is claimed by one work-horse only.
    """
    retry = Retry(ExponentialWithJitterBackoff(base=FIRST_DELAY_S, cap=2.0), 60)
    return new_client(url, retry=retry, socket_timeout=ANSWER_TIMEOUT_S)
