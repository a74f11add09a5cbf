"""The schedule of a load: when each job ran, the machine's use over time, and the figures of both.

Times are whole seconds of the load. `size` is in the load's own unit: processors, for a log.

Fairness is one number between 0 and 1: R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of
Fairness and Discrimination for Resource Allocation in Shared Computer Systems, DEC Research Report
TR-301, 1984: (Σ x)² / (n · Σ x²), which is 1 if all x are equal and 1/n if one has everything. Here
x is a tenant's mean bounded slowdown. Processor-seconds would not do: in the end every job has
received what it asked for, regardless of the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple, TypeAlias

from msgspec import Struct, structs

from batchq.api.objects import Node, Pod, PodGroup
from batchq.api.resources import ONE_POD, PODS, Amounts, of_pod, times, total
from batchq.api.transaction import capacity_of
from batchq.lab.traces import Arrival, Load


class Ran(Struct, frozen=True, kw_only=True):
    """One job. `start_s` is its last start, `first_start_s` its first; None: it never started.

    `end_s` None: it has not finished. `run_s` is its duration, None for endless. `evictions` counts
    how often it was stopped for others and started again.
    """

    number: int
    tenant: str
    size: int
    submit_s: int
    run_s: int | None
    start_s: int | None = None
    end_s: int | None = None
    first_start_s: int | None = None
    evictions: int = 0


class Sample(Struct, frozen=True, kw_only=True):
    """The mean over the `long_s` seconds from `at_s` on.

    `used`: tenant -> resource -> units held by its pods (milli-cores for cpu); `waiting`: number of
    waiting jobs.
    """

    at_s: int
    long_s: int
    used: dict[str, dict[str, float]] = {}
    waiting: float = 0.0

    def total(self, resource: str) -> float:
        """Return what all tenants held together."""
        return sum(amounts.get(resource, 0.0) for amounts in self.used.values())


class Schedule(Struct, frozen=True, kw_only=True):
    """A load as run under one policy or configuration, called `name`.

    `capacity` is that of all nodes in the unit of `Ran.size`; `resources` is the same by resource,
    in units. `jobs` are in the order of the load; `usage` covers the time from the first submit to
    the last end in steps of equal length, bounded in number. `weights`: tenant -> its queue's
    weight. `lost_s`: work lost to evictions, as size times seconds. `real_s`: the play's duration,
    if a stopwatch was given. `refused`: transactions that the store refused; with a single
    scheduler there should be none.
    """

    name: str
    load: str
    capacity: int
    resources: dict[str, int]
    jobs: tuple[Ran, ...]
    usage: tuple[Sample, ...] = ()
    weights: dict[str, int] = {}
    evictions: int = 0
    lost_s: int = 0
    sessions: int = 0
    real_s: float = 0.0
    refused: int = 0


class Part(Struct, frozen=True, kw_only=True):
    """The outcome of the arrivals `first` to `until` - 1 of a load, which left nothing behind.

    `until_s` is the time of the last change; the other fields are those of a `Schedule`.
    """

    first: int
    until: int
    jobs: tuple[Ran, ...]
    meter: Meter
    until_s: int
    evictions: int
    lost_s: int
    sessions: int
    refused: int


def schedule_of(load: Load, parts: Sequence[Part], *, name: str, real_s: float) -> Schedule:
    """Return the schedule of a load that was played in these parts, which follow one another."""
    meter = parts[0].meter
    for part in parts[1:]:
        meter.join(part.meter)
    return Schedule(
        name=name,
        load=load.title,
        capacity=load.capacity,
        resources=total(node.spec.resources for node in load.nodes),
        jobs=tuple(job for part in parts for job in part.jobs),
        usage=meter.samples(parts[-1].until_s),
        weights={queue.metadata.name: queue.spec.weight for queue in load.queues},
        evictions=sum(part.evictions for part in parts),
        lost_s=sum(part.lost_s for part in parts),
        sessions=sum(part.sessions for part in parts),
        real_s=real_s,
        refused=sum(part.refused for part in parts),
    )


MOST_STEPS = 2048

#: A tenant and a resource; `WAITING` counts jobs.
Gauge: TypeAlias = tuple[str, str]
WAITING: Gauge = ("", "")


class Meter(Struct):
    """Integrates gauges over time, from `start_s` on in steps of `step_s` seconds."""

    start_s: int
    step_s: int = 1
    #: Gauge -> its value, and since when.
    shows: dict[Gauge, tuple[int, int]] = {}
    #: Gauge -> for each step, its value times seconds.
    sums: dict[Gauge, list[int]] = {}

    def add(self, gauge: Gauge, units: int, at_s: int) -> None:
        """Increase the gauge's value by `units` from `at_s` on."""
        known = self.shows.get(gauge)
        if known is None:
            self.shows[gauge] = (units, at_s)
            return
        showed, since_s = known
        if showed and since_s != at_s:
            self._fill(gauge, showed, since_s, at_s)
        self.shows[gauge] = (showed + units, at_s)

    def join(self, later: Meter) -> None:
        """Add the sums of another meter of the same start, whose gauges changed only after all of
        these were back at zero.
        """
        while self.step_s < later.step_s:
            self._double()
        while later.step_s < self.step_s:
            later._double()
        self.shows |= later.shows
        for gauge, more in later.sums.items():
            sums = self.sums.setdefault(gauge, [])
            sums.extend([0] * (len(more) - len(sums)))
            for step, units in enumerate(more):
                sums[step] += units

    def samples(self, until_s: int) -> tuple[Sample, ...]:
        """Return the steps up to `until_s`; the last may be shorter than the others."""
        for gauge, (shows, since_s) in self.shows.items():
            self._fill(gauge, shows, since_s, until_s)
            self.shows[gauge] = (shows, until_s)
        gauges = sorted(self.sums)
        steps = -(-(until_s - self.start_s) // self.step_s)
        return tuple(self._sample(step, gauges, until_s) for step in range(steps))

    def _sample(self, step: int, gauges: list[Gauge], until_s: int) -> Sample:
        at_s = self.start_s + step * self.step_s
        long_s = min(self.step_s, until_s - at_s)
        used: dict[str, dict[str, float]] = {}
        waiting = 0.0
        for gauge in gauges:
            sums = self.sums[gauge]
            shown = sums[step] / long_s if step < len(sums) else 0.0
            if gauge == WAITING:
                waiting = shown
            elif shown:
                used.setdefault(gauge[0], {})[gauge[1]] = shown
        return Sample(at_s=at_s, long_s=long_s, used=used, waiting=waiting)

    def _fill(self, gauge: Gauge, shown: int, since_s: int, until_s: int) -> None:
        while until_s - self.start_s > MOST_STEPS * self.step_s:
            self._double()
        if not shown or until_s == since_s:
            return
        sums = self.sums.setdefault(gauge, [])
        first = (since_s - self.start_s) // self.step_s
        last = (until_s - 1 - self.start_s) // self.step_s
        if last >= len(sums):
            sums.extend([0] * (last + 1 - len(sums)))
        if first == last:
            sums[first] += shown * (until_s - since_s)
            return
        for step in range(first, last + 1):
            begins_s = self.start_s + step * self.step_s
            seconds = min(until_s, begins_s + self.step_s) - max(since_s, begins_s)
            sums[step] += shown * seconds

    def _double(self) -> None:
        self.step_s *= 2
        for sums in self.sums.values():
            if len(sums) % 2:
                sums.append(0)
            sums[:] = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]


