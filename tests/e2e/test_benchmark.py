"""Tests of the end-to-end benchmark: it runs what it reports."""

from __future__ import annotations

import pytest

from benchmarks import endtoend

pytestmark = pytest.mark.e2e


# `make bench` runs it, too.
@pytest.mark.slow
def test_endtoend_drains_the_same_number_of_pods_and_of_rq_jobs() -> None:
    rows = endtoend.compare(pods=6, slots=2, runs=1)
    assert [row[:2] for row in rows] == [
        [2, "batchq, function"],
        [2, "batchq, command"],
        [2, "rq"],
    ]
    figures = [dict(zip(endtoend.TITLES, row, strict=True)) for row in rows]
    assert all(row["jobs/s"] > 0 and row["CPU ms/job"] > 0 for row in figures)  # type: ignore[operator]
    assert (figures[2]["jobs/s / rq's"], figures[2]["CPU ms/job added"]) == (1.0, 0.0)


def test_an_array_drains_as_many_tasks_as_hyperqueue_does() -> None:
    pytest.importorskip("hyperqueue")
    rows = endtoend.compare_array(tasks=6, slots=2, runs=1)
    assert [row[:2] for row in rows] == [[2, "batchq, array"], [2, "HyperQueue"]]
    assert all(row[2] > 0 for row in rows)  # type: ignore[operator]
    assert rows[1][3] == 1.0


def test_an_absent_hyperqueue_is_named_and_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endtoend, "find_spec", lambda _: None)
    endtoend.main_array()
    said = "  HyperQueue is not installed and not measured: pip install hyperqueue\n"
    assert capsys.readouterr().out == said
