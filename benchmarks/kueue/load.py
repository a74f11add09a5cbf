"""The two loads of Kueue's generator, as batchq's objects.

Source: test/performance/scheduler/configs/{baseline,large-scale}/generator.yaml of
kubernetes-sigs/kueue. The groups of each class and queue are submitted at a fixed interval, the
first after one interval.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from batchq.api.objects import (
    Metadata,
    Object,
    PodGroup,
    PodGroupSpec,
    PriorityClass,
    PriorityClassSpec,
    Queue,
    QueuePreemption,
    QueueSpec,
)

#: One unit of quota is one cpu, which is counted in thousandths.
UNIT = 1000
_FILE = "scenario.json"

NOMINAL = 20
BORROWING = 100


@dataclass(frozen=True)
class Class:
    """A class of groups: their size and run time, their number per queue and their interval."""

    name: str
    priority: int
    units: int
    run_ms: int
    every_ms: int
    count: int


@dataclass(frozen=True)
class Published:
    """Kueue's means over its CI runs (rangespec.yaml and the history of its thresholds)."""

    wall_s: float
    usage: float
    #: Class -> mean seconds from creation to admission.
    admission_s: dict[str, float]


@dataclass(frozen=True)
class Scenario:
    """A load: cohorts of equal queues, each with groups of all classes."""

    name: str
    cohorts: int
    queues: int
    classes: tuple[Class, ...]
    published: Published
    #: The duration when only the units limit the work: the base of `to floor`, in seconds.
    floor_s: float

    @property
    def cohort_units(self) -> int:
        """Return the limit of all queues of a cohort together."""
        return self.queues * NOMINAL

    @property
    def queue_units(self) -> int:
        """Return the limit of one queue, borrowed units included."""
        return min(NOMINAL + BORROWING, self.cohort_units)

    @property
    def groups(self) -> int:
        """Return the total number of groups."""
        return self.cohorts * self.queues * sum(one.count for one in self.classes)

    @property
    def unit_s(self) -> float:
        """Return the work of one queue, in unit-seconds."""
        return sum(one.count * one.units * one.run_ms for one in self.classes) / 1000

    @property
    def last_submission_s(self) -> float:
        """Return the seconds from the first submission to the last."""
        times = [(one.every_ms, one.count * one.every_ms) for one in self.classes]
        return (max(last for _, last in times) - min(first for first, _ in times)) / 1000


BASELINE = Scenario(
    name="baseline",
    cohorts=5,
    queues=6,
    classes=(
        Class("small", 50, 1, 200, 100, 350),
        Class("medium", 100, 5, 500, 500, 100),
        Class("large", 200, 20, 1000, 1200, 50),
    ),
    published=Published(351.116, 0.559, {"large": 16.5, "medium": 76.8, "small": 215.5}),
    floor_s=66.0,
)
LARGE_SCALE = Scenario(
    name="large-scale",
    cohorts=10,
    queues=100,
    classes=(
        Class("small", 50, 1, 150, 60, 35),
        Class("medium", 100, 5, 350, 300, 11),
        Class("large", 200, 20, 700, 700, 4),
    ),
    published=Published(1179.411, 0.3864, {"large": 105.6, "medium": 256.4, "small": 700.4}),
    floor_s=8.0,
)
SCENARIOS = {one.name: one for one in (BASELINE, LARGE_SCALE)}


def scaled(scenario: Scenario, scale: float) -> Scenario:
    """Return the load with the number of groups of each class and queue multiplied by `scale`."""
    if scale == 1:
        return scenario
    classes = tuple(
        replace(one, count=max(1, round(one.count * scale))) for one in scenario.classes
    )
    smaller = replace(scenario, classes=classes)
    least = max(smaller.unit_s / NOMINAL, smaller.last_submission_s)
    return replace(smaller, name=f"{scenario.name}, scale {scale:g}", floor_s=least)


def requested_scale() -> float:
    """Return BATCHQ_BENCH_SCALE; 1 by default."""
    return float(os.environ.get("BATCHQ_BENCH_SCALE", "1"))


def write_scenario(scenario: Scenario, folder: Path) -> None:
    """Write the scenario to the run's folder, for the other processes."""
    (folder / _FILE).write_bytes(msgspec.json.encode(scenario))


def read_scenario(folder: Path) -> Scenario:
    """Return the scenario of the run in this folder."""
    return msgspec.json.decode((folder / _FILE).read_bytes(), type=Scenario)


def classes_and_queues(scenario: Scenario) -> list[Object]:
    """Return the priority classes, the cohorts and their queues."""
    found: list[Object] = [
        PriorityClass(metadata=Metadata(name=one.name), spec=PriorityClassSpec(value=one.priority))
        for one in scenario.classes
    ]
    together = {"cpu": scenario.cohort_units * UNIT}
    for cohort in range(scenario.cohorts):
        name = f"cohort-{cohort}"
        spec = QueueSpec(deserved=together, capability=together)
        found.append(Queue(metadata=Metadata(name=name), spec=spec))
        found += [
            Queue(metadata=Metadata(name=f"queue-{cohort}-{number}"), spec=_queue(scenario, name))
            for number in range(scenario.queues)
        ]
    return found


def _queue(scenario: Scenario, cohort: str) -> QueueSpec:
    return QueueSpec(
        parent=cohort,
        deserved={"cpu": NOMINAL * UNIT},
        # Never more than the cohort's capability, which a child may not exceed.
        capability={"cpu": scenario.queue_units * UNIT},
        preemption=QueuePreemption(within_queue="LowerPriority", reclaim="Any"),
    )


def submissions(scenario: Scenario) -> list[tuple[int, PodGroup]]:
    """Return (milliseconds after the start, group), ordered by time."""
    return sorted(_all_submissions(scenario), key=lambda one: (one[0], one[1].metadata.name))


def _all_submissions(scenario: Scenario) -> Iterator[tuple[int, PodGroup]]:
    for cohort in range(scenario.cohorts):
        for queue in range(scenario.queues):
            for one in scenario.classes:
                spec = PodGroupSpec(
                    queue=f"queue-{cohort}-{queue}",
                    controller="external",
                    min_resources={"cpu": one.units * UNIT},
                    priority_class_name=one.name,
                )
                for number in range(one.count):
                    name = f"{one.name}-{cohort}-{queue}-{number}"
                    group = PodGroup(metadata=Metadata(name=name, namespace="default"), spec=spec)
                    yield (number + 1) * one.every_ms, group


def class_of(name: str) -> str:
    """Return the class of a group: `small` for `small-0-3-17`."""
    return name.partition("-")[0]


def place_of(name: str) -> tuple[str, str]:
    """Return the cohort and the queue of a group: `0` and `0-3` for `small-0-3-17`."""
    _, cohort, queue, _ = name.split("-")
    return cohort, f"{cohort}-{queue}"
