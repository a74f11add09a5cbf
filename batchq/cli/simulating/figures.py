"""What runs over a log came to, for programs: JSON and CSV, every figure at full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from batchq.sim.workload.fairness import fairness_of
from batchq.sim.workload.figures import Figures, TenantFigures, figures_of, tenants_of
from batchq.sim.workload.schedule import Ran, Schedule


class Result(NamedTuple):
    """One run's figures. `tenants` and `fairness` only where tenants were asked for."""

    name: str
    figures: Figures
    tenants: tuple[TenantFigures, ...] | None = None
    fairness: float | None = None


def result_of(schedule: Schedule, *, by_tenant: bool) -> Result:
    """The figures of one run."""
    if not by_tenant:
        return Result(schedule.name, figures_of(schedule))
    tenants = tenants_of(schedule)
    return Result(schedule.name, figures_of(schedule), tenants, fairness_of(tenants))


def as_data(results: Sequence[Result]) -> dict[str, object]:
    """What `-o json` prints: one run's figures, or those of all under `runs`."""
    if len(results) == 1:
        return _row(results[0], whole=True)
    return {"runs": [{"name": one.name, **_row(one, whole=True)} for one in results]}


def as_csv(results: Sequence[Result]) -> str:
    """A row for each run; a figure that does not exist is an empty cell."""
    rows = [{"run": one.name, **_row(one, whole=False)} for one in results]
    return _written(rows[0], (row.values() for row in rows))


def starts_csv(order: Sequence[int], schedules: Sequence[Schedule]) -> str:
    """When each job started, in the order of the log's numbers; several runs one after another."""
    rows: list[tuple[object, ...]] = []
    for schedule in schedules:
        of_number = {one.number: one for one in schedule.jobs}
        rows += [_start(of_number[number], schedule.name) for number in order]
    titles = ("run", "job", "submit", "start")
    if len(schedules) > 1:
        return _written(titles, rows)
    return _written(titles[1:], (row[1:] for row in rows))


def _start(one: Ran, run: str) -> tuple[object, ...]:
    return (run, one.number, one.submit_s, one.start_s)


def _row(result: Result, *, whole: bool) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(result.figures)
    if result.tenants is not None:
        row["fairness"] = result.fairness
        if whole:
            row["tenants"] = msgspec.to_builtins(result.tenants)
    return row


def _written(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV as programs read it; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()
