"""What runs over a table of pods came to, for people and for programs: rows, JSON and CSV.

Every figure has one name, in JSON and CSV; `Played.rows` and `Inflated.rows` say what the table
calls it. Ratios are between 0 and 1 for programs, and percents for people.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from batchq.cli.simulating.comparison import Row, span
from batchq.sim.workload.figures import figures_of
from batchq.sim.workload.gpuplot import Curve, Picture
from batchq.sim.workload.gpus import GpuUse, Level
from batchq.sim.workload.inflation import Inflation, Point
from batchq.sim.workload.schedule import Schedule
from batchq.traces.openb import WHOLE_GPU

Values: TypeAlias = Mapping[str, float | None]
#: Name of a figure, what the table calls it, how it is written, and which value is the best.
_Line: TypeAlias = tuple[
    str, str, Callable[[float], str], Callable[[Sequence[float]], float] | None
]

_DAY_S = 86_400


class Played(NamedTuple):
    """One run in which pods came and went as they did."""

    name: str
    schedule: Schedule
    use: GpuUse

    def values(self) -> Values:
        """Every figure by its name."""
        jobs = self.schedule.jobs
        placed = sum(one.first_start_s is not None for one in jobs)
        levels: tuple[tuple[str, Level], ...] = (
            ("gpu_allocation", self.use.allocation),
            ("gpu_fragmentation", self.use.fragmentation),
            ("gpu_fragmentation_of_free", self.use.fragmentation_of_free),
            ("stranded_nodes", self.use.stranded_nodes),
        )
        found: dict[str, float | None] = msgspec.to_builtins(figures_of(self.schedule))
        found |= {"placed": placed, "waiting": len(jobs) - placed}
        for name, level in levels:
            found |= {f"{name}_{part}": value for part, value in _parts(level)}
        return found

    def data(self) -> dict[str, object]:
        """The same for JSON."""
        return dict(self.values())

    @staticmethod
    def rows(columns: Sequence[Values]) -> list[Row]:
        """The lines of the table, a value for each run."""
        lines: list[_Line] = [
            ("jobs", "Pods", _count, None),
            ("placed", "Placed", _count, max),
            ("waiting", "Never placed", _count, min),
            ("mean_wait_s", "Wait, mean", span, min),
            ("median_wait_s", "Wait, median", span, min),
            ("p95_wait_s", "Wait, 95 % within", span, min),
            ("max_wait_s", "Wait, longest", span, min),
            ("gpu_allocation_mean", "GPUs allocated, mean", _percent, None),
            ("gpu_allocation_peak", "GPUs allocated, peak", _percent, None),
            ("gpu_allocation_final", "GPUs allocated, at last arrival", _percent, None),
            ("gpu_fragmentation_mean", "Fragments of all GPUs, mean", _percent, min),
            ("gpu_fragmentation_peak", "Fragments of all GPUs, peak", _percent, min),
            ("gpu_fragmentation_final", "Fragments of all GPUs, at last arrival", _percent, min),
            ("gpu_fragmentation_of_free_mean", "Fragments of free GPUs, mean", _percent, min),
            ("gpu_fragmentation_of_free_peak", "Fragments of free GPUs, peak", _percent, min),
            (
                "gpu_fragmentation_of_free_final",
                "Fragments of free GPUs, at last arrival",
                _percent,
                min,
            ),
            ("stranded_nodes_mean", "Stranded nodes, mean", _decimal, min),
            ("stranded_nodes_peak", "Stranded nodes, peak", _count, min),
            ("makespan_s", "Makespan", span, min),
            ("evictions", "Evictions", _count, min),
        ]
        return _rows(lines, columns)

    def picture(self) -> Picture:
        """What to draw of it: days since the first pod came."""
        use = self.use
        start = use.over_time[0].at_s if use.over_time else 0
        middles = [(one.at_s + one.long_s / 2 - start) / _DAY_S for one in use.over_time]

        def curve(values: Sequence[float]) -> Curve:
            return Curve(x=tuple(middles), y=tuple(100 * value for value in values))

        return Picture(
            name=self.name,
            words=f"{_percent(use.allocation.mean)} allocated and"
            f" {_percent(use.fragmentation.mean)} fragmented on average,"
            f" mean wait {span(figures_of(self.schedule).mean_wait_s or 0)}",
            along="days since the first pod came",
            allocation=curve([use.allocated(one) for one in use.over_time]),
            fragmentation=curve([use.fragmented(one) for one in use.over_time]),
            of_free=curve([use.fragmented_of_free(one) for one in use.over_time]),
        )


class Inflated(NamedTuple):
    """One run in which pods came until the cluster was more than full."""

    name: str
    inflation: Inflation

    def values(self) -> Values:
        """Every figure by its name: how things stood at the end."""
        run, last = self.inflation, self.inflation.last
        failed = run.first_failed
        return {
            "pods": last.pods,
            "placed": last.placed,
            "failed": last.pods - last.placed,
            "arrived": last.arrived / run.capacity,
            "first_failed_at": None if failed is None else failed / run.capacity,
            "gpu_allocation_at_100": run.allocation_when_all_was_asked_for,
            **_of_reading(last),
        }

    def data(self) -> dict[str, object]:
        """The same for JSON, and how it came to that."""
        points = [
            {
                "arrived": point.arrived / self.inflation.capacity,
                "pods": point.pods,
                "placed": point.placed,
                **_of_reading(point),
            }
            for point in self.inflation.points
        ]
        return {**self.values(), "points": points}

    @staticmethod
    def rows(columns: Sequence[Values]) -> list[Row]:
        """The lines of the table, a value for each run."""
        lines: list[_Line] = [
            ("pods", "Pods that came", _count, None),
            ("arrived", "GPUs asked for", _percent, None),
            ("placed", "Placed", _count, max),
            ("failed", "Not placed", _count, min),
            ("first_failed_at", "First not placed at", _percent, max),
            ("gpu_allocation_at_100", "GPUs allocated at 100 %", _hundredths, max),
            ("gpu_allocation", "GPUs allocated", _hundredths, max),
            ("gpu_fragmentation", "Fragments of all GPUs", _hundredths, min),
            ("gpu_fragmentation_of_free", "Fragments of free GPUs", _hundredths, min),
            ("stranded_nodes", "Stranded nodes", _count, min),
            ("stranded_gpus", "GPUs free on them", _decimal, min),
        ]
        return _rows(lines, columns)

    def picture(self) -> Picture:
        """What to draw of it: percents of the cluster's GPUs that had been asked for."""
        run, last = self.inflation, self.inflation.last.reading
        points = run.points
        arrived = tuple(100 * one.arrived / run.capacity for one in points)

        def curve(values: Sequence[float]) -> Curve:
            return Curve(x=arrived, y=tuple(100 * value for value in values))

        return Picture(
            name=self.name,
            words=f"{_hundredths(last.allocation)} allocated in the end,"
            f" {_hundredths(last.fragmentation)} fragments",
            along="GPUs that had been asked for, in % of those that there are",
            allocation=curve([one.reading.allocation for one in points]),
            fragmentation=curve([one.reading.fragmentation for one in points]),
            of_free=curve([one.reading.fragmentation_of_free for one in points]),
            ideal=True,
        )


