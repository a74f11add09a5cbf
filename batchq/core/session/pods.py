"""Creation of a group's pods from the templates of its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from msgspec import structs

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Metadata, Pod, PodSpec, PodStatus, PodTemplate
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState


def pod_uid(group: GroupState, ordinal: int | str) -> str:
    """Return `<group uid>-<admission>-<ordinal>`, which is unique for ever and valid as an
    RQ id.
    """
    return f"{group.uid}-{group.status.admission}-{ordinal}"


def shape_at(group: GroupState, ordinal: int) -> TaskShape:
    """Return the task of the pod with this ordinal. Raise IndexError if there is none."""
    for shape in group.tasks:
        if ordinal in shape.ordinals:
            return shape
    raise IndexError(f"{group.key} has no pod number {ordinal}")


def shape_of_extra(group: GroupState, extra: Pod | int) -> TaskShape:
    """Return the task of a pod without a node: a pod, or the ordinal of one not created yet."""
    return shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)


def pod_of(group: GroupState, ordinal: int) -> Pod:
    """Return the new pod with this ordinal: Pending, of the current admission."""
    return pods_of(group, [ordinal])[0]


def pods_of(group: GroupState, ordinals: Iterable[int]) -> list[Pod]:
    """Return the new pods with these ordinals; pods of one task share their common parts."""
    name, namespace, status = group.record.metadata.name, group.namespace, group.status
    fresh = PodStatus(
        group_uid=group.uid, admission=status.admission, last_reason=_left_because(group)
    )
    spent = status.spent if group.is_elastic else {}
    prefix = pod_uid(group, "")
    pods: list[Pod] = []
    shape: TaskShape | None = None
    template = PodTemplate()
    for ordinal in ordinals:
        if shape is None or ordinal not in shape.ordinals:
            shape = shape_at(group, ordinal)
            template = group.record.spec.tasks[shape.place].template
        index = ordinal - shape.first
        metadata = Metadata(
            name=f"{name}-{shape.task.name}-{index}",
            namespace=namespace,
            labels=template.labels,
            annotations=template.annotations,
            uid=f"{prefix}{ordinal}",
        )
        spec = PodSpec(
            pod_group=name,
            task=shape.task.name,
            index=index,
            requests=shape.stated,
            termination_grace=template.termination_grace,
            priority=template.priority,
        )
        failures = spent.get(str(ordinal), 0) if spent else 0
        first = structs.replace(fresh, failures=failures) if failures else fresh
        pods.append(Pod(metadata=metadata, spec=spec, status=first))
    return pods


def _left_because(group: GroupState) -> str:
    """Return why the group lost its former admission, for the records of its next pods."""
    if group.status.admission < 2:
        return ""
    return next((one.reason for one in group.status.conditions if one.type == "Evicted"), "")


def pod_name(pod: Pod) -> str:
    """Return `namespace/name`."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def wanted_ordinals(group: GroupState) -> list[int]:
    """Return the ordinals of the pods that an admitted group's gang lacks and that do not exist
    yet.

    They are in the gang's order (`GroupState.choose`). Pods that ended for good are not created
    again; other pods replace them, and also gated ones. An external group lacks none, because its
    consumer creates its pods.
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
    # Pods that are being stopped or wait for a retry are replaced by pods of other tasks.
    return missing + list(islice(chain.from_iterable(unborn), elsewhere))


def _may_run(group: GroupState, pod: Pod) -> bool:
    """Return whether a pod counts towards minMember. A pod of an elastic group does not count while
    it is being stopped or waits for a retry: another pod replaces it, so that its capacity is not
    idle.
    """
    if group.is_final(pod) or (pod.status.phase == PodPhase.PENDING and group.is_held_back(pod)):
        return False
    away = pod.status.phase == PodPhase.FAILED or pod.status.terminating
    return not (group.is_elastic and away)


def beyond(group: GroupState, shape: TaskShape) -> Iterator[int]:
    """Yield the ordinals of a task's pods that may be created and do not exist yet."""
    if shape.gated:
        return
    taken = _taken(group)
    for ordinal in shape.ordinals:
        if ordinal not in taken and pod_uid(group, ordinal) not in group.pods:
            yield ordinal


def _taken(group: GroupState) -> set[int]:
    """Return the ordinals of pods that have ended for good, and of former pods that have not ended
    yet.

    A pod of a former admission keeps its ordinal until its processes have ended, because no pod may
    run twice at once.
    """
    return {
        group.shape_of(pod).first + pod.spec.index
        for pod in group.pods.values()
        if pod.status.phase in ON_NODE or (group.is_current(pod) and group.is_final(pod))
    }
