"""Alibaba's GPU trace as a load, its inflation, and the fragmentation of its GPUs.

GPUs are counted in thousandths, on nodes and in requests: a pod with `num_gpu` 8 requests 8000, a
pod that shares a GPU its `gpu_milli`. A node has its cpu, memory and GPUs, and labels for their
model. A pod may accept several models, but a node selector is an exact match, so each node also has
a label for every requested set of models that includes its own: `V100M16|V100M32` selects nodes
with `gpu-model-in/V100M16.V100M32: "true"`.
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
from batchq.api.notation import SECOND
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
from batchq.api.transaction import Charge, Transaction, Write
from batchq.assembly import assemble
from batchq.client.changes import create
from batchq.config import PluginEntry, PluginSet, SchedulerConfig
from batchq.core.quota.ledger import holders_in_store
from batchq.errors import InvalidInput
from batchq.lab.schedule import Gauge, Sample
from batchq.lab.schedule import Meter as OverTime
from batchq.lab.simulation.world import CountedIds, VirtualClock, write
from batchq.lab.traces import WHOLE_GPU, Arrival, Load, OpenbNode, OpenbPod, empty_cluster
from batchq.scheduler.cycle import Cycle

#: The walltime that pods state: none, or their actual run time.
Walltimes: TypeAlias = Literal["none", "runtime"]

_MIB = 2**20
_MODEL = "gpu-model"
_MODEL_IN = "gpu-model-in"
_YES = "true"

#: Placement strategies, each by one builtin score plugin with its default settings: fill up a
#: node's GPUs, or keep as much as possible of everything free on it.
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
    """Return the load in which every pod that ran arrives at its creation and runs as long.

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
    """Return all GPUs of a cluster, in thousandths. Raises InvalidInput if there are none."""
    capacity = sum(node.gpus for node in nodes) * WHOLE_GPU
    if not capacity:
        raise InvalidInput(f"{title}: expected at least one node with a GPU, found none")
    return capacity


def the_queue(strategy: Strategy | None = None) -> Queue:
    """Return the only queue of a trace without queues."""
    return Queue(metadata=Metadata(name=DEFAULT), spec=QueueSpec(strategy=strategy or Strategy()))


def cluster_nodes(nodes: Sequence[OpenbNode], pods: Sequence[OpenbPod]) -> list[Node]:
    """Return the nodes, with a label for each set of models that any pod requests."""
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
    """Return a group of one pod with the same requests; it has the pod's name by default."""
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
    """Return a pod's requests, as the scheduler sees them."""
    return Shape(
        cpu=pod.cpu_milli,
        memory=pod.memory_mib * _MIB,
        gpu=pod.gpu_milli,
        selector=_selector(pod.models),
    )


def places_of(nodes: Sequence[Node]) -> list[Place]:
    """Return the same nodes for the measure of fragmentation."""
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
#: The typical shapes cover at least this percentage of a workload's pods.
POPULARITY_PERCENT = 95


class Shape(Struct, frozen=True, kw_only=True, order=True):
    """A pod's requests: milli-cores, bytes, thousandths of a GPU, and labels of its node."""

    cpu: int
    memory: int
    gpu: int
    selector: tuple[tuple[str, str], ...] = ()


class Typical(Struct, frozen=True, kw_only=True):
    """A shape, and how many pods of the workload have it."""

    shape: Shape
    pods: int


class Place(Struct, frozen=True, kw_only=True):
    """A node as the measure needs it: its resources and labels."""

    name: str
    cpu: int
    memory: int
    gpu: int
    labels: Mapping[str, str]


class Reading(Struct, frozen=True, kw_only=True):
    """The cluster at one instant; GPUs in thousandths.

    `fragmented` is the expected amount of free GPU that the workload's next pod cannot use.
    `stranded` counts nodes with free GPU, but less cpu or memory than any GPU pod requests;
    `stranded_gpu` is the free GPU there.
    """

    capacity: int
    allocated: int
    fragmented: Fraction
    stranded: int
    stranded_gpu: int

    @property
    def allocation(self) -> float:
        """The GPU allocation ratio: allocated over all GPUs."""
        return self.allocated / self.capacity if self.capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """Fragments over all GPUs."""
        return float(self.fragmented / self.capacity) if self.capacity else 0.0

    @property
    def fragmentation_of_free(self) -> float:
        """Fragments over unallocated GPUs: the paper's fragmentation rate."""
        free = self.capacity - self.allocated
        return float(self.fragmented / free) if free else 0.0


def typical_shapes(
    shapes: Iterable[Shape], *, percent: int = POPULARITY_PERCENT
) -> tuple[Typical, ...]:
    """Return the most frequent shapes that together cover at least `percent` of all pods."""
    counts = Counter(shapes)
    wanted = counts.total() * percent
    found: list[Typical] = []
    pods = 0
    # Equally frequent ones by size, so that the order of the file does not matter.
    for shape, frequency in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if pods * 100 >= wanted:
            break
        found.append(Typical(shape=shape, pods=frequency))
        pods += frequency
    return tuple(found)


