"""Which of a group's pods should exist: minMember of them at admission, more only when bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from batchq.framework.moves import pod_uid
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState


def wanted_ordinals(group: GroupState) -> list[int]:
    """The ordinals that an admitted group lacks, to have min(minMember, unfinished) pods to run.

    Each task's minAvailable first, then tasks in order; pods that ended for good stay ended, and
    others take their place.
    """
    finished = _finished(group)
    there = Counter(pod.spec.task for pod in group.current() if not group.is_final(pod))
    missing = []
    wanted = group.choose(group.min_member, group.unfinished())
    for shape, count in zip(group.tasks, wanted, strict=True):
        lacks = count - there[shape.task.name]
        for ordinal in shape.ordinals:
            if lacks <= 0:
                break
            # A full gang starts anew; of an elastic group the finished do not count.
            if ordinal not in finished and pod_uid(group, ordinal) not in group.pods:
                lacks -= 1
                missing.append(ordinal)
    return missing


def beyond(group: GroupState, shape: TaskShape) -> Iterator[int]:
    """The ordinals of a task's pods that do not exist yet."""
    finished = _finished(group)
    for ordinal in shape.ordinals:
        if ordinal not in finished and pod_uid(group, ordinal) not in group.pods:
            yield ordinal


def _finished(group: GroupState) -> set[int]:
    return {
        group.shape_of(pod).first + pod.spec.index
        for pod in group.pods.values()
        if group.is_final(pod)
    }
