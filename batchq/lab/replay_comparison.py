"""Compare a replay with the simulation, and repeat single decisions of the daemon.

The state at an instant is rebuilt from the instants that the replay's groups record: which were
submitted, placed, running and ended by then. The daemon may not have seen the latest events, so if
the decision differs, these are withdrawn one by one, up to the replay's latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from batchq.api.intents import Bind
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.notation import SECOND
from batchq.api.objects import (
    Metadata,
    Node,
    NodeSpec,
    Pod,
    PodGroup,
    PodGroupStatus,
    PodSpec,
    PodStatus,
    key_of,
)
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.errors import UsageError
from batchq.lab.load_player import play_load
from batchq.lab.replay import (
    LABEL,
    Replayed,
    ReplayEnding,
    ReplayPlan,
    group_of,
    log_second,
    queue_of,
    walltime_ms,
)
from batchq.lab.simulation.initial_state import found
from batchq.lab.simulation.world import CountedIds, DescribedPod, World
from batchq.lab.traces import Trace, swf_load

_CPU_MILLI = 1000
#: How many of the latest events may be withdrawn.
MOST_WITHDRAWN = 30

_SUBMITTED, _RUNS, _ENDED = 0, 1, 2


class _ReplayEvent(Struct, frozen=True, order=True):
    """An event at `at` of the job at index `place`; `what` is one of the constants above."""

    at: int
    what: int
    place: int


class RepeatedDecisions:
    """Repeated sessions over a replay's past, which never change it; caches their results."""

    def __init__(
        self, plan: ReplayPlan, jobs: Sequence[Replayed], config: SchedulerConfig, latency_ms: int
    ) -> None:
        self._plan = plan
        self._jobs = jobs
        self._groups = [_group(plan, one, place) for place, one in enumerate(jobs)]
        self._scheduler = assemble(config)
        self._latency_ms = latency_ms
        #: (instant, number of withdrawn events) -> the jobs placed.
        self._decided: dict[tuple[int, int], set[int]] = {}
        self._events = sorted(
            event for place, one in enumerate(jobs) for event in _events_of(one, place)
        )

    def places(self, number: int, *, without: int) -> bool:
        """Return whether a session places job `number` when the daemon did, and not `without`."""
        [at] = [one.bound_at for one in self._jobs if one.job.number == number]
        if at is None:
            return False
        heard = [one for one in self._events if one.at <= at]
        late = sum(one.at > at - self._latency_ms for one in heard)
        for withdrawn in range(min(late, MOST_WITHDRAWN) + 1):
            placed = self._decided.get((at, withdrawn))
            if placed is None:
                placed = self._placed(at, heard[: len(heard) - withdrawn])
                self._decided[at, withdrawn] = placed
            if number in placed and without not in placed:
                return True
        return False

    def _placed(self, at: int, heard: Sequence[_ReplayEvent]) -> set[int]:
        """Return the numbers of the jobs that a session at `at` places."""
        known = {(one.what, one.place) for one in heard}
        groups: list[PodGroup] = []
        pods: list[DescribedPod] = []
        for place, (one, group) in enumerate(zip(self._jobs, self._groups, strict=True)):
            if (_SUBMITTED, place) not in known or (_ENDED, place) in known:
                continue
            if one.bound_at is None or one.bound_at >= at:
                groups.append(group)
                continue
            runs = (_RUNS, place) in known
            groups.append(replace(group, status=_group_status(one, runs=runs)))
            pods.append(_pod(self._plan, group, one, runs=runs))
        world = World(
            objects=(queue_of(self._plan), *_nodes(self._plan)),
            groups=tuple(groups),
            pods=tuple(pods),
            steps=(),
            start_at=at,
            documents=len(groups),
        )
        session = self._scheduler.without_memory().decide(found(world, CountedIds()).snapshot(), at)
        bound = {intent.group for intent in session.intents if isinstance(intent, Bind)}
        return {
            one.job.number
            for one, group in zip(self._jobs, self._groups, strict=True)
            if key_of(group) in bound
        }


def _events_of(one: Replayed, place: int) -> Iterator[_ReplayEvent]:
    if not one.submitted_at:
        # Its group was deleted, and its instants with it.
        return
    for what, at in enumerate((one.submitted_at, one.running_at, one.ended_at)):
        if at is not None:
            yield _ReplayEvent(at, what, place)


def _group(plan: ReplayPlan, one: Replayed, place: int) -> PodGroup:
    """Return the group as submitted; groups of one millisecond stay in the order of submission."""
    group = group_of(plan, one.job)
    meta = replace(group.metadata, uid=f"{place:08}", creation_timestamp=one.submitted_at)
    return replace(group, metadata=meta)


def _group_status(one: Replayed, *, runs: bool) -> PodGroupStatus:
    return PodGroupStatus(
        phase=PodGroupPhase.RUNNING if runs else PodGroupPhase.IN_QUEUE,
        in_queue_at=one.bound_at,
        started_at=one.running_at if runs else None,
    )


def _pod(plan: ReplayPlan, group: PodGroup, one: Replayed, *, runs: bool) -> DescribedPod:
    """Return the group's one pod, on the node that it ran on."""
    [task] = group.spec.tasks
    meta = Metadata(name=f"{group.metadata.name}-{task.name}-0", namespace=plan.name)
    status = PodStatus(
        phase=PodPhase.RUNNING if runs else PodPhase.BOUND,
        node=one.node,
        bound_at=one.bound_at,
        started_at=one.running_at if runs else None,
    )
    spec = PodSpec(pod_group=group.metadata.name, task=task.name, index=0)
    return DescribedPod(
        pod=Pod(metadata=meta, spec=spec, status=status), written=frozenset(), where=meta.name
    )


