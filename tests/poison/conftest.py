"""Mark tests that start processes, as in tests/e2e."""

from __future__ import annotations

from pathlib import Path

import pytest

_LIVE = [
    Path(__file__).parent / name for name in ("test_every_key.py", "test_floods.py", "test_live.py")
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path in _LIVE:
            item.add_marker(pytest.mark.e2e)
