"""The states of the proposals in a store: "Delay Pod Creation" and KEP-993.

docs/sources.md has both documents, sentence by sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import AdmissionCheck, AdmissionCheckSpec, Metadata, PodGroup, PodTemplate
from batchq.client import changes
from batchq.config import SchedulerConfig
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_node, a_queue
from tests.scheduler.conftest import Stack

_set = msgspec.structs.replace


def _group(name: str, replicas: int = 1, **spec: Any) -> PodGroup:
    group = a_group(name, replicas, **spec)
    tasks = tuple(
        _set(task, template=PodTemplate(command=("true",), requests=task.template.requests))
        for task in group.spec.tasks
    )
    return _set(group, spec=_set(group.spec, tasks=tasks))


def _start_one(stack: Stack) -> None:
    """Start the next bound pod, as its node would."""
    pod = sorted(stack.pods(PodPhase.BOUND), key=lambda pod: pod.spec.index)[0]
    stack.move(pod, phase=PodPhase.RUNNING, started_at=stack.clock.at_ms)
    stack.until_idle()


def test_in_queue_until_every_pod_of_min_member_runs() -> None:
    stack = Stack(MemoryStore(), SchedulerConfig())
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g", 4, min_member=3))
    stack.until_idle()
    phases = [stack.group("g").status.phase]
    for _ in range(3):
        _start_one(stack)
        phases.append(stack.group("g").status.phase)
    assert phases == ["InQueue", "InQueue", "InQueue", "Running"]


def _conditions(stack: Stack, name: str) -> dict[str, str]:
    wanted = ("QuotaReserved", "Admitted")
    found = {one.type: one.status for one in stack.group(name).status.conditions}
    return {name: found.get(name, "False") for name in wanted}


@pytest.fixture
def checked() -> Stack:
    """A node of four cpus, and a queue `q` with one active check."""
    stack = Stack(MemoryStore(), SchedulerConfig())
    check = AdmissionCheck(
        metadata=Metadata(name="c"), spec=AdmissionCheckSpec(controller_name="somebody")
    )
    stack.apply(check, a_queue("q", admission_checks=("c",)))
    now_ms = stack.clock.at_ms
    lease = {"holder": "h", "expires_at": now_ms + 3_600_000, "now_ms": now_ms}
    stack.commit(changes.renew_check(stack.store, "c", **lease))  # type: ignore[arg-type]
    stack.ready(a_node(cpu=4))
    return stack


def _says(stack: Stack, status: str, reason: str = "") -> None:
    now_ms = stack.clock.at_ms
    stack.commit(changes.set_check(stack.store, "default/g", "c", status, reason, now_ms=now_ms))
    stack.until_idle()


def _retry(stack: Stack) -> None:
    _says(stack, "False", "Retry")


def _suspend(stack: Stack) -> None:
    stack.commit(changes.suspend(stack.store, "default/g", now_ms=stack.clock.at_ms))
    stack.until_idle()


def test_the_conditions_follow_suspended_prechecked_and_admitted(checked: Stack) -> None:
    seen = []
    checked.apply(_group("g", 2, queue="q"))
    seen.append(_conditions(checked, "g"))
    checked.until_idle()
    seen.append(_conditions(checked, "g"))
    assert checked.group("g").status.reservation == {"cpu": 2000, "pods": 2000}
    _says(checked, "True")
    seen.append(_conditions(checked, "g"))
    assert seen == [
        {"QuotaReserved": "False", "Admitted": "False"},
        {"QuotaReserved": "True", "Admitted": "False"},
        {"QuotaReserved": "True", "Admitted": "True"},
    ]
    assert checked.group("g").status.phase == PodGroupPhase.IN_QUEUE


@pytest.mark.parametrize("leave", [_retry, _suspend])
@pytest.mark.parametrize("admitted", [False, True])
def test_the_conditions_follow_a_group_that_is_suspended_again(
    checked: Stack, leave: Callable[[Stack], None], admitted: bool
) -> None:
    checked.apply(_group("g", 2, queue="q"))
    checked.until_idle()
    if admitted:
        _says(checked, "True")
    leave(checked)
    assert _conditions(checked, "g") == {"QuotaReserved": "False", "Admitted": "False"}
    assert checked.group("g").status.phase == PodGroupPhase.PENDING
    assert checked.group("g").status.reserved_at is None