class GroupRequest(NamedTuple):
    """What all pods of a group request together, as (resource, units), and its walltime (ms)."""

    amounts: tuple[tuple[str, int], ...]
    walltime: int | None

    def ends_by(self, at: int, now_ms: int) -> bool:
        """Return whether a group that starts now has ended at that instant (ms)."""
        return self.walltime is not None and now_ms + self.walltime <= at

    def is_within(self, amounts: Amounts) -> bool:
        """Return whether these amounts suffice."""
        for name, units in self.amounts:  # noqa: SIM110 - called for every waiting group
            if units > amounts.get(name, 0):
                return False
        return True


class FreeResources:
    """Free resources of all nodes together, as an upper bound.

    Only what pods hold counts as used, not what groups have reserved. No limit admits a group
    that does not fit here.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free: dict[str, int] = total(map(capacity_of, nodes))
        #: Request of a waiting group -> number of such groups.
        self._asked: dict[GroupRequest, int] = {}

    def comes(self, request: GroupRequest) -> None:
        """Add a waiting group with this request."""
        self._asked[request] = self._asked.get(request, 0) + 1

    def starts(self, request: GroupRequest) -> None:
        """Remove a waiting group with this request."""
        if left := self._asked[request] - 1:
            self._asked[request] = left
        else:
            del self._asked[request]

    def takes(self, pod: Pod) -> None:
        """Subtract what a pod requests."""
        self._change(pod, -1)

    def gives(self, pod: Pod) -> None:
        """Add what a pod requests."""
        self._change(pod, 1)

    def _change(self, pod: Pod, sign: int) -> None:
        free = self._free
        for name, units in pod.spec.requests.items():
            free[name] = free.get(name, 0) + sign * units
        free[PODS] = free.get(PODS, 0) + sign * ONE_POD

    def after(self, ended: Iterable[GroupRequest], beside: GroupRequest) -> Amounts:
        """Return the most that is free beside one more group, once these have ended."""
        free = dict(self._free)
        for name, units in beside.amounts:
            free[name] = free.get(name, 0) - units
        for request in ended:
            for name, units in request.amounts:
                free[name] = free.get(name, 0) + units
        return free

    def fits(self, request: GroupRequest) -> bool:
        """Return whether all pods of a group with this request may fit now."""
        return request.is_within(self._free)

    def fitting(self, requests: Iterable[GroupRequest]) -> list[GroupRequest]:
        """Return those of the requests that may fit now, as `fits` does."""
        free = self._free
        return [request for request in requests if request.is_within(free)]

    def asked(self) -> Iterable[GroupRequest]:
        """Return the different requests of waiting groups."""
        return self._asked


def request_of(group: PodGroup) -> GroupRequest:
    """Return the request of a group."""
    tasks = group.spec.tasks
    whole = total(times(of_pod(task.template.requests), task.replicas) for task in tasks)
    return GroupRequest(tuple(whole.items()), group.spec.walltime)


def pods_of(group: PodGroup) -> int:
    """Return the number of a group's pods, of all its tasks."""
    return sum([task.replicas for task in group.spec.tasks])


