"""Requests beyond the machines are reported at once; a stated limit is called a quota."""

from __future__ import annotations

from tests.sim.worlds import (
    admitted,
    bound,
    cordoned,
    created,
    group,
    node,
    of,
    outcome,
    outcome_until,
    queue,
    reasons,
    timeline,
)


def test_a_pod_larger_than_every_node_exceeds_the_capacity_though_the_sum_suffices() -> None:
    came = outcome(node("n1", 4), node("n2", 4), group("wide", cpu=6))
    [reason] = of(came, "wide").reasons
    assert reason.reason == "ExceedsCapacity"
    assert reason.message == (
        "not even empty nodes take it: task t: 0/2 nodes fit: 2 insufficient cpu; a pod needs"
        " cpu 6, and the largest node has 4"
    )
    assert (admitted(came), created(came)) == ([], [])


def test_a_gang_that_does_not_fit_together_exceeds_the_capacity() -> None:
    came = outcome(node("n1", 5), node("n2", 5), group("gang", 4, cpu=2), group("three", 3, cpu=2))
    assert reasons(came, "gang") == []
    came = outcome(node("n1", 5), node("n2", 5), group("gang", 5, cpu=2), group("three", 3, cpu=2))
    [reason] = of(came, "gang").reasons
    assert (reason.reason, reason.message) == (
        "ExceedsCapacity",
        "not even empty nodes take it: 5 pods do not fit together on empty nodes",
    )
    assert admitted(came) == [(0, ["default/three"])]


def test_a_group_that_exceeds_the_capacity_delays_no_other_in_a_strict_queue() -> None:
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        queue("default", strategy={"type": "StrictFIFO"}),
        group("wide", cpu=6, created=0),
        group("next", cpu=4, created=1),
    )
    assert admitted(came) == [(0, ["default/next"])]


def test_a_larger_node_unparks_a_group_that_exceeded_the_capacity() -> None:
    came = outcome(
        node("n1", 4), group("wide", cpu=6), timeline({"at": "50s", "apply": node("n2", 8)})
    )
    assert [(at, dict(pods)) for at, pods in bound(came)] == [(50, {"default/wide-t-0": "n2"})]


def test_a_group_that_only_a_cordoned_node_could_take_does_not_exceed_the_capacity() -> None:
    came = outcome_until(20, node("n1", 4), cordoned("n2", 8), group("wide", cpu=6))
    assert "ExceedsCapacity" not in reasons(came, "wide")


def test_a_stated_capability_is_exceeded_as_a_quota_and_the_machines_as_capacity() -> None:
    came = outcome(
        node("n1", 8),
        queue("small", capability={"cpu": 2}),
        group("over", 3, queue="small"),
        group("huge", 9),
    )
    assert reasons(came, "over") == ["ExceedsMaxQuota"]
    assert reasons(came, "huge") == ["ExceedsCapacity"]


def test_a_parents_capability_less_a_guarantee_is_called_a_quota() -> None:
    came = outcome(
        node("n1", 100),
        queue("cohort", capability={"cpu": 10}),
        queue("mine", parent="cohort"),
        queue("theirs", parent="cohort", guarantee={"cpu": 4}),
        group("runs", 3, queue="mine"),
        group("waits", 4, queue="mine"),
    )
    [reason] = of(came, "waits").reasons
    assert (reason.reason, reason.message) == (
        "WaitingForQuota",
        (
            "needs cpu 4, and queue cohort has 3 free (7 of 10 in use); 4 of that is guaranteed to"
            " theirs"
        ),
    )


def test_cluster_capacity_less_a_guarantee_is_called_a_lack_of_resources() -> None:
    came = outcome(
        node("n1", 10),
        queue("mine"),
        queue("theirs", guarantee={"cpu": 4}),
        group("runs", 3, queue="mine"),
        group("waits", 4, queue="mine"),
    )
    assert reasons(came, "waits") == ["WaitingForResources"]
