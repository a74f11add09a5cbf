"""Alibaba's GPU trace as a load: its nodes, and a group of one pod for each of its pods.

GPUs are counted in thousandths, on nodes and in requests alike: a pod with `num_gpu` 8 asks for
8000, one that shares a GPU for its `gpu_milli`. A node has its cpu, memory and GPUs, and labels for
their model. A pod may name several models that will do, and a node selector is an exact match, so
each node also has a label for every set of models asked for that its own is in: `V100M16|V100M32`
selects nodes with `gpu-model-in/V100M16.V100M32: "true"`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count
from typing import Literal, TypeAlias

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Node,
    NodeSpec,
    Object,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
    key_of,
    kind_of,
)
from batchq.api.resources import CPU, MEMORY
from batchq.api.times import SECOND
from batchq.api.transaction import Charge, Transaction, Write
from batchq.assembly import assemble
from batchq.changes import create
from batchq.config.model import PluginEntry, PluginSet, SchedulerConfig
from batchq.core.quota.ledger import holders_in_store
from batchq.errors import InvalidInput
from batchq.lab.simulation.clock import CountedIds, VirtualClock, write
from batchq.lab.traces.openb import WHOLE_GPU, OpenbNode, OpenbPod
from batchq.lab.workload.jobs import Arrival, Load, empty_cluster
from batchq.lab.workload.schedule import Gauge, Sample
from batchq.lab.workload.schedule import Meter as OverTime
from batchq.scheduler.cycle import Cycle

#: What a pod says that it takes at most: nothing, or what it took.
Walltimes: TypeAlias = Literal["none", "runtime"]

_MIB = 2**20
_MODEL = "gpu-model"
_MODEL_IN = "gpu-model-in"
_YES = "true"

#: Which node of those that fit, each by one score plugin in the box with its own defaults: fill up
#: the GPUs of a node, or keep as much of everything free on it; all else is the default.
PLACEMENTS: Mapping[str, SchedulerConfig] = {
    "binpack": SchedulerConfig(
        points={"score": PluginSet(enabled=(PluginEntry(name="binpack"),), disabled=("*",))}
    ),
    "spread": SchedulerConfig(
        points={"score": PluginSet(enabled=(PluginEntry(name="leastAllocated"),), disabled=("*",))}
    ),
}


def openb_load(
    nodes: Sequence[OpenbNode],
    pods: Sequence[OpenbPod],
    *,
    title: str = "",
    walltimes: Walltimes = "none",
    strategy: Strategy | None = None,
) -> Load:
    """Every pod that ran at all arrives at its creation and runs as long as it did.

    Sizes and the capacity are thousandths of a GPU. Raises InvalidInput for a cluster without GPUs.
    """
    arrivals = [_arrival(pod, walltimes) for pod in pods if pod.run_s > 0]
    return Load(
        title=title,
        capacity=gpu_capacity(nodes, title),
        nodes=tuple(cluster_nodes(nodes, pods)),
        queues=(the_queue(strategy),),
        arrivals=tuple(sorted(arrivals, key=lambda one: (one.at_s, one.number))),
    )


def gpu_capacity(nodes: Sequence[OpenbNode], title: str) -> int:
    """All GPUs of a cluster, in thousandths. Raises InvalidInput if there are none."""
    capacity = sum(node.gpus for node in nodes) * WHOLE_GPU
    if not capacity:
        raise InvalidInput(f"{title}: expected at least one node with a GPU, found none")
    return capacity


def the_queue(strategy: Strategy | None = None) -> Queue:
    """The one queue of a trace that knows no queues."""
    return Queue(metadata=Metadata(name=DEFAULT), spec=QueueSpec(strategy=strategy or Strategy()))


def cluster_nodes(nodes: Sequence[OpenbNode], pods: Sequence[OpenbPod]) -> list[Node]:
    """The nodes, with a label for each set of models that any of the pods asks for."""
    sets = sorted({pod.models for pod in pods if len(pod.models) > 1})
    return [
        Node(
            metadata=Metadata(name=node.name, labels=_labels(node, sets)),
            spec=NodeSpec(
                resources={
                    CPU: node.cpu_milli,
                    MEMORY: node.memory_mib * _MIB,
                    GPU: node.gpus * WHOLE_GPU,
                }
            ),
        )
        for node in nodes
    ]


def group_of(pod: OpenbPod, *, name: str = "", walltimes: Walltimes = "none") -> PodGroup:
    """A group of one pod that asks for what this one did; called as it is, unless named."""
    shape = shape_of(pod)
    template = PodTemplate(
        requests={CPU: shape.cpu, MEMORY: shape.memory, GPU: shape.gpu},
        node_selector=dict(shape.selector),
    )
    return PodGroup(
        metadata=Metadata(name=name or pod.name, namespace=DEFAULT),
        spec=PodGroupSpec(
            walltime=pod.run_s * SECOND if walltimes == "runtime" else None,
            tasks=(Task(name="pod", template=template),),
        ),
    )


def shape_of(pod: OpenbPod) -> Shape:
    """What a pod asks for, as the scheduler sees it."""
    return Shape(
        cpu=pod.cpu_milli,
        memory=pod.memory_mib * _MIB,
        gpu=pod.gpu_milli,
        selector=_selector(pod.models),
    )


def places_of(nodes: Sequence[Node]) -> list[Place]:
    """The same nodes, for the measure of fragmentation."""
    return [
        Place(
            name=node.metadata.name,
            cpu=node.spec.resources.get(CPU, 0),
            memory=node.spec.resources.get(MEMORY, 0),
            gpu=node.spec.resources.get(GPU, 0),
            labels=node.metadata.labels,
        )
        for node in nodes
    ]


def _arrival(pod: OpenbPod, walltimes: Walltimes) -> Arrival:
    return Arrival(
        at_s=pod.created_s,
        group=group_of(pod, walltimes=walltimes),
        run_s=pod.run_s,
        number=pod.number,
        tenant=DEFAULT,
        size=pod.gpu_milli,
    )


def _labels(node: OpenbNode, sets: Sequence[tuple[str, ...]]) -> dict[str, str]:
    if not node.model:
        return {}
    within = {_name_of(models): _YES for models in sets if node.model in models}
    return {_MODEL: node.model, **within}


def _selector(models: Sequence[str]) -> tuple[tuple[str, str], ...]:
    match len(models):
        case 0:
            return ()
        case 1:
            return ((_MODEL, models[0]),)
        case _:
            return ((_name_of(models), _YES),)


def _name_of(models: Sequence[str]) -> str:
    return f"{_MODEL_IN}/{'.'.join(models)}"


GPU = "gpu"
#: Of a workload's pods, how many the shapes that count make up at least.
POPULARITY_PERCENT = 95


class Shape(Struct, frozen=True, kw_only=True, order=True):
    """What a pod asks for: milli-cores, bytes, thousandths of a GPU, and labels of its node."""

    cpu: int
    memory: int
    gpu: int
    selector: tuple[tuple[str, str], ...] = ()


class Typical(Struct, frozen=True, kw_only=True):
    """A shape, and how many pods of the workload have it."""

    shape: Shape
    pods: int


class Place(Struct, frozen=True, kw_only=True):
    """A node, as far as the measure goes: what it has, and its labels."""

    name: str
    cpu: int
    memory: int
    gpu: int
    labels: Mapping[str, str]


class Reading(Struct, frozen=True, kw_only=True):
    """The cluster at one instant; GPUs in thousandths.

    `fragmented` is the expected amount of free GPU that the workload's next pod cannot use.
    `stranded` counts the nodes with free GPU, but with less cpu or memory than any pod that asks
    for GPU wants; `stranded_gpu` is what is free there.
    """

    capacity: int
    allocated: int
    fragmented: Fraction
    stranded: int
    stranded_gpu: int

    @property
    def allocation(self) -> float:
        """The GPU allocation ratio: allocated of all GPUs."""
        return self.allocated / self.capacity if self.capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """Fragments of all GPUs."""
        return float(self.fragmented / self.capacity) if self.capacity else 0.0

    @property
    def fragmentation_of_free(self) -> float:
        """Fragments of what is not allocated: the paper's fragmentation rate."""
        free = self.capacity - self.allocated
        return float(self.fragmented / free) if free else 0.0


