"""The outcome of a load as values: when each job ran, and the machine's use over time.

Times are whole seconds of the load. `size` is in the load's own unit: processors, for a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from batchq.api.objects import Node, Pod, PodGroup
from batchq.api.resources import of_pod, times, total
from batchq.api.transaction import capacity_of
from batchq.lab.workload.jobs import Arrival, Load


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


MOST_STEPS = 2048

#: A tenant and a resource; `WAITING` counts jobs.
Gauge: TypeAlias = tuple[str, str]
WAITING: Gauge = ("", "")


class Meter:
    """Integrates gauges over time; owns each gauge's value, its last change, and its sums."""

    def __init__(self, start_s: int) -> None:
        self._start_s = start_s
        self._step_s = 1
        self._shows: dict[Gauge, tuple[int, int]] = {}
        #: Gauge -> for each step, its value times seconds.
        self._sums: dict[Gauge, list[int]] = {}

    def add(self, gauge: Gauge, units: int, at_s: int) -> None:
        """Increase the gauge's value by `units` from `at_s` on."""
        showed, since_s = self._shows.get(gauge, (0, at_s))
        self._fill(gauge, showed, since_s, at_s)
        self._shows[gauge] = (showed + units, at_s)

    def samples(self, until_s: int) -> tuple[Sample, ...]:
        """Return the steps up to `until_s`; the last may be shorter than the others."""
        for gauge, (shows, since_s) in self._shows.items():
            self._fill(gauge, shows, since_s, until_s)
            self._shows[gauge] = (shows, until_s)
        gauges = sorted(self._sums)
        steps = -(-(until_s - self._start_s) // self._step_s)
        return tuple(self._sample(step, gauges, until_s) for step in range(steps))

    def _sample(self, step: int, gauges: list[Gauge], until_s: int) -> Sample:
        at_s = self._start_s + step * self._step_s
        long_s = min(self._step_s, until_s - at_s)
        used: dict[str, dict[str, float]] = {}
        waiting = 0.0
        for gauge in gauges:
            sums = self._sums[gauge]
            shown = sums[step] / long_s if step < len(sums) else 0.0
            if gauge == WAITING:
                waiting = shown
            elif shown:
                used.setdefault(gauge[0], {})[gauge[1]] = shown
        return Sample(at_s=at_s, long_s=long_s, used=used, waiting=waiting)

    def _fill(self, gauge: Gauge, shown: int, since_s: int, until_s: int) -> None:
        while until_s - self._start_s > MOST_STEPS * self._step_s:
            self._double()
        if not shown or until_s == since_s:
            return
        sums = self._sums.setdefault(gauge, [])
        first = (since_s - self._start_s) // self._step_s
        last = (until_s - 1 - self._start_s) // self._step_s
        sums.extend([0] * (last + 1 - len(sums)))
        for step in range(first, last + 1):
            begins_s = self._start_s + step * self._step_s
            seconds = min(until_s, begins_s + self._step_s) - max(since_s, begins_s)
            sums[step] += shown * seconds

    def _double(self) -> None:
        self._step_s *= 2
        for sums in self._sums.values():
            if len(sums) % 2:
                sums.append(0)
            sums[:] = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]


#: (resource, units), ordered by resource.
Asked: TypeAlias = tuple[tuple[str, int], ...]


