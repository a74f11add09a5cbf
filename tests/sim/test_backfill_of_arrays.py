"""More pods of a group that runs go past a head, pod by pod, where that delays nobody."""

from __future__ import annotations

from tests.sim.test_backfill import CONSERVATIVE, EASY, NO_EVICTIONS, job, starts
from tests.sim.worlds import Manifest, bound, group, node, outcome, queue

#: The head needs 9 of 10 cpus and can have them when this one ends, at 100 s.
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
    """Second -> how many pods of the array are bound then."""
    story = bound(outcome(node("n1", 10), *world, config=NO_EVICTIONS))
    found = {}
    for at, pods in story:
        count = sum(name.startswith("default/array-") for name in pods)
        if count:
            found[at] = found.get(at, 0) + count
    return found


def test_pods_that_end_before_the_heads_start_fill_what_is_idle() -> None:
    assert bound_at(EASY, LONG, HEAD, array(12, 40)) == {0: 6, 40: 6}
    assert starts(node("n1", 10), EASY, LONG, HEAD, array(12, 40))["head"] == 100


def test_a_wave_that_would_end_too_late_is_not_begun() -> None:
    """The third wave would run from 80 s to 120 s: only the pod beside the head may."""
    assert bound_at(EASY, LONG, HEAD, array(18, 40)) == {0: 6, 40: 6, 80: 1, 120: 1, 150: 4}
    assert starts(node("n1", 10), EASY, LONG, HEAD, array(18, 40))["head"] == 100


def test_pods_that_would_end_after_the_heads_start_wait_but_for_the_one_beside_it() -> None:
    assert bound_at(EASY, LONG, HEAD, array(6, 101)) == {0: 1, 101: 1, 150: 4}


def test_the_same_where_everybody_has_a_reservation() -> None:
    assert bound_at(CONSERVATIVE, LONG, HEAD, array(12, 40)) == {0: 6, 40: 6}


def test_in_a_strict_queue_more_pods_wait_behind_the_head() -> None:
    strict = queue("default", strategy={"type": "StrictFIFO"})
    assert bound_at(strict, LONG, HEAD, array(12, 40)) == {100: 1, 140: 1, 150: 9, 180: 1}


def test_pods_of_an_elastic_group_count_to_the_end_of_its_own_walltime() -> None:
    """It begins with two pods, and has to end at 60 s: so do the pods that follow."""
    elastic = group("array", 6, 1, created=5, minMember=2, walltime="60s", runtime="60s")
    assert bound_at(EASY, LONG, HEAD, elastic) == {0: 6}
    late = group("array", 6, 1, created=5, minMember=2, walltime="101s", runtime="101s")
    assert bound_at(EASY, LONG, HEAD, late) == {150: 6}
