"""Tests of how long runs of seeds tell their progress, and end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import progress
from tests.progress import Progress


def seeds(*, interrupted_after: int) -> Iterator[int]:
    yield from range(interrupted_after)
    raise KeyboardInterrupt


def test_an_interrupted_run_tells_how_much_it_has_shown() -> None:
    told: list[str] = []
    run = Progress(10, told.append)
    assert list(run.through(seeds(interrupted_after=3))) == [0, 1, 2]
    assert told == ["interrupted after 3 of 10"]
    assert (run.count, run.exit_code(0), run.exit_code(1)) == (3, 130, 1)


def test_a_long_run_tells_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TOLD_EVERY_S", 0.0)
    told: list[str] = []
    run = Progress(2, told.append)
    assert list(run.through("ab")) == ["a", "b"]
    assert told == ["1 of 2", "2 of 2"]
    assert run.exit_code(0) == 0
