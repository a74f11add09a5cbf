"""Fixtures for all tests: a real server, and stores on it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
import redis

from batchq.store.redis import RedisStore
from tests.harness.server import Server

# A shell without job control ignores SIGINT for background processes, and the processes that a test
# starts and interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def running_server() -> Iterator[Server]:
    """Start one server for the whole run; tests use `server`, which is empty."""
    with Server() as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Server:
    """Return a real, empty server."""
    client = redis.Redis(unix_socket_path=str(running_server.socket))
    client.flushall()
    client.close()
    return running_server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """Return a plain client of the server, to inspect its keys."""
    client = redis.Redis(unix_socket_path=str(server.socket))
    yield client
    client.close()


@pytest.fixture
def open_redis(server: Server) -> Iterator[Callable[[], RedisStore]]:
    """Return a function that opens stores on one server, as several processes would."""
    stores: list[RedisStore] = []

    def opened() -> RedisStore:
        # Snapshots read heartbeats and leases each time, instead of once a second.
        stores.append(RedisStore(server.url, heartbeats_every_ms=0))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def redis_store(open_redis: Callable[[], RedisStore]) -> RedisStore:
    """Return a store on a real, empty server."""
    return open_redis()
