"""The judge of worlds at rest sees what stands still, and what may."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import OpenedGate, PodGroupStatus, Retry
from batchq.config.model import SchedulerConfig
from tests.builders import (
    a_group,
    a_node,
    a_pod,
    a_queue,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
)
from tests.worlds.rest import nothing_waits_that_could_start


def wrong(*objects: Any) -> list[str]:
    return nothing_waits_that_could_start(a_snapshot(*objects), 1_000, SchedulerConfig())


def test_a_group_that_waits_beside_a_free_node_is_noticed() -> None:
    found = wrong(a_node("n1", cpu=4), a_queue(), a_group("g", 2, cpu=2))
    assert found == ["default/g waits, and limits and nodes would take it"]


def test_a_group_that_no_single_node_takes_may_wait() -> None:
    nodes = [a_node("n1", cpu=2), a_node("n2", cpu=2)]
    assert wrong(*nodes, a_queue(), a_group("g", cpu=3)) == []


def test_a_group_in_front_of_which_nobody_waits_is_kept_back_by_nobody() -> None:
    """Strict as the queue is: `wide` is larger than all nodes, and waits for nothing that runs."""
    found = wrong(
        a_node("n1", cpu=4),
        a_queue(strict=True),
        a_group("wide", 2, cpu=4),
        a_group("small", created=1),
    )
    assert found == ["default/small waits, and limits and nodes would take it"]


def test_a_head_that_waits_for_a_running_pod_keeps_back_those_behind_it() -> None:
    assert (
        wrong(
            a_node("n1", cpu=4),
            a_queue(strict=True),
            *a_running_group("r", node="n1", cpu=2, created=0),
            a_group("wide", cpu=4, created=1),
            a_group("small", created=2),
        )
        == []
    )


def test_a_head_that_waits_for_its_own_former_pod_keeps_back_those_behind_it() -> None:
    """It was suspended and resumed: its pod is in its grace still."""
    head, pod = a_running_group("head", node="n1", cpu=2, created=0)
    left = replace(head.status, phase=PodGroupPhase.PENDING, reserved_at=None, reservation={})
    small = a_group("small", created=1)
    objects = (a_node("n1", cpu=4), replace(head, status=left), pod, small)
    assert wrong(a_queue(strict=True), *objects) == []
    assert wrong(a_queue(), *objects) == ["default/small waits, and limits and nodes would take it"]


def test_a_promise_to_a_gang_that_lacks_nothing_holds_nothing() -> None:
    """The ledger counts four cpus for an array of which one pod has succeeded, and the other waits
    for its retry.
    """
    status = PodGroupStatus(
        phase=PodGroupPhase.RUNNING,
        admission=1,
        reserved_at=0,
        reservation=amounts(cpu=4, pods=1),
        charge=amounts(cpu=4, pods=1),
    )
    array = a_group("array", 2, cpu=4, min_member=1, retry=Retry(limit=1), status=status)
    pods = (
        a_pod(array, 0, phase=PodPhase.SUCCEEDED, finished_at=500),
        a_pod(array, 1, phase=PodPhase.FAILED, failures=1, finished_at=900),
    )
    found = wrong(a_node("n1", cpu=4), array, *pods, a_group("whole", cpu=4, created=1))
    assert found == ["default/whole waits, and limits and nodes would take it"]


def test_a_pod_beyond_the_gang_that_waits_beside_a_free_node_is_noticed() -> None:
    group, pod = a_running_group("r", node="n1", cpu=2, min_member=1)
    more = replace(group, spec=replace(group.spec, tasks=(a_task("w", 2, requests={"cpu": 2}),)))
    found = wrong(a_node("n1", cpu=4), more, pod)
    assert found == [
        "pod w-1 of default/r, beyond its gang, waits, and limits and a node would take it"
    ]


def test_the_gang_of_an_array_stays_as_it_was_when_a_gate_of_another_task_is_opened() -> None:
    """The array was admitted with its pod of four cpus and lost its node; the gate of the small pod
    was opened afterwards.
    """
    status = PodGroupStatus(
        phase=PodGroupPhase.UNKNOWN,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        reservation=amounts(cpu=4, pods=1),
        charge=amounts(cpu=4, pods=1),
        opened_gates=(OpenedGate("own", "small", at=500),),
    )
    tasks = (a_task("small", 1), a_task("large", 1, requests={"cpu": 4}))
    array = a_group("array", tasks=tasks, min_member=1, status=status)
    assert wrong(a_node("n1", cpu=2), a_queue(), array, a_pod(array, task="large")) == []
