"""The `stage` fixture for tests with real agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.store.redis import RedisStore
from tests.worker.stage import Stage


@pytest.fixture
def stage(redis_store: RedisStore, tmp_path: Path) -> Iterator[Stage]:
    """A server on which tests start agents."""
    made = Stage(redis_store, tmp_path)
    yield made
    made.close()
