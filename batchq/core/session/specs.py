"""Shapes: everything that follows from a group's spec alone, computed once for each spec."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msgspec import Struct, structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Launch, PodGroup, PodGroupSpec, Task
from batchq.api.resources import Amounts, larger, named, of_pod, times, total
from batchq.api.transaction import ONE_GROUP, POD_GROUPS
from batchq.api.validation import MOST_GANG


class Sharing(NamedTuple):
    """How the pods of a group share nodes with one another and with others."""

    #: The uid of the group.
    owner: str
    #: Whether no pod of another group may be on the same node.
    exclusive: bool
    #: How many pods of the group one node may have; 0: as many as it takes.
    most: int
    #: Whether its pods go where they need the fewest nodes.
    pack: bool


class TaskShape(Struct, frozen=True):
    """One task of a group as the scheduler sees it; pods of one shape are interchangeable.

    `task` stands for all tasks with the same requests; its command may belong to another group.
    `place` is its index among the tasks of the group, and `first` the ordinal of its first pod
    among all pods of the group. Pods of a `gated` task are neither created nor bound until the
    gates in its template are open.
    """

    task: Task
    place: int
    first: int
    requests: Amounts
    shape: tuple[object, ...]
    gated: bool = False
    #: The requests written into its pods; all pods share this object.
    stated: Amounts = {}
    #: The priority of its pods: the template's, or else the group's.
    priority: int = 0
    #: How many ports each of its pods gets: 0 unless the group has `spec.launch`.
    ports: int = 0
    #: Whether only agents of this version can start its pods.
    is_new: bool = False
    #: None unless the group has an opinion on which pods share its nodes.
    sharing: Sharing | None = None

    @property
    def ordinals(self) -> range:
        """Return the ordinals of its pods."""
        return range(self.first, self.first + self.task.replicas)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group's tasks, and what its admission reserves.

    `reservation` is, for each dimension, the larger of minResources and the requests of its gang,
    which are the first minMember pods in the order of `choose`. For an external group, `replicas`
    is the sum over its tasks, and at least minMember.
    """

    spec: PodGroupSpec
    tasks: tuple[TaskShape, ...]
    by_task: dict[str, TaskShape]
    replicas: int
    min_member: int
    reservation: Amounts
    #: The reservation and one group: what an admission requests from a limit.
    counted: Amounts
    #: Equal for groups with equal requests.
    claim: tuple[object, ...]
    #: Equal for groups whose pods also fit on the same nodes.
    alike: tuple[object, ...]
    #: Task -> 0: the placed pods of a group without pods. Never changed in place.
    none_placed: dict[str, int]
    #: Whether the spec has no contradictions and no gate in a template holds a pod.
    is_sound: bool = False
    #: Whether a gate in a template holds a pod.
    gated: bool = False
    #: Its shapes within domains, which all groups with this shape share.
    within: dict[tuple[tuple[str, str], ...], GroupShape] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def has_choice(self) -> bool:
        """Return whether different pods could make up its gang: it has several tasks, and not all
        pods are needed.
        """
        return len(self.tasks) > 1 and self.replicas > self.min_member


class Shapes:
    """The shapes of specs, shared by all with the same requests, whatever their commands."""

    def __init__(self, *, gates_hold: bool) -> None:
        self._gates_hold = gates_hold
        self._known: dict[tuple[object, ...], GroupShape] = {}

    def of(self, spec: PodGroupSpec, priority: int) -> GroupShape:
        """Return the shape of a spec in a group of this priority."""
        stated = [task for task in spec.tasks if task.template.priority is not None]
        key = (
            spec.min_member,
            spec.controller,
            tuple(spec.min_resources.items()),
            tuple(map(_key_of_task, spec.tasks)),
            priority if stated else None,
            None
            if spec.launch is None
            else (spec.launch.ports, spec.launch.restart, spec.launch.style),
            tuple(spec.topology.items()),
        )
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = shape_of(spec, priority, gates_hold=self._gates_hold)
        return known


#: How many shapes are cached.
_MOST_KNOWN = 10_000


