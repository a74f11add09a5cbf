"""The figures of a schedule, its fairness, and the data of its plots.

Fairness is one number between 0 and 1: R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of
Fairness and Discrimination for Resource Allocation in Shared Computer Systems, DEC Research Report
TR-301, 1984: (Σ x)² / (n · Σ x²), which is 1 if all x are equal and 1/n if one has everything. Here
x is a tenant's mean bounded slowdown. Processor-seconds would not do: in the end every job has
received what it asked for, regardless of the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from statistics import fmean, median, quantiles
from typing import NamedTuple

from msgspec import Struct

from batchq.lab.workload.schedule import Ran, Sample, Schedule
from batchq.lab.workload.swf import bounded_slowdown, nearest_rank


def jain(values: Sequence[float]) -> float | None:
    """Return the index of non-negative numbers; None without any above zero."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def fairness_of(tenants: Sequence[TenantFigures]) -> float | None:
    """Return the index over the tenants with a finished job."""
    slowdowns = [one.mean_bounded_slowdown for one in tenants]
    return jain([slowdown for slowdown in slowdowns if slowdown is not None])


class Due(NamedTuple):
    """The part of the machine due to a tenant, averaged over the whole time, and the share of it
    that the tenant held; None if nothing was due.
    """

    part: float
    met: float | None