def typical_shapes(
    shapes: Iterable[Shape], *, percent: int = POPULARITY_PERCENT
) -> tuple[Typical, ...]:
    """The most frequent shapes that together make up at least `percent` of all pods."""
    counts = Counter(shapes)
    wanted = counts.total() * percent
    found: list[Typical] = []
    pods = 0
    # Equally frequent ones by size, so that no order of the file or of hashes decides.
    for shape, frequency in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if pods * 100 >= wanted:
            break
        found.append(Typical(shape=shape, pods=frequency))
        pods += frequency
    return tuple(found)


class GpuMeter:
    """Follows what is taken and given back on each node; owns the sums over all of them.

    A change costs a look at one node, so that a reading costs nothing.
    """

    def __init__(
        self, places: Sequence[Place], workload: Sequence[Shape], *, percent: int = 95
    ) -> None:
        asking = [shape for shape in workload if shape.gpu]
        self._least_cpu = min((shape.cpu for shape in asking), default=0)
        self._least_memory = min((shape.memory for shape in asking), default=0)
        self._typical = typical_shapes(workload, percent=percent)
        self._pods = sum(one.pods for one in self._typical)
        #: Kinds of nodes, by their labels: which shapes may be there at all, as to labels.
        self._suitable: dict[tuple[tuple[str, str], ...], tuple[Typical, ...]] = {}
        self._places = {place.name: place for place in places if place.gpu}
        self._free = {
            place.name: [place.cpu, place.memory, place.gpu] for place in self._places.values()
        }
        self._capacity = sum(place.gpu for place in self._places.values())
        #: Node -> what of its free GPU is no fragment, times the pods of the typical shapes.
        self._usable: dict[str, int] = {}
        self._stranded: dict[str, int] = {}
        self._all_usable = 0
        self._all_free = self._capacity
        self._all_stranded = 0
        for name in self._places:
            self._look_at(name)

    def take(self, node: str, requests: Mapping[str, int]) -> None:
        """A pod with these requests has been placed on the node."""
        self._change(node, requests, -1)

    def give_back(self, node: str, requests: Mapping[str, int]) -> None:
        """A pod with these requests has left the node."""
        self._change(node, requests, 1)

    def reading(self) -> Reading:
        """How things stand now."""
        usable = Fraction(self._all_usable, self._pods) if self._pods else Fraction(0)
        return Reading(
            capacity=self._capacity,
            allocated=self._capacity - self._all_free,
            fragmented=self._all_free - usable,
            stranded=len(self._stranded),
            stranded_gpu=self._all_stranded,
        )

    # ----------------------------------------------------------------------------------------

    def _change(self, node: str, requests: Mapping[str, int], sign: int) -> None:
        free = self._free.get(node)
        if free is None:
            # A node without GPUs has nothing that could be fragmented.
            return
        for place, name in enumerate((CPU, MEMORY, GPU)):
            free[place] += sign * requests.get(name, 0)
        self._all_free += sign * requests.get(GPU, 0)
        self._look_at(node)

    def _look_at(self, name: str) -> None:
        cpu, memory, gpu = self._free[name]
        usable = gpu * sum(
            one.pods
            for one in self._may_be_on(name)
            if one.shape.gpu <= gpu and one.shape.cpu <= cpu and one.shape.memory <= memory
        )
        self._all_usable += usable - self._usable.get(name, 0)
        self._usable[name] = usable
        stranded = gpu if cpu < self._least_cpu or memory < self._least_memory else 0
        self._all_stranded += stranded - self._stranded.pop(name, 0)
        if stranded:
            self._stranded[name] = stranded

    def _may_be_on(self, name: str) -> tuple[Typical, ...]:
        """The typical shapes that ask for GPU, and for no other labels than the node has."""
        labels = self._places[name].labels
        key = tuple(sorted(labels.items()))
        known = self._suitable.get(key)
        if known is None:
            known = self._suitable[key] = tuple(
                one
                for one in self._typical
                if one.shape.gpu
                and all(labels.get(word) == value for word, value in one.shape.selector)
            )
        return known


