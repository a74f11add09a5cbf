"""How far an admitted group's pods have come, counted once a session."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from batchq.api.lifecycle import PodPhase
from batchq.api.reasons import Finish
from batchq.api.resources import Amounts, named, smaller, times, total
from batchq.core.session.state import GroupState


class GroupProgress(Struct, frozen=True):
    """Counts over a group's pods: those that do not exist yet are unfinished too."""

    running: int
    succeeded: int
    failed: int
    finished_by_task: dict[str, int]
    failed_by_task: dict[str, int]
    first_failure: str
    failure_reason: Finish

    @classmethod
    def of(cls, group: GroupState) -> GroupProgress:
        """Count."""
        running = succeeded = 0
        failures = []
        by_task: dict[str, int] = {}
        for pod in group.current():
            phase = pod.status.phase
            if phase == PodPhase.RUNNING:
                running += 1
            elif group.is_final(pod):
                by_task[pod.spec.task] = by_task.get(pod.spec.task, 0) + 1
                if phase == PodPhase.SUCCEEDED:
                    succeeded += 1
                else:
                    failures.append(pod)
        reason, story = Finish.RETRIES_SPENT, ""
        if failures:
            first = min(failures, key=lambda pod: (pod.status.finished_at or 0, pod.metadata.uid))
            status = first.status
            how = (
                f"exited with {status.exit_code}"
                if status.signal is None
                else f"was ended by signal {status.signal}"
            )
            story = f"the first, {first.metadata.name}, {how}"
            if status.message and status.message != how:
                story += f" ({status.message})"
            if all(pod.status.reason == Finish.WALLTIME_EXCEEDED for pod in failures):
                reason = Finish.WALLTIME_EXCEEDED
        failed_by_task = dict(Counter(pod.spec.task for pod in failures)) if failures else {}
        return cls(running, succeeded, len(failures), by_task, failed_by_task, story, reason)

    def is_hopeless(self, group: GroupState) -> bool:
        """Whether the group can not succeed any more, or has ended with failures.

        A full gang: at its first final failure. An elastic group: when all have ended, or as soon
        as succeeded + unfinished < minMember, or < a task's minAvailable: it can never be placed
        again then.
        """
        if self.failed == 0:
            return False
        if not group.is_elastic:
            return True
        unfinished = group.replicas - self.succeeded - self.failed
        if unfinished == 0 or self.succeeded + unfinished < group.min_member:
            return True
        return any(
            task.replicas - self.failed_by_task.get(task.name, 0) < task.min_available
            for task in group.record.spec.tasks
        )


def remaining_reservation(group: GroupState, progress: GroupProgress) -> Amounts:
    """Return what a group that runs still reserves: never more than before, nor than what its gang
    still lacks (`GroupState.lacks_for_gang`) asks for.
    """
    shape = group.shape
    is_as_admitted = (
        not progress.finished_by_task
        and not group.status.opened_gates
        and group.status.reservation == shape.reservation
    )
    if is_as_admitted and not shape.spec.min_resources:
        # It reserves what its pods ask for, and none of them has ended.
        return group.status.reservation
    lacks = group.lacks_for_gang()
    asked = total(
        times(shape.requests, count) for shape, count in zip(group.tasks, lacks, strict=True)
    )
    return named(smaller(group.status.reservation, asked))
