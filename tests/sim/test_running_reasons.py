"""A group that runs with fewer pods than requested says what keeps the others from nodes."""

from __future__ import annotations

from msgspec import structs

from batchq.lab.simulation.report import WorldReason
from tests.builders import a_node, a_queue, a_running_group, decide
from tests.sim.test_backfill import NO_EVICTIONS
from tests.sim.worlds import (
    Manifest,
    applies,
    group,
    node,
    of,
    outcome,
    outcome_until,
    phases,
    priority,
    queue,
    task,
    timeline,
)


def array(pods: int, cpu: int = 1, **spec: object) -> Manifest:
    return group("array", pods, cpu, minMember=1, runtime="30s", **spec)


def test_pods_that_no_node_fits_wait_for_resources() -> None:
    came = outcome_until(10, node("n1", 2), array(3))
    assert of(came, "array").phase == "Running"
    assert of(came, "array").reasons == [
        WorldReason(
            "WaitingForResources",
            "task t: no node has capacity for one more pod; a pod needs cpu 1, and the most that is"
            " free is 0, on n1",
        )
    ]


def test_pods_that_a_limit_and_the_nodes_refuse_name_both_the_limit_first() -> None:
    small = queue("small", capability={"cpu": 2})
    full = (small, node("n1", 3), group("other", 1, 1, created=0), array(4, queue="small"))
    quota = WorldReason(
        "WaitingForQuota", "needs cpu 1, and queue small has 0 free (2 of 2 in use)"
    )
    assert of(outcome_until(10, *full), "array").reasons == [
        quota,
        WorldReason(
            "WaitingForResources",
            "task t: no node has capacity for one more pod; a pod needs cpu 1, and the most that is"
            " free is 0, on n1",
        ),
    ]
    scattered = (small, node("n1", 2), node("n2", 2), array(4, cpu=1, queue="small"))
    assert of(outcome_until(10, *scattered), "array").reasons == [quota]


def test_a_stored_quota_is_not_stored_again_while_other_pods_come_and_go() -> None:
    small = a_queue("small", capability={"cpu": 2})
    array, *pods = a_running_group("array", 3, queue="small", min_member=1)
    other = a_running_group("other")
    full = [a_node(cpu=3), small, array, *pods[:2]]
    stored = decide(*full, *other).session.by_key["default/array"].status
    assert [str(verdict.reason) for verdict in stored.reasons] == [
        "WaitingForQuota",
        "WaitingForResources",
    ]
    full[2] = structs.replace(array, status=stored)
    assert decide(*full).session.by_key["default/array"].status is stored
    raised = decide(*full[2:], a_node(cpu=2), a_queue("small", capability={"cpu": 3}))
    [reason] = raised.session.by_key["default/array"].status.reasons
    assert reason.reason == "WaitingForResources"


def test_pods_that_no_node_has_enough_for_name_the_resource() -> None:
    world = (node("n1", 3), node("n2", 3), array(3, cpu=2))
    assert of(outcome_until(10, *world), "array").reasons == [
        WorldReason(
            "WaitingForResources",
            "task t: no node has capacity for one more pod; a pod needs cpu 2, and the most that is"
            " free is 1, on n2",
        )
    ]


def test_pods_that_no_empty_node_takes_say_why() -> None:
    tasks = [task("t", 1, 1), task("u", 1, 1)]
    tasks[1]["template"]["nodeSelector"] = {"zone": "a"}
    came = outcome_until(10, node("n1", 4), group("array", tasks=tasks, minMember=1))
    assert of(came, "array").reasons == [
        WorldReason(
            "WaitingForResources",
            "not even empty nodes take it: task u: 0/1 nodes fit: 1 does not match the node"
            " selector",
        )
    ]


def test_pods_that_a_limit_refuses_name_the_limit() -> None:
    world = (queue("small", capability={"cpu": 2}), node("n1", 8), array(3, queue="small"))
    [reason] = of(outcome_until(10, *world), "array").reasons
    assert reason.reason == "WaitingForQuota"
    assert "queue small" in reason.message


def test_pods_behind_the_head_of_a_strict_queue_name_the_head() -> None:
    world = (
        queue("strict", strategy={"type": "StrictFIFO"}),
        priority("high", 9),
        node("n1", 4),
        array(8, queue="strict"),
        timeline(applies(5, group("head", 1, 4, queue="strict", priorityClassName="high"))),
    )
    came = outcome_until(10, *world, config=NO_EVICTIONS)
    assert phases(came) == {"array": "Running", "head": "Pending"}
    assert of(came, "array").reasons == [
        WorldReason(
            "WaitingForTurn", "task t: PodGroup default/head comes before more pods of this group"
        )
    ]


def test_once_all_pods_have_nodes_the_reason_is_cleared() -> None:
    world = (node("n1", 2), array(3))
    came = outcome_until(40, *world, config=NO_EVICTIONS)
    assert (of(came, "array").phase, of(came, "array").reasons) == ("Running", [])
    assert phases(outcome(*world)) == {"array": "Completed"}
