"""Why a Pending group stands out of line by its own and its queue's state, plugins aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchq.api.reasons import Verdict, Waiting
from batchq.framework.state import GroupState

if TYPE_CHECKING:
    from batchq.framework.session import Session

_PLUGIN = "session"


def stands_aside(session: Session, group: GroupState) -> list[Verdict]:
    """Every such reason: contradictions, a missing or stopped queue, suspension, back-off."""
    found: list[tuple[Waiting, str]] = []
    found += [(Waiting.MISCONFIGURED, text) for text in contradictions(group)]
    queue = session.queues.get(group.queue)
    if queue is None:
        known = ", ".join(session.queues)
        found.append(
            (Waiting.QUEUE_NOT_FOUND, f"there is no queue {group.queue}; there are: {known}")
        )
    elif queue.record.spec.stop_policy != "None":
        policy = queue.record.spec.stop_policy
        found.append((Waiting.QUEUE_STOPPED, f"queue {group.queue} is stopped ({policy})"))
    if group.record.spec.suspend:
        found.append((Waiting.SUSPENDED, "the group is suspended"))
    until = group.status.backoff_until
    if until is not None and session.now_ms < until:
        times = group.status.backoff_count
        found.append((Waiting.BACKING_OFF, f"pauses after leaving InQueue {times} times in a row"))
    return [Verdict(plugin=_PLUGIN, reason=reason, detail=detail) for reason, detail in found]


def contradictions(group: GroupState) -> list[str]:
    """What a submission would have been refused for, and a described world may still contain."""
    spec = group.record.spec
    found = []
    if not spec.tasks and spec.controller == "batchq":
        found.append("the group has no tasks, so there is nothing to run")
    if spec.min_member is not None and spec.min_member < 1:
        found.append(f"minMember is {spec.min_member}, and must be at least 1")
    least = sum(task.min_available for task in spec.tasks)
    if least > group.min_member:
        found.append(f"minAvailable adds up to {least}, more than minMember {group.min_member}")
    found += [
        f"task {task.name} has minAvailable {task.min_available}, but {task.replicas} replicas"
        for task in spec.tasks
        if task.min_available > task.replicas
    ]
    return found
