"""The order of victims: among pods, the first index, often rank 0, is evicted last; and for a gang
that finds no places otherwise, victims are taken node by node.
"""

from __future__ import annotations

import pytest

from batchq.core.preemption import order
from tests.sim.test_norm_evictions import CLASSES, HI, gone, runs, task
from tests.sim.worlds import Manifest, evicted, group, node, outcome, pod, queue, taker


def test_pods_that_started_together_go_by_the_highest_index_first_and_rank_0_last() -> None:
    both = [*runs("x", 3, minMember=1), *runs("y", 3, minMember=1)]
    for asked, goes in (
        (1, ["x-t-2"]),
        (3, ["x-t-1", "x-t-2", "y-t-2"]),
        (4, ["x-t-1", "x-t-2", "y-t-1", "y-t-2"]),
        (5, ["x-t-0", "x-t-1", "x-t-2", "y-t-1", "y-t-2"]),
    ):
        assert gone(node("n1", 6), *both, group("hi", asked, **HI)) == goes


def test_a_groups_own_pods_go_lowest_priority_first_whatever_their_index() -> None:
    tasks = [task("main", 1, prio=0), task("spare", 2, prio=-5), task("work", 2)]
    mixed = runs("x", 5, minMember=1, tasks=tasks)
    assert gone(node("n1", 5), *mixed, group("hi", 2, **HI)) == ["x-spare-0", "x-spare-1"]
    assert gone(node("n1", 5), *mixed, group("hi", 4, **HI)) == [
        "x-spare-0", "x-spare-1", "x-work-0", "x-work-1"
    ]  # fmt: skip


def lent(on: str, *names: str, since: int = 0, **more: str) -> list[Manifest]:
    """Return groups of queue b on a node, each of one pod of one cpu."""
    return [one for name in names for one in runs(name, on=on, since=since, queue="b", **more)]


def of_two_queues(deserved: int, *, of_b: int) -> list[Manifest]:
    return [taker("a", deserved={"cpu": deserved}), taker("b", deserved={"cpu": of_b})]


def test_victims_that_leave_a_little_on_each_node_are_replaced_by_those_of_whole_nodes() -> None:
    """By their start alone, v1 and w1 would go, and no node would take a pod of 2 cpus."""
    nodes = [node("n1", 2), node("n2", 2)]
    borrowed = [
        *lent("n1", "v0"), *lent("n1", "v1", since=20),
        *lent("n2", "w0", since=10), *lent("n2", "w1", since=30),
    ]  # fmt: skip
    queues = of_two_queues(2, of_b=2)
    assert gone(*nodes, *queues, *borrowed, group("in", 1, 2, queue="a")) == ["w0-t-0", "w1-t-0"]
    two = group("in", 2, 1, queue="a")
    assert gone(*nodes, *queues, *borrowed, two) == ["v1-t-0", "w1-t-0"]


def test_the_node_that_needs_the_fewest_victims_is_cleared() -> None:
    """By their start, u0 and v0 would go; a cpu of n3 is free already."""
    nodes = [node("n1", 2), node("n2", 2), node("n3", 2)]
    borrowed = [
        *lent("n1", "u0", since=20), *lent("n1", "u1"),
        *lent("n2", "v0", since=30), *lent("n2", "v1"),
        *lent("n3", "w0"),
    ]  # fmt: skip
    asked = group("in", 1, 2, queue="a")
    assert gone(*nodes, *of_two_queues(2, of_b=3), *borrowed, asked) == ["w0-t-0"]


def test_a_node_is_cleared_of_the_least_important_victims_even_if_others_are_younger() -> None:
    nodes = [node("n1", 2), node("n2", 2)]
    borrowed = [
        *lent("n1", "u0", since=20), *lent("n1", "u1"),
        *lent("n2", "v0", since=30), *lent("n2", "v1", since=30, prio="mid"),
    ]  # fmt: skip
    asked = group("in", 1, 2, queue="a")
    assert gone(*nodes, *of_two_queues(2, of_b=2), *borrowed, asked) == ["u0-t-0", "u1-t-0"]


def test_a_group_on_two_nodes_makes_places_on_both() -> None:
    """Each node takes one pod of the gang; u0, the youngest, would leave half a place."""
    nodes = [node("n1", 3), node("n2", 3)]
    pair = [
        group("pair", 2, 2, queue="b", status={"phase": "Running", "reservedAt": 0}),
        pod("pair-t-0", "pair", 0, phase="Running", node="n1", startedAt=0),
        pod("pair-t-1", "pair", 1, phase="Running", node="n2", startedAt=0),
    ]
    borrowed = [*lent("n1", "u0", since=20), *lent("n2", "v0", since=20), *pair]
    asked = group("in", 2, 2, queue="a")
    assert gone(*nodes, *of_two_queues(4, of_b=2), *borrowed, asked) == ["pair-t-0", "pair-t-1"]


def test_single_pods_beyond_min_member_go_before_whole_groups_of_the_same_node() -> None:
    nodes = [node("n1", 3), node("n2", 2)]
    array = runs("array", 2, minMember=1, on="n1", queue="b")
    borrowed = [*array, *lent("n1", "u0", since=20), *lent("n2", "v0", "v1", since=30)]
    asked = group("in", 1, 3, queue="a")
    assert gone(*nodes, *of_two_queues(3, of_b=2), *borrowed, asked) == [
        "array-t-0", "array-t-1", "u0-t-0"
    ]  # fmt: skip


def test_victims_stay_if_what_their_queue_may_give_clears_no_node() -> None:
    """Queue b gives up one cpu, and every node needs two."""
    nodes = [node("n1", 2), node("n2", 2)]
    borrowed = [*lent("n1", "u0", "u1"), *lent("n2", "v0", "v1", since=30)]
    asked = group("in", 1, 2, queue="a")
    assert gone(*nodes, *of_two_queues(2, of_b=3), *borrowed, asked) == []


def evicted_in_turn(*more: Manifest) -> list[list[str]]:
    """Return the victims of each session for three gangs that each need a pod of another queue."""
    nodes = [node(f"n{number}", 1) for number in range(3)]
    borrowed = [one for number in range(3) for one in lent(f"n{number}", f"v{number}")]
    asked = [group(f"in{number}", 1, 1, queue="a") for number in range(3)]
    came = outcome(*nodes, *of_two_queues(4, of_b=0), *borrowed, *more, *asked)
    return [[key.removeprefix("default/") for key, _ in pods] for _, pods in evicted(came)]


def test_after_long_searches_the_preemptors_that_are_left_are_served_by_the_next_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert evicted_in_turn() == [["v0-t-0", "v1-t-0", "v2-t-0"]]
    monkeypatch.setattr(order, "MOST_TRIED", 1)
    assert evicted_in_turn() == [["v0-t-0"], ["v1-t-0"], ["v2-t-0"]]


def test_a_search_in_vain_keeps_no_other_preemptor_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MOST_TRIED", 1)
    # The queue of the pod on n3 gives nothing, so there are never four cpus for the first in line.
    keeps = [queue("c", reclaimable=False), node("n3", 1), *runs("stays", on="n3", queue="c")]
    first = group("vain", 4, 1, queue="a", **HI)
    assert evicted_in_turn(*keeps, *CLASSES, first) == [["v0-t-0"], ["v1-t-0"], ["v2-t-0"]]
