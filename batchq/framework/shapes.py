"""What follows from a group's spec alone, worked out once for as long as the spec stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchq.api.objects import PodGroup, PodGroupSpec, Task
from batchq.api.resources import Amounts, larger, named, of_pod, times, total


@dataclass(frozen=True, slots=True)
class TaskShape:
    """One task of a group as the scheduler sees it; pods of one shape are interchangeable.

    `first` is the ordinal of its first pod among all pods of the group.
    """

    task: Task
    first: int
    requests: Amounts
    shape: tuple[object, ...]

    @property
    def ordinals(self) -> range:
        """The ordinals of its pods."""
        return range(self.first, self.first + self.task.replicas)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group's tasks, and what an admission of it reserves.

    `reservation` is, per dimension, the larger of minResources and minMember pods' requests. An
    external group has as many `replicas` as its tasks say, and at least minMember.
    """

    spec: PodGroupSpec
    tasks: tuple[TaskShape, ...]
    by_task: dict[str, TaskShape]
    replicas: int
    min_member: int
    reservation: Amounts
    #: Equal for groups that ask for the same.
    claim: tuple[object, ...]


class ShapeMemo:
    """Shapes by group. A record that did not change keeps its spec from snapshot to snapshot."""

    def __init__(self) -> None:
        self._shapes: dict[str, GroupShape] = {}

    def of_all(self, records: Iterable[PodGroup]) -> list[GroupShape]:
        """The shape of each record; those of records that are not among them are forgotten."""
        former, kept, found = self._shapes, {}, []
        for record in records:
            uid = record.metadata.uid
            shape = former.get(uid)
            if shape is None or shape.spec is not record.spec:
                shape = shape_of(record.spec)
            kept[uid] = shape
            found.append(shape)
        self._shapes = kept
        return found


def shape_of(spec: PodGroupSpec) -> GroupShape:
    """Work a spec out."""
    tasks = shapes_of(spec.tasks)
    replicas = sum(task.replicas for task in spec.tasks)
    min_member = spec.min_member or max(1, replicas)
    if spec.controller == "external":
        replicas = max(replicas, min_member)
    of_pods = total(
        times(shape.requests, count)
        for shape, count in zip(tasks, choose(tasks, min_member), strict=True)
    )
    reservation = named(larger(spec.min_resources, of_pods))
    return GroupShape(
        spec=spec,
        tasks=tasks,
        by_task={shape.task.name: shape for shape in tasks},
        replicas=replicas,
        min_member=min_member,
        reservation=reservation,
        claim=(tuple(reservation.items()), min_member, replicas, spec.controller),
    )


def choose(
    tasks: tuple[TaskShape, ...], count: int, left: Sequence[int] | None = None
) -> list[int]:
    """How many pods of each task make up `count` of them, of those `left` if that is given.

    Each task's minAvailable first, then tasks in order.
    """
    most = [shape.task.replicas for shape in tasks] if left is None else left
    chosen = [
        min(shape.task.min_available, there) for shape, there in zip(tasks, most, strict=True)
    ]
    rest = count - sum(chosen)
    for place, there in enumerate(most):
        more = max(0, min(rest, there - chosen[place]))
        chosen[place] += more
        rest -= more
    return chosen


def shapes_of(tasks: tuple[Task, ...]) -> tuple[TaskShape, ...]:
    """Each task's requests and shape, and where its pods begin."""
    shapes, first = [], 0
    for task in tasks:
        template = task.template
        requests = of_pod(template.requests)
        shape = (
            tuple(requests.items()),
            tuple(sorted(template.node_selector.items())),
            template.tolerations,
        )
        shapes.append(TaskShape(task, first, requests, shape))
        first += task.replicas
    return tuple(shapes)
