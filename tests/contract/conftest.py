"""Every store under one contract: in memory, on fakeredis, on a real server."""

from __future__ import annotations

from collections.abc import Callable

import fakeredis
import pytest

from batchq.store.memory import MemoryStore
from batchq.store.redis import RedisStore

AnyStore = MemoryStore | RedisStore


def fake_store() -> RedisStore:
    """Return a store on a server implemented in Python."""
    return RedisStore("redis://fake", client=fakeredis.FakeRedis(), heartbeats_every_ms=0)


@pytest.fixture(params=["memory", "fakeredis", "real"])
def store(request: pytest.FixtureRequest) -> AnyStore:
    match request.param:
        case "memory":
            return MemoryStore()
        case "fakeredis":
            return fake_store()
        case _:
            real: RedisStore = request.getfixturevalue("redis_store")
            return real


@pytest.fixture
def next_epoch(store: AnyStore) -> Callable[[], int]:
    """Let another leader take over; return its epoch."""
    if isinstance(store, MemoryStore):
        return store.next_epoch
    leaders = iter(f"leader {place}" for place in range(100))

    def taken_over() -> int:
        epoch = store.lead(next(leaders), 0)
        assert epoch is not None
        return epoch

    return taken_over
