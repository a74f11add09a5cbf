"""Real agents on a `stage`, and pools of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchq.api.node_features import Device
from batchq.store.redis import RedisStore
from batchq.worker.host.device_pool import DevicePool
from batchq.worker.host.gpu_tools import FoundDevices
from tests.worker.stage import Stage


@pytest.fixture
def stage(redis_store: RedisStore, tmp_path: Path) -> Iterator[Stage]:
    """A server on which tests start agents."""
    made = Stage(redis_store, tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_pool() -> Iterator[Callable[..., DevicePool]]:
    """Pools of agents of this machine, which release their devices after the test."""
    made: list[DevicePool] = []

    def make(devices: Sequence[Device] = (), *, trouble: str = "", **options: Any) -> DevicePool:
        found = FoundDevices(devices=tuple(devices), trouble=trouble)
        made.append(DevicePool(found, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