class FreeResources:
    """Free resources of all nodes together, as an upper bound.

    Only what pods hold counts as used, not what groups have reserved. A group that does not fit
    here is admitted by no limit.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free: dict[str, int] = total(map(capacity_of, nodes))
        #: Total requests of a waiting group -> number of such groups.
        self._asked: Counter[Asked] = Counter()

    def comes(self, asked: Asked) -> None:
        """Add a waiting group with these requests."""
        self._asked[asked] += 1

    def starts(self, asked: Asked) -> None:
        """Remove a waiting group with these requests."""
        self._asked[asked] -= 1
        if not self._asked[asked]:
            del self._asked[asked]

    def takes(self, pod: Pod) -> None:
        """Subtract what a pod requests."""
        for name, units in of_pod(pod.spec.requests).items():
            self._free[name] = self._free.get(name, 0) - units

    def gives(self, pod: Pod) -> None:
        """Add what a pod requests."""
        for name, units in of_pod(pod.spec.requests).items():
            self._free[name] = self._free.get(name, 0) + units

    def fits(self, asked: Asked) -> bool:
        """Return whether all pods of a group with these requests may fit now."""
        for name, units in asked:  # noqa: SIM110 - called for every waiting group at each end
            if units > self._free.get(name, 0):
                return False
        return True

    def fits_any(self) -> bool:
        """Return whether all pods of any waiting group may fit now."""
        return any(map(self.fits, self._asked))


def asked_by(group: PodGroup) -> Asked:
    """Return the requests of all pods of a group together."""
    tasks = group.spec.tasks
    whole = total(times(of_pod(task.template.requests), task.replicas) for task in tasks)
    return tuple(whole.items())


#: Called for each pod that takes a node (1) or leaves it (-1), with the time in seconds.
Look: TypeAlias = Callable[[Pod, int, int], None]


@dataclass(slots=True)
class _Job:
    """One job so far. `live`: how many of its pods hold a node."""

    arrival: Arrival
    asked: Asked
    live: int = 0
    admission: int = 0
    start_s: int | None = None
    first_start_s: int | None = None
    end_s: int | None = None
    evictions: int = 0
    evicted_in: int = 0

    @property
    def pods(self) -> int:
        """The pods of all its tasks."""
        return sum(task.replicas for task in self.arrival.group.spec.tasks)


class Progress:
    """Owns the state of each job, by its group's uid, which is its index in the load."""

    def __init__(self, load: Load, start_s: int, look: Look | None = None) -> None:
        self._look = look
        self._jobs = [_Job(arrival, asked_by(arrival.group)) for arrival in load.arrivals]
        self.meter = Meter(start_s)
        #: The free resources of all nodes together, as if they were one.
        self.free = FreeResources(load.nodes)
        self.finished = 0
        self.evictions = 0
        self.lost_s = 0
        #: Incremented with every change of any job.
        self.changes = 0
        self.last_change_s = start_s

    def may_fit(self, uid: str) -> bool:
        """Return whether all pods of a group may fit now."""
        return self.free.fits(self._jobs[int(uid)].asked)

    def arrival(self, uid: str) -> Arrival:
        """Return the arrival of a group."""
        return self._jobs[int(uid)].arrival

    def pods(self, uid: str) -> int:
        """Return the number of the group's pods, all tasks together."""
        return self._jobs[int(uid)].pods

    def submitted(self, uid: str, at_s: int) -> None:
        """Count a submitted job as waiting."""
        self.free.comes(self._jobs[int(uid)].asked)
        self._waits(1, at_s)

    def started(self, uid: str, pod: Pod, at_s: int) -> None:
        """Count a pod that started."""
        job = self._jobs[int(uid)]
        if not job.live:
            self._waits(-1, at_s)
        job.live += 1
        if job.admission != pod.status.admission:
            job.admission, job.start_s = pod.status.admission, at_s
        if job.first_start_s is None:
            job.first_start_s = at_s
            self.free.starts(job.asked)
        self.free.takes(pod)
        self._holds(job, pod, 1, at_s)

    def stopped(self, uid: str, pod: Pod, at_s: int) -> None:
        """Count a pod that left its node."""
        job = self._jobs[int(uid)]
        job.live -= 1
        self.free.gives(pod)
        if not job.live and job.end_s is None:
            self._waits(1, at_s)
        self._holds(job, pod, -1, at_s)

    def evicted(self, uid: str, admission: int, held_s: int) -> None:
        """Count the eviction of a pod that held its node for `held_s`."""
        job = self._jobs[int(uid)]
        self.lost_s += job.arrival.size * held_s // job.pods
        if job.evicted_in != admission:
            job.evicted_in = admission
            job.evictions += 1
            self.evictions += 1

    def ended(self, uid: str, at_s: int) -> None:
        """Count the job as finished."""
        job = self._jobs[int(uid)]
        job.end_s = at_s
        self.finished += 1
        if not job.live:
            self._waits(-1, at_s)

    def outcome(self) -> tuple[Ran, ...]:
        """Return every job, in the order of the load."""
        return tuple(_ran(job) for job in self._jobs)

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


def _ran(job: _Job) -> Ran:
    arrival = job.arrival
    return Ran(
        number=arrival.number,
        tenant=arrival.tenant,
        size=arrival.size,
        submit_s=arrival.at_s,
        run_s=arrival.run_s,
        start_s=job.start_s,
        end_s=job.end_s,
        first_start_s=job.first_start_s,
        evictions=job.evictions,
    )
