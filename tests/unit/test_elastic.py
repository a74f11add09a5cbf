"""Groups that can run with fewer pods than they have: which pods replace pods that have ended."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.intents import LosePod
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import PodGroup, PodGroupStatus
from batchq.api.reasons import Leaving, Verdict, Waiting
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import roll_back
from tests.builders import (
    a_group,
    a_node,
    a_pod,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
    decide,
)

_FAILED: dict[str, Any] = {"phase": PodPhase.FAILED, "failures": 1, "finished_at": 0}
_SUCCEEDED: dict[str, Any] = {"phase": PodPhase.SUCCEEDED, "finished_at": 0}


def _group(phase: PodGroupPhase, min_member: int, *tasks: Any, **reserved: int) -> PodGroup:
    status = PodGroupStatus(
        phase=phase,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        started_at=0,
        reservation=amounts(**reserved),
    )
    return a_group("g", tasks=tasks, min_member=min_member, status=status)


def test_pods_of_another_task_replace_pods_that_failed_permanently() -> None:
    group = _group(PodGroupPhase.RUNNING, 1, a_task("a"), a_task("b", 5), cpu=1, pods=1)
    decided = decide(a_node(cpu=2), group, a_pod(group, task="a", **_FAILED))
    assert list(decided.bound) == ["default/g-b-0", "default/g-b-1"]


def test_a_new_admission_does_not_need_pods_that_have_ended_permanently() -> None:
    group = _group(PodGroupPhase.IN_QUEUE, 2, a_task("a", 2), a_task("b", 2), cpu=2, pods=2)
    ended = (
        a_pod(group, 0, task="a", **_SUCCEEDED),
        a_pod(group, 1, task="a", **_FAILED),
    )
    decided = decide(a_node(cpu=4), group, *ended)
    assert list(decided.bound) == ["default/g-b-0", "default/g-b-1"]


def test_a_task_that_cannot_reach_its_min_available_fails_the_group() -> None:
    tasks = (a_task("server", 1, 1), a_task("worker", 5))
    group = _group(PodGroupPhase.RUNNING, 2, *tasks, cpu=2, pods=2)
    running = {"phase": PodPhase.RUNNING, "node": "n1", "bound_at": 0, "started_at": 0}
    pods = (
        a_pod(group, task="server", **_FAILED),
        *(a_pod(group, index, task="worker", **running) for index in (1, 2)),
    )
    decided = decide(a_node(cpu=4), group, *pods)
    assert decided.session.by_key["default/g"].phase == PodGroupPhase.FAILED


def test_a_succeeded_pod_needs_no_node() -> None:
    gpu = a_task("gpu", 1, requests={"gpu": 1})
    group = _group(PodGroupPhase.IN_QUEUE, 2, gpu, a_task("cpu", 2), cpu=1, gpu=1, pods=2)
    # The only gpu is on a cordoned node: the node counts as capacity, but takes no pods.
    pods = (a_pod(group, task="gpu", **_SUCCEEDED),)
    blind = a_node("n2", gpu=1, cordoned=True)
    decided = decide(a_node(cpu=4), blind, group, *pods)
    assert list(decided.bound) == ["default/g-cpu-0", "default/g-cpu-1"]


def test_a_gang_that_fits_with_its_largest_pods_first_is_not_unschedulable() -> None:
    def group(name: str, large_priority: int) -> PodGroup:
        small = a_task("small", 1, requests={"cpu": 3})
        large = a_task("large", 1, requests={"cpu": 4}, priority=large_priority)
        status = PodGroupStatus(
            phase=PodGroupPhase.IN_QUEUE,
            admission=1,
            reserved_at=0,
            in_queue_at=0,
            reservation=amounts(cpu=7, pods=2),
        )
        return a_group(name, tasks=(small, large), status=status)

    spare = a_node("n3", cpu=7, cordoned=True)
    decided = decide(
        a_node("n1", cpu=4), a_node("n2", cpu=3), spare, group("first", -1), group("second", 9)
    )
    groups = decided.session.by_key
    assert groups["default/first"].phase == PodGroupPhase.IN_QUEUE
    assert groups["default/second"].phase == PodGroupPhase.IN_QUEUE


def test_a_pod_of_an_array_that_was_overdue_when_its_node_fell_silent_has_failed() -> None:
    group = _group(PodGroupPhase.RUNNING, 1, a_task("a", 2), cpu=1, pods=1)
    overdue = a_pod(
        group,
        task="a",
        phase=PodPhase.RUNNING,
        node="gone",
        started_at=0,
        terminating=True,
        reason="WalltimeExceeded",
    )
    decided = decide(a_node(cpu=1), group, overdue, leases={"g-1-0": 0}, now_ms=60_000)
    (lost,) = decided.of(LosePod)
    assert decided.session.by_key["default/g"].pods[lost.uid].status.phase == PodPhase.FAILED


@pytest.mark.parametrize("ends", ["Completed", "Failed"])
def test_suspending_a_finished_group_does_not_requeue_it(ends: str) -> None:
    group, *_ = a_running_group("g", 2, suspend=True)
    last = _SUCCEEDED if ends == "Completed" else _FAILED
    decided = decide(a_node(cpu=2), group, a_pod(group, 0, **_SUCCEEDED), a_pod(group, 1, **last))
    assert decided.session.by_key["default/g"].phase == ends


def test_the_reason_why_extra_pods_wait_is_cleared_when_the_group_is_evicted() -> None:
    """An action before enqueue would use the stored reason, and request victims for the group."""
    result = (Verdict(plugin="allocate", reason=Waiting.WAITING_FOR_RESOURCES),)
    group, *pods = a_running_group("g", 1, min_member=1)
    group = structs.replace(group, status=structs.replace(group.status, reasons=result))
    scheduler = assemble(SchedulerConfig())
    session = scheduler.open(a_snapshot(a_node(cpu=1), group, *pods), 0)
    state = session.by_key["default/g"]
    with Statement(session) as statement:
        roll_back(statement, state, Leaving.CHECK_RETRY)
        assert (state.phase, state.status.reasons) == (PodGroupPhase.PENDING, ())