#: Called for each pod that takes a node (1) or leaves it (-1), with the time in seconds.
Look: TypeAlias = Callable[[Pod, int, int], None]


@dataclass(slots=True)
class _Job:
    """One job so far. `live`: how many of its pods hold a node."""

    arrival: Arrival
    request: GroupRequest
    #: The number of pods of all its tasks.
    pods: int
    live: int = 0
    admission: int = 0
    start_s: int | None = None
    first_start_s: int | None = None
    end_s: int | None = None
    evictions: int = 0
    evicted_in: int = 0


class Progress:
    """Owns the state of each submitted job, by its group's uid, which is its index in the load.

    `finished` is the number of earlier jobs, which others have played.
    """

    def __init__(self, load: Load, look: Look | None = None, *, finished: int = 0) -> None:
        self._look = look
        self._arrivals = load.arrivals
        self._jobs: dict[str, _Job] = {}
        start_s = load.arrivals[0].at_s if load.arrivals else 0
        self.meter = Meter(start_s)
        #: The free resources of all nodes together, as if they were one.
        self.free = FreeResources(load.nodes)
        self.finished = finished
        self.evictions = 0
        self.lost_s = 0
        #: Incremented with every change of any job.
        self.changes = 0
        self.last_change_s = start_s

    def request(self, uid: str) -> GroupRequest:
        """Return the request of a group."""
        return self._jobs[uid].request

    def arrival(self, uid: str) -> Arrival:
        """Return the arrival of a group."""
        return self._jobs[uid].arrival

    def pods(self, uid: str) -> int:
        """Return the number of the group's pods, all tasks together."""
        return self._jobs[uid].pods

    def submitted(self, uid: str, at_s: int) -> None:
        """Count a submitted job as waiting."""
        arrival = self._arrivals[int(uid)]
        job = self._jobs[uid] = _Job(arrival, request_of(arrival.group), pods_of(arrival.group))
        self.free.comes(job.request)
        self._waits(1, at_s)

    def started(self, uid: str, pod: Pod, at_s: int) -> None:
        """Count a pod that started."""
        job = self._jobs[uid]
        if not job.live:
            self._waits(-1, at_s)
        job.live += 1
        if job.admission != pod.status.admission:
            job.admission, job.start_s = pod.status.admission, at_s
        if job.first_start_s is None:
            job.first_start_s = at_s
            self.free.starts(job.request)
        self.free.takes(pod)
        self._holds(job, pod, 1, at_s)

    def stopped(self, uid: str, pod: Pod, at_s: int) -> None:
        """Count a pod that left its node."""
        job = self._jobs[uid]
        job.live -= 1
        self.free.gives(pod)
        if not job.live and job.end_s is None:
            self._waits(1, at_s)
        self._holds(job, pod, -1, at_s)

    def evicted(self, uid: str, admission: int, held_s: int) -> None:
        """Count the eviction of a pod that held its node for `held_s`."""
        job = self._jobs[uid]
        self.lost_s += job.arrival.size * held_s // job.pods
        if job.evicted_in != admission:
            job.evicted_in = admission
            job.evictions += 1
            self.evictions += 1

    def ended(self, uid: str, at_s: int) -> None:
        """Count the job as finished."""
        job = self._jobs[uid]
        job.end_s = at_s
        self.finished += 1
        if not job.live:
            self._waits(-1, at_s)

    def outcome(self, first: int, until: int) -> tuple[Ran, ...]:
        """Return the jobs of these indices, in the order of the load."""
        return tuple(
            _ran(arrival, self._jobs.get(str(place)))
            for place, arrival in enumerate(self._arrivals[first:until], first)
        )

    def _waits(self, more: int, at_s: int) -> None:
        self.changes += 1
        self.last_change_s = at_s
        self.meter.add(WAITING, more, at_s)

    def _holds(self, job: _Job, pod: Pod, sign: int, at_s: int) -> None:
        if self._look is not None:
            self._look(pod, sign, at_s)
        self.changes += 1
        self.last_change_s = at_s
        for resource, units in pod.spec.requests.items():
            self.meter.add((job.arrival.tenant, resource), sign * units, at_s)