_ALLOCATED: Gauge = ("", "allocated")
_FRAGMENTED: Gauge = ("", "fragmented")
_STRANDED: Gauge = ("", "stranded")


class GpuLevel(Struct, frozen=True, kw_only=True):
    """A quantity over time: its mean, its peak, and what it was when the last pod had come."""

    mean: float
    peak: float
    final: float


class GpuUse(Struct, frozen=True, kw_only=True):
    """Ratios between 0 and 1, but for `stranded_nodes`, which counts nodes.

    `allocation` and `fragmentation` are of all GPUs, `fragmentation_of_free` of those that were not
    allocated; its mean is that of the one over that of the other. `over_time` has the same in
    steps of equal length: what was allocated and fragmented, in thousandths of a GPU.
    """

    name: str
    capacity: int
    allocation: GpuLevel
    fragmentation: GpuLevel
    fragmentation_of_free: GpuLevel
    stranded_nodes: GpuLevel
    over_time: tuple[Sample, ...] = ()

    def allocated(self, sample: Sample) -> float:
        """The GPU allocation ratio of a step."""
        return sample.total(_ALLOCATED[1]) / self.capacity

    def fragmented(self, sample: Sample) -> float:
        """Fragments of all GPUs in a step."""
        return sample.total(_FRAGMENTED[1]) / self.capacity

    def fragmented_of_free(self, sample: Sample) -> float:
        """Fragments of what was not allocated in a step."""
        free = self.capacity - sample.total(_ALLOCATED[1])
        return sample.total(_FRAGMENTED[1]) / free if free else 0.0


