"""Head reservations, and the groups that they bind, in described worlds."""

from __future__ import annotations

import pytest

from tests.sim.test_evictions import ALL, running
from tests.sim.worlds import admitted, evicted, group, manifest, node, outcome, queue, timeline

ADMIT = "actions: [enqueue, allocate]"


def test_an_unlimited_number_of_pods_does_not_make_a_group_a_borrower() -> None:
    """A queue of weight 0 deserves what it states, and no pods by weight."""
    came = outcome(
        node("n1", 10),
        queue("a", weight=0, deserved={"cpu": 5}),
        queue("b", deserved={"cpu": 3}),
        *running("r", 6, queue="b"),
        group("ga", 1, 5, queue="a"),
        group("gb", 1, queue="b"),
        config=ADMIT,
    )
    assert admitted(came) == []


def test_a_head_reservation_fills_the_guarantee_of_its_queue() -> None:
    came = outcome(
        node("n1", 10),
        queue("s", strategy={"type": "StrictFIFO"}, guarantee={"cpu": 4}, deserved={"cpu": 4}),
        queue("b", deserved={"cpu": 6}),
        *running("r", 3, queue="b"),
        group("gs", 1, 8, queue="s"),
        group("gb", 1, 3, queue="b"),
        config=ADMIT,
    )
    assert admitted(came) == [(0, ["default/gb"])]


def test_a_head_that_may_reclaim_nothing_has_its_reservation_bind_borrowers() -> None:
    came = outcome(
        node("n1", 10),
        manifest("PriorityClass", "polite", {"value": 0, "preemptionPolicy": "Never"}),
        queue("a", deserved={"cpu": 5}),
        queue("b", deserved={"cpu": 3}),
        *running("r", 6, queue="b"),
        group("ga", 1, 5, queue="a", priorityClassName="polite"),
        group("gb", 1, queue="b"),
        config=ALL,
    )
    assert admitted(came) == []


def test_a_head_refused_only_by_the_number_of_groups_has_no_reservation() -> None:
    came = outcome(
        node("n1", 10),
        queue("p", maxPodGroups=1),
        queue("p1", parent="p", strategy={"type": "StrictFIFO"}, deserved={"cpu": 6}),
        queue("p2", parent="p"),
        queue("r"),
        *running("one", 2, queue="p2"),
        group("head", 1, 6, queue="p1"),
        group("gr", 1, 7, queue="r"),
        config=ADMIT,
    )
    assert admitted(came) == [(0, ["default/gr"])]


def test_a_group_submitted_before_its_queue_had_children_still_adds_demand() -> None:
    came = outcome(
        node("n1", 12),
        queue("a"),
        queue("b"),
        queue("c"),
        group("ga", 4, queue="a"),
        group("gc", 8, queue="c"),
        timeline({"at": "10s", "apply": queue("b", parent="a")}),
        config=ALL,
    )
    assert came.queues["a"].deserved["cpu"] == "4"
    assert evicted(came) == []


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_no_part_of_a_heads_request_is_kept_idle(strategy: str) -> None:
    """`wide` asks for more than its queue deserves: the other queue uses what is free."""
    came = outcome(
        node("n1", 8),
        queue("a", strategy={"type": strategy}, deserved={"cpu": 4}),
        queue("b", deserved={"cpu": 4}),
        *running("r", 1, queue="b"),
        *running("s", 2, queue="a"),
        group("wide", 1, 8, queue="a", walltime="10s"),
        *(group(f"b{at}", queue="b") for at in range(6)),
        config="actions: [enqueue, allocate, backfill]",
    )
    assert admitted(came) == [(0, [f"default/b{at}" for at in range(5)])]


def test_a_head_whose_victims_are_still_protected_keeps_others_from_borrowing_more() -> None:
    """`r` has run too briefly to be reclaimed; `late` would be the next such group."""
    came = outcome(
        node("n1", 6),
        queue("a", deserved={"cpu": 3}, preemption={"reclaim": "Any"}),
        queue("b", deserved={"cpu": 3}),
        *running("r", 1, cpu=5, queue="b", grace="0s"),
        group("head", 1, 3, queue="a"),
        group("late", 1, 1, queue="b"),
        config=f"{ALL}\nminRuntime: 60s",
    )
    assert admitted(came)[0][0] == 60
    assert evicted(came) == [(60, [("default/r-t-0", "Reclaimed")])]
