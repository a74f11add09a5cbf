"""What in a group's spec contradicts itself, so that no waiting helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchq.api.validate import MOST_GANG

if TYPE_CHECKING:
    from batchq.api.objects import PodGroupSpec


def contradictions(spec: PodGroupSpec, replicas: int, min_member: int) -> list[str]:
    """What a submission would have been refused for, and a described world may still contain."""
    found = []
    if not spec.tasks and spec.controller == "batchq":
        found.append("the group has no tasks, so there is nothing to run")
    if spec.min_member is not None and spec.min_member < 1:
        found.append(f"minMember is {spec.min_member}, and must be at least 1")
    if spec.controller == "external" and not spec.min_resources:
        found.append("an external group must state minResources: there are no pods to add up")
    if spec.tasks and replicas < min_member:
        found.append(f"minMember is {min_member}, but the tasks have {replicas} pods")
    least = sum(task.min_available for task in spec.tasks)
    if spec.controller != "external" and min_member > MOST_GANG:
        found.append(f"minMember is {min_member}, and at most {MOST_GANG} pods can start together")
    if least > min_member:
        found.append(f"minAvailable adds up to {least}, more than minMember {min_member}")
    found += [
        f"task {task.name} has minAvailable {task.min_available}, but {task.replicas} replicas"
        for task in spec.tasks
        if task.min_available > task.replicas
    ]
    return found
