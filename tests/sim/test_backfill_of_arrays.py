"""More pods of a running group are backfilled past a head, pod by pod, if that delays no group."""

from __future__ import annotations

import pytest

from tests.sim.test_backfill import CONSERVATIVE, EASY, NO_EVICTIONS, job, starts
from tests.sim.test_evictions import running
from tests.sim.worlds import (
    Manifest,
    bound,
    group,
    node,
    outcome,
    pod,
    queue,
)
from tests.sim.worlds import starts as pods_start

#: The head asks for 9 of 10 cpus, and they are free when this one ends, at 100 s.
LONG = job("long", 4, 100)
HEAD = group("head", 1, 9, created=1, walltime="50s", runtime="50s")


def array(pods: int, wall_s: int, **spec: object) -> Manifest:
    return group(
        "array",
        pods,
        1,
        created=5,
        minMember=1,
        walltime=f"{wall_s}s",
        runtime=f"{wall_s}s",
        **spec,
    )


def bound_at(*world: Manifest) -> dict[int, int]:
    """Return second -> how many pods of the array are bound then."""
    story = bound(outcome(node("n1", 10), *world, config=NO_EVICTIONS))
    found = {}
    for at, pods in story:
        count = sum(name.startswith("default/array-") for name in pods)
        if count:
            found[at] = found.get(at, 0) + count
    return found


def test_pods_that_end_before_the_heads_start_use_idle_capacity() -> None:
    assert bound_at(EASY, LONG, HEAD, array(12, 40)) == {0: 6, 40: 6}
    assert starts(node("n1", 10), EASY, LONG, HEAD, array(12, 40))["head"] == 100


def test_a_wave_of_pods_that_would_end_too_late_does_not_start() -> None:
    """The third wave would run from 80 s to 120 s: only the pod beside the head may start."""
    assert bound_at(EASY, LONG, HEAD, array(18, 40)) == {0: 6, 40: 6, 80: 1, 120: 1, 150: 4}
    assert starts(node("n1", 10), EASY, LONG, HEAD, array(18, 40))["head"] == 100


def test_pods_that_would_end_after_the_heads_start_wait_except_the_one_beside_it() -> None:
    assert bound_at(EASY, LONG, HEAD, array(6, 101)) == {0: 1, 101: 1, 150: 4}


def test_arrays_are_backfilled_likewise_if_every_group_has_a_reservation() -> None:
    assert bound_at(CONSERVATIVE, LONG, HEAD, array(12, 40)) == {0: 6, 40: 6}


def test_in_a_strict_queue_more_pods_wait_behind_the_head() -> None:
    strict = queue("default", strategy={"type": "StrictFIFO"})
    assert bound_at(strict, LONG, HEAD, array(12, 40)) == {100: 1, 140: 1, 150: 9, 180: 1}


def test_pods_of_an_elastic_group_are_planned_to_the_end_of_its_walltime() -> None:
    """The group begins with two pods and must end at 60 s, as must the pods that follow."""
    elastic = group("array", 6, 1, created=5, minMember=2, walltime="60s", runtime="60s")
    assert bound_at(EASY, LONG, HEAD, elastic) == {0: 6}
    late = group("array", 6, 1, created=5, minMember=2, walltime="101s", runtime="101s")
    assert bound_at(EASY, LONG, HEAD, late) == {150: 6}


def drained(pods: int, cpu: int, wall_s: int) -> list[Manifest]:
    """Return an array whose first pod has succeeded; the next one waits."""
    status = {"phase": "Running", "startedAt": 0, "admission": 1}
    array = group("array", pods, cpu, minMember=1, walltime=f"{wall_s}s",
                  runtime=f"{wall_s}s", status=status)  # fmt: skip
    return [array, pod("array-t-0", "array", 0, phase="Succeeded")]


def begun(*world: Manifest) -> dict[str, int]:
    return pods_start(outcome(*world, config=NO_EVICTIONS))


@pytest.mark.parametrize("queue_of", [EASY, CONSERVATIVE])
def test_the_next_pod_of_an_array_at_the_head_of_the_pending_queue_has_a_reservation(
    queue_of: Manifest,
) -> None:
    """The pod asks for four cpus, which are free when `long` ends."""
    world = [node("n1", 4), queue_of, *running("long", 3, walltime="100s", runtime="100s")]
    world += [*drained(2, 4, 50), job("short", 1, 100), job("late", 1, 101)]
    found = begun(*world)
    assert (found["short-t-0"], found["array-t-1"], found["late-t-0"]) == (0, 100, 150)


def test_an_array_in_line_passes_a_head_that_it_does_not_delay() -> None:
    """The head starts at 100 s; a pod that takes 50 s passes it, and one that takes 101 s waits."""
    world = [node("n1", 4), EASY, *running("long", 3, walltime="100s", runtime="100s")]
    world += [job("head", 4, 50)]
    assert begun(*world, *drained(2, 1, 50))["array-t-1"] == 0
    assert begun(*world, *drained(2, 1, 101))["array-t-1"] == 150
