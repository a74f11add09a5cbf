"""Two schedules of one log held against each other: who starts before whom, live and simulated.

Times cannot agree to the second: a daemon takes milliseconds to decide and a process some to start,
and at speed 2000 each of them is two seconds of the log. The order in which jobs start is what the
policy decides, so that is compared, pair by pair, and each pair that starts the other way round is
put down to the first of these that holds:

    processes   the daemon placed both in the simulator's order, or in one session; their processes
                got going in another
    allowance   with the walltimes that the replay's groups had (the request and an allowance), the
                simulator starts them as the replay did
    latency     a session decides as the daemon did when it is given what had come by then, and
                simulated they start closer together than the slowest submit or start took
    overhead    a session decides so, and they are further apart: pods hold their processors longer
                than jobs run, by what it takes to start and to notice, and that adds up
    open        none of these
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from batchq.api.times import SECOND
from batchq.config.model import SchedulerConfig
from batchq.errors import UsageError
from batchq.replaying.deciding import DecidedAgain
from batchq.replaying.groups import Plan, walltime_ms
from batchq.replaying.report import Ending, log_second
from batchq.sim.workload.load import swf_load
from batchq.sim.workload.stage import play_load
from batchq.traces import Trace

#: What a pair may be put down to, in the order in which they are asked; and in words.
CAUSES: Mapping[str, str] = {
    "processes": "placed in the simulator's order or at once; their processes started in another",
    "allowance": "simulated as replayed, once walltimes have the replay's allowance",
    "latency": "decided so from what had come by then; simulated closer together than the latency",
    "overhead": "decided so from what had come by then; pods held processors longer than jobs ran",
    "open": "not explained",
}
OPEN = "open"
#: Every pair is looked at: twice as many jobs take four times as long.
MOST_COMPARED = 5_000

#: When each job starts, by its number.
Starts = Mapping[int, float]


class Differing(Struct, frozen=True, kw_only=True, rename="camel"):
    """Two jobs: simulated, `first` starts before `then`; live, after it. Seconds of the log."""

    first: int
    then: int
    simulated_apart_s: float
    replayed_apart_s: float
    cause: str


class Comparison(Struct, frozen=True, kw_only=True, rename="camel"):
    """Over the pairs of jobs that start at different instants in both schedules.

    `tau` is Kendall's: those in the same order less those in the other, over all; None where there
    is no pair. `latency_ms`: how long the slowest submit or process start took, in real time.
    """

    jobs: int
    pairs: int
    same: int
    tau: float | None
    latency_ms: int
    causes: dict[str, int]
    differing: tuple[Differing, ...]

    @property
    def explained(self) -> bool:
        """Whether every pair that differs is put down to something."""
        return self.causes[OPEN] == 0


def check_comparable(plan: Plan) -> None:
    """Raise UsageError where so many jobs are replayed that comparing them takes too long."""
    if len(plan.trace.jobs) > MOST_COMPARED:
        raise UsageError(
            f"--against compares at most {MOST_COMPARED} jobs, and these are"
            f" {len(plan.trace.jobs)}",
            hint="--jobs says how many, --skip where they begin",
        )


def compare(plan: Plan, ending: Ending, config: SchedulerConfig) -> Comparison:
    """Play what was replayed in virtual time, under `config`, and hold the starts together.

    Raises UsageError for more than MOST_COMPARED jobs.
    """
    check_comparable(plan)
    live = {
        one.job.number: start
        for one in ending.outcomes
        if (start := log_second(plan, ending, one.started_at)) is not None
    }
    simulated = simulated_starts(plan, plan.trace, config)
    same, turned = _held_together(simulated, live)
    causes_of = _Causes(plan, ending, config) if turned else None
    differing = []
    for first, then in turned:
        assert causes_of is not None
        apart_s = simulated[then] - simulated[first]
        differing.append(
            Differing(
                first=first,
                then=then,
                simulated_apart_s=apart_s,
                replayed_apart_s=round(live[then] - live[first], 3),
                cause=causes_of.of(first, then, apart_s=apart_s),
            )
        )
    return _comparison(len(live), same, differing, _latency_ms(plan, ending))


def _comparison(
    jobs: int, same: int, differing: Sequence[Differing], latency_ms: int
) -> Comparison:
    pairs = same + len(differing)
    counts = Counter(one.cause for one in differing)
    return Comparison(
        jobs=jobs,
        pairs=pairs,
        same=same,
        tau=(same - len(differing)) / pairs if pairs else None,
        latency_ms=latency_ms,
        causes={cause: counts[cause] for cause in CAUSES},
        differing=tuple(differing),
    )


def simulated_starts(plan: Plan, trace: Trace, config: SchedulerConfig) -> Starts:
    """When each job starts, in the trace's unit, on a machine of the replay's shape."""
    load = swf_load(trace, strategy=plan.strategy)
    [machine] = load.nodes
    named = [
        replace(machine, metadata=replace(machine.metadata, name=name))
        for name in plan.node_names()
    ]
    load = replace(load, nodes=tuple(named), capacity=plan.processors)
    schedule = play_load(load, config)
    return {one.number: one.start_s for one in schedule.jobs if one.start_s is not None}


def _held_together(simulated: Starts, live: Starts) -> tuple[int, list[tuple[int, int]]]:
    """How many pairs start in the same order in both, and those that do not, as simulated."""
    both = sorted(
        (number for number in live if number in simulated),
        key=lambda number: (simulated[number], live[number]),
    )
    same, turned = 0, []
    for first, then in combinations(both, 2):
        if simulated[first] == simulated[then] or live[first] == live[then]:
            continue
        if live[first] < live[then]:
            same += 1
        else:
            turned.append((first, then))
    return same, turned


class _Causes:
    """Why pairs differ: the log is simulated once more for it, and decisions are made again."""

    def __init__(self, plan: Plan, ending: Ending, config: SchedulerConfig) -> None:
        latency_ms = _latency_ms(plan, ending)
        self._placed = {one.job.number: one.bound_at or 0 for one in ending.outcomes}
        self._latency_s = latency_ms * plan.speed / SECOND
        self._allowed = simulated_starts(plan, _with_allowance(plan), config)
        self._again = DecidedAgain(plan, ending.outcomes, config, latency_ms)

    def of(self, first: int, then: int, *, apart_s: float) -> str:
        """The cause of a pair that is simulated in this order, and so far apart."""
        if self._placed[first] <= self._placed[then]:
            return "processes"
        if self._allowed.get(then, inf) < self._allowed.get(first, inf):
            return "allowance"
        if not self._again.places(then, without=first):
            return OPEN
        return "latency" if apart_s <= self._latency_s else "overhead"


def _with_allowance(plan: Plan) -> Trace:
    """The log with the requests that the replay's groups had."""
    jobs = [
        replace(job, request_s=round(walltime_ms(plan, job) * plan.speed / SECOND))
        for job in plan.trace.jobs
    ]
    return replace(plan.trace, jobs=tuple(jobs))


def _latency_ms(plan: Plan, ending: Ending) -> int:
    """The slowest submit, or start of a process once its pod had a node."""
    lags = [0]
    for one in ending.outcomes:
        due_at = ending.began_at + plan.due_s(one.job) * SECOND
        lags.append(round(one.submitted_at - due_at))
        if one.bound_at is not None and one.started_at is not None:
            lags.append(one.started_at - one.bound_at)
    return max(lags)
