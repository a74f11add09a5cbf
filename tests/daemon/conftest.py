"""Homes in fresh folders, whose servers and processes are ended with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.daemon.local_stack import processes, server
from batchq.paths import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home that does not exist yet."""
    made = Home(tmp_path / "home")
    yield made
    for path in made.run.glob("*.json"):
        record = processes.read_record(path)
        if record is not None and path != server.record_path(made):
            processes.end(record, patience_s=10)
    server.stop_server(made)
