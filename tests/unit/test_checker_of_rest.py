"""The invariant checker reports groups that wait without a reason in a cluster at rest."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import OpenedGate, PodGroupStatus, Retry
from batchq.config import SchedulerConfig
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
from tests.worlds.rest import no_group_waits_that_could_start


def wrong(*objects: Any) -> list[str]:
    return no_group_waits_that_could_start(a_snapshot(*objects), 1_000, SchedulerConfig())


def test_a_group_that_waits_although_a_node_is_free_is_reported() -> None:
    found = wrong(a_node("n1", cpu=4), a_queue(), a_group("g", 2, cpu=2))
    assert found == ["default/g waits, although limits and nodes would take it"]


def test_a_group_that_fits_on_no_single_node_may_wait() -> None:
    nodes = [a_node("n1", cpu=2), a_node("n2", cpu=2)]
    assert wrong(*nodes, a_queue(), a_group("g", cpu=3)) == []


def test_a_group_behind_an_unsatisfiable_group_must_not_wait() -> None:
    """Even in a strict queue: `wide` exceeds all nodes, so no end of a running group helps it."""
    found = wrong(
        a_node("n1", cpu=4),
        a_queue(strict=True),
        a_group("wide", 2, cpu=4),
        a_group("small", created=1),
    )
    assert found == ["default/small waits, although limits and nodes would take it"]


def test_groups_behind_a_head_that_waits_for_a_running_pod_may_wait() -> None:
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


def test_groups_behind_an_external_head_that_waits_for_quota_may_wait() -> None:
    consumer = a_group("c", controller="external", min_resources=amounts(cpu=4), created=1)
    consumer = replace(consumer, spec=replace(consumer.spec, tasks=()))
    holds = PodGroupStatus(
        phase=PodGroupPhase.RUNNING, admission=1, reserved_at=0, started_at=0,
        reservation=amounts(cpu=2), charge=amounts(cpu=2),
    )  # fmt: skip
    assert (
        wrong(
            a_node("n1", cpu=4),
            a_queue(strict=True, capability={"cpu": 4}),
            a_group("r", controller="external", min_resources=amounts(cpu=2), status=holds),
            consumer,
            a_group("small", created=2),
        )
        == []
    )


def test_groups_behind_a_head_that_waits_for_its_former_pod_may_wait() -> None:
    """The head was suspended and resumed; its former pod is still in its grace period."""
    head, pod = a_running_group("head", node="n1", cpu=2, created=0)
    left = replace(head.status, phase=PodGroupPhase.PENDING, reserved_at=None, reservation={})
    small = a_group("small", created=1)
    objects = (a_node("n1", cpu=4), replace(head, status=left), pod, small)
    assert wrong(a_queue(strict=True), *objects) == []
    assert wrong(a_queue(), *objects) == [
        "default/small waits, although limits and nodes would take it"
    ]


def test_a_reservation_of_a_gang_that_lacks_no_pods_blocks_no_other_group() -> None:
    """The ledger charges four cpus for an array with a succeeded pod and one awaiting a retry."""
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
    assert found == ["default/whole waits, although limits and nodes would take it"]


def test_an_extra_pod_that_waits_although_a_node_is_free_is_reported() -> None:
    group, pod = a_running_group("r", node="n1", cpu=2, min_member=1)
    more = replace(group, spec=replace(group.spec, tasks=(a_task("w", 2, requests={"cpu": 2}),)))
    found = wrong(a_node("n1", cpu=4), more, pod)
    assert found == [
        "pod w-1 of default/r, beyond its gang, waits, and limits and a node would take it"
    ]


def test_opening_a_gate_of_another_task_does_not_change_the_gang_of_an_array() -> None:
    """The array was admitted with its pod of four cpus and lost its node; the small pod's gate was
    opened afterwards.
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
