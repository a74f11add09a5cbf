"""Backfill past a waiting head, in described worlds: ends, capacity beside the head, and order.

In most worlds the default queue has one node, and `r` holds a part of its cpus for 100 seconds
more; the group `head` does not fit, and the other groups are behind it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_evictions import running
from tests.sim.worlds import Manifest, admitted, finished, group, manifest, node, outcome, queue

EASY = queue("default", strategy={"type": "Backfill"})
SHORTEST = queue("default", strategy={"type": "Backfill", "order": "shortest"})
CONSERVATIVE = queue("default", strategy={"type": "Backfill", "reservations": "all"})
CONSERVATIVE_SHORTEST = queue(
    "default", strategy={"type": "Backfill", "order": "shortest", "reservations": "all"}
)
NO_EVICTIONS = "actions: [enqueue, allocate, backfill]"


def ahead(*manifests: Manifest, config: str = NO_EVICTIONS) -> list[str]:
    """Return the groups that the first session admits, in that order."""
    first = outcome(*manifests, cycles=1, config=config)
    return [name.removeprefix("default/") for _, names in admitted(first) for name in names]


def starts(*manifests: Manifest, config: str = NO_EVICTIONS) -> dict[str, int]:
    """Return when each group is admitted, in a world that is played to its end."""
    came = outcome(*manifests, config=config)
    return {name.removeprefix("default/"): at for at, names in admitted(came) for name in names}


def job(name: str, cpu: int, wall_s: int, runs_s: int | None = None, **more: Any) -> Manifest:
    """Return a group of one pod with walltime `wall_s` that runs for `runs_s`, or else for that
    long.
    """
    runs = wall_s if runs_s is None else runs_s
    return group(name, 1, cpu, walltime=f"{wall_s}s", runtime=f"{runs}s", **more)


def tasks(*pods: tuple[int, Manifest]) -> list[Manifest]:
    """Return a task with this many replicas and these requests."""
    return [
        {"name": f"t{place}", "replicas": count, "template": {"requests": requests}}
        for place, (count, requests) in enumerate(pods)
    ]


ONE_BEHIND: dict[str, tuple[list[Manifest], list[str]]] = {
    "a group that ends before the head starts is backfilled": (
        [job("head", 4, 50), job("f", 1, 99)],
        ["f"],
    ),
    "so is a group that ends at the instant at which the head starts": (
        [job("head", 4, 50), job("f", 1, 100)],
        ["f"],
    ),
    "a group that ends a second later would delay the head and waits": (
        [job("head", 4, 50), job("f", 1, 101)],
        [],
    ),
    "a group of any length may use what the head leaves free": (
        [job("head", 3, 50), job("f", 1, 100_000)],
        ["f"],
    ),
    "a group that does not fit now waits, however short it is": (
        [job("head", 4, 50), job("f", 2, 1)],
        [],
    ),
    "a group without a walltime takes nothing that the head needs": (
        [job("head", 4, 50), group("f", 1, 1)],
        [],
    ),
    "a group without a walltime takes what is left beside the head": (
        [job("head", 3, 50), group("f", 1, 1)],
        ["f"],
    ),
    "a head without a walltime has a start time as well": (
        [group("head", 1, 4), job("f", 1, 100)],
        ["f"],
    ),
    "what a head without a walltime leaves is free for ever": (
        [group("head", 1, 3), group("f", 1, 1)],
        ["f"],
    ),
    "a group behind one that may not be backfilled is tried all the same": (
        [job("head", 4, 50), job("long", 1, 200), job("short", 1, 50)],
        ["short"],
    ),
    "two groups are not backfilled into the same capacity": (
        [job("head", 4, 50), job("f", 1, 50), job("g", 1, 50)],
        ["f"],
    ),
}


@pytest.mark.parametrize("case", ONE_BEHIND)
def test_behind_a_head(case: str) -> None:
    """Four cpus, three of them held for 100 s more."""
    behind, expected = ONE_BEHIND[case]
    assert ahead(node("n1", 4), EASY, *running("r", 3, walltime="100s"), *behind) == expected


def test_capacity_beside_the_head_is_given_once() -> None:
    """At the head's start two of six cpus are left, for two of the groups that still run then."""
    behind = [job(name, 1, 1_000) for name in ("a", "b", "c")]
    assert ahead(
        node("n1", 6), EASY, *running("r", 3, walltime="100s"), job("head", 4, 50), *behind
    ) == ["a", "b"]


