"""Homes in fresh folders, whose servers and processes end with the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.daemon import detached, embedded_server
from batchq.paths import Home
from tests.harness import fork_server


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let schedulers and agents be forked, which costs a fraction of a start."""
    monkeypatch.setattr(os, "posix_spawn", fork_server.spawn)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home that does not exist yet."""
    made = Home(tmp_path / "home")
    yield made
    for path in made.run.glob("*.json"):
        record = detached.read_record(path)
        if record is not None and path != embedded_server.record_path(made):
            detached.end(record, patience_s=60)
    embedded_server.stop_server(made)
