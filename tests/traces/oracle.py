"""The start of each job on identical processors, by plain code that shares nothing with batchq.

This is the textbook policies over rigid jobs, in integers. The file reads the log itself, so that a
schedule of batchq's can be compared with an independent one. `starts` is the whole interface. The
decisions of a policy in one pass:

    fcfs           start the head while it fits; else all jobs wait
    first-fit      start every job that fits, in queue order
    easy           fcfs; then the blocked head gets a reservation at the earliest time at which the
                   running jobs' estimates free enough, and jobs that fit now start if they end by
                   then or use only what the head leaves
    easy-sjf       the same, with the jobs behind the head by estimate
    conservative   every job gets the earliest reservation beside all before it; each pass makes the
                   whole plan again, and starts the jobs whose reservation begins now

There is one pass per instant (ends, then submits, then the pass), or one per event as in Gaussier,
Glesser, Reis and Trystram (SC'15): first the jobs end whose end and estimate are both now; then
each submit is followed by a pass, then each end, in the order of starts.
"""

from __future__ import annotations

import gzip
import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

POLICIES = ("fcfs", "easy", "easy-sjf", "conservative", "first-fit")


class Job(NamedTuple):
    """A job, in seconds and processors; it never runs longer than its estimate."""

    number: int
    submit: int
    run: int
    procs: int
    estimate: int


def read_log(path: Path, most: int | None = None) -> tuple[int, list[Job]]:
    """Return the machine's processors and the first `most` usable jobs of the log.

    Jobs larger than the machine, without run time or request, or submitted before 0 are dropped;
    the run time is cut at the request. In a log without requests, the run times replace them.
    """
    with gzip.open(path, "rt", errors="replace") as file:
        lines = [line.split() for line in file if line.strip()]
    said = {words[1]: words[2] for words in lines if words[0] == ";" and len(words) > 2}
    size = int(said["MaxProcs:"] if "MaxProcs:" in said else said["MaxNodes:"])
    rows = [[int(float(word)) for word in words] for words in lines if words[0][0] != ";"]
    knows = any(row[8] > 0 for row in rows)
    jobs = []
    for row in rows:
        procs = row[7] if row[7] > 0 else row[4]
        estimate = row[8] if knows else row[3]
        if 0 < procs <= size and row[3] > 0 and estimate > 0 and row[1] >= 0:
            jobs.append(Job(row[0], row[1], min(row[3], estimate), procs, estimate))
    return size, jobs[:most]


def starts(
    jobs: Sequence[Job], processors: int, policy: str, *, per_event: bool = False
) -> dict[int, int]:
    """Return the start of every job by number. Queue order is by submit, then index in `jobs`."""
    machine = Machine(processors, policy)
    line = sorted(range(len(jobs)), key=lambda place: (jobs[place].submit, place))
    for now, ends, submits in _instants(machine, [(place, jobs[place]) for place in line]):
        if per_event:
            foreseen = {end for end in ends if end.predicted == now}
            machine.free_all(foreseen)
            for place, job in submits:
                machine.submit(place, job)
                machine.run_pass(now)
            for end in ends:
                if end not in foreseen:
                    machine.free_all([end])
                machine.run_pass(now)
        else:
            machine.free_all(ends)
            for place, job in submits:
                machine.submit(place, job)
            machine.run_pass(now)
    return {job.number: machine.started[place] for place, job in enumerate(jobs)}


class _Running(NamedTuple):
    """A running job; `turn` counts the starts."""

    end: int
    turn: int
    predicted: int
    procs: int


