"""What a plot of schedules shows, as numbers: lines over time, waits by size, shares of tenants.

`batchq.sim.workload.plot` draws it. Here is decided what is told: how fine the steps are, which
classes of sizes there are, and what a tenant deserves at a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from statistics import quantiles

from msgspec import Struct

from batchq.sim.workload.entitlement import entitled
from batchq.sim.workload.figures import Figures, figures_of
from batchq.sim.workload.schedule import Ran, Sample, Schedule

#: Finer, and lines of several runs cannot be told apart.
MOST_STEPS = 120
#: The panels of tenants are as much smaller, and their steps as much longer.
COARSER = 3
#: So many tenants have a panel of their own: the largest.
MOST_TENANTS = 6


class Line(Struct, frozen=True, kw_only=True):
    """One run over time: `at_s` since the first submit, and a value at each."""

    run: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]


class Waits(Struct, frozen=True, kw_only=True):
    """The waits of one run's jobs of a class of sizes: seconds that 5, 25 … percent are within."""

    run: str
    jobs: int
    low: float
    quarter: float
    half: float
    three_quarters: float
    high: float


class SizeClass(Struct, frozen=True, kw_only=True):
    """Jobs of `least` to `most` in size, a power of two; one entry for each run that has some."""

    least: int
    most: int
    runs: tuple[Waits, ...]

    @property
    def label(self) -> str:
        """`1`, `2`, `3-4`, `5-8`."""
        return str(self.most) if self.least == self.most else f"{self.least}-{self.most}"


class TenantShares(Struct, frozen=True, kw_only=True):
    """One tenant over time, as parts of the machine: what it held, and what it deserved."""

    tenant: str
    weight: int
    held: tuple[Line, ...]
    deserved: tuple[Line, ...]


class Picture(Struct, frozen=True, kw_only=True):
    """Everything in one plot; the runs in the order given."""

    load: str
    capacity: int
    runs: tuple[tuple[str, Figures], ...]
    utilisation: tuple[Line, ...]
    waiting: tuple[Line, ...]
    sizes: tuple[SizeClass, ...]
    tenants: tuple[TenantShares, ...] = ()


def picture_of(
    schedules: Sequence[Schedule], *, resource: str = "cpu", tenants: bool = False
) -> Picture:
    """What to draw of runs of the same load; with `tenants`, the shares of the largest.

    `resource` is the dimension whose use is drawn. `schedules` is not empty.
    """
    width = _width_s(schedules)

    def lines(value: Callable[[Schedule, Sample], float]) -> tuple[Line, ...]:
        return tuple(_line(one, width, value) for one in schedules)

    first = schedules[0]
    return Picture(
        load=first.load,
        capacity=first.capacity,
        runs=tuple((one.name, figures_of(one)) for one in schedules),
        utilisation=lines(lambda one, sample: _part(one, resource, sample.total(resource))),
        waiting=lines(lambda _, sample: sample.waiting),
        sizes=_sizes(schedules),
        tenants=_tenants(schedules, COARSER * width, resource) if tenants else (),
    )


def _part(schedule: Schedule, resource: str, units: float) -> float:
    return units / (schedule.resources.get(resource) or 1)


def _tenants(schedules: Sequence[Schedule], width: int, resource: str) -> tuple[TenantShares, ...]:
    deserved = [(one.name, entitled(one, width)) for one in schedules]

    def held(tenant: str) -> Callable[[Schedule, Sample], float]:
        return lambda one, sample: _part(
            one, resource, sample.used.get(tenant, {}).get(resource, 0.0)
        )

    return tuple(
        TenantShares(
            tenant=tenant,
            weight=schedules[0].weights.get(tenant, 1),
            held=tuple(_line(one, width, held(tenant)) for one in schedules),
            deserved=tuple(_due(run, steps, tenant, width) for run, steps in deserved),
        )
        for tenant in _largest(schedules[0].jobs)
    )


def _due(run: str, steps: Sequence[Mapping[str, float]], tenant: str, width: int) -> Line:
    return Line(
        run=run,
        at_s=tuple((step + 0.5) * width for step in range(len(steps))),
        values=tuple(parts.get(tenant, 0.0) for parts in steps),
    )


def _width_s(schedules: Sequence[Schedule]) -> int:
    """The length of a step: the same in all runs, and no finer than what was recorded."""
    recorded = [one.usage for one in schedules if one.usage]
    spans = [usage[-1].at_s + usage[-1].long_s - usage[0].at_s for usage in recorded]
    finest = max((usage[0].long_s for usage in recorded), default=1)
    return max(finest, ceil(max(spans, default=1) / MOST_STEPS))


def _line(schedule: Schedule, width: int, value: Callable[[Schedule, Sample], float]) -> Line:
    """Means over steps of `width`; a sample belongs to the steps that it overlaps."""
    start = schedule.usage[0].at_s if schedule.usage else 0
    sums: dict[int, float] = {}
    lengths: dict[int, float] = {}
    for sample in schedule.usage:
        level = value(schedule, sample)
        for step, length in _steps(sample.at_s - start, sample.at_s - start + sample.long_s, width):
            sums[step] = sums.get(step, 0.0) + level * length
            lengths[step] = lengths.get(step, 0.0) + length
    steps = sorted(step for step, length in lengths.items() if length)
    return Line(
        run=schedule.name,
        at_s=tuple((step + 0.5) * width for step in steps),
        values=tuple(sums[step] / lengths[step] for step in steps),
    )


def _steps(begin: int, end: int, width: int) -> Iterable[tuple[int, int]]:
    """The steps that an interval touches, and how long it is in each."""
    for step in range(begin // width, -(-end // width)):
        yield step, min(end, (step + 1) * width) - max(begin, step * width)


def _sizes(schedules: Sequence[Schedule]) -> tuple[SizeClass, ...]:
    """1, 2, 3-4, 5-8 …: the classes that have a job in any run."""
    waits: dict[int, dict[str, list[int]]] = {}
    for schedule in schedules:
        for one in schedule.jobs:
            if one.start_s is not None:
                of_class = waits.setdefault((one.size - 1).bit_length(), {})
                of_class.setdefault(schedule.name, []).append(one.start_s - one.submit_s)
    return tuple(
        SizeClass(
            least=2 ** (power - 1) + 1 if power else 1,
            most=2**power,
            runs=tuple(_waits(run, found) for run, found in waits[power].items()),
        )
        for power in sorted(waits)
    )


def _waits(run: str, found: Sequence[int]) -> Waits:
    cuts = quantiles(found, n=20, method="inclusive") if len(found) > 1 else [found[0]] * 19
    return Waits(
        run=run,
        jobs=len(found),
        low=cuts[0],
        quarter=cuts[4],
        half=cuts[9],
        three_quarters=cuts[14],
        high=cuts[18],
    )


def _largest(jobs: Sequence[Ran]) -> list[str]:
    """The tenants with the most work, whether it was done or not."""
    work: dict[str, int] = {}
    for one in jobs:
        work[one.tenant] = work.get(one.tenant, 0) + one.size * (one.run_s or 0)
    return sorted(work, key=lambda tenant: (-work[tenant], tenant))[:MOST_TENANTS]
