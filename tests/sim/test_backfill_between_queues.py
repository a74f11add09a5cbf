"""Backfill across queues: limits of trees, head reservations, one pending queue for all,
evictions.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_backfill import EASY, NO_EVICTIONS, ahead, job, starts
from tests.sim.test_evictions import running
from tests.sim.worlds import (
    Manifest,
    admitted,
    applies,
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
    timeline,
)

NO_QUEUE_ORDER = f"{NO_EVICTIONS}\nplugins: {{queueOrder: {{disabled: ['*']}}}}"


def backfill(name: str, **spec: Any) -> Manifest:
    return queue(name, strategy={"type": "Backfill"}, **spec)


def test_a_queues_capability_is_what_the_head_waits_for() -> None:
    """The nodes have capacity for all groups; the queue has four cpus."""
    world = [node("n1", 100), backfill("q", capability={"cpu": 4})]
    world += [*running("r", 3, queue="q", walltime="100s"), job("head", 4, 50, queue="q")]
    assert ahead(*world, job("f", 1, 101, queue="q")) == []
    assert ahead(*world, job("f", 1, 100, queue="q")) == ["f"]


def test_a_head_may_be_refused_by_an_ancestor_and_not_by_its_queue() -> None:
    """Below `p` four cpus are allowed; `b` holds three for 100 s more."""
    world = [node("n1", 100), queue("p", capability={"cpu": 4})]
    world += [backfill("a", parent="p"), queue("b", parent="p")]
    world += [*running("r", 3, queue="b", walltime="100s"), job("head", 4, 50, queue="a")]
    assert ahead(*world, job("f", 1, 101, queue="a")) == []
    assert ahead(*world, job("f", 1, 100, queue="a")) == ["f"]


def test_every_level_of_a_deep_tree_limits_backfill() -> None:
    """The head waits for `top`; a backfilled group also has to fit `mid`, which is full."""
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


def test_backfill_does_not_use_a_siblings_guarantee() -> None:
    """Of ten cpus, four are guaranteed to `b`, which uses none: `a` has six, and holds four."""
    world = [node("n1", 10), backfill("a"), queue("b", guarantee={"cpu": 4})]
    world += [*running("r", 4, queue="a", walltime="100s"), job("head", 6, 50, queue="a")]
    assert ahead(*world, job("f", 3, 10, queue="a")) == []
    assert ahead(*world, job("f", 2, 101, queue="a")) == []
    assert ahead(*world, job("f", 2, 100, queue="a")) == ["f"]


def test_a_guarantee_that_its_owner_stops_using_is_not_free_for_the_head() -> None:
    """At 50 s the four cpus of `b` are free, and guaranteed to it; the head starts at 100 s."""
    world = [node("n1", 10), backfill("a"), queue("b", guarantee={"cpu": 4})]
    world += [*running("s", 4, queue="b", walltime="50s")]
    world += [*running("r", 4, queue="a", walltime="100s"), job("head", 6, 50, queue="a")]
    assert ahead(*world, job("f", 2, 100, queue="a")) == ["f"]
    assert ahead(*world, job("f", 2, 101, queue="a")) == []


def test_max_pod_groups_is_a_limit_like_others() -> None:
    world = [node("n1", 10), backfill("q", maxPodGroups=2), job("head", 9, 50, queue="q")]
    filled = [*world, *running("r", 2, queue="q", walltime="100s")]
    behind = [job("f", 1, 10, queue="q"), job("g", 1, 10, queue="q")]
    assert ahead(*filled, *behind) == ["f"]
    # From 100 s on the head takes the place of `r`, and `f` may stay.
    assert ahead(*filled, job("f", 1, 1_000, queue="q")) == ["f"]


def test_a_head_that_waits_for_max_pod_groups_keeps_one_place() -> None:
    world = [node("n1", 10), backfill("q", maxPodGroups=1)]
    world += [*running("r", 1, queue="q", walltime="100s"), job("head", 1, 50, queue="q")]
    assert ahead(*world, job("f", 1, 10, queue="q")) == []


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
    """Ten cpus: `b` holds five for 100 s more. The head of `a` asks for six, which `a` deserves."""
    return [
        node("n1", 10),
        backfill("a", deserved={"cpu": deserved}),
        other or backfill("b", deserved={"cpu": 10 - deserved}),
        *running("r", 5, queue="b", walltime="100s"),
        job("ha", 6, 50, queue="a"),
        job("hb", 7, 50, queue="b"),
    ]


def test_a_group_that_ends_before_another_queues_head_starts_uses_its_reservation() -> None:
    """The reservation of `ha` covers all five free cpus, against groups that would still run
    then.
    """
    assert ahead(*meeting(6), job("fb", 5, 100, queue="b")) == ["fb"]
    assert ahead(*meeting(6), job("fb", 5, 101, queue="b")) == []
    assert ahead(*meeting(6), group("fb", 1, 5, queue="b")) == []


def test_a_head_above_its_queues_deserved_share_has_no_reservation() -> None:
    """A queue that deserves three cpus does not keep three of the six that its head asks for."""
    assert ahead(*meeting(3), job("fb", 3, 101, queue="b")) == ["fb"]


def test_a_head_passes_the_head_of_another_queue_if_it_leaves_enough_for_it() -> None:
    """`ha` has six cpus reserved; at 100 s ten are free, so that four are left for a long `hb`."""
    world = meeting(6)[:-1]
    assert ahead(*world, job("hb", 4, 1_000, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 1_000, queue="b")) == []


@pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO"])
def test_a_group_of_a_strict_queue_passes_another_queues_head_in_the_same_way(
    strategy: str,
) -> None:
    other = queue("b", strategy={"type": strategy}, deserved={"cpu": 4})
    world = meeting(6, other=other)[:-1]
    assert ahead(*world, job("hb", 4, 1_000, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 100, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 101, queue="b"), job("i", 1, 1_000, queue="b")) == (
        ["i"] if strategy == "BestEffortFIFO" else []
    )


def test_behind_an_admitted_strict_head_the_next_group_becomes_the_head() -> None:
    world = meeting(6, other=queue("b", strategy={"type": "StrictFIFO"}, deserved={"cpu": 4}))[:-1]
    behind = [job(f"s{at}", 2, 1_000, queue="b") for at in range(3)]
    assert ahead(*world, *behind, job("short", 1, 10, queue="b")) == ["s0", "s1"]


def test_a_head_passes_the_head_of_another_queue_if_it_ends_in_time() -> None:
    """Only the reservation of `ha` keeps `hb` from starting, and `hb` ends before `ha` starts."""
    world = meeting(6)[:-1]
    assert ahead(*world, job("hb", 5, 100, queue="b")) == ["hb"]
    assert ahead(*world, job("hb", 5, 101, queue="b")) == []


def test_a_group_behind_an_admitted_head_is_tried_after_it() -> None:
    world = [*meeting(6)[:-1], job("hb", 4, 100, queue="b")]
    assert ahead(*world, job("fb", 1, 100, queue="b")) == ["hb", "fb"]
    assert ahead(*world, job("fb", 2, 100, queue="b"), job("gb", 1, 50, queue="b")) == ["hb", "gb"]


def test_a_strict_heads_reservation_binds_groups_that_would_delay_it() -> None:
    strict = queue("a", strategy={"type": "StrictFIFO"}, deserved={"cpu": 6})
    world = [strict if one["metadata"]["name"] == "a" else one for one in meeting(6)]
    assert ahead(*world, job("fb", 5, 100, queue="b")) == ["fb"]
    assert ahead(*world, job("fb", 5, 101, queue="b")) == []


def test_a_strict_queue_is_not_backfilled() -> None:
    strict = queue("b", strategy={"type": "StrictFIFO"}, deserved={"cpu": 4})
    assert ahead(*meeting(6, other=strict), job("fb", 1, 10, queue="b")) == []
    assert ahead(*meeting(6, other=strict), job("fa", 1, 10, queue="a")) == ["fa"]


def test_a_head_that_a_more_important_group_passes_keeps_its_place_among_all_reservations() -> None:
    """`head` loses the nodes that were reserved for it against the group of the other queue, which
    changes its record. In that session, too, `f` waits behind it.
    """
    world = [
        *(node("n1", 4), node("n2", 4), priority("urgent", 100)),
        *(queue("q", strategy={"type": "Backfill", "reservations": "all"}), queue("other")),
        *(group("too-large", 1, 100, queue="other"), job("r", 4, 60, queue="q")),
        timeline(
            applies(1, group("head", 8, 1, queue="q", walltime="60s", runtime="2s")),
            applies(2, job("f", 1, 7_200, 60, queue="q")),
            applies(4, group("urgent", 5, 1, queue="q", walltime="5s", runtime="2s",
                             priorityClassName="urgent")),
        ),
    ]  # fmt: skip
    assert starts(*world) == {"r": 0, "urgent": 60, "head": 62, "f": 64}


def test_the_queue_with_the_lowest_share_is_backfilled_first_after_each_group() -> None:
    """Four cpus are free until 100 s; each of two equal queues gets two of them."""
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


def one_line(*manifests: Manifest) -> list[str]:
    return ahead(*manifests, config=NO_QUEUE_ORDER)


def test_in_one_pending_queue_groups_of_all_queues_are_behind_the_head() -> None:
    world = [node("n1", 4), backfill("a"), backfill("b")]
    world += [*running("r", 2, queue="b", walltime="100s"), job("head", 4, 50, queue="a")]
    behind = [job("late", 1, 101, queue="b"), job("fb", 1, 100, queue="b")]
    assert one_line(*world, *behind, job("fa", 1, 100, queue="a")) == ["fb", "fa"]


def test_in_one_pending_queue_a_group_of_a_strict_queue_neither_passes_nor_is_passed() -> None:
    world = [node("n1", 4), backfill("a"), queue("s", strategy={"type": "StrictFIFO"})]
    world += [*running("r", 2, queue="a", walltime="100s"), job("head", 4, 50, queue="a")]
    behind = [job("f", 1, 10, queue="a"), job("s", 1, 10, queue="s"), job("g", 1, 10, queue="a")]
    assert one_line(*world, *behind) == ["f"]


def test_in_one_pending_queue_a_strict_head_is_not_passed() -> None:
    world = [node("n1", 4), backfill("a"), queue("s", strategy={"type": "StrictFIFO"})]
    world += [*running("r", 2, queue="a", walltime="100s"), job("head", 4, 50, queue="s")]
    assert one_line(*world, job("f", 1, 10, queue="a")) == []


def test_a_head_with_a_pledge_is_not_passed_by_a_group_that_would_use_its_capacity() -> None:
    """`low` has ten seconds to stop; what it releases and what is free are all for the head."""
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


def test_a_head_with_a_pledge_leaves_the_rest_to_backfill() -> None:
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


def test_capacity_released_by_a_victim_is_its_preemptors_and_not_free_for_a_head() -> None:
    """At 20 s `wants` has the four cpus of `v`; the head of `b` waits for `r`, until 100 s."""
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
def test_a_namespace_quota_does_not_let_others_pass_a_head_that_capacity_refuses(cpus: int) -> None:
    """Both its namespace and the nodes refuse the head: it keeps its place."""
    world = [node("n1", cpus), EASY, quota("red", cpu=4), *running("r", 3, walltime="100s")]
    world += [job("q", 1, 100, namespace="red"), job("head", 4, 50, namespace="red")]
    assert ahead(*world, job("f", 1, 150))[1:] == (["f"] if cpus == 5 else [])