def _ran(arrival: Arrival, job: _Job | None) -> Ran:
    """Return an arrival's job; None if it has not been submitted."""
    asked = Ran(
        number=arrival.number,
        tenant=arrival.tenant,
        size=arrival.size,
        submit_s=arrival.at_s,
        run_s=arrival.run_s,
    )
    if job is None:
        return asked
    return structs.replace(
        asked,
        start_s=job.start_s,
        end_s=job.end_s,
        first_start_s=job.first_start_s,
        evictions=job.evictions,
    )


#: Run times below this many seconds do not increase a job's slowdown further.
SLOWDOWN_BOUND_S = 10


def bounded_slowdown(wait_s: float, run_s: float) -> float:
    """Return Feitelson's bounded slowdown, max(1, (wait + run) / max(run, 10 s))."""
    return max(1.0, (wait_s + run_s) / max(run_s, SLOWDOWN_BOUND_S))


def nearest_rank(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least `percent` % of `values` (not empty) do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


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


def dues(schedule: Schedule) -> dict[str, Due]:
    """Return the cpu due to each tenant, and how much of it the tenant held, in recorded steps.

    Use beyond what is due does not offset earlier steps, because it was idle otherwise.
    """
    if not schedule.usage:
        return {}
    whole_s = sum(sample.long_s for sample in schedule.usage)
    machine = schedule.resources.get("cpu") or 1
    sums: dict[str, tuple[float, float]] = {}
    for sample, parts in zip(
        schedule.usage, entitled(schedule, schedule.usage[0].long_s), strict=False
    ):
        for tenant, due in parts.items():
            held = sample.used.get(tenant, {}).get("cpu", 0.0) / machine
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
