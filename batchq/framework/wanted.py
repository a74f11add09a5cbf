"""Which of a group's pods should exist: minMember of them at admission, more only when bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Pod
from batchq.framework.pods import pod_uid
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState


def wanted_ordinals(group: GroupState) -> list[int]:
    """Return the ordinals of the pods that an admitted group's gang lacks, and that do not exist.

    In the gang's order (`GroupState.choose`). Pods that ended for good stay ended, and others take
    their place, as they do of gated ones. An external group lacks none: its consumer makes its
    pods.
    """
    if group.is_external:
        return []
    if not group.pods and len(group.tasks) == 1 and not group.shape.gated:
        return list(group.tasks[0].ordinals[: group.min_member])
    if not group.pods:
        new = group.choose(group.min_member, group.ungated())
        parts = zip(group.tasks, new, strict=True)
        return [ordinal for shape, count in parts for ordinal in shape.ordinals[:count]]
    there = Counter(pod.spec.task for pod in group.current() if _may_run(group, pod))
    missing: list[int] = []
    elsewhere = 0
    unborn: list[Iterator[int]] = []
    for shape, count in zip(group.tasks, group.lacks_for_gang(), strict=True):
        lacks = count - there[shape.task.name]
        if lacks <= 0:
            unborn.append(beyond(group, shape))
            continue
        ordinals = beyond(group, shape)
        own = list(islice(ordinals, lacks))
        missing += own
        if len(own) < lacks and shape.task.min_available:
            return missing
        elsewhere += lacks - len(own)
        unborn.append(ordinals)
    # Pods that are being stopped, or wait for a retry, are replaced by those of other tasks.
    return missing + list(islice(chain.from_iterable(unborn), elsewhere))


def _may_run(group: GroupState, pod: Pod) -> bool:
    """Whether it counts towards minMember: of an elastic group, not while it waits for a retry or
    is being stopped. Another pod of the group takes its place meanwhile, so that room does not lie
    idle.
    """
    if group.is_final(pod) or (pod.status.phase == PodPhase.PENDING and group.is_held_back(pod)):
        return False
    away = pod.status.phase == PodPhase.FAILED or pod.status.terminating
    return not (group.is_elastic and away)


def beyond(group: GroupState, shape: TaskShape) -> Iterator[int]:
    """The ordinals of a task's pods that may exist and do not yet."""
    if shape.gated:
        return
    taken = _taken(group)
    for ordinal in shape.ordinals:
        if ordinal not in taken and pod_uid(group, ordinal) not in group.pods:
            yield ordinal


def _taken(group: GroupState) -> set[int]:
    """Ordinals that have ended for good, and those of which a former pod has not ended yet.

    A pod of a former admission holds its place until its processes are gone: nothing may run
    twice at once.
    """
    return {
        group.shape_of(pod).first + pod.spec.index
        for pod in group.pods.values()
        if pod.status.phase in ON_NODE or (group.is_current(pod) and group.is_final(pod))
    }