def test_a_group_that_ends_in_time_takes_no_capacity_beside_the_head() -> None:
    behind = [job("short", 2, 100), job("long", 1, 1_000), job("more", 1, 1_000)]
    assert ahead(
        node("n1", 7), EASY, *running("r", 3, walltime="100s"), job("head", 5, 50), *behind
    ) == ["short", "long", "more"]


def test_behind_a_group_that_never_ends_no_group_is_backfilled() -> None:
    """A head without a known start time blocks like a strict one."""
    assert ahead(node("n1", 4), EASY, *running("r", 3), job("head", 4, 50), job("f", 1, 1)) == []


def test_an_endless_group_is_irrelevant_if_the_head_does_not_need_its_capacity() -> None:
    world = [*running("ever", 1), *running("r", 3, walltime="100s")]
    behind = [job("head", 4, 50), job("long", 1, 101), job("f", 1, 100)]
    assert ahead(node("n1", 5), EASY, *world, *behind) == ["f"]


def test_the_head_starts_when_enough_has_ended() -> None:
    """Three cpus are free at 60 s, and four at 100 s."""
    world = [*running("early", 2, walltime="60s"), *running("late", 1, walltime="100s")]
    assert ahead(node("n1", 4), EASY, *world, job("head", 3, 50), job("f", 1, 61)) == []
    assert ahead(node("n1", 4), EASY, *world, job("head", 3, 50), job("f", 1, 60)) == ["f"]
    assert ahead(node("n1", 4), EASY, *world, job("head", 4, 50), job("f", 1, 100)) == ["f"]


def test_the_first_in_line_by_priority_is_the_head() -> None:
    high = manifest("PriorityClass", "high", {"value": 10})
    world = [job("f", 1, 100), job("head", 4, 50, priorityClassName="high")]
    assert ahead(node("n1", 4), high, EASY, *running("r", 3, walltime="100s"), *world) == ["f"]
    later = [job("f", 1, 101), job("head", 4, 50, priorityClassName="high")]
    assert ahead(node("n1", 4), high, EASY, *running("r", 3, walltime="100s"), *later) == []


def of_many(name: str, wall_s: int, **requests: Any) -> Manifest:
    return group(name, tasks=tasks((1, requests)), walltime=f"{wall_s}s")


BIG = node("n1", 8, gpu=4, memory="32Gi")
WITH_GPUS = [
    group(
        "r",
        tasks=tasks((1, {"cpu": 2, "gpu": 4, "memory": "8Gi"})),
        walltime="100s",
        status={"phase": "Running", "reservedAt": 0},
    ),
    manifest(
        "Pod",
        "r-t0-0",
        {"podGroup": "r", "task": "t0", "index": 0},
        metadata={"namespace": "default"},
        status={"phase": "Running", "node": "n1", "startedAt": 0},
    ),
]

DIMENSIONS: dict[str, tuple[Manifest, Manifest, list[str]]] = {
    "a head that lacks only gpus leaves the cpus that it does not ask for": (
        of_many("head", 50, cpu=1, gpu=2),
        of_many("f", 1_000, cpu=6),
        ["f"],
    ),
    "a head that lacks only gpus still keeps the cpus that it asks for": (
        of_many("head", 50, cpu=4, gpu=2),
        of_many("f", 1_000, cpu=5),
        [],
    ),
    "a group that leaves the head its cpus is backfilled up to the last cpu": (
        of_many("head", 50, cpu=4, gpu=2),
        of_many("f", 1_000, cpu=4),
        ["f"],
    ),
    "memory counts like cpus": (
        of_many("head", 50, cpu=1, gpu=1, memory="20Gi"),
        of_many("f", 1_000, cpu=1, memory="13Gi"),
        [],
    ),
    "memory that the head leaves can be used": (
        of_many("head", 50, cpu=1, gpu=1, memory="20Gi"),
        of_many("f", 1_000, cpu=1, memory="12Gi"),
        ["f"],
    ),
    "one dimension that does not fit now is enough to wait": (
        of_many("head", 50, cpu=1, gpu=1),
        of_many("f", 1, cpu=1, gpu=1),
        [],
    ),
    "a group that takes the head's gpus only until the head starts is backfilled": (
        of_many("head", 50, cpu=8, gpu=4),
        of_many("f", 100, cpu=6, memory="24Gi"),
        ["f"],
    ),
}