def _key_of_task(task: Task) -> tuple[object, ...]:
    template = task.template
    return (
        task.name,
        task.replicas,
        task.min_available,
        tuple(template.requests.items()),
        tuple(template.node_selector.items()),
        template.nodes,
        template.exclude_nodes,
        template.tolerations,
        template.scheduling_gates,
        template.priority,
    )


def shape_of(spec: PodGroupSpec, priority: int = 0, *, gates_hold: bool = True) -> GroupShape:
    """Compute the shape of a spec in a group of this priority."""
    tasks = shapes_of(spec.tasks, priority, gates_hold=gates_hold, launch=spec.launch)
    replicas = sum(task.replicas for task in spec.tasks)
    min_member = spec.min_member or max(1, replicas)
    if spec.controller == "external":
        replicas = max(replicas, min_member)
    gated = any(task.template.scheduling_gates for task in spec.tasks)
    is_sound = not gated and not contradictions(spec, replicas, min_member)
    shape = GroupShape(
        spec=spec,
        tasks=tasks,
        by_task={shape.task.name: shape for shape in tasks},
        replicas=replicas,
        min_member=min_member,
        reservation={},
        counted={},
        claim=(),
        alike=(),
        none_placed=dict.fromkeys([shape.task.name for shape in tasks], 0),
        is_sound=is_sound,
        gated=any(task.gated for task in tasks),
    )
    return with_left(shape, [task.replicas for task in spec.tasks])


def with_left(shape: GroupShape, left: Sequence[int], last: Collection[str] = ()) -> GroupShape:
    """Return the shape with the reservation for a group with these numbers of pods `left` of each
    task, where pods of the tasks in `last` are chosen last.
    """
    return with_gang(shape, choose(shape.tasks, shape.min_member, left, last=last))


def with_gang(shape: GroupShape, chosen: Sequence[int]) -> GroupShape:
    """Return the shape with the reservation for a gang with these numbers of pods of each task."""
    tasks, spec = shape.tasks, shape.spec
    of_pods = total(times(task.requests, count) for task, count in zip(tasks, chosen, strict=True))
    reservation = named(larger(spec.min_resources, of_pods))
    claim: tuple[object, ...]
    claim = (tuple(reservation.items()), shape.min_member, shape.replicas, spec.controller)
    if spec.topology:
        claim = (*claim, tuple(spec.topology.items()))
    pods = tuple(
        (one.shape, one.task.replicas, one.task.min_available, count)
        for one, count in zip(tasks, chosen, strict=True)
    )
    return replace(
        shape,
        reservation=reservation,
        counted={**reservation, POD_GROUPS: ONE_GROUP},
        claim=claim,
        alike=(claim, pods),
    )


def choose(
    tasks: tuple[TaskShape, ...],
    count: int,
    left: Sequence[int],
    *,
    least: Sequence[int] | None = None,
    last: Collection[str] = (),
) -> list[int]:
    """Return how many pods of each task make up `count` of those that are `left`, in the order of a
    gang: each task's `least` first (default: its minAvailable), then by pod priority and task. Pods
    of gated tasks and of tasks in `last` are chosen only if there are not enough others.
    """
    if least is None:
        least = [shape.task.min_available for shape in tasks]
    if len(tasks) == 1:
        return [min(left[0], max(count, least[0]))]
    chosen = [min(needed, there) for needed, there in zip(least, left, strict=True)]
    rest = count - sum(chosen)
    places = sorted(
        range(len(tasks)),
        key=lambda place: (
            tasks[place].gated or tasks[place].task.name in last,
            -tasks[place].priority,
            place,
        ),
    )
    for place in places:
        more = max(0, min(rest, left[place] - chosen[place]))
        chosen[place] += more
        rest -= more
    return chosen


def shapes_of(
    tasks: tuple[Task, ...],
    priority: int = 0,
    *,
    gates_hold: bool = True,
    launch: Launch | None = None,
) -> tuple[TaskShape, ...]:
    """Return the shape of each task, in a group of this priority."""
    shapes, first = [], 0
    ports = 0 if launch is None else launch.ports
    is_new = launch is not None and (launch.restart == "pod" or launch.style == "mpi")
    for place, task in enumerate(tasks):
        template = task.template
        stated, requests = named(template.requests), of_pod(template.requests)
        shape = _shape_of_pods(task, requests, ports, is_new=is_new)
        gated = gates_hold and bool(template.scheduling_gates)
        own = priority if template.priority is None else template.priority
        shapes.append(
            TaskShape(task, place, first, requests, shape, gated, stated, own, ports, is_new)
        )
        first += task.replicas
    return tuple(shapes)


