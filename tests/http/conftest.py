"""An API over a test environment with a cluster of eight cpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from batchq.client import Client
from batchq.client.access_control import Delegate
from batchq.store.redis import RedisStore
from tests.client.stage import Stage, a_cluster
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi

SubmitAs: TypeAlias = Callable[[str, dict[str, Any]], None]


@pytest.fixture
def stage(server: Server, open_redis: Callable[[], RedisStore]) -> Iterator[Stage]:
    with Client(server.url) as client:
        stage = Stage(open_redis(), client)
        stage.furnish(*a_cluster())
        yield stage


@pytest.fixture
def submit_as(server: Server, stage: Stage) -> Iterator[SubmitAs]:
    """Submit a manifest under a user's name."""
    with Delegate(server.url) as delegate:

        def submit(user: str, manifest: dict[str, Any]) -> None:
            delegate.client_of(user).submit(manifest)

        yield submit


@pytest.fixture
def running_api(server: Server, stage: Stage) -> Iterator[RunningApi]:
    with RunningApi(server.url) as api:
        yield api


@pytest.fixture
def api(running_api: RunningApi) -> Caller:
    """The account that runs the API, through the socket."""
    return running_api.caller()
