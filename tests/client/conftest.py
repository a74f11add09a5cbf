"""A test environment on a real server, with a cluster of eight cpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from batchq.client import Client
from batchq.store.redis import RedisStore
from tests.client.stage import Stage, a_cluster
from tests.harness.server import Server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def stage(client: Client, open_redis: Callable[[], RedisStore]) -> Stage:
    stage = Stage(open_redis(), client)
    stage.furnish(*a_cluster())
    return stage
