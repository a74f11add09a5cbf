"""How far each job of a load has come, and how full the machine was meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from batchq.api.objects import Pod
from batchq.sim.workload.load import Arrival, Load
from batchq.sim.workload.meter import WAITING, Meter
from batchq.sim.workload.room import Asked, Room, asked_by
from batchq.sim.workload.schedule import Ran

#: Is told of each pod that takes a node (1) or leaves it (-1), and when, in seconds.
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
        """Of all its tasks."""
        return sum(task.replicas for task in self.arrival.group.spec.tasks)


class Progress:
    """Owns what is known of each job, by its group's uid, which is its place in the load."""

    def __init__(self, load: Load, start_s: int, look: Look | None = None) -> None:
        self._look = look
        self._jobs = [_Job(arrival, asked_by(arrival.group)) for arrival in load.arrivals]
        self.meter = Meter(start_s)
        #: Of all nodes together, as if they were one.
        self.room = Room(load.nodes)
        self.finished = 0
        self.evictions = 0
        self.lost_s = 0
        #: Moves with everything that happens to any job.
        self.changes = 0
        self.last_change_s = start_s

    def has_room_for(self, uid: str) -> bool:
        """Whether all pods of a group may find room now."""
        return self.room.fits(self._jobs[int(uid)].asked)

    def arrival(self, uid: str) -> Arrival:
        """What was submitted as that group."""
        return self._jobs[int(uid)].arrival

    def pods(self, uid: str) -> int:
        """How many pods the group has, all tasks together."""
        return self._jobs[int(uid)].pods

    def submitted(self, uid: str, at_s: int) -> None:
        """Somebody has come, and waits."""
        self.room.comes(self._jobs[int(uid)].asked)
        self._waits(1, at_s)

    def started(self, uid: str, pod: Pod, at_s: int) -> None:
        """One of its pods runs from now on."""
        job = self._jobs[int(uid)]
        if not job.live:
            self._waits(-1, at_s)
        job.live += 1
        if job.admission != pod.status.admission:
            job.admission, job.start_s = pod.status.admission, at_s
        if job.first_start_s is None:
            job.first_start_s = at_s
            self.room.starts(job.asked)
        self.room.takes(pod)
        self._holds(job, pod, 1, at_s)

    def stopped(self, uid: str, pod: Pod, at_s: int) -> None:
        """One of its pods is not on its node any more."""
        job = self._jobs[int(uid)]
        job.live -= 1
        self.room.gives(pod)
        if not job.live and job.end_s is None:
            self._waits(1, at_s)
        self._holds(job, pod, -1, at_s)

    def evicted(self, uid: str, admission: int, held_s: int) -> None:
        """One of its pods has to go, after it has held its node for so long."""
        job = self._jobs[int(uid)]
        self.lost_s += job.arrival.size * held_s // job.pods
        if job.evicted_in != admission:
            job.evicted_in = admission
            job.evictions += 1
            self.evictions += 1

    def ended(self, uid: str, at_s: int) -> None:
        """The job is over."""
        job = self._jobs[int(uid)]
        job.end_s = at_s
        self.finished += 1
        if not job.live:
            self._waits(-1, at_s)

    def outcome(self) -> tuple[Ran, ...]:
        """Every job, in the order of the load."""
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