def entitled(schedule: Schedule, width_s: int) -> list[dict[str, float]]:
    """Return, for each step of `width_s` seconds since the first submit, tenant -> its due part.

    A tenant without a due part in a step is left out.
    """
    if not schedule.usage:
        return []
    start = schedule.usage[0].at_s
    whole_s = schedule.usage[-1].at_s + schedule.usage[-1].long_s - start
    # Size times seconds, until the lengths of the steps are known: the last may be shorter.
    wanted = [dict[str, float]() for _ in range(-(-whole_s // width_s))]
    for one in schedule.jobs:
        end_s = whole_s if one.end_s is None else one.end_s - start
        _want(wanted, one, one.submit_s - start, min(end_s, whole_s), width_s)
    steps = []
    for step, amounts in enumerate(wanted):
        length = min(width_s, whole_s - step * width_s)
        wants = {tenant: amount / length for tenant, amount in amounts.items()}
        due = shared_out(schedule.capacity, wants, schedule.weights)
        steps.append({tenant: amount / schedule.capacity for tenant, amount in due.items()})
    return steps


def dues(schedule: Schedule, *, resource: str = "cpu") -> dict[str, Due]:
    """Return what was due to each tenant, and how much of it the tenant held, in recorded steps.

    Use beyond what is due does not offset earlier steps, because it was idle otherwise.
    """
    if not schedule.usage:
        return {}
    whole_s = sum(sample.long_s for sample in schedule.usage)
    machine = schedule.resources.get(resource) or 1
    sums: dict[str, tuple[float, float]] = {}
    for sample, parts in zip(
        schedule.usage, entitled(schedule, schedule.usage[0].long_s), strict=False
    ):
        for tenant, due in parts.items():
            held = sample.used.get(tenant, {}).get(resource, 0.0) / machine
            due_s, met_s = sums.get(tenant, (0.0, 0.0))
            sums[tenant] = (due_s + due * sample.long_s, met_s + min(held, due) * sample.long_s)
    return {
        tenant: Due(part=due_s / whole_s, met=met_s / due_s if due_s else None)
        for tenant, (due_s, met_s) in sums.items()
    }


def shared_out(
    capacity: float, wants: Mapping[str, float], weights: Mapping[str, int]
) -> dict[str, float]:
    """Divide `capacity` by weight (default 1), but give no tenant more than it wants."""
    given: dict[str, float] = {}
    left = float(capacity)
    # The tenant that wants least for its weight is satisfied first; the rest is divided again.
    heavy = [(wants[name] / weights.get(name, 1), name) for name in wants if weights.get(name, 1)]
    weight_left = sum(weights.get(name, 1) for _, name in heavy)
    for _, name in sorted(heavy):
        weight = weights.get(name, 1)
        given[name] = min(wants[name], left * weight / weight_left)
        left -= given[name]
        weight_left -= weight
    return given


def _want(wanted: list[dict[str, float]], one: Ran, begin_s: int, end_s: int, width_s: int) -> None:
    """Add a job to the steps during which it is present."""
    for step in range(begin_s // width_s, -(-end_s // width_s)):
        length = min(end_s, (step + 1) * width_s) - max(begin_s, step * width_s)
        wanted[step][one.tenant] = wanted[step].get(one.tenant, 0.0) + one.size * length


class Figures(Struct, frozen=True, kw_only=True):
    """The figures of a schedule: `jobs` submitted, `finished` ended. Seconds, counts and ratios.

    `utilization` is Σ size · run time over capacity · makespan; the makespan is from the first
    submit to the last end.
    """

    jobs: int
    finished: int
    mean_wait_s: float | None
    median_wait_s: float | None
    p95_wait_s: float | None
    max_wait_s: float | None
    mean_bounded_slowdown: float | None
    utilization: float | None
    makespan_s: int | None
    evictions: int


class TenantFigures(Struct, frozen=True, kw_only=True):
    """One tenant's part. `weight` is its queue's.

    `used` is its share of all size times run time; `deserved` its share of all weights. `due` is
    the part of the machine due to it by weight and demand, averaged over the whole time, and
    `due_met` the share of that which it held (see `entitled`).
    """

    tenant: str
    weight: int
    jobs: int
    finished: int
    mean_wait_s: float | None
    mean_bounded_slowdown: float | None
    used: float | None
    deserved: float | None
    evictions: int
    due: float | None = None
    due_met: float | None = None


def figures_of(schedule: Schedule) -> Figures:
    """Return the figures of a whole schedule."""
    done = _finished(schedule.jobs)
    waits = [_wait_s(one) for one in done]
    makespan = _makespan_s(schedule.jobs, done)
    work = sum(_work(one) for one in done)
    return Figures(
        jobs=len(schedule.jobs),
        finished=len(done),
        mean_wait_s=fmean(waits) if waits else None,
        median_wait_s=median(waits) if waits else None,
        p95_wait_s=nearest_rank(waits, 95) if waits else None,
        max_wait_s=max(waits, default=None),
        mean_bounded_slowdown=_mean_slowdown(done),
        utilization=work / (schedule.capacity * makespan) if makespan else None,
        makespan_s=makespan,
        evictions=schedule.evictions,
    )


def tenants_of(schedule: Schedule) -> tuple[TenantFigures, ...]:
    """Return every tenant's part, in the order of their first submissions."""
    by_tenant: dict[str, list[Ran]] = {}
    for one in schedule.jobs:
        by_tenant.setdefault(one.tenant, []).append(one)
    everything = sum(_work(one) for one in _finished(schedule.jobs))
    weights = {tenant: schedule.weights.get(tenant, 1) for tenant in by_tenant}
    heavy = sum(weights.values())
    by_weight = dues(schedule)
    found = []
    for tenant, jobs in by_tenant.items():
        done = _finished(jobs)
        work = sum(_work(one) for one in done)
        found.append(
            TenantFigures(
                tenant=tenant,
                weight=weights[tenant],
                jobs=len(jobs),
                finished=len(done),
                mean_wait_s=fmean(map(_wait_s, done)) if done else None,
                mean_bounded_slowdown=_mean_slowdown(done),
                used=work / everything if everything else None,
                deserved=weights[tenant] / heavy if heavy else None,
                evictions=sum(one.evictions for one in jobs),
                due=by_weight[tenant].part if tenant in by_weight else None,
                due_met=by_weight[tenant].met if tenant in by_weight else None,
            )
        )
    return tuple(found)


def _finished(jobs: Sequence[Ran]) -> list[Ran]:
    return [one for one in jobs if one.end_s is not None]


def _wait_s(one: Ran) -> float:
    assert one.start_s is not None
    return float(one.start_s - one.submit_s)


def _ran_s(one: Ran) -> int:
    """Return the duration of its last run: less than `run_s` if its walltime ended it."""
    assert one.run_s is not None
    assert one.start_s is not None
    assert one.end_s is not None
    return min(one.run_s, one.end_s - one.start_s)


def _work(one: Ran) -> int:
    return one.size * _ran_s(one)


def _mean_slowdown(done: Sequence[Ran]) -> float | None:
    if not done:
        return None
    return fmean(bounded_slowdown(_wait_s(one), _ran_s(one)) for one in done)


def _makespan_s(jobs: Sequence[Ran], done: Sequence[Ran]) -> int | None:
    if not done:
        return None
    last = max(one.end_s for one in done if one.end_s is not None)
    return last - min(one.submit_s for one in jobs)


#: With more steps, the lines of several runs become indistinguishable.
MOST_STEPS = 120
#: The tenants' panels are smaller by this factor, and their steps longer.
COARSER = 3
#: The largest tenants that get a panel of their own.
MOST_TENANTS = 6


class PlotLine(Struct, frozen=True, kw_only=True):
    """One run over time: `at_s` since the first submit, and a value at each."""

    run: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]


class Waits(Struct, frozen=True, kw_only=True):
    """Percentiles 5, 25, 50, 75, 95 of the waits of one run's jobs of a size class, in seconds."""

    run: str
    jobs: int
    low: float
    quarter: float
    half: float
    three_quarters: float
    high: float


class SizeClass(Struct, frozen=True, kw_only=True):
    """Jobs of size `least` to `most`, a power of two; one entry for each run with such jobs."""

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
    held: tuple[PlotLine, ...]
    deserved: tuple[PlotLine, ...]


class Picture(Struct, frozen=True, kw_only=True):
    """The data of one plot; the runs in the given order."""

    load: str
    capacity: int
    runs: tuple[tuple[str, Figures], ...]
    utilisation: tuple[PlotLine, ...]
    waiting: tuple[PlotLine, ...]
    sizes: tuple[SizeClass, ...]
    tenants: tuple[TenantShares, ...] = ()


def picture_of(
    schedules: Sequence[Schedule], *, resource: str = "cpu", tenants: bool = False
) -> Picture:
    """Return the plot data of runs of the same load; with `tenants`, the largest tenants' shares.

    `resource` is the resource whose use is drawn. `schedules` is not empty.
    """
    width = _width_s(schedules)

    def lines(value: Callable[[Schedule, Sample], float]) -> tuple[PlotLine, ...]:
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


def _due(run: str, steps: Sequence[Mapping[str, float]], tenant: str, width: int) -> PlotLine:
    return PlotLine(
        run=run,
        at_s=tuple((step + 0.5) * width for step in range(len(steps))),
        values=tuple(parts.get(tenant, 0.0) for parts in steps),
    )


def _width_s(schedules: Sequence[Schedule]) -> int:
    """Return the length of a step: equal in all runs, and no finer than the recorded steps."""
    recorded = [one.usage for one in schedules if one.usage]
    spans = [usage[-1].at_s + usage[-1].long_s - usage[0].at_s for usage in recorded]
    finest = max((usage[0].long_s for usage in recorded), default=1)
    return max(finest, ceil(max(spans, default=1) / MOST_STEPS))


def _line(schedule: Schedule, width: int, value: Callable[[Schedule, Sample], float]) -> PlotLine:
    """Return means over steps of `width`; a sample counts in each step that it overlaps."""
    start = schedule.usage[0].at_s if schedule.usage else 0
    sums: dict[int, float] = {}
    lengths: dict[int, float] = {}
    for sample in schedule.usage:
        level = value(schedule, sample)
        for step, length in _steps(sample.at_s - start, sample.at_s - start + sample.long_s, width):
            sums[step] = sums.get(step, 0.0) + level * length
            lengths[step] = lengths.get(step, 0.0) + length
    steps = sorted(step for step, length in lengths.items() if length)
    return PlotLine(
        run=schedule.name,
        at_s=tuple((step + 0.5) * width for step in steps),
        values=tuple(sums[step] / lengths[step] for step in steps),
    )


def _steps(begin: int, end: int, width: int) -> Iterable[tuple[int, int]]:
    """Yield the steps that an interval touches, and its length in each."""
    for step in range(begin // width, -(-end // width)):
        yield step, min(end, (step + 1) * width) - max(begin, step * width)


def _sizes(schedules: Sequence[Schedule]) -> tuple[SizeClass, ...]:
    """Return the classes 1, 2, 3-4, 5-8 … that have a job in any run."""
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
    """Return the tenants with the most work, done or not."""
    work: dict[str, int] = {}
    for one in jobs:
        work[one.tenant] = work.get(one.tenant, 0) + one.size * (one.run_s or 0)
    return sorted(work, key=lambda tenant: (-work[tenant], tenant))[:MOST_TENANTS]
