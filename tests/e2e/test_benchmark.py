"""Tests of the end-to-end benchmark: it runs what it reports."""

from __future__ import annotations

import pytest

from benchmarks import endtoend

pytestmark = pytest.mark.e2e


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