class Machine:
    """Running and waiting jobs, and one policy's pass."""

    def __init__(self, processors: int, policy: str) -> None:
        self.free = processors
        #: Ordered by end and turn.
        self.running: list[_Running] = []
        #: Ordered by place in the queue.
        self.waiting: list[tuple[int, int, Job]] = []
        self.started: dict[int, int] = {}
        #: (predicted end, processors), sorted.
        self._predicted: list[tuple[int, int]] = []
        #: Waiting jobs, in the order in which they may overtake the head.
        self._by_estimate: list[tuple[int, int, int, Job]] = []
        self._policy = policy

    def submit(self, place: int, job: Job) -> None:
        """Put a job in line."""
        insort(self.waiting, (job.submit, place, job))
        insort(self._by_estimate, (job.estimate, job.submit, place, job))

    def ended(self, now: int) -> list[_Running]:
        """Remove jobs that end now, in the order of starts; their processors are not free yet."""
        ends = []
        while self.running and self.running[0].end <= now:
            ends.append(heapq.heappop(self.running))
        return ends

    def free_all(self, ends: Sequence[_Running] | set[_Running]) -> None:
        """Free the processors of ended jobs."""
        for end in ends:
            self.free += end.procs
            del self._predicted[bisect_left(self._predicted, (end.predicted, end.procs))]

    def run_pass(self, now: int) -> None:
        """Start the jobs that the policy starts now."""
        if self._policy == "first-fit":
            self._start_those_that_fit(now)
            return
        if self._policy == "conservative":
            self._start_as_planned(now)
            return
        while self.waiting and self.waiting[0][2].procs <= self.free:
            self._start(now, 0)
        if self._policy != "fcfs" and self.waiting and self.free:
            self._backfill(now, by_estimate=self._policy == "easy-sjf")

    def _start(self, now: int, at: int) -> None:
        submit, place, job = self.waiting.pop(at)
        del self._by_estimate[bisect_left(self._by_estimate, (job.estimate, submit, place, job))]
        end = _Running(now + job.run, len(self.started), now + job.estimate, job.procs)
        heapq.heappush(self.running, end)
        insort(self._predicted, (end.predicted, end.procs))
        self.free -= job.procs
        self.started[place] = now

    def _start_those_that_fit(self, now: int) -> None:
        at = 0
        while self.free and at < len(self.waiting):
            if self.waiting[at][2].procs <= self.free:
                self._start(now, at)
            else:
                at += 1

    def _backfill(self, now: int, *, by_estimate: bool) -> None:
        head = self.waiting[0]
        shadow, beside = self._promise(head[2])
        if by_estimate:
            order = [(submit, place, job) for _, submit, place, job in self._by_estimate]
        else:
            order = self.waiting[1:]
        for one in order:
            job = one[2]
            if job.procs > self.free or one == head:
                continue
            if now + job.estimate > shadow:
                if job.procs > beside:
                    continue
                beside -= job.procs
            self._start(now, bisect_left(self.waiting, one))
            if not self.free:
                return

    def _promise(self, head: Job) -> tuple[int, int]:
        """Return the head's latest start, and what will be free beside it then."""
        free, shadow = self.free, 0
        for end, procs in self._predicted:
            if free >= head.procs and end > shadow:
                break
            free, shadow = free + procs, end
        return shadow, free - head.procs

    def _start_as_planned(self, now: int) -> None:
        plan = Plan(now, self.free, self._predicted)
        # Jobs after the last that could start now are skipped: their reservations begin later.
        smallest = [0] * (len(self.waiting) + 1)
        smallest[-1] = self.free + 1
        for at in range(len(self.waiting) - 1, -1, -1):
            smallest[at] = min(smallest[at + 1], self.waiting[at][2].procs)
        due = []
        for at, (_, _, job) in enumerate(self.waiting):
            if smallest[at] > plan.free[0]:
                break
            if plan.place(job.procs, job.estimate) == now:
                due.append(at)
        for gone, at in enumerate(due):
            self._start(now, at - gone)


class Plan:
    """Free processors over time: `free[i]` from `times[i]` to the next."""

    def __init__(self, now: int, free: int, predicted: Sequence[tuple[int, int]]) -> None:
        self.times, self.free = [now], [free]
        for end, procs in predicted:
            free += procs
            if end == self.times[-1]:
                self.free[-1] = free
            else:
                self.times.append(end)
                self.free.append(free)

    def place(self, procs: int, length: int) -> int:
        """Reserve the earliest interval of this size and length; return its begin."""
        times, free = self.times, self.free
        first = 0
        while True:
            while free[first] < procs:
                first += 1
            end, last = times[first] + length, first + 1
            while last < len(times) and times[last] < end and free[last] >= procs:
                last += 1
            if last == len(times) or times[last] >= end:
                break
            first = last
        self._split(end)
        for at in range(first, bisect_right(times, end) - 1):
            free[at] -= procs
        return times[first]

    def _split(self, at: int) -> None:
        after = bisect_right(self.times, at)
        if self.times[after - 1] != at:
            self.times.insert(after, at)
            self.free.insert(after, self.free[after - 1])


def _instants(
    machine: Machine, line: Sequence[tuple[int, Job]]
) -> Iterator[tuple[int, list[_Running], Sequence[tuple[int, Job]]]]:
    """Yield every instant at which jobs end or are submitted, with these jobs."""
    at = 0
    while at < len(line) or machine.running:
        times = [line[at][1].submit] if at < len(line) else []
        now = min([*times, *(run.end for run in machine.running[:1])])
        first = at
        while at < len(line) and line[at][1].submit == now:
            at += 1
        yield now, machine.ended(now), line[first:at]
