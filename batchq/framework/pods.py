"""A group's pods as they come into being, from the templates of its tasks."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from batchq.api.objects import Metadata, Pod, PodSpec, PodStatus, PodTemplate
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState


def pod_uid(group: GroupState, ordinal: int | str) -> str:
    """`<group uid>-<admission>-<ordinal>`: unique for ever, and allowed as an RQ id."""
    return f"{group.uid}-{group.status.admission}-{ordinal}"


def shape_at(group: GroupState, ordinal: int) -> TaskShape:
    """The task to which the pod with this ordinal belongs."""
    for shape in group.tasks:
        if ordinal in shape.ordinals:
            return shape
    raise IndexError(f"{group.key} has no pod number {ordinal}")


def shape_of_extra(group: GroupState, extra: Pod | int) -> TaskShape:
    """Return the task of a pod that has no node: a pod, or the ordinal of one not created yet."""
    return shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)


def pod_of(group: GroupState, ordinal: int) -> Pod:
    """The pod with this ordinal as it comes into being: Pending, of the current admission."""
    return pods_of(group, [ordinal])[0]


def pods_of(group: GroupState, ordinals: Iterable[int]) -> list[Pod]:
    """The same of many; what pods of a task have in common is made once."""
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
    """Why the group lost its former admission; a pod that starts over may want to know."""
    if group.status.admission < 2:
        return ""
    return next((one.reason for one in group.status.conditions if one.type == "Evicted"), "")


def pod_name(pod: Pod) -> str:
    """`namespace/name`."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
