"""From what a user says, or does not say, of the server to a store on it."""

from __future__ import annotations

from pathlib import Path

from batchq.errors import StoreUnavailable
from batchq.paths import default_url, find_home, resolve_url
from batchq.store.connect import open_store
from batchq.store.redis import RedisStore


def target_of(url: str | None) -> str:
    """The URL itself, else BATCHQ_REDIS_URL, else that of this machine's embedded server.

    Raises InvalidInput without a place for a home, StoreUnavailable if that server does not run.
    """
    home = find_home()
    target = resolve_url(url, home)
    if target == default_url(home) and not Path(home.socket).exists():
        raise StoreUnavailable(
            "no batchq server is running on this machine",
            hint="start one with `batchq up`, or name yours with --redis-url",
        )
    return target


def connect(url: str | None) -> RedisStore:
    """A store on the server.

    Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers or it will not
    do.
    """
    return open_store(target_of(url))