def _nodes(plan: ReplayPlan) -> Iterator[Node]:
    for name in plan.node_names():
        yield Node(
            metadata=Metadata(name=name, uid=name, labels={LABEL: plan.name}),
            spec=NodeSpec(resources={"cpu": plan.trace.processors * _CPU_MILLI}),
        )


#: The possible causes of a differing pair, in the order in which they are tested, with texts.
CAUSES: Mapping[str, str] = {
    "processes": "placed in the simulator's order or at once; their processes started in another",
    "allowance": "simulated as replayed, once walltimes have the replay's allowance",
    "latency": "decided so from what had come by then; simulated closer together than the latency",
    "overhead": "decided so from what had come by then; pods held processors longer than jobs ran",
    "open": "not explained",
}
OPEN = "open"
#: Every pair is compared, so twice as many jobs take four times as long.
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
    """The comparison over all pairs of jobs that start at different instants in both schedules.

    `tau` is Kendall's: pairs in the same order less pairs in the other, over all pairs; None
    without pairs. `latency_ms` is the slowest submit or process start in real time.
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
        """Whether every differing pair has a known cause."""
        return self.causes[OPEN] == 0


def check_comparable(plan: ReplayPlan) -> None:
    """Raise UsageError for more jobs than can be compared in acceptable time."""
    if len(plan.trace.jobs) > MOST_COMPARED:
        raise UsageError(
            f"--against compares at most {MOST_COMPARED} jobs, and these are"
            f" {len(plan.trace.jobs)}",
            hint="--jobs sets their number, --skip the first",
        )


def compare(plan: ReplayPlan, ending: ReplayEnding, config: SchedulerConfig) -> Comparison:
    """Simulate the replayed log under `config`, and compare the starts.

    Raises UsageError for more than MOST_COMPARED jobs.
    """
    check_comparable(plan)
    live = {
        one.job.number: start
        for one in ending.outcomes
        if (start := log_second(plan, ending, one.started_at)) is not None
    }
    simulated = simulated_starts(plan, plan.trace, config)
    same, inverted = _compare_orders(simulated, live)
    causes_of = _Causes(plan, ending, config) if inverted else None
    differing = []
    for first, then in inverted:
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


def simulated_starts(plan: ReplayPlan, trace: Trace, config: SchedulerConfig) -> Starts:
    """Return when each job starts, in the trace's unit, on a machine of the replay's shape."""
    load = swf_load(trace, strategy=plan.strategy)
    [machine] = load.nodes
    named = [
        replace(machine, metadata=replace(machine.metadata, name=name))
        for name in plan.node_names()
    ]
    load = replace(load, nodes=tuple(named), capacity=plan.processors)
    schedule = play_load(load, config)
    return {one.number: one.start_s for one in schedule.jobs if one.start_s is not None}


def _compare_orders(simulated: Starts, live: Starts) -> tuple[int, list[tuple[int, int]]]:
    """Return how many pairs start in the same order in both, and the other pairs as simulated."""
    both = sorted(
        (number for number in live if number in simulated),
        key=lambda number: (simulated[number], live[number]),
    )
    same, inverted = 0, []
    for first, then in combinations(both, 2):
        if simulated[first] == simulated[then] or live[first] == live[then]:
            continue
        if live[first] < live[then]:
            same += 1
        else:
            inverted.append((first, then))
    return same, inverted


class _Causes:
    """Finds why pairs differ, by one more simulation and repeated decisions."""

    def __init__(self, plan: ReplayPlan, ending: ReplayEnding, config: SchedulerConfig) -> None:
        latency_ms = _latency_ms(plan, ending)
        self._placed = {one.job.number: one.bound_at or 0 for one in ending.outcomes}
        self._latency_s = latency_ms * plan.speed / SECOND
        self._allowed = simulated_starts(plan, _with_allowance(plan), config)
        self._repeated = RepeatedDecisions(plan, ending.outcomes, config, latency_ms)

    def of(self, first: int, then: int, *, apart_s: float) -> str:
        """Return the cause of a pair that is simulated in this order, `apart_s` seconds apart."""
        if self._placed[first] <= self._placed[then]:
            return "processes"
        if self._allowed.get(then, inf) < self._allowed.get(first, inf):
            return "allowance"
        if not self._repeated.places(then, without=first):
            return OPEN
        return "latency" if apart_s <= self._latency_s else "overhead"


def _with_allowance(plan: ReplayPlan) -> Trace:
    """Return the log with the requests that the replay's groups had."""
    jobs = [
        replace(job, request_s=round(walltime_ms(plan, job) * plan.speed / SECOND))
        for job in plan.trace.jobs
    ]
    return replace(plan.trace, jobs=tuple(jobs))


def _latency_ms(plan: ReplayPlan, ending: ReplayEnding) -> int:
    """Return the slowest submit, or process start after a bind, in milliseconds."""
    lags = [0]
    for one in ending.outcomes:
        due_at = ending.began_at + plan.due_s(one.job) * SECOND
        lags.append(round(one.submitted_at - due_at))
        if one.bound_at is not None and one.started_at is not None:
            lags.append(one.started_at - one.bound_at)
    return max(lags)