class GpuMeter:
    """Follows the allocations on each node; owns the sums over all nodes.

    A change updates one node, so a reading costs nothing.
    """

    def __init__(self, places: Sequence[Place], workload: Sequence[Shape]) -> None:
        asking = [shape for shape in workload if shape.gpu]
        self._least_cpu = min((shape.cpu for shape in asking), default=0)
        self._least_memory = min((shape.memory for shape in asking), default=0)
        self._typical = typical_shapes(workload)
        self._pods = sum(one.pods for one in self._typical)
        #: A node's labels -> the shapes that may run there, as far as labels go.
        self._suitable: dict[tuple[tuple[str, str], ...], tuple[Typical, ...]] = {}
        self._places = {place.name: place for place in places if place.gpu}
        self._free = {
            place.name: [place.cpu, place.memory, place.gpu] for place in self._places.values()
        }
        self._capacity = sum(place.gpu for place in self._places.values())
        #: Node -> its usable free GPU, summed over the pods of the typical shapes.
        self._usable: dict[str, int] = {}
        self._stranded: dict[str, int] = {}
        self._all_usable = 0
        self._all_free = self._capacity
        self._all_stranded = 0
        for name in self._places:
            self._look_at(name)

    def take(self, node: str, requests: Mapping[str, int]) -> None:
        """Count a pod with these requests as placed on the node."""
        self._change(node, requests, -1)

    def give_back(self, node: str, requests: Mapping[str, int]) -> None:
        """Count a pod with these requests as gone from the node."""
        self._change(node, requests, 1)

    def reading(self) -> Reading:
        """Return the present state."""
        usable = Fraction(self._all_usable, self._pods) if self._pods else Fraction(0)
        return Reading(
            capacity=self._capacity,
            allocated=self._capacity - self._all_free,
            fragmented=self._all_free - usable,
            stranded=len(self._stranded),
            stranded_gpu=self._all_stranded,
        )

    def _change(self, node: str, requests: Mapping[str, int], sign: int) -> None:
        free = self._free.get(node)
        if free is None:
            # A node without GPUs cannot be fragmented.
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
        """Return the typical shapes that request GPU and whose selector the node's labels match."""
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
    """A quantity over time: its mean, its peak, and its value after the last arrival."""

    mean: float
    peak: float
    final: float


class GpuUse(Struct, frozen=True, kw_only=True):
    """Ratios between 0 and 1, except `stranded_nodes`, which counts nodes.

    `allocation` and `fragmentation` are over all GPUs, `fragmentation_of_free` over unallocated
    ones; its mean is mean fragments over mean free GPU. `over_time` has the same in steps of equal
    length: allocated and fragmented thousandths of a GPU.
    """

    name: str
    capacity: int
    allocation: GpuLevel
    fragmentation: GpuLevel
    fragmentation_of_free: GpuLevel
    stranded_nodes: GpuLevel
    over_time: tuple[Sample, ...] = ()

    def allocated(self, sample: Sample) -> float:
        """Return the GPU allocation ratio of a step."""
        return sample.total(_ALLOCATED[1]) / self.capacity

    def fragmented(self, sample: Sample) -> float:
        """Return fragments over all GPUs in a step."""
        return sample.total(_FRAGMENTED[1]) / self.capacity

    def fragmented_of_free(self, sample: Sample) -> float:
        """Return fragments over unallocated GPUs in a step."""
        free = self.capacity - sample.total(_ALLOCATED[1])
        return sample.total(_FRAGMENTED[1]) / free if free else 0.0


class GpuWatch:
    """Follows one play of a load; owns the sums so far."""

    def __init__(self, load: Load, workload: Sequence[Shape]) -> None:
        self._meter = GpuMeter(places_of(load.nodes), workload)
        self._start_s = load.arrivals[0].at_s if load.arrivals else 0
        self._last_s = load.arrivals[-1].at_s if load.arrivals else 0
        self._now_s = self._start_s
        self._now = self._meter.reading()
        self._final: Reading | None = None
        #: Thousandths of a GPU, or nodes, multiplied by seconds.
        self._allocated_s = 0
        self._fragmented_s = Fraction(0)
        self._stranded_s = 0
        self._peaks = [0.0, 0.0, 0.0, 0.0]
        self._over_time = OverTime(self._start_s)
        self._shown: dict[Gauge, int] = {}

    def __call__(self, pod: Pod, sign: int, at_s: int) -> None:
        """Count a pod that takes its node (1) or leaves it (-1)."""
        if at_s > self._now_s:
            self._pass_to(at_s)
        change = self._meter.take if sign > 0 else self._meter.give_back
        change(pod.status.node, pod.spec.requests)

    def use(self, name: str) -> GpuUse:
        """Return the totals from the first arrival to the last event."""
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

    def _pass_to(self, at_s: int) -> None:
        """Add up the state of the present instant, which is complete, until `at_s`."""
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
#: Arrivals between two sessions, in percent of the capacity. A session's cost is mostly fixed.
STEP_PERCENT = 2


class Point(Struct, frozen=True, kw_only=True):
    """The state when this much GPU (in thousandths) had been requested by this many pods."""

    arrived: int
    pods: int
    placed: int
    reading: Reading


class Inflation(Struct, frozen=True, kw_only=True):
    """One run: `points` by what had arrived, the first before any arrival.

    `first_failed` is what had arrived, in thousandths of a GPU, when a GPU pod was first not
    placed; None if all were placed.
    """

    name: str
    capacity: int
    points: tuple[Point, ...]
    first_failed: int | None = None

    @property
    def last(self) -> Point:
        """The final state."""
        return self.points[-1]

    @property
    def allocation_when_all_was_asked_for(self) -> float | None:
        """The allocation ratio once all GPUs had been requested; None if they never were."""
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
    """Let pods arrive until they request `percent` of the cluster's GPUs.

    `tell` is called after each step with what has arrived, and the total. Raises InvalidInput for a
    cluster without GPUs, or a trace without GPU pods.
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
    """Yield the arriving pods in steps of STEP_PERCENT of the capacity."""
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
    """The cluster while pods arrive; owns its store and the points so far."""

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
        """Submit these pods in order, run a session, and remove those that were not placed."""
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
        """Submit a pod's group and return its key; groups are numbered, because pods may recur."""
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
    """Return the removal of a group, its pods and its charges."""
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
