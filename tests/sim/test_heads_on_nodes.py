"""A head reservation names nodes, and groups of other queues stay off these.

Nodes have four cpus each. Each running group is described with its node, and ends by its walltime.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_backfill import job
from tests.sim.test_backfill_on_nodes import held, nodes
from tests.sim.test_evictions import running
from tests.sim.worlds import (
    Manifest,
    applies,
    bound,
    group,
    node,
    of,
    outcome,
    outcome_until,
    pod,
    queue,
    timeline,
)

NO_EVICTIONS = "actions: [enqueue, allocate, backfill]"
STRICT = ["StrictFIFO", "Backfill"]


def where(*manifests: Manifest) -> dict[str, tuple[int, str]]:
    """Return when each pod is first bound, and to which node, in a world that is played to its
    end.
    """
    found: dict[str, tuple[int, str]] = {}
    for at, pods in bound(outcome(*manifests, config=NO_EVICTIONS)):
        for name, on in pods.items():
            found.setdefault(name.removeprefix("default/").removesuffix("-t-0"), (at, on))
    return found


def strict(strategy: str, **more: Any) -> Manifest:
    return queue("a", strategy={"type": strategy}, deserved={"cpu": 8}, **more)


def half_full(*, until: tuple[int, ...]) -> list[Manifest]:
    """Return groups that hold two cpus on each node for this many seconds."""
    world = nodes(len(until))
    for place, seconds in enumerate(until, start=1):
        world += held(f"r{place}", 2, f"n{place}", seconds)
    return world


@pytest.mark.parametrize("strategy", STRICT)
def test_a_group_of_another_queue_stays_off_the_node_that_a_head_waits_for(strategy: str) -> None:
    """The sums have capacity for both, but the head would lose n1, which it gets at 100 s."""
    world = [strict(strategy), *half_full(until=(100, 600, 600))]
    came = where(*world, job("head", 4, 50, queue="a"), job("small", 2, 1_000))
    assert came == {"small": (0, "n2"), "head": (100, "n1")}


@pytest.mark.parametrize("strategy", STRICT)
def test_a_group_that_fits_only_the_heads_node_waits_for_the_head(strategy: str) -> None:
    world = [strict(strategy), *half_full(until=(100, 600, 600))]
    world += [*held("s2", 1, "n2", 600), *held("s3", 1, "n3", 600)]
    world += [*nodes(5)[3:], *held("s4", 3, "n4", 600), *held("s5", 3, "n5", 600)]
    world += [job("head", 4, 50, queue="a"), job("small", 2, 1_000)]
    assert where(*world) == {"head": (100, "n1"), "small": (150, "n1")}
    result = of(outcome_until(0, *world, config=NO_EVICTIONS), "small").reasons
    assert [one.reason for one in result] == ["WaitingForResources"]
    assert "reserved for the head of a" in result[0].message


@pytest.mark.parametrize("strategy", STRICT)
def test_a_group_that_ends_before_the_head_starts_uses_its_node_until_then(strategy: str) -> None:
    world = [strict(strategy), *half_full(until=(100, 600, 600))]
    world += [*held("s2", 1, "n2", 600), *held("s3", 1, "n3", 600)]
    world += [*nodes(5)[3:], *held("s4", 3, "n4", 600), *held("s5", 3, "n5", 600)]
    world += [job("head", 4, 50, queue="a"), job("small", 2, 100)]
    assert where(*world) == {"small": (0, "n1"), "head": (100, "n1")}


@pytest.mark.parametrize("strategy", STRICT)
def test_more_pods_of_another_queues_array_stay_off_the_node_that_a_head_waits_for(
    strategy: str,
) -> None:
    """Two cpus are free on n1 alone, and the sums have capacity for them beside the head."""
    status = {"phase": "Running", "reservedAt": 0}
    world = [strict(strategy), *half_full(until=(100, 600, 600))]
    world += [*nodes(7)[3:], *held("s2", 2, "n2", 600)]
    world += [one for place in range(4, 8) for one in held(f"s{place}", 3, f"n{place}", 600)]
    world += [job("head", 4, 50, queue="a")]
    world += [group("array", 3, 2, minMember=1, walltime="1000s", status=status)]
    world += [pod("array-t-0", "array", 0, phase="Running", node="n3", startedAt=0)]
    assert where(*world) == {
        "head": (100, "n1"),
        "array-t-1": (150, "n1"),
        "array-t-2": (150, "n1"),
    }


@pytest.mark.parametrize("strategy", STRICT)
def test_a_head_without_a_known_start_reserves_the_node_with_most_free_resources(
    strategy: str,
) -> None:
    """On n2 three cpus are free; the group there has no walltime, and ends at 100 s."""
    world = [strict(strategy), *nodes(3)]
    world += [*running("r1", 2, on="n1"), *running("r3", 2, on="n3")]
    world += running("r2", 1, on="n2", runtime="100s")
    world += [job("head", 4, 50, queue="a"), job("small", 1, 1_000)]
    assert where(*world) == {"small": (0, "n1"), "head": (100, "n2")}


@pytest.mark.parametrize("strategy", STRICT)
def test_a_head_keeps_its_reserved_node_even_if_another_has_more_free_by_now(strategy: str) -> None:
    """Its reservation is on n1, where no end is known; at 20 s more is free on n2."""
    world = [strict(strategy), *nodes(3)]
    world += [*running("r1", 2, on="n1", runtime="100s"), *running("r3", 3, on="n3")]
    world += [*running("r2", 1, on="n2"), *running("s2", 2, on="n2", runtime="20s")]
    world += [job("head", 4, 50, queue="a")]
    world += [timeline(applies(30, job("late", 2, 1_000)))]
    assert where(*world) == {"late": (30, "n2"), "head": (100, "n1")}


@pytest.mark.parametrize("strategy", STRICT)
def test_a_head_moves_its_reservation_to_a_node_where_it_could_start_sooner(strategy: str) -> None:
    """It was to get n1 at 100 s; at 20 s it is known that n2 will be empty at 60 s."""
    world = [strict(strategy), *nodes(3), *held("r1", 2, "n1", 100), *held("r3", 3, "n3", 600)]
    world += [*held("r2", 2, "n2", 60), *running("s2", 1, on="n2", runtime="20s")]
    world += [job("head", 4, 50, queue="a")]
    world += [timeline(applies(30, job("late", 2, 1_000)))]
    assert where(*world) == {"late": (30, "n1"), "head": (60, "n2")}


def having_run(world: list[Manifest]) -> list[Manifest]:
    """`a` holds resources, and so is tried after the other queue, which holds none."""
    return [one | {"spec": one["spec"] | {"queue": "a"}} if one["kind"] == "PodGroup" else one
            for one in world]  # fmt: skip


@pytest.mark.parametrize("strategy", STRICT)
def test_a_queue_tried_earlier_stays_off_the_heads_node_if_another_takes_its_pods(
    strategy: str,
) -> None:
    world = [strict(strategy), *having_run(half_full(until=(100, 600, 600)))]
    world += [job("head", 4, 50, queue="a")]
    came = where(*world, timeline(applies(5, job("small", 2, 1_000))))
    assert came == {"small": (5, "n2"), "head": (100, "n1")}


@pytest.mark.parametrize("strategy", STRICT)
def test_a_queue_tried_earlier_takes_the_heads_node_if_no_other_takes_its_pods(
    strategy: str,
) -> None:
    world = [strict(strategy), *having_run(half_full(until=(100, 600, 600)))]
    world += having_run([*held("s2", 1, "n2", 600), *held("s3", 1, "n3", 600)])
    world += [*nodes(5)[3:]]
    world += having_run([*held("s4", 3, "n4", 600), *held("s5", 3, "n5", 600)])
    world += [job("head", 4, 50, queue="a")]
    came = where(*world, timeline(applies(5, job("small", 2, 1_000))))
    assert came["small"] == (5, "n1")


def asks(cpu: int, memory: int, runtime: str = "1000s") -> list[Manifest]:
    template = {
        "requests": {"cpu": cpu, "memory": memory},
        "annotations": {"batchq/runtime": runtime},
    }
    return [{"name": "t", "replicas": 1, "template": template}]


def runs_on(name: str, on: str, tasks: list[Manifest]) -> list[Manifest]:
    status = {"phase": "Running", "startedAt": 0}
    held = group(name, tasks=tasks, created=0, status=status)
    return [held, pod(f"{name}-t-0", name, node=on, **status)]


def test_a_head_that_has_waited_long_holds_only_the_node_of_its_reservation() -> None:
    """From 100 on most memory is free on n2; the reservation is on n1. Later a pod of three cpus
    comes: n1 has two beside the head, n2 has three.
    """
    came = where(
        node("n1", 4, memory=4),
        node("n2", 4, memory=4),
        queue("a", strategy={"type": "StrictFIFO"}, deserved={"cpu": 4, "memory": 4}),
        *runs_on("long-1", "n1", asks(1, 2)),
        *runs_on("long-2", "n2", asks(1, 1)),
        *runs_on("short", "n2", asks(0, 2, "100s")),
        group("head", tasks=asks(1, 4, "10s"), queue="a", created=0),
        timeline(applies(300, group("later", tasks=asks(3, 0, "10s")))),
    )
    assert came == {"later": (300, "n2"), "head": (1000, "n1")}
