"""What a schedule comes to: the figures that published comparisons give, at full precision.

Waits are from the submit to the last start, so that an evicted job's lost time counts as waiting.
Figures are over the jobs that finished, and None where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from msgspec import Struct

from batchq.sim.workload.entitlement import dues
from batchq.sim.workload.schedule import Ran, Schedule
from batchq.traces import bounded_slowdown, nearest_rank


class Figures(Struct, frozen=True, kw_only=True):
    """`jobs` were submitted, `finished` of them ended. Seconds, except for counts and ratios.

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

    `used` is its size times run time over everybody's; `deserved` its weight over everybody's.
    `due` is the part of the machine that was due to it by weight of what it asked for, on the
    average over the whole time, and `due_met` how much of that it held (see `entitlement`).
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
    """The figures of a whole schedule."""
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
    """Every tenant's part, in the order in which they first submitted something."""
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
    """How long its last run was: less than it asked for if its walltime ended it."""
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
