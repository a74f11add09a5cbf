"""Victims and preemptors in described worlds: preempt, reclaim, and the pledges meanwhile."""

from __future__ import annotations

from typing import Any

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.worlds import (
    Manifest,
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

ALL = "actions: [enqueue, allocate, reclaim, preempt]"


def running(name: str, pods: int = 1, cpu: Any = 1, on: str = "n1", **more: Any) -> list[Manifest]:
    """Return a group whose pods all run since the instant 0."""
    status = {"phase": "Running", "reservedAt": 0}
    one = group(name, pods, cpu, status=status, **more)
    each = [
        pod(f"{name}-t-{index}", name, index, phase="Running", node=on, startedAt=0)
        for index in range(pods)
    ]
    return [one, *each]


def pledged(came: WorldOutcome) -> list[tuple[int, dict[str, list[str]]]]:
    return [(cycle.time, cycle.pledged) for cycle in came.cycles if cycle.pledged]


def test_the_more_important_gang_preempts_and_the_victim_returns_later() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        group("low", 4, runtime="300s", grace="10s"),
        timeline({"at": "60s", "apply": group("hi", 2, runtime="100s", priorityClassName="high")}),
        config=ALL,
    )
    victims = [f"default/low-t-{index}" for index in range(4)]
    assert evicted(came) == [(60, [(name, "Preempted") for name in victims])]
    assert requeued(came) == [(60, [("default/low", "Preempted")])]
    assert pledged(came) == [(60, {"default/hi": victims})]
    assert admitted(came) == [
        (0, ["default/low"]),
        (70, ["default/hi"]),
        (170, ["default/low"]),
    ]
    assert phases(came) == {"hi": "Completed", "low": "Completed"}


def test_a_group_of_equal_priority_is_no_victim() -> None:
    came = outcome(node("n1", 4), *running("first", 4), group("second", 2), config=ALL)
    assert evicted(came) == []
    assert reasons(came, "second") == ["WaitingForResources"]


def test_no_pod_is_evicted_for_a_gang_that_would_still_not_start() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        priority("higher", 20),
        *running("low", 2),
        *running("other", 2, priorityClassName="higher"),
        group("gang", 3, priorityClassName="high"),
        config=ALL,
    )
    assert evicted(came) == []


def test_a_victim_that_is_not_needed_is_spared() -> None:
    """Kueue's `minimal set excludes low priority`."""
    came = outcome(
        node("n1", 6),
        priority("z", -1),
        priority("x", 1),
        *running("z-low", 1, 1, priorityClassName="z"),
        *running("y-mid", 1, 2),
        *running("x-high", 1, 3, priorityClassName="x"),
        group("in", 1, 2, priorityClassName="x"),
        config=ALL,
    )
    assert evicted(came)[0] == (0, [("default/y-mid-t-0", "Preempted")])


def test_pods_beyond_min_member_are_evicted_before_whole_groups() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("elastic", 3, minMember=2),
        *running("low", 1),
        group("hi", 1, priorityClassName="high"),
        config=ALL,
    )
    assert evicted(came)[0] == (0, [("default/elastic-t-2", "Preempted")])
    assert phases(came)["elastic"] == "Running"


def test_an_array_gives_no_pods_to_an_equally_important_group() -> None:
    came = outcome(node("n1", 4), *running("array", 4, minMember=1), group("equal", 1), config=ALL)
    assert evicted(came) == []


def test_an_elastic_group_gives_pods_to_groups_of_equal_priority() -> None:
    came = outcome(
        node("n1", 4), *running("elastic", 4, minMember=2), group("equal", 2), config=ALL
    )
    assert evicted(came)[0] == (
        0,
        [("default/elastic-t-3", "Preempted"), ("default/elastic-t-2", "Preempted")],
    )


def test_the_latest_started_of_equal_pods_is_evicted() -> None:
    came = outcome(
        node("n1", 2),
        priority("high", 10),
        group("a", 2, status={"phase": "Running", "reservedAt": 0}, minMember=1),
        pod("a-t-0", "a", 0, phase="Running", node="n1", startedAt=0),
        pod("a-t-1", "a", 1, phase="Running", node="n1", startedAt=50),
        group("hi", 1, priorityClassName="high"),
        config=ALL,
    )
    assert evicted(came)[0] == (0, [("default/a-t-1", "Preempted")])