def _shape_of_pods(
    task: Task, requests: Amounts, ports: int, *, is_new: bool
) -> tuple[object, ...]:
    template = task.template
    shape: tuple[object, ...] = (
        tuple(requests.items()),
        tuple(sorted(template.node_selector.items())),
        template.tolerations,
        template.nodes,
        template.exclude_nodes,
    )
    if is_new:
        return (*shape, ports, is_new)
    return (*shape, ports) if ports else shape


def sharing_of(spec: PodGroupSpec, uid: str) -> Sharing:
    """Return how the pods of a group share nodes."""
    return Sharing(uid, spec.exclusive, spec.max_pods_per_node or 0, spec.pack)


def shape_sharing(shape: GroupShape, sharing: Sharing) -> GroupShape:
    """Return the shape of a group whose pods share nodes in this way."""
    tasks = tuple(
        structs.replace(one, sharing=sharing, shape=(*one.shape, sharing)) for one in shape.tasks
    )
    return _with_tasks(shape, tasks)


def task_within(shape: TaskShape, domain: Mapping[str, str]) -> TaskShape:
    """Return a task whose pods also need nodes with these labels."""
    template = shape.task.template
    narrower = structs.replace(template, node_selector={**template.node_selector, **domain})
    task = structs.replace(shape.task, template=narrower)
    key = _shape_of_pods(task, shape.requests, shape.ports, is_new=shape.is_new)
    if shape.sharing is not None:
        key = (*key, shape.sharing)
    return structs.replace(shape, task=task, shape=key)


def shape_within(shape: GroupShape, domain: Mapping[str, str]) -> GroupShape:
    """Return a group whose pods also need nodes with these labels."""
    key = tuple(domain.items())
    known = shape.within.get(key)
    if known is None:
        tasks = tuple(task_within(one, domain) for one in shape.tasks)
        known = shape.within[key] = _with_tasks(shape, tasks)
    return known


def _with_tasks(shape: GroupShape, tasks: tuple[TaskShape, ...]) -> GroupShape:
    changed = replace(shape, tasks=tasks, by_task={one.task.name: one for one in tasks})
    return with_left(changed, [one.task.replicas for one in tasks])


#: Kept in module variables, because every group is tested.
_PENDING, _RUNNING = PodGroupPhase.PENDING, PodGroupPhase.RUNNING


def only_waits(record: PodGroup) -> bool:
    """Return whether a record without pods only waits: it holds and owes nothing, and has no
    timers.
    """
    status = record.status
    return (
        status.phase == _PENDING
        and status.reserved_at is None
        and status.backoff_until is None
        and status.set_aside_at is None
        and not status.charge
        and not status.checks
        and not status.evictions.recent
        and not status.claim.is_open
        and not status.pledge.victims
        and not record.spec.depends_on
    )


def only_runs(record: PodGroup) -> bool:
    """Return whether a record only runs: no check, pledge or claim affects it."""
    status = record.status
    return (
        status.phase == _RUNNING
        and not status.checks
        and not status.pledge.stands
        and not status.claim.is_open
        and record.spec.controller != "external"
    )


def runs_claimed(record: PodGroup) -> bool:
    """Return whether a consumer runs an external group, and only its calls, the clocks and the
    configuration change that: no check or pledge affects it, and it was not told to stop.
    """
    status = record.status
    return (
        record.spec.controller == "external"
        and status.phase == _RUNNING
        and status.claim.phase == "Running"
        and not status.claim.stop_reason
        and not status.checks
        and not status.pledge.stands
    )


def is_over(record: PodGroup, held: Amounts) -> bool:
    """Return whether an ended group holds nothing any more, in the session and in the store."""
    status = record.status
    return not (held or status.charge or status.claim.is_open or status.pledge.stands)


def contradictions(spec: PodGroupSpec, replicas: int, min_member: int) -> list[str]:
    """Return the contradictions that a submission is refused for; a snapshot described by hand may
    still contain them.
    """
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
