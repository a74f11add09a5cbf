"""The command line in a test environment: `batchq(...)` runs a command against its server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from batchq.cli.main import main
from batchq.client import Client
from batchq.store.redis import RedisStore
from tests.client.stage import Stage, a_cluster
from tests.harness.server import Server
from tests.http.api_process import RunningApi


class Ran(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Batchq = Callable[..., Ran]


def run(*words: str, stdin: str | bytes = "", url: str | None = None) -> Ran:
    """Run one command; an error that is not the user's is raised."""
    before = [] if url is None else ["--redis-url", url]
    result = CliRunner().invoke(
        main, [*before, *words], input=stdin, catch_exceptions=False, prog_name="batchq"
    )
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unused home directory, without the variables of a surrounding pod."""
    for name in list(os.environ):
        if name.startswith("BATCHQ_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked `both_doors` on the Redis server and through the socket of the HTTP API."""
    is_marked = metafunc.definition.get_closest_marker("both_doors") is not None
    if is_marked and "batchq" in metafunc.fixturenames:
        metafunc.parametrize("door", ["redis", "api"], indirect=True)


@pytest.fixture
def door(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "redis"))


@pytest.fixture
def batchq(server: Server, door: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batchq]:
    def call(*words: str, stdin: str | bytes = "") -> Ran:
        return run(*words, stdin=stdin, url=server.url if door == "redis" else None)

    if door == "redis":
        yield call
        return
    with RunningApi(server.url) as api:
        monkeypatch.setenv("BATCHQ_SERVER", f"unix:{api.socket}")
        # Whatever needs the Redis server finds none.
        monkeypatch.setenv("BATCHQ_REDIS_URL", "unix:///nowhere/redis.sock")
        yield call


@pytest.fixture
def stage(server: Server, open_redis: Callable[[], RedisStore]) -> Iterator[Stage]:
    with Client(server.url) as client:
        stage = Stage(open_redis(), client)
        stage.furnish(*a_cluster())
        yield stage
