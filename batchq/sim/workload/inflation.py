"""Monte-Carlo inflation: pods come until a cluster is more than full, and none ever leaves.

So Weng et al. (USENIX ATC 2023, section 6) compare placements, after Verma et al., "Evaluating job
packing in warehouse-scale computing" (CLUSTER 2014): pods of the trace are submitted in random
order until the GPUs that they ask for come to, say, 130 % of those that there are. Each is tried
once; one that no node takes is withdrawn, counts as failed and comes no more. What is left to see
is how much of the cluster's GPUs a placement gets allocated before nothing fits any more.

The trace is gone through in an order drawn from the seed; when that is not enough, again and again,
in another order each time. (The paper's artifact draws the rest one by one.) The scheduler is the
daemon's, `assemble` and `Cycle` over a store in memory; time stands still. It sees two percent of
the cluster's GPUs at a time, and places these pods one by one, in their order: as if each had had a
session to itself, but for what of the cluster is promised, until the end of the session, to a pod
that no node takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Object, Pod, PodGroup, key_of, kind_of
from batchq.api.transaction import Charge, Transaction, Write
from batchq.assembly import assemble
from batchq.changes import create
from batchq.config.model import SchedulerConfig
from batchq.errors import InvalidInput
from batchq.framework.ledger import holders_in_store
from batchq.scheduler.cycle import Cycle
from batchq.sim.clock import CountedIds, VirtualClock
from batchq.sim.workload.founding import empty_cluster
from batchq.sim.workload.fragmentation import Meter, Reading
from batchq.sim.workload.load import Load
from batchq.sim.workload.openb import group_of, openb_load, places_of, shape_of
from batchq.sim.writing import write
from batchq.traces.openb import OpenbNode, OpenbPod

DEFAULT_PERCENT = 130
MOST_PERCENT = 1000
DEFAULT_SEED = 42
#: How much comes between two sessions. Nearly all of a session's cost is that it takes place.
STEP_PERCENT = 2


class Point(Struct, frozen=True, kw_only=True):
    """How things stood when so much GPU (in thousandths) had been asked for by so many pods."""

    arrived: int
    pods: int
    placed: int
    reading: Reading


class Inflation(Struct, frozen=True, kw_only=True):
    """One run: `points` by what had arrived, the first of them before anything had.

    `first_failed` is what had arrived, in thousandths of a GPU, when for the first time a pod that
    asks for GPU was not placed; None if all were.
    """

    name: str
    capacity: int
    points: tuple[Point, ...]
    first_failed: int | None = None

    @property
    def last(self) -> Point:
        """How it ended."""
        return self.points[-1]

    @property
    def allocation_when_all_was_asked_for(self) -> float | None:
        """The allocation ratio once as much had been asked for as there is; None if never."""
        crowded = (one for one in self.points if one.arrived >= self.capacity)
        return next((one.reading.allocation for one in crowded), None)


def inflate(
    nodes: Sequence[OpenbNode],
    pods: Sequence[OpenbPod],
    config: SchedulerConfig,
    *,
    name: str = "",
    percent: int = DEFAULT_PERCENT,
    seed: int = DEFAULT_SEED,
    tell: Callable[[int, int], None] | None = None,
) -> Inflation:
    """Let pods come until they ask for `percent` of the cluster's GPUs.

    `tell` hears after each step what has arrived, and of how much. Raises InvalidInput for a
    cluster without GPUs or a trace without pods that ask for any.
    """
    if not any(pod.gpu_milli for pod in pods):
        raise InvalidInput(f"{name}: expected at least one pod that asks for a GPU, found none")
    load = openb_load(nodes, pods, title=name)
    cluster = _Cluster(load, pods, config)
    most = -(-load.capacity * percent // 100)
    for step in _steps(pods, load.capacity, percent, random.Random(seed)):
        cluster.submit(step)
        if tell is not None:
            tell(min(cluster.arrived, most), most)
    return Inflation(
        name=name,
        capacity=load.capacity,
        points=tuple(cluster.points),
        first_failed=cluster.first_failed,
    )


def _steps(
    pods: Sequence[OpenbPod], capacity: int, percent: int, chance: random.Random
) -> Iterator[list[OpenbPod]]:
    """The pods as they come, parted where so many more percents of the capacity are reached."""
    step: list[OpenbPod] = []
    arrived, next_at = 0, STEP_PERCENT
    for pod in _without_end(pods, chance):
        step.append(pod)
        arrived += pod.gpu_milli
        if arrived * 100 >= min(next_at, percent) * capacity:
            yield step
            step = []
            next_at = arrived * 100 // capacity + STEP_PERCENT
            if arrived * 100 >= percent * capacity:
                return


def _without_end(pods: Sequence[OpenbPod], chance: random.Random) -> Iterator[OpenbPod]:
    while True:
        yield from chance.sample(pods, len(pods))


class _Cluster:
    """The cluster while pods come; owns its store, and what is known of it so far."""

    def __init__(self, load: Load, pods: Sequence[OpenbPod], config: SchedulerConfig) -> None:
        self._requests = CountedIds()
        self._store = empty_cluster(load, self._requests)
        scheduler = assemble(config)
        self._cycle = Cycle(self._store, scheduler, VirtualClock(), self._requests)
        self._uids = map(str, count(1))
        self._meter = Meter(places_of(load.nodes), [shape_of(pod) for pod in pods])
        self._pods = self._placed = 0
        self.arrived = 0
        self.first_failed: int | None = None
        self.points = [self._point()]

    def submit(self, pods: Sequence[OpenbPod]) -> None:
        """Let these come, in this order; those that are not placed are gone afterwards."""
        groups = [self._submitted(pod) for pod in pods]
        self._cycle.run_once()
        self._store.delivered(self._store.outbox())
        for pod, group in zip(pods, groups, strict=True):
            self.arrived += pod.gpu_milli
            self._count(pod, group)
        self._pods += len(pods)
        self.points.append(self._point())

    def _point(self) -> Point:
        reading = self._meter.reading()
        return Point(arrived=self.arrived, pods=self._pods, placed=self._placed, reading=reading)

    def _submitted(self, pod: OpenbPod) -> str:
        """Its group's key. A pod of the trace may come several times, so groups are numbered."""
        uid = next(self._uids)
        group = group_of(pod, name=f"pod-{uid}")
        made = create(self._store, group, now_ms=0, uid=uid, described=True)
        write(self._store, self._requests, made)
        return key_of(group)

    def _count(self, pod: OpenbPod, key: str) -> None:
        group = self._store.get("PodGroup", key)
        assert isinstance(group, PodGroup)
        made = self._store.pods_of(group.metadata.uid)
        for one in made:
            if one.status.phase in ON_NODE:
                self._meter.take(one.status.node, one.spec.requests)
                self._placed += 1
                return
        if pod.gpu_milli and self.first_failed is None:
            self.first_failed = self.arrived
        write(self._store, self._requests, _withdrawn(group, made))


def _withdrawn(group: PodGroup, pods: Sequence[Pod]) -> Transaction:
    """The group has never been, nor has what it was promised."""
    uid = group.metadata.uid
    holders = dict.fromkeys((f"object:{uid}", f"group:{uid}", *holders_in_store(group)))
    gone: tuple[Object, ...] = (group, *pods)
    return Transaction(
        subject=key_of(group),
        writes=tuple(
            Write(kind=kind_of(obj), key=key_of(obj), expect=obj.metadata.revision, value=None)
            for obj in gone
        ),
        charges=tuple(Charge(holder=holder) for holder in holders),
    )
