"""The pods of a gang, the resources that a running group keeps for the rest of it, and the order of
the pods beyond it.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    group,
    node,
    opens,
    outcome,
    phases,
    pod,
    priority,
    queue,
    timeline,
)

STRICT = ["StrictFIFO", "Backfill"]


def task(name: str, replicas: int, cpu: int, **template: object) -> Manifest:
    return {"name": name, "replicas": replicas, "template": {"requests": {"cpu": cpu}, **template}}


def test_a_gang_takes_the_pods_of_the_highest_priority_first() -> None:
    came = outcome(
        node("n1", 2),
        group("g", minMember=2, tasks=[task("low", 2, 1), task("high", 2, 1, priority=5)]),
    )
    assert bound(came) == [(0, {"default/g-high-0": "n1", "default/g-high-1": "n1"})]


def test_a_pod_without_a_priority_has_that_of_its_group() -> None:
    came = outcome(
        priority("urgent", 10),
        node("n1", 1),
        group(
            "g",
            minMember=1,
            priorityClassName="urgent",
            tasks=[task("stated", 1, 1, priority=5), task("plain", 1, 1)],
        ),
    )
    assert bound(came) == [(0, {"default/g-plain-0": "n1"})]


def test_a_gang_leaves_out_a_task_that_fits_no_node() -> None:
    came = outcome(
        node("n1", 4),
        group(
            "g",
            minMember=2,
            tasks=[task("gpu", 2, 1, nodeSelector={"gpu": "yes"}), task("cpu", 2, 1)],
        ),
    )
    assert bound(came) == [(0, {"default/g-cpu-0": "n1", "default/g-cpu-1": "n1"})]
    assert phases(came)["g"] == "Running"


def test_a_gang_includes_such_a_task_when_a_node_for_it_has_come() -> None:
    came = outcome(
        node("n1", 4),
        group(
            "g",
            minMember=2,
            schedulingGates=[{"name": "data"}],
            tasks=[task("gpu", 2, 1, nodeSelector={"gpu": "yes"}), task("cpu", 2, 1)],
        ),
        timeline(
            {
                "at": "5s",
                "apply": {**node("n2", 4), "metadata": {"name": "n2", "labels": {"gpu": "yes"}}},
            },
            opens(10, "g", "data"),
        ),
    )
    placed = {pod for _, pods in bound(came) for pod in pods}
    assert {"default/g-gpu-0", "default/g-gpu-1"} <= placed


@pytest.mark.parametrize("strategy", STRICT)
def test_an_array_releases_capacity_to_a_head_that_came_before_it(strategy: str) -> None:
    """The head's gate is opened while the array runs: the head starts when the running pods have
    ended, and the rest of the array after it.
    """
    came = outcome(
        node("n1", 2),
        queue("default", strategy={"type": strategy}),
        group("head", 1, 2, runtime="30s", created=0, schedulingGates=[{"name": "data"}]),
        group("array", 3, 1, runtime="60s", created=1, minMember=1),
        timeline(opens(10, "head", "data")),
    )
    assert admitted(came) == [(0, ["default/array"]), (60, ["default/head"])]
    assert phases(came) == {"head": "Completed", "array": "Completed"}


@pytest.mark.parametrize("strategy", STRICT)
def test_a_dependent_group_starts_when_the_array_in_front_of_it_drains(
    strategy: str,
) -> None:
    came = outcome(
        node("n1", 2),
        queue("default", strategy={"type": strategy}),
        group("a", 1, 1, runtime="10s", created=0),
        group("b", 1, 2, runtime="10s", created=1, dependsOn=[{"name": "a"}]),
        group("array", 6, 1, runtime="60s", created=2, minMember=1),
    )
    assert phases(came) == {"a": "Completed", "b": "Completed", "array": "Completed"}


def test_an_array_keeps_nothing_for_pods_beyond_its_gang() -> None:
    """One pod is done and the other fits nowhere: the node is free for other groups."""
    came = outcome(
        node("n1", 2),
        group(
            "array",
            created=0,
            minMember=1,
            tasks=[
                task("done", 1, 1, annotations={"batchq/runtime": "10s"}),
                task("nowhere", 1, 1, nodeSelector={"gpu": "yes"}),
            ],
        ),
        group("whole", 1, 2, created=5, runtime="10s"),
    )
    assert admitted(came) == [(0, ["default/array"]), (10, ["default/whole"])]
    assert phases(came)["whole"] == "Completed"


@pytest.mark.parametrize("strategy", STRICT)
def test_no_group_waits_for_a_pod_of_an_array_that_fits_no_node(strategy: str) -> None:
    came = outcome(
        node("n1", 2),
        queue("default", strategy={"type": strategy}),
        group(
            "array",
            created=0,
            minMember=1,
            tasks=[
                task("done", 1, 1, annotations={"batchq/runtime": "10s"}),
                task("nowhere", 1, 1, nodeSelector={"gpu": "yes"}),
            ],
        ),
        group("whole", 1, 2, created=5, runtime="10s"),
    )
    assert phases(came) == {"array": "Running", "whole": "Completed"}


@pytest.mark.parametrize("strategy", STRICT)
def test_the_rest_of_a_drained_array_keeps_its_place_before_a_younger_group(strategy: str) -> None:
    """Its pods ended while an older group held the capacity; then its next pod comes first."""
    came = outcome(
        node("n1", 2),
        queue("default", strategy={"type": strategy}),
        group("head", 1, 2, runtime="30s", created=0, schedulingGates=[{"name": "data"}]),
        group("array", 3, 1, runtime="60s", created=1, minMember=1),
        group("young", 1, 2, runtime="10s", created=2),
        timeline(opens(10, "head", "data")),
    )
    assert [(at, list(pods)) for at, pods in bound(came)] == [
        (0, ["default/array-t-0", "default/array-t-1"]),
        (60, ["default/head-t-0"]),
        (90, ["default/array-t-2"]),
        (150, ["default/young-t-0"]),
    ]


def test_pods_beyond_the_gang_are_ordered_by_priority_in_their_queue() -> None:
    came = outcome(
        priority("urgent", 10),
        node("n1", 6),
        group("low", 6, 1, created=0, minMember=1),
        group("high", 6, 1, created=1, minMember=1, priorityClassName="urgent"),
    )
    pods = [pod for _, placed in bound(came) for pod in placed]
    assert sum(pod.startswith("default/high") for pod in pods) == 6
    assert sum(pod.startswith("default/low") for pod in pods) == 0


def test_the_walltime_of_an_elastic_group_pauses_while_it_has_no_pod_on_a_node() -> None:
    """Its pods run for 40 s in all, with a walltime of 50 s; between them a head runs for 60 s."""
    came = outcome(
        node("n1", 2),
        queue("default", strategy={"type": "StrictFIFO"}),
        group("head", 1, 2, runtime="60s", created=0, schedulingGates=[{"name": "data"}]),
        group(
            "elastic",
            created=1,
            minMember=2,
            walltime="50s",
            tasks=[task("t", 3, 1, annotations={"batchq/runtime": "20s"})],
        ),
        timeline(opens(10, "head", "data")),
    )
    assert phases(came) == {"head": "Completed", "elastic": "Completed"}


def test_an_array_that_resumes_after_a_success_keeps_no_place_beside_its_pods() -> None:
    """It is suspended at 15 and resumed at 20: then both of its remaining pods start."""
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        group(
            "array",
            minMember=1,
            tasks=[
                task("first", 1, 2, annotations={"batchq/runtime": "10s"}),
                task("rest", 2, 2, annotations={"batchq/runtime": "100s"}),
            ],
        ),
        timeline(
            {"at": "15s", "suspend": "default/array"}, {"at": "50s", "resume": "default/array"}
        ),
    )
    assert bound(came)[-1] == (50, {"default/array-rest-0": "n1", "default/array-rest-1": "n2"})


def test_a_pod_that_replaces_a_stopping_one_stays_within_the_limits() -> None:
    """At 10 the pod of `a` has exceeded its walltime and keeps its cpu for its grace period; the
    next pod of `b` takes what that leaves of the three.
    """
    came = outcome(
        node("n1", 8),
        queue("q", capability={"cpu": 3}),
        group("a", 2, 1, queue="q", created=0, minMember=1, walltime="10s", grace="30s"),
        group("b", 2, 2, queue="q", created=1, minMember=1, runtime="10s"),
    )
    assert [(at, list(pods)) for at, pods in bound(came)] == [
        (0, ["default/a-t-0", "default/b-t-0"]),
        (10, ["default/b-t-1"]),
        (20, ["default/a-t-1"]),
    ]


def test_a_resumed_elastic_group_reserves_what_its_gang_still_needs() -> None:
    """Three of four pods have succeeded before: the remaining one needs one cpu, not three."""
    came = outcome(
        node("n1", 4),
        group("busy", 3, status={"phase": "Running"}),
        *(pod(f"busy-t-{k}", "busy", k, phase="Running", node="n1") for k in range(3)),
        group("elastic", 4, runtime="20s", minMember=3),
        *(pod(f"elastic-t-{k}", "elastic", k, phase="Succeeded") for k in range(3)),
    )
    assert bound(came) == [(0, {"default/elastic-t-3": "n1"})]
    assert phases(came)["elastic"] == "Completed"
