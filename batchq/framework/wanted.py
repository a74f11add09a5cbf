"""Which of a group's pods should exist: minMember of them at admission, more only when bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from batchq.framework.moves import pod_uid
from batchq.framework.state import GroupState


def wanted_ordinals(group: GroupState) -> list[int]:
    """The ordinals that an admitted group lacks, to have min(minMember, unfinished) pods to run.

    Each task's minAvailable first, then tasks in order; pods that ended for good stay ended.
    """
    finished = _finished(group)
    there = Counter(pod.spec.task for pod in group.current() if not group.is_final(pod))
    missing = []
    for shape, count in zip(group.tasks, group.choose(group.min_member), strict=True):
        lacks = count - there[shape.task.name]
        for ordinal in shape.ordinals:
            if lacks <= 0:
                break
            # A full gang starts anew; of an elastic group the finished do not count.
            if ordinal not in finished and pod_uid(group, ordinal) not in group.pods:
                lacks -= 1
                missing.append(ordinal)
    return missing


def beyond(group: GroupState) -> Iterator[int]:
    """The ordinals of pods that do not exist yet, in the order in which they come into being."""
    finished = _finished(group)
    for shape in group.tasks:
        for ordinal in shape.ordinals:
            if ordinal not in finished and pod_uid(group, ordinal) not in group.pods:
                yield ordinal


def _finished(group: GroupState) -> set[int]:
    return {
        group.shape_of(pod).first + pod.spec.index
        for pod in group.pods.values()
        if group.is_final(pod)
    }
