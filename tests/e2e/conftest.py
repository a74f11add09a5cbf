"""Machines for tests, whose processes end with them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import STEADY, Machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here as e2e, because all start processes."""
    # Every worker collects thousands of tests, and paths are slow to compare.
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.e2e)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of a test's machines if it fails: those of a fixture do not see the failure."""
    report = yield
    if report.failed and call.when == "call":
        for name, made in getattr(item, "funcargs", {}).items():
            if isinstance(made, Machine):
                report.sections.append((f"Logs of {name}", made.story()))
    return report


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine on which nothing runs yet."""
    with Machine() as made:
        yield made


@pytest.fixture(scope="module")
def stack() -> Iterator[Machine]:
    """A machine with a stack and two agents, for all tests of a module."""
    with Machine() as made:
        made.up(agents=2, config=made.file("steady.yaml", STEADY))
        yield made