@pytest.mark.parametrize("case", DIMENSIONS)
def test_dimensions(case: str) -> None:
    """Eight cpus, four gpus, 32Gi; all gpus, two cpus and 8Gi are held for 100 s more."""
    head, follower, expected = DIMENSIONS[case]
    assert ahead(BIG, EASY, *WITH_GPUS, head, follower) == expected


def test_the_pending_queues_order_decides_which_group_is_tried_first() -> None:
    world = [*running("r", 3, walltime="100s"), job("head", 4, 50)]
    behind = [job("longer", 1, 50), job("shorter", 1, 10)]
    assert ahead(node("n1", 4), EASY, *world, *behind) == ["longer"]


def test_with_order_shortest_the_shortest_walltime_is_tried_first() -> None:
    world = [*running("r", 3, walltime="100s"), job("head", 4, 50)]
    behind = [job("longer", 1, 50), job("shorter", 1, 10)]
    assert ahead(node("n1", 4), SHORTEST, *world, *behind) == ["shorter"]


def test_groups_of_equal_walltime_are_tried_in_the_order_of_the_pending_queue() -> None:
    world = [*running("r", 3, walltime="100s"), job("head", 4, 50)]
    behind = [job("b", 1, 50), job("a", 1, 50)]
    assert ahead(node("n1", 4), SHORTEST, *world, *behind) == ["b"]


def test_groups_without_walltime_are_tried_last() -> None:
    world = [*running("r", 3, walltime="100s"), job("head", 3, 50)]
    behind = [group("endless", 1, 1), job("long", 1, 100_000)]
    assert ahead(node("n1", 4), SHORTEST, *world, *behind) == ["long"]
    assert ahead(node("n1", 4), EASY, *world, *behind) == ["endless"]


def test_the_head_is_the_first_in_line_and_not_the_shortest() -> None:
    """All four cpus are kept for `head` from 100 s on; for `tiny` it would be two."""
    world = [*running("r", 3, walltime="100s"), job("head", 4, 500)]
    behind = [job("tiny", 2, 1), job("f", 1, 101)]
    assert ahead(node("n1", 4), SHORTEST, *world, *behind) == []


def test_an_array_is_sorted_by_its_walltime() -> None:
    """Each pod of the array takes that long; in this world either group fits beside the head."""
    world = [*running("r", 3, walltime="100s"), job("head", 3, 50)]
    array = group("array", 2, 1, minMember=1, walltime="10s")
    assert ahead(node("n1", 4), SHORTEST, *world, job("long", 1, 20), array) == ["array"]


def test_with_one_reservation_the_second_in_line_has_no_reservation() -> None:
    """`second` would start at 200 s, and does not start before `f` has ended."""
    world = [job("r", 2, 100), job("head", 3, 100), job("second", 4, 50), job("f", 1, 1_000)]
    assert starts(node("n1", 4), EASY, *world) == {"r": 0, "f": 0, "head": 100, "second": 1_000}


def test_with_all_reservations_no_group_delays_the_second_in_line() -> None:
    world = [job("r", 2, 100), job("head", 3, 100), job("second", 4, 50), job("f", 1, 1_000)]
    assert starts(node("n1", 4), CONSERVATIVE, *world) == {
        "r": 0,
        "head": 100,
        "second": 200,
        "f": 250,
    }


def test_a_group_that_delays_no_other_is_backfilled_past_all() -> None:
    world = [job("r", 2, 100), job("head", 3, 100), job("second", 4, 50), job("f", 1, 200)]
    assert starts(node("n1", 4), CONSERVATIVE, *world) == {
        "r": 0,
        "f": 0,
        "head": 100,
        "second": 200,
    }


def test_a_chain_of_reservations_is_kept_one_after_the_other() -> None:
    world = [job("r", 4, 100), *(job(f"g{place}", 4, 10 + place) for place in range(4))]
    assert starts(node("n1", 4), CONSERVATIVE, *world) == {
        "r": 0,
        "g0": 100,
        "g1": 110,
        "g2": 121,
        "g3": 133,
    }


