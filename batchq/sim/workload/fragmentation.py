"""How much of a cluster's free GPUs the workload cannot use where it is free.

The measure is that of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent", USENIX ATC 2023, section 3, and of its artifact
(https://github.com/hkust-adsl/kubernetes-scheduler-simulator, `NodeGpuShareFragAmount`):

    F_n(M) = sum over the tasks m of a workload M of p_m * F_n(m)

where p_m is how popular task m is, and F_n(m) what of node n's free GPUs is a fragment to m: all of
it, if m does not fit on n as it is now (for lack of GPU, cpu or memory, or as the model is another)
or asks for no GPU at all; else nothing. The cluster's fragmentation is the sum over its nodes; its
rate is that divided by all free GPUs. As in the artifact, M is the most frequent shapes of request
that make up 95 % of the pods.

**What differs.** The paper knows each GPU of a node by itself: to a task that fits, those GPUs
are fragments that have less free than it asks for of one. batchq's nodes have one amount of GPU, in
thousandths, so two free halves of two GPUs count as one whole, and that term is nothing. What is
measured here is therefore what batchq's own scheduler cannot place, and at most what the paper
measures. And memory counts here, where the artifact looks at cpu and GPU alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from msgspec import Struct

from batchq.api.quantity import CPU, MEMORY

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
    for shape, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if pods * 100 >= wanted:
            break
        found.append(Typical(shape=shape, pods=count))
        pods += count
    return tuple(found)


class Meter:
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