def test_an_admission_of_this_session_is_undone_without_a_trace() -> None:
    """The large group comes first in line and does not fit; the small one took the rest."""
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("old", 2, cpu=1),
        group("small", 2, 1),
        group("large", 4, 1, priorityClassName="high", grace="1s"),
        config=ALL,
        cycles=1,
    )
    (cycle,) = came.cycles
    assert cycle.admitted == []
    assert cycle.created == []
    assert cycle.bound == {}
    assert [item.pod for item in cycle.evicted] == ["default/old-t-0", "default/old-t-1"]


def test_a_preemptor_waits_for_terminating_pods_before_any_eviction() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("low", 2),
        group("leaving", 2),
        *(
            pod(
                f"leaving-t-{index}",
                "leaving",
                index,
                phase="Running",
                node="n1",
                startedAt=0,
                terminating=True,
            )
            for index in range(2)
        ),
        group("hi", 2, priorityClassName="high"),
        config=ALL,
        cycles=1,
    )
    assert evicted(came) == []
    assert pledged(came) == [(0, {"default/hi": ["default/leaving-t-0", "default/leaving-t-1"]})]


def test_capacity_released_by_victims_is_kept_for_the_preemptor() -> None:
    """A third group comes while the victims stop, and would fit into their capacity."""
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        *running("low", 4, grace="20s"),
        group("hi", 2, priorityClassName="high", runtime="50s"),
        timeline({"at": "10s", "apply": group("late", 4, priorityClassName="high")}),
        config=ALL,
    )
    assert (20, ["default/hi"]) in admitted(came)
    assert all("default/late" not in names for time, names in admitted(came) if time < 70)


def test_victims_are_not_admitted_again_before_their_preemptor() -> None:
    came = outcome(
        node("n1", 4),
        node("n2", 1),
        priority("high", 10),
        *running("low", 2, 2, grace="20s"),
        group("hi", 1, 4, priorityClassName="high", runtime="50s"),
        timeline({"at": "5s", "apply": node("n3", 4)}),
        config=ALL,
    )
    times = {name: time for time, names in admitted(came) for name in names}
    assert times["default/hi"] <= times["default/low"]


def test_a_class_that_preempts_no_group_waits() -> None:
    never = manifest("PriorityClass", "polite", {"value": 10, "preemptionPolicy": "Never"})
    came = outcome(
        node("n1", 4),
        never,
        *running("low", 4),
        group("hi", 2, priorityClassName="polite"),
        config=ALL,
    )
    assert evicted(came) == []


def test_a_queue_whose_policy_is_never_preempts_nothing() -> None:
    came = outcome(
        node("n1", 4),
        priority("high", 10),
        taker("q", preemption={"withinQueue": "Never"}),
        *running("low", 4, queue="q"),
        group("hi", 2, priorityClassName="high", queue="q"),
        config=ALL,
    )
    assert evicted(came) == []


def test_a_gang_that_fits_no_node_evicts_to_free_nodes() -> None:
    """The cluster's sum suffices, but no single node does."""
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        priority("high", 10),
        *running("a", 1, on="n1", grace="5s"),
        *running("b", 1, on="n2", grace="5s"),
        group("wide", 1, 2, priorityClassName="high"),
        config=ALL,
    )
    assert admitted(came)[0] == (5, ["default/wide"])
    assert len(evicted(came)[0][1]) == 1
    assert bound(came)[0] == (5, {"default/wide-t-0": "n1"})
    assert (5, {"default/a-t-0": "n2"}) in bound(came)


def test_a_lending_queue_reclaims_what_it_lent() -> None:
    came = outcome(
        node("n1", 8),
        taker("a", deserved={"cpu": 4}),
        taker("b", deserved={"cpu": 4}),
        *running("borrower-1", 4, queue="b", grace="5s"),
        *running("borrower-2", 4, queue="b", grace="5s"),
        group("lender", 3, queue="a", runtime="10s"),
        config=ALL,
    )
    assert evicted(came)[0][1][0] == ("default/borrower-1-t-0", "Reclaimed")
    assert (5, ["default/lender"]) in admitted(came)


