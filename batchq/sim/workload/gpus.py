"""How the GPUs of a cluster were used while a load was played: allocated, and fragmented.

`GpuWatch` is told of each pod that takes or leaves its node (`play_load(..., look=...)`), and adds
up what the measure of `batchq.sim.workload.fragmentation` says in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from msgspec import Struct

from batchq.api.objects import Pod
from batchq.sim.workload.fragmentation import Meter, Reading, Shape
from batchq.sim.workload.load import Load
from batchq.sim.workload.meter import Gauge
from batchq.sim.workload.meter import Meter as OverTime
from batchq.sim.workload.openb import places_of
from batchq.sim.workload.schedule import Sample

_ALLOCATED: Gauge = ("", "allocated")
_FRAGMENTED: Gauge = ("", "fragmented")
_STRANDED: Gauge = ("", "stranded")


class Level(Struct, frozen=True, kw_only=True):
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
    allocation: Level
    fragmentation: Level
    fragmentation_of_free: Level
    stranded_nodes: Level
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
        self._meter = Meter(places_of(load.nodes), workload)
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
            Level(mean=mean, peak=peak, final=last)
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