#: All views of one command are of one kind.
Viewed: TypeAlias = Played | Inflated


def as_data(views: Sequence[Viewed]) -> dict[str, object]:
    """What `-o json` prints: one run's figures, or those of all under `runs`."""
    if len(views) == 1:
        return views[0].data()
    return {"runs": [{"name": one.name, **one.data()} for one in views]}


def as_csv(views: Sequence[Viewed]) -> str:
    """A row for each run; a figure that does not exist is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *views[0].values()])
    writer.writerows([one.name, *one.values().values()] for one in views)
    return text.getvalue()


def counted(count: int, noun: str) -> str:
    """`1 pod`, `8,152 pods`"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _of_reading(point: Point) -> dict[str, float]:
    reading = point.reading
    return {
        "gpu_allocation": reading.allocation,
        "gpu_fragmentation": reading.fragmentation,
        "gpu_fragmentation_of_free": reading.fragmentation_of_free,
        "stranded_nodes": reading.stranded,
        "stranded_gpus": reading.stranded_gpu / WHOLE_GPU,
    }


def _parts(level: Level) -> tuple[tuple[str, float], ...]:
    return (("mean", level.mean), ("peak", level.peak), ("final", level.final))


def _rows(lines: Sequence[_Line], columns: Sequence[Values]) -> list[Row]:
    return [
        Row(title, [values[name] for values in columns], text, best)
        for name, title, text, best in lines
    ]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _decimal(value: float) -> str:
    return f"{value:,.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _hundredths(value: float) -> str:
    return f"{100 * value:.2f} %"
