"""A group that runs with fewer pods than requested says what keeps the others from nodes."""

from __future__ import annotations

from batchq.lab.simulation.report import WorldReason
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
        WorldReason("WaitingForResources", "task t: no node has capacity for one more pod")
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
