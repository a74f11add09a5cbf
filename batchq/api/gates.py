"""Scheduling gates as they stand in a spec: a group's own, and those of a task's pods (KEP-3521).

A group's own gates hold the whole group back. Those in a task's template hold back the pods of that
task, and the group only if it has too few others to start with.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod, PodGroup, PodGroupSpec, SchedulingGate, Task


class Gate(NamedTuple):
    """A gate that is not open; `task` is that of the pods it holds back, "" for the group's own."""

    task: str
    name: str


def gates_of(spec: PodGroupSpec) -> list[Gate]:
    """Every gate, the group's own first, then task by task as they are written."""
    own = [Gate("", gate.name) for gate in spec.scheduling_gates]
    return own + [
        Gate(task.name, gate.name) for task in spec.tasks for gate in task.template.scheduling_gates
    ]


def without_gates(spec: PodGroupSpec, opened: Collection[Gate]) -> PodGroupSpec:
    """The spec with these gates taken away."""

    def left(task: str, gates: tuple[SchedulingGate, ...]) -> tuple[SchedulingGate, ...]:
        return tuple(gate for gate in gates if Gate(task, gate.name) not in opened)

    return structs.replace(
        spec,
        scheduling_gates=left("", spec.scheduling_gates),
        tasks=tuple(
            with_task_gates(task, left(task.name, task.template.scheduling_gates))
            for task in spec.tasks
        ),
    )


def with_task_gates(task: Task, gates: tuple[SchedulingGate, ...]) -> Task:
    """The task, its pods held back by these gates."""
    if gates == task.template.scheduling_gates:
        return task
    return structs.replace(task, template=structs.replace(task.template, scheduling_gates=gates))


def is_gated(group: PodGroup) -> bool:
    """Whether its spec says that it waits for a gate: one of its own, or gates that leave it fewer
    pods than it has to start with.
    """
    spec = group.spec
    if spec.scheduling_gates:
        return True
    ungated = [0 if task.template.scheduling_gates else task.replicas for task in spec.tasks]
    replicas = sum(task.replicas for task in spec.tasks)
    if sum(ungated) == replicas:
        return False
    least = replicas if spec.min_member is None else spec.min_member
    if sum(ungated) < least:
        return True
    return any(count < task.min_available for count, task in zip(ungated, spec.tasks, strict=True))


def pod_gates_problem(pod: Pod) -> str:
    """Why a pod cannot have the gates that it has, or "": scheduled pods have none (KEP-3521)."""
    if not pod.spec.scheduling_gates:
        return ""
    if not pod.status.node and pod.status.phase == PodPhase.PENDING:
        return ""
    return "a pod that has a node, or is past Pending, cannot have scheduling gates"