def test_a_gap_between_reservations_is_used_by_groups_that_fit_it() -> None:
    """Between 100 s and 300 s three cpus are free, for two of the three groups that ask for
    them.
    """
    world = [job("r", 3, 100), job("p", 1, 300), job("head", 4, 50)]
    behind = [job("a", 3, 100), job("b", 3, 150), job("c", 3, 100)]
    assert starts(node("n1", 4), CONSERVATIVE, *world, *behind) == {
        "r": 0,
        "p": 0,
        "a": 100,
        "c": 200,
        "head": 300,
        "b": 350,
    }


def test_behind_a_reservation_without_a_start_no_group_is_backfilled() -> None:
    """`second` would wait for the end of `ever`, which is unknown."""
    world = [*running("ever", 1), *running("r", 2, walltime="100s")]
    behind = [job("head", 3, 50), job("second", 4, 50), job("f", 1, 1)]
    assert ahead(node("n1", 4), CONSERVATIVE, *world, *behind) == []
    assert ahead(node("n1", 4), EASY, *world, *behind) == ["f"]


def test_with_all_reservations_and_order_shortest_walltimes_order_the_reservations() -> None:
    """After the head, at 200 s, `second` leaves one cpu; `brief` leaves none."""
    world = [*running("r", 2, walltime="100s"), job("head", 3, 100)]
    behind = [job("second", 3, 50), job("brief", 4, 20), job("f", 1, 250)]
    assert ahead(node("n1", 4), CONSERVATIVE, *world, *behind) == ["f"]
    assert ahead(node("n1", 4), CONSERVATIVE_SHORTEST, *world, *behind) == []


def test_the_head_starts_sooner_when_other_groups_end_sooner() -> None:
    world = [job("r", 3, 100, runs_s=30), job("head", 4, 50), job("f", 1, 100, runs_s=20)]
    assert starts(node("n1", 4), EASY, *world) == {"r": 0, "f": 0, "head": 30}


def test_a_group_backfilled_by_its_walltime_does_not_delay_the_head() -> None:
    """The group would run for longer, but its walltime ends it."""
    world = [job("r", 3, 100), job("head", 4, 50), job("f", 1, 100, runs_s=500, grace="0s")]
    came = outcome(node("n1", 4), EASY, *world, config=NO_EVICTIONS)
    assert admitted(came) == [(0, ["default/r", "default/f"]), (100, ["default/head"])]
    assert (150, ["default/head"]) in finished(came)


def test_each_session_makes_a_new_plan() -> None:
    """When `r` has ended, at 40 s, the head can start at 61 s, by the walltime of `f`."""
    world = [job("r", 2, 100, runs_s=40), job("s", 1, 60), job("head", 4, 50)]
    behind = [job("f", 1, 61), job("g", 1, 21)]
    assert starts(node("n1", 4), EASY, *world, *behind) == {
        "r": 0,
        "s": 0,
        "f": 0,
        "head": 61,
        "g": 40,
    }


@pytest.mark.parametrize("actions", ["enqueue, allocate", "backfill, enqueue, allocate"])
def test_without_the_backfill_action_after_enqueue_the_strategy_is_strict(actions: str) -> None:
    world = [node("n1", 4), EASY, *running("r", 3, walltime="100s"), job("head", 3, 50)]
    config = f"actions: [{actions}]"
    assert ahead(*world, job("f", 1, 10), config=config) == []


@pytest.mark.parametrize(
    "actions", ["enqueue, backfill", "enqueue, backfill, allocate", "enqueue, allocate, backfill"]
)
def test_the_position_of_backfill_after_enqueue_makes_no_difference(actions: str) -> None:
    """The action also places the groups that it admits."""
    world = [node("n1", 4), EASY, *running("r", 3, walltime="100s"), job("head", 3, 50)]
    came = outcome(*world, job("f", 1, 10), cycles=1, config=f"actions: [{actions}]")
    assert came.cycles[0].bound == {"default/f-t-0": "n1"}


def test_the_default_actions_include_backfill() -> None:
    world = [node("n1", 4), EASY, *running("r", 3, walltime="100s"), job("head", 3, 50)]
    assert ahead(*world, job("f", 1, 10), config="") == ["f"]