class GpuWatch:
    """Follows one play of a load; owns what has been added up so far."""

    def __init__(self, load: Load, workload: Sequence[Shape]) -> None:
        self._meter = GpuMeter(places_of(load.nodes), workload)
        self._start_s = load.arrivals[0].at_s if load.arrivals else 0
        self._last_s = load.arrivals[-1].at_s if load.arrivals else 0
        self._now_s = self._start_s
        self._now = self._meter.reading()
        self._final: Reading | None = None
        #: Thousandths of a GPU, or nodes, times seconds.
        self._allocated_s = 0
        self._fragmented_s = Fraction(0)
        self._stranded_s = 0
        self._peaks = [0.0, 0.0, 0.0, 0.0]
        self._over_time = OverTime(self._start_s)
        self._shown: dict[Gauge, int] = {}

    def __call__(self, pod: Pod, sign: int, at_s: int) -> None:
        """A pod holds its node from now on (1), or does no longer (-1)."""
        if at_s > self._now_s:
            self._pass_to(at_s)
        change = self._meter.take if sign > 0 else self._meter.give_back
        change(pod.status.node, pod.spec.requests)

    def use(self, name: str) -> GpuUse:
        """What it all came to, from the first arrival to the last thing that happened."""
        self._pass_to(self._now_s)
        long_s = self._now_s - self._start_s
        capacity = self._now.capacity
        final = _ratios(self._final or self._now)
        free_s = capacity * long_s - self._allocated_s
        whole = capacity * long_s
        means = (
            _part(self._allocated_s, whole),
            _part(self._fragmented_s, whole),
            _part(self._fragmented_s, free_s),
            _part(self._stranded_s, long_s),
        )
        levels = [
            GpuLevel(mean=mean, peak=peak, final=last)
            for mean, peak, last in zip(means, self._peaks, final, strict=True)
        ]
        return GpuUse(
            name=name,
            capacity=capacity,
            allocation=levels[0],
            fragmentation=levels[1],
            fragmentation_of_free=levels[2],
            stranded_nodes=levels[3],
            over_time=self._over_time.samples(self._now_s),
        )

    # ----------------------------------------------------------------------------------------

    def _pass_to(self, at_s: int) -> None:
        """All has happened that happens at this instant; count it up to the next."""
        self._now = now = self._meter.reading()
        self._peaks = list(map(max, self._peaks, _ratios(now)))
        for gauge, units in (
            (_ALLOCATED, now.allocated),
            (_FRAGMENTED, round(now.fragmented)),
            (_STRANDED, now.stranded),
        ):
            self._over_time.add(gauge, units - self._shown.get(gauge, 0), self._now_s)
            self._shown[gauge] = units
        if self._final is None and at_s > self._last_s:
            self._final = now
        long_s = at_s - self._now_s
        self._allocated_s += now.allocated * long_s
        self._fragmented_s += now.fragmented * long_s
        self._stranded_s += now.stranded * long_s
        self._now_s = at_s


def _ratios(reading: Reading) -> tuple[float, float, float, float]:
    return (
        reading.allocation,
        reading.fragmentation,
        reading.fragmentation_of_free,
        float(reading.stranded),
    )


def _part(amount: int | Fraction, whole: int) -> float:
    return float(Fraction(amount) / whole) if whole else 0.0


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
        self._meter = GpuMeter(places_of(load.nodes), [shape_of(pod) for pod in pods])
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
