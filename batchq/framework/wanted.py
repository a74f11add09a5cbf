"""Which of a group's pods should exist: minMember of them at admission, more only when bound."""

from __future__ import annotations

from collections.abc import Iterator

from batchq.framework.moves import pod_uid
from batchq.framework.state import GroupState


def wanted_ordinals(group: GroupState) -> list[int]:
    """The ordinals that an admitted group lacks, to have min(minMember, unfinished) pods to run.

    Each task's minAvailable first, then tasks in order; pods that ended for good stay ended.
    """
    finished = _finished(group)
    missing = []
    for shape, count in zip(group.tasks, group.choose(group.min_member), strict=True):
        have = 0
        for ordinal in shape.ordinals:
            if have >= count:
                break
            if ordinal in finished:
                # A full gang starts anew; of an elastic group the finished do not count.
                continue
            have += 1
            if pod_uid(group, ordinal) not in group.pods:
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
