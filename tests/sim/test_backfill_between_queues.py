"""Backfill where queues meet: limits of trees, what is set aside, one line of all, evictions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_backfill import EASY, NO_EVICTIONS, ahead, job
from tests.sim.test_evictions import running
from tests.sim.worlds import (
    Manifest,
    admitted,
    evicted,
    group,
    node,
    of,
    outcome_until,
    pledged,
    priority,
    queue,
    quota,
    taker,
)

NO_QUEUE_ORDER = f"{NO_EVICTIONS}\nplugins: {{queueOrder: {{disabled: ['*']}}}}"


def backfill(name: str, **spec: Any) -> Manifest:
    return queue(name, strategy={"type": "Backfill"}, **spec)


# --- Limits of queues ---------------------------------------------------------------------------


def test_a_queues_capability_is_what_the_head_waits_for() -> None:
    """The nodes have room for all; the queue has four."""
    world = [node("n1", 100), backfill("q", capability={"cpu": 4})]
    world += [*running("r", 3, queue="q", walltime="100s"), job("head", 4, 50, queue="q")]
    assert ahead(*world, job("f", 1, 101, queue="q")) == []
    assert ahead(*world, job("f", 1, 100, queue="q")) == ["f"]


def test_a_head_may_lack_above_its_queue_what_it_does_not_lack_in_it() -> None:
    """Below `p` four are allowed; three are held in `b` for 100 s more."""
    world = [node("n1", 100), queue("p", capability={"cpu": 4})]
    world += [backfill("a", parent="p"), queue("b", parent="p")]
    world += [*running("r", 3, queue="b", walltime="100s"), job("head", 4, 50, queue="a")]
    assert ahead(*world, job("f", 1, 101, queue="a")) == []
    assert ahead(*world, job("f", 1, 100, queue="a")) == ["f"]


def test_a_deep_tree_is_held_at_every_level() -> None:
    """The head waits for `top`; a follower also has to fit `mid`, whose room is taken."""
    world = [
        node("n1", 100),
        queue("top", capability={"cpu": 10}),
        queue("mid", parent="top", capability={"cpu": 5}),
        backfill("a", parent="mid"),
        queue("b", parent="top"),
        *running("r", 7, queue="b", walltime="100s"),
        *running("s", 1, queue="a", walltime="100s"),
        job("head", 4, 50, queue="a"),
    ]
    assert ahead(*world, job("f", 2, 100, queue="a")) == ["f"]
    assert ahead(*world, job("f", 1, 101, queue="a")) == ["f"]
    assert ahead(*world, job("f", 2, 101, queue="a")) == []


def test_a_siblings_guarantee_is_no_room_for_backfill() -> None:
    """Of ten, four are guaranteed to `b`, which uses none: `a` has six, and holds four."""
    world = [node("n1", 10), backfill("a"), queue("b", guarantee={"cpu": 4})]
    world += [*running("r", 4, queue="a", walltime="100s"), job("head", 6, 50, queue="a")]
    assert ahead(*world, job("f", 3, 10, queue="a")) == []
    assert ahead(*world, job("f", 2, 101, queue="a")) == []
    assert ahead(*world, job("f", 2, 100, queue="a")) == ["f"]


def test_the_end_of_what_a_sibling_holds_of_its_guarantee_leaves_nothing() -> None:
    """At 50 s the four of `b` are free, and guaranteed to it; the head starts at 100 s."""
    world = [node("n1", 10), backfill("a"), queue("b", guarantee={"cpu": 4})]
    world += [*running("s", 4, queue="b", walltime="50s")]
    world += [*running("r", 4, queue="a", walltime="100s"), job("head", 6, 50, queue="a")]
    assert ahead(*world, job("f", 2, 100, queue="a")) == ["f"]
    assert ahead(*world, job("f", 2, 101, queue="a")) == []


def test_the_number_of_groups_in_a_queue_is_a_limit_like_others() -> None:
    world = [node("n1", 10), backfill("q", maxPodGroups=2), job("head", 9, 50, queue="q")]
    filled = [*world, *running("r", 2, queue="q", walltime="100s")]
    behind = [job("f", 1, 10, queue="q"), job("g", 1, 10, queue="q")]
    assert ahead(*filled, *behind) == ["f"]
    # From 100 s on the head takes the place of `r`, and `f` may stay.
    assert ahead(*filled, job("f", 1, 1_000, queue="q")) == ["f"]


def test_a_head_that_waits_for_the_number_of_groups_keeps_a_number() -> None:
    world = [node("n1", 10), backfill("q", maxPodGroups=1)]
    world += [*running("r", 1, queue="q", walltime="100s"), job("head", 1, 50, queue="q")]
    assert ahead(*world, job("f", 1, 10, queue="q")) == []


# --- Two queues ---------------------------------------------------------------------------------


def test_each_queue_has_its_own_head_and_its_own_plan() -> None:
    world = [
        node("n1", 20),
        backfill("a", capability={"cpu": 4}),
        backfill("b", capability={"cpu": 4}),
        *running("ra", 3, queue="a", walltime="100s"),
        *running("rb", 3, queue="b", walltime="200s"),
        job("ha", 4, 50, queue="a"),
        job("hb", 4, 50, queue="b"),
    ]
    behind = [job("fa", 1, 150, queue="a"), job("fb", 1, 150, queue="b")]
    assert ahead(*world, *behind) == ["fb"]


def meeting(deserved: int, *, other: Manifest | None = None) -> list[Manifest]:
    """Ten cpus: five held in `b` for 100 s more. The head of `a` wants six, so much deserved."""
    return [
        node("n1", 10),
        backfill("a", deserved={"cpu": deserved}),
        other or backfill("b", deserved={"cpu": 10 - deserved}),
        *running("r", 5, queue="b", walltime="100s"),
        job("ha", 6, 50, queue="a"),
        job("hb", 7, 50, queue="b"),
    ]


def test_a_group_that_ends_before_another_queues_head_starts_uses_the_heads_reservation() -> None:
    """Set aside for `ha` are all five that are free, from whoever would be in its way then."""
    assert ahead(*meeting(6), job("fb", 5, 100, queue="b")) == ["fb"]
    assert ahead(*meeting(6), job("fb", 5, 101, queue="b")) == []
    assert ahead(*meeting(6), group("fb", 1, 5, queue="b")) == []


def test_for_a_head_above_what_its_queue_deserves_nothing_is_set_aside() -> None:
    """A queue that deserves three does not keep three of the six that its head wants."""
    assert ahead(*meeting(3), job("fb", 3, 101, queue="b")) == ["fb"]


def test_a_head_goes_ahead_of_that_of_another_queue_if_it_leaves_it_enough() -> None:
    """Set aside for `ha` are six; at 100 s there are ten, and four are left for `hb` for long."""
    world = meeting(6)[:-1]
    assert ahead(*world, job("hb", 4, 1_000, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 1_000, queue="b")) == []


@pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO"])
def test_so_does_a_group_of_a_queue_that_is_not_backfilled(strategy: str) -> None:
    other = queue("b", strategy={"type": strategy}, deserved={"cpu": 4})
    world = meeting(6, other=other)[:-1]
    assert ahead(*world, job("hb", 4, 1_000, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 100, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 101, queue="b"), job("i", 1, 1_000, queue="b")) == (
        ["i"] if strategy == "BestEffortFIFO" else []
    )


def test_behind_a_strict_head_that_went_ahead_the_next_one_is_the_head() -> None:
    world = meeting(6, other=queue("b", strategy={"type": "StrictFIFO"}, deserved={"cpu": 4}))[:-1]
    behind = [job(f"s{at}", 2, 1_000, queue="b") for at in range(3)]
    assert ahead(*world, *behind, job("short", 1, 10, queue="b")) == ["s0", "s1"]


def test_the_head_itself_goes_ahead_of_that_of_another_queue_if_it_ends_in_time() -> None:
    """Nothing but what is set aside for `ha` keeps `hb` from starting, and it ends before."""
    world = meeting(6)[:-1]
    assert ahead(*world, job("hb", 5, 100, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 101, queue="b")) == []


def test_a_group_behind_a_head_that_went_ahead_is_tried_after_it() -> None:
    world = [*meeting(6)[:-1], job("hb", 4, 100, queue="b")]
    assert ahead(*world, job("fb", 1, 100, queue="b")) == ["hb", "fb"]
    assert ahead(*world, job("fb", 2, 100, queue="b"), job("gb", 1, 50, queue="b")) == ["hb", "gb"]


def test_a_strict_heads_reservation_binds_groups_that_would_be_in_its_way() -> None:
    strict = queue("a", strategy={"type": "StrictFIFO"}, deserved={"cpu": 6})
    world = [strict if one["metadata"]["name"] == "a" else one for one in meeting(6)]
    assert ahead(*world, job("fb", 5, 100, queue="b")) == ["fb"]
    assert ahead(*world, job("fb", 5, 101, queue="b")) == []


def test_a_strict_queue_is_not_filled() -> None:
    strict = queue("b", strategy={"type": "StrictFIFO"}, deserved={"cpu": 4})
    assert ahead(*meeting(6, other=strict), job("fb", 1, 10, queue="b")) == []
    assert ahead(*meeting(6, other=strict), job("fa", 1, 10, queue="a")) == ["fa"]


def test_the_queue_with_the_lowest_share_goes_ahead_first_after_each() -> None:
    """Four are free until 100 s; of equal queues each has two of them."""
    world = [
        node("n1", 10),
        backfill("a", deserved={"cpu": 5}),
        backfill("b", deserved={"cpu": 5}),
        *running("ra", 3, queue="a", walltime="100s"),
        *running("rb", 3, queue="b", walltime="100s"),
        job("ha", 10, 50, queue="a"),
        job("hb", 10, 50, queue="b"),
        *(job(f"a{at}", 1, 10, queue="a") for at in range(4)),
        *(job(f"b{at}", 1, 10, queue="b") for at in range(4)),
    ]
    assert ahead(*world) == ["a0", "b0", "a1", "b1"]


# --- One line of all queues ---------------------------------------------------------------------


def one_line(*manifests: Manifest) -> list[str]:
    return ahead(*manifests, config=NO_QUEUE_ORDER)


def test_in_one_line_those_of_all_queues_stand_behind_the_head() -> None:
    world = [node("n1", 4), backfill("a"), backfill("b")]
    world += [*running("r", 2, queue="b", walltime="100s"), job("head", 4, 50, queue="a")]
    behind = [job("late", 1, 101, queue="b"), job("fb", 1, 100, queue="b")]
    assert one_line(*world, *behind, job("fa", 1, 100, queue="a")) == ["fb", "fa"]


def test_in_one_line_a_group_of_a_strict_queue_goes_past_nobody_nor_anybody_past_it() -> None:
    world = [node("n1", 4), backfill("a"), queue("s", strategy={"type": "StrictFIFO"})]
    world += [*running("r", 2, queue="a", walltime="100s"), job("head", 4, 50, queue="a")]
    behind = [job("f", 1, 10, queue="a"), job("s", 1, 10, queue="s"), job("g", 1, 10, queue="a")]
    assert one_line(*world, *behind) == ["f"]


def test_in_one_line_a_strict_head_is_not_filled_past() -> None:
    world = [node("n1", 4), backfill("a"), queue("s", strategy={"type": "StrictFIFO"})]
    world += [*running("r", 2, queue="a", walltime="100s"), job("head", 4, 50, queue="s")]
    assert one_line(*world, job("f", 1, 10, queue="a")) == []


# --- Heads that take from others ----------------------------------------------------------------


def test_a_head_that_is_owed_room_is_not_passed_by_whoever_would_take_it() -> None:
    """`low` has ten seconds to leave; what it leaves and what is free are all for the head."""
    world = [
        node("n1", 5),
        EASY,
        priority("high", 10),
        *running("low", 4, walltime="1000s", grace="10s"),
        job("head", 5, 50, priorityClassName="high"),
        job("f", 1, 5),
    ]
    came = outcome_until(30, *world)
    assert pledged(came) == [
        (0, {"default/head": [f"default/low-t-{at}" for at in range(4)]}),
    ]
    assert len(evicted(came)[0][1]) == 4
    assert admitted(came) == [(10, ["default/head"])]
    assert of(came, "f").phase == "Pending"


def test_beside_a_head_that_is_owed_room_there_is_what_it_leaves() -> None:
    world = [
        node("n1", 5),
        EASY,
        priority("high", 10),
        *running("low", 4, walltime="1000s", grace="10s"),
        job("head", 4, 50, priorityClassName="high"),
        job("f", 1, 5000),
    ]
    came = outcome_until(0, *world)
    assert admitted(came) == [(0, ["default/f"])]


def test_room_left_by_a_victim_is_its_claimants_and_not_free_for_a_head() -> None:
    """At 20 s `wants` has the four of `v`; the head of `b` waits for `r`, until 100 s."""
    world = [
        node("n1", 6),
        taker("a", deserved={"cpu": 4}),
        backfill("b", deserved={"cpu": 2}, preemption={"withinQueue": "Never"}),
        priority("high", 10),
        *running("v", 1, queue="b", cpu=4, walltime="1000s", grace="20s"),
        *running("r", 1, queue="b", walltime="100s"),
        job("wants", 4, 500, queue="a"),
        job("head", 2, 50, queue="b", priorityClassName="high"),
    ]
    came = outcome_until(0, *world, job("f", 1, 100, queue="b", priorityClassName="high"))
    assert pledged(came) == [(0, {"default/wants": ["default/v-t-0"]})]
    assert admitted(came) == [(0, ["default/f"])]
    came = outcome_until(0, *world, job("f", 1, 101, queue="b", priorityClassName="high"))
    assert pledged(came) == [(0, {"default/wants": ["default/v-t-0"]})]
    assert admitted(came) == []


@pytest.mark.parametrize("cpus", [4, 5])
def test_a_namespaces_quota_is_no_reason_to_pass_what_capacity_refuses(cpus: int) -> None:
    """The head is refused by its namespace and by the nodes: it keeps its place."""
    world = [node("n1", cpus), EASY, quota("red", cpu=4), *running("r", 3, walltime="100s")]
    world += [job("q", 1, 100, namespace="red"), job("head", 4, 50, namespace="red")]
    assert ahead(*world, job("f", 1, 150))[1:] == (["f"] if cpus == 5 else [])
