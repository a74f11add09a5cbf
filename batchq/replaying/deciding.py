"""One decision of a replay, made again: what a session places in the state that the daemon met.

The state at an instant is put together from what the replay's groups say of themselves: who was
submitted, placed, running and ended by then. What was submitted just before may not have reached
the daemon yet; so where the decision is another one, the latest happenings are taken back, one
after the other, as far as the replay's latency goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from batchq.api.intents import Bind
from batchq.api.lifecycle import PodGroupPhase, PodPhase
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
from batchq.config.model import SchedulerConfig
from batchq.replaying.groups import LABEL, Plan, group_of, queue_of
from batchq.replaying.report import Replayed
from batchq.sim.clock import CountedIds
from batchq.sim.founding import found
from batchq.sim.world import DescribedPod, World

_CPU_MILLI = 1000
#: How many of the latest happenings may be unheard of.
MOST_UNHEARD = 30

_SUBMITTED, _RUNS, _ENDED = 0, 1, 2


class _Happening(Struct, frozen=True, order=True):
    """At `at`, something (one of the three) comes to the job at `place` of the replay."""

    at: int
    what: int
    place: int


class DecidedAgain:
    """Sessions over one replay's past, of which nothing is changed; owns what it has decided."""

    def __init__(
        self, plan: Plan, jobs: Sequence[Replayed], config: SchedulerConfig, latency_ms: int
    ) -> None:
        self._plan = plan
        self._jobs = jobs
        self._groups = [_group(plan, one, place) for place, one in enumerate(jobs)]
        self._scheduler = assemble(config)
        self._latency_ms = latency_ms
        #: What was placed at an instant with so many of the latest happenings unheard of.
        self._decided: dict[tuple[int, int], set[int]] = {}
        self._happened = sorted(
            happening for place, one in enumerate(jobs) for happening in _happenings(one, place)
        )

    def places(self, number: int, *, without: int) -> bool:
        """Whether a session places a job when the daemon did, and does not place another one."""
        [at] = [one.bound_at for one in self._jobs if one.job.number == number]
        if at is None:
            return False
        heard = [one for one in self._happened if one.at <= at]
        late = sum(one.at > at - self._latency_ms for one in heard)
        for unheard in range(min(late, MOST_UNHEARD) + 1):
            placed = self._decided.get((at, unheard))
            if placed is None:
                placed = self._placed(at, heard[: len(heard) - unheard])
                self._decided[at, unheard] = placed
            if number in placed and without not in placed:
                return True
        return False

    def _placed(self, at: int, heard: Sequence[_Happening]) -> set[int]:
        """The numbers of the jobs that a session at `at` places."""
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
        session = self._scheduler.wide_awake().decide(found(world, CountedIds()).snapshot(), at)
        bound = {intent.group for intent in session.intents if isinstance(intent, Bind)}
        return {
            one.job.number
            for one, group in zip(self._jobs, self._groups, strict=True)
            if key_of(group) in bound
        }


def _happenings(one: Replayed, place: int) -> Iterator[_Happening]:
    if not one.submitted_at:
        # Somebody has deleted its group, and with it what there was to know.
        return
    for what, at in enumerate((one.submitted_at, one.running_at, one.ended_at)):
        if at is not None:
            yield _Happening(at, what, place)


def _group(plan: Plan, one: Replayed, place: int) -> PodGroup:
    """The group as it was submitted; of one millisecond, in the order of the submits."""
    group = group_of(plan, one.job)
    meta = replace(group.metadata, uid=f"{place:08}", creation_timestamp=one.submitted_at)
    return replace(group, metadata=meta)


def _group_status(one: Replayed, *, runs: bool) -> PodGroupStatus:
    return PodGroupStatus(
        phase=PodGroupPhase.RUNNING if runs else PodGroupPhase.IN_QUEUE,
        in_queue_at=one.bound_at,
        started_at=one.running_at if runs else None,
    )


def _pod(plan: Plan, group: PodGroup, one: Replayed, *, runs: bool) -> DescribedPod:
    """The group's one pod, on the node where it was."""
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


def _nodes(plan: Plan) -> Iterator[Node]:
    for name in plan.node_names():
        yield Node(
            metadata=Metadata(name=name, uid=name, labels={LABEL: plan.name}),
            spec=NodeSpec(resources={"cpu": plan.trace.processors * _CPU_MILLI}),
        )
