"""Fixtures that any test may ask for: a real server, and stores on it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
import redis

from batchq.store.redis import RedisStore
from tests.harness.server import Server

# A shell without job control ignores SIGINT for what it runs in the background, and so would every
# process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def running_server() -> Iterator[Server]:
    """One server for the whole run; tests ask for `server`, which is empty."""
    with Server() as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Server:
    """A real server with nothing in it."""
    client = redis.Redis(unix_socket_path=str(running_server.socket))
    client.flushall()
    client.close()
    return running_server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """A plain client of the server, to look at what stands in it."""
    client = redis.Redis(unix_socket_path=str(server.socket))
    yield client
    client.close()


@pytest.fixture
def open_redis(server: Server) -> Iterator[Callable[[], RedisStore]]:
    """Opens stores on one server, as several processes would."""
    stores: list[RedisStore] = []

    def opened() -> RedisStore:
        # A snapshot shows beats and leases at once, and not only once a second.
        stores.append(RedisStore(server.url, heartbeats_every_ms=0))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def redis_store(open_redis: Callable[[], RedisStore]) -> RedisStore:
    """A store on a real, empty server."""
    return open_redis()
