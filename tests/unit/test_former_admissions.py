"""Pods of an earlier admission that still run when their group is admitted again."""

from __future__ import annotations

from typing import Any

import msgspec

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroup, PodGroupStatus
from tests.builders import a_group, a_node, a_pod, a_task, amounts, decide

_RUNNING: dict[str, Any] = {"phase": PodPhase.RUNNING, "node": "n1", "bound_at": 0, "started_at": 0}
_TOLD: dict[str, Any] = {**_RUNNING, "terminating": True, "reason": "NodeLost"}
_SUCCEEDED: dict[str, Any] = {"phase": PodPhase.SUCCEEDED, "node": "n1", "finished_at": 0}


def _admitted_again(replicas: int, min_member: int) -> PodGroup:
    status = PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=2,
        reserved_at=0,
        in_queue_at=0,
        reservation=amounts(cpu=min_member, pods=min_member),
    )
    return a_group("g", tasks=(a_task(replicas=replicas),), min_member=min_member, status=status)


def _former(group: PodGroup, index: int, **status: Any) -> Pod:
    first = msgspec.structs.replace(group.status, admission=1)
    return a_pod(msgspec.structs.replace(group, status=first), index, **status)


def test_a_success_of_a_gangs_former_pod_does_not_count() -> None:
    group = _admitted_again(2, 2)
    pods = (
        _former(group, 0, **_SUCCEEDED),
        a_pod(group, 0, **_SUCCEEDED),
        a_pod(group, 1, phase=PodPhase.EVICTED, reason="NodeLost"),
    )
    decided = decide(a_node(cpu=4), group, *pods)
    assert decided.session.by_key["default/g"].phase == PodGroupPhase.IN_QUEUE
    assert list(decided.bound) == ["default/g-w-1"]


def test_a_succeeded_former_pod_of_a_gang_is_dropped() -> None:
    group = _admitted_again(2, 2)
    former = _former(group, 0, **_SUCCEEDED)
    decided = decide(a_node(cpu=4), group, former)
    assert former.metadata.uid not in decided.session.by_key["default/g"].pods
    assert sorted(decided.bound) == ["default/g-w-0", "default/g-w-1"]


def test_a_pod_of_a_gang_does_not_start_while_its_former_process_ends() -> None:
    group = _admitted_again(2, 2)
    assert decide(a_node(cpu=4), group, _former(group, 0, **_TOLD)).bound == {}


def test_other_pods_of_an_array_start_first_while_a_former_process_ends() -> None:
    group = _admitted_again(3, 1)
    decided = decide(a_node(cpu=4), group, _former(group, 0, **_TOLD))
    assert list(decided.bound) == ["default/g-w-1", "default/g-w-2"]


def test_pods_that_finished_in_a_former_admission_of_an_array_still_count() -> None:
    group = _admitted_again(2, 1)
    pods = (_former(group, 0, **_SUCCEEDED), a_pod(group, 1, **_SUCCEEDED))
    decided = decide(a_node(cpu=4), group, *pods)
    assert decided.session.by_key["default/g"].phase == PodGroupPhase.COMPLETED
