"""Evictions in detail: clocks, budgets, borrowing, and the end of a pledge."""

from __future__ import annotations

from tests.sim.test_evictions import ALL, running
from tests.sim.worlds import (
    admitted,
    bound,
    evicted,
    group,
    manifest,
    node,
    of,
    outcome,
    phases,
    pod,
    priority,
    reasons,
    requeued,
    taker,
    timeline,
)


def test_a_group_that_has_just_started_is_spared_until_min_runtime_is_over() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("low", 4, grace="5s"),
        group("hi", 2, priorityClassName="high"),
        config=f"{ALL}\nminRuntime: 2m",
    )
    assert evicted(came)[0][0] == 120


def test_the_eviction_budget_spreads_evictions_that_are_not_urgent() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("one", 2, grace="1s"),
        *running("two", 2, grace="1s"),
        group("hi-1", 2, priorityClassName="high"),
        timeline({"at": "60s", "apply": group("hi-2", 2, priorityClassName="high")}),
        config=f"{ALL}\nevictionBudget: {{pods: 3, window: 10m}}",
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == [(0, 2), (600, 2)]


def test_a_victim_that_does_not_end_does_not_bind_its_preemptor_for_ever() -> None:
    """The victim's node falls silent; its pod is written off, and the preemptor starts
    elsewhere.
    """
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("low", 4, grace="10s"),
        group("hi", 4, priorityClassName="high", runtime="10s"),
        timeline({"at": "5s", "failNode": "n1"}, {"at": "50s", "recoverNode": "n1"}),
        config=ALL,
    )
    assert of(came, "hi").phase == "Completed"


def test_a_preemptor_that_is_cancelled_or_suspended_releases_its_pledge() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("low", 4, grace="30s"),
        group("hi", 4, priorityClassName="high"),
        timeline({"at": "5s", "suspend": "default/hi"}),
        config=ALL,
    )
    assert phases(came) == {"hi": "Pending", "low": "Running"}
    assert reasons(came, "hi")[0] == "Suspended"
    assert admitted(came) == [(30, ["default/low"])], "when its own pods have stopped"


def test_a_pledge_stated_in_a_file_is_kept() -> None:
    preemptor = group(
        "hi",
        2,
        status={
            "phase": "Pending",
            "reservedAt": 0,
            "pledge": {"victims": ["default/low-t-0", "default/low-t-1"]},
        },
        runtime="10s",
    )
    came = outcome(node("n1", 2), *running("low", 2, grace="7s"), preemptor, config=ALL)
    assert evicted(came)[0] == (
        0,
        [("default/low-t-0", "Preempted"), ("default/low-t-1", "Preempted")],
    )
    assert (7, ["default/hi"]) in admitted(came)


def test_a_preemptor_in_a_queue_that_holds_too_much_evicts_in_that_queue_too() -> None:
    """Evicting `small` frees a node, and leaves the queue as full as it was."""
    came = outcome(
        node("n1", 3),
        node("n2", 4),
        priority("high", 1),
        taker("q", capability={"cpu": 6}),
        *running("small", 1, 1, queue="q"),
        *running("big", 1, 4, on="n2", queue="q"),
        group("claims", 1, 3, priorityClassName="high", queue="q", status={"phase": "InQueue"}),
        config=ALL,
    )
    assert evicted(came)[0] == (0, [("default/big-t-0", "Preempted")])
    assert phases(came)["claims"] == "Running"


def test_the_wait_for_victims_does_not_count_as_time_in_queue() -> None:
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        priority("high", 10),
        priority("top", 20),
        *running("a", 1, on="n1", priorityClassName="high"),
        *running("b", 1, on="n2", priorityClassName="high"),
        group("wide", 1, 2, status={"phase": "InQueue", "inQueueAt": 0}),
        timeline(
            {
                "at": "280s",
                "apply": manifest("PriorityClass", "default", {"value": 20, "default": True}),
            }
        ),
    )
    assert requeued(came) == [(280, [("default/a", "Preempted")])]
    assert (310, {"default/wide-t-0": "n1"}) in bound(came)


def test_single_pods_reclaim_within_the_rest_of_the_budget() -> None:
    came = outcome(
        node("n1", 10),
        taker("a", deserved={"cpu": 5}),
        taker("b", deserved={"cpu": 5}),
        group("c", 5, minMember=1, queue="a", status={"phase": "Running", "reservedAt": 0}),
        pod("c-t-0", "c", 0, phase="Running", node="n1", startedAt=0),
        *running("e", 9, minMember=1, queue="b", grace="1s"),
        config=f"{ALL}\nevictionBudget: {{pods: 2, window: 60s}}",
        cycles=60,
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == [(0, 2), (60, 2)]


def test_no_victim_is_larger_than_what_the_preemptor_still_lacks() -> None:
    came = outcome(
        node("n1", 10),
        taker("a", deserved={"cpu": 5}),
        taker("b", deserved={"cpu": 5}),
        group("c", 9, minMember=1, queue="a", status={"phase": "Running", "reservedAt": 0}),
        pod("c-t-0", "c", 0, phase="Running", node="n1", startedAt=0),
        *running("g4", 4, queue="b"),
        *running("g2", 2, queue="b"),
        group("g3", 3, queue="b", status={"phase": "Running", "reservedAt": 0}),
        *(pod(f"g3-t-{n}", "g3", n, phase="Running", node="n1", startedAt=5) for n in range(3)),
        config=ALL,
        cycles=60,
    )
    assert {name for _, pods in evicted(came) for name, _ in pods} == {
        "default/g3-t-0",
        "default/g3-t-1",
        "default/g3-t-2",
    }


def test_a_preemptor_that_may_borrow_takes_no_more_than_borrowing_needs() -> None:
    came = outcome(
        node("n1", 9),
        priority("mid", 5),
        priority("high", 10),
        taker("q", deserved={"cpu": 4}, preemption={"borrowing": 0}),
        taker("b", deserved={"cpu": 3}),
        *running("em", 2, minMember=1, queue="q", priorityClassName="mid"),
        *running("l", 4, queue="q"),
        *running("other", 3, queue="b"),
        group("hi", 4, queue="q", priorityClassName="high"),
        config="actions: [enqueue, allocate, preempt]",
    )
    assert [name for name, _ in evicted(came)[0][1]] == [f"default/l-t-{n}" for n in range(4)]


def test_places_for_pods_are_released_like_any_other_resource() -> None:
    came = outcome(
        node("n1", 100, pods=8),
        taker("a"),
        taker("b"),
        *running("bb", 8, minMember=1, queue="b", grace="1s"),
        group("aa", 2, queue="a"),
        config=ALL,
    )
    assert len(evicted(came)[0][1]) == 2
