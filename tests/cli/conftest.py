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
    result = CliRunner().invoke(main, [*before, *words], input=stdin, catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unused home directory, without the variables of a surrounding pod."""
    for name in list(os.environ):
        if name.startswith("BATCHQ_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def batchq(server: Server) -> Batchq:
    def call(*words: str, stdin: str | bytes = "") -> Ran:
        return run(*words, stdin=stdin, url=server.url)

    return call


@pytest.fixture
def stage(server: Server, open_redis: Callable[[], RedisStore]) -> Iterator[Stage]:
    with Client(server.url) as client:
        stage = Stage(open_redis(), client)
        stage.furnish(*a_cluster())
        yield stage