def test_equal_queues_do_not_reclaim_from_each_other() -> None:
    came = outcome(
        node("n1", 8),
        taker("a"),
        taker("b"),
        *running("one", 4, queue="a"),
        *running("two", 4, queue="b"),
        group("three", 2, queue="a"),
        group("four", 2, queue="b"),
        config=ALL,
    )
    assert evicted(came) == []


def test_a_queue_that_is_not_reclaimable_keeps_what_it_borrows() -> None:
    came = outcome(
        node("n1", 8),
        taker("a", deserved={"cpu": 4}),
        taker("b", deserved={"cpu": 4}, reclaimable=False),
        *running("borrower", 8, queue="b"),
        group("lender", 3, queue="a"),
        config=ALL,
    )
    assert evicted(came) == []


def test_no_queue_falls_below_its_guarantee() -> None:
    came = outcome(
        node("n1", 8),
        taker("a", deserved={"cpu": 4}),
        taker("b", deserved={"cpu": 4}, guarantee={"cpu": 4}),
        *running("borrower", 6, queue="b"),
        group("lender", 3, queue="a"),
        config=ALL,
    )
    assert evicted(came) == [], "the gang of 6 would leave 0, and 4 are guaranteed"


def test_a_preemptor_that_would_itself_borrow_reclaims_nothing() -> None:
    came = outcome(
        node("n1", 8),
        taker("a", deserved={"cpu": 4}),
        taker("b", deserved={"cpu": 4}),
        *running("borrower", 8, queue="b"),
        group("large", 5, queue="a"),
        config=ALL,
    )
    assert evicted(came) == []


def test_pods_beyond_the_gang_reclaim_until_queues_are_even() -> None:
    came = outcome(
        node("n1", 10),
        taker("a"),
        taker("b"),
        *running("array", 10, queue="a", minMember=1, grace="10s"),
        timeline({"at": "60s", "apply": group("other", 20, minMember=1, queue="b")}),
        config=ALL,
        cycles=60,
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == [(60, 1), (70, 4)]
    assert came.queues["a"].allocated["cpu"] == "5"
    assert came.queues["b"].allocated["cpu"] == "5"


def test_an_unused_guarantee_is_kept_free() -> None:
    came = outcome(
        node("n1", 8),
        taker("a", guarantee={"cpu": 4}),
        taker("b"),
        group("greedy", 8, minMember=1, queue="b"),
        config=ALL,
    )
    assert came.queues["b"].allocated["cpu"] == "4"


def test_a_childs_guarantee_cannot_be_taken_by_its_sibling() -> None:
    """Their parent states nothing: only the cluster limits it."""
    came = outcome(
        node("n1", 8),
        taker("lab"),
        taker("a", parent="lab"),
        taker("b", parent="lab", guarantee={"cpu": 4}),
        group("hog", 8, minMember=1, queue="a"),
        config=ALL,
    )
    assert came.queues["a"].allocated["cpu"] == "4"


def test_a_waiting_group_says_to_which_queue_the_rest_is_guaranteed() -> None:
    came = outcome(
        node("n1", 8),
        taker("a"),
        taker("b", guarantee={"cpu": 4}),
        *running("one", 4, queue="a"),
        group("two", 1, queue="a"),
        config=ALL,
    )
    (reason,) = of(came, "two").reasons
    assert reason.message == (
        "needs cpu 1, and the cluster has 0 free (8 of 8 in use); 4 of that is guaranteed to b"
    )


def test_more_pods_of_a_group_do_not_pass_the_head_of_a_strict_queue() -> None:
    """The evicted gang needs both nodes at once, and they become free one by one."""
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        priority("high", 10),
        taker("q", strategy={"type": "StrictFIFO"}),
        group("old", 2, 2, queue="q", runtime="600s", created=0),
        group(
            "hot",
            queue="q",
            priorityClassName="high",
            created=1,
            tasks=[
                {
                    "name": name,
                    "template": {
                        "requests": {"cpu": 2},
                        "annotations": {"batchq/runtime": runtime},
                    },
                }
                for name, runtime in (("a", "60s"), ("b", "62s"))
            ],
        ),
        group("young", 40, 2, minMember=1, queue="q", runtime="10s", created=2),
        config=ALL,
    )
    assert admitted(came)[0] == (0, ["default/hot"])
    assert (62, ["default/old"]) in admitted(came)
