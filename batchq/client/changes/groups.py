"""Rules for groups: unique pod names, scheduling gates, references, permitted edits, submission.

A pod's name is `<group>-<task>-<index>`. The index follows the last hyphen, so pods of two groups
in a namespace have the same name only if `<group>-<task>` is the same text for both: task `b-c` of
group `a`, and task `c` of group `a-b`. The text alone determines the possible groups: each of its
hyphens may end the name of a group. So only a few names are looked up, however many groups exist,
and whichever of the two was submitted first.

If two groups with the same pod names are submitted at the same time, the commit script refuses the
second, because a group that the request found absent exists by then. The script does not compare
the tasks of other groups, so a simultaneous edit of those can go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from msgspec import structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.notation import LABEL_MOST, counted, label_problem
from batchq.api.objects import (
    DEFAULT,
    CheckState,
    Gate,
    Metadata,
    Object,
    OpenedGate,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    Queue,
    SchedulingGate,
    Task,
    gates_of,
    is_gated,
    key_of,
    with_task_gates,
    without_gates,
)
from batchq.api.transaction import Event, Transaction, Write
from batchq.client.changes.object_writes import (
    abbreviated,
    find,
    name_hint,
    object_charge,
    put,
    title,
)
from batchq.core.quota import ROOT, QueueTree
from batchq.errors import Conflict, NotFound, Rejected
from batchq.ports import Reader, Store


def rivals(group: PodGroup) -> dict[str, list[tuple[str, str]]]:
    """Return the groups whose pods could have the same names: key of such a group -> (task of
    `group`, task of that group).
    """
    found: dict[str, list[tuple[str, str]]] = {}
    meta = group.metadata
    for task in _with_pods(group):
        prefix = f"{meta.name}-{task.name}"
        for name, other in _splits(prefix):
            if name != meta.name:
                found.setdefault(f"{meta.namespace}/{name}", []).append((task.name, other))
    return found


def free_names(reader: Reader, group: PodGroup) -> tuple[Write, ...]:
    """Return the conditions that keep other groups with the same pod names out: groups that were
    absent must still be absent when the group is written.

    Raises Rejected if such a group exists, and StoreUnavailable.
    """
    there: dict[str, PodGroup | None] = {}
    for key in rivals(group):
        other = reader.get("PodGroup", key)
        there[key] = other if isinstance(other, PodGroup) else None
    for other in there.values():
        if other is not None:
            check_apart(group, other)
    return tuple(must_not_be_there(key) for key, other in there.items() if other is None)


def must_not_be_there(key: str) -> Write:
    """Return the condition that no group of this name exists."""
    return Write(kind="PodGroup", key=key, expect=0, value=None)


def check_apart(group: PodGroup, other: PodGroup) -> None:
    """Raise Rejected if pods of the two groups would have the same name."""
    tasks = {task.name for task in _with_pods(other)}
    for mine, theirs in rivals(group).get(key_of(other), ()):
        if theirs in tasks:
            prefix = f"{group.metadata.name}-{mine}"
            raise Rejected(
                f"{title(group)}: pods of its task {mine} would be called {prefix}-0 and so on, as"
                f" pods of task {theirs} of {title(other)} are",
                hint="choose another name for the group or for the task",
            )


def _with_pods(group: PodGroup) -> Iterator[Task]:
    """Return the tasks that have pods; batchq makes no pods for an external group."""
    if group.spec.controller == "external":
        return iter(())
    return (task for task in group.spec.tasks if task.replicas)


def _splits(prefix: str) -> Iterator[tuple[str, str]]:
    """Yield each way to read a text as `<group>-<task>`."""
    place = prefix.find("-")
    while place >= 0:
        name, task = prefix[:place], prefix[place + 1 :]
        # Parts of a valid name are valid labels unless a hyphen begins or ends them. They are empty
        # if the name begins with a hyphen: it has not been validated yet.
        outer = name[-1:], task[:1]
        if "-" not in outer and "" not in outer and max(len(name), len(task)) <= LABEL_MOST:
            yield name, task
        place = prefix.find("-", place + 1)


#: Gates named in one event.
_MOST_GATES_NAMED = 16


def open_gate(
    reader: Reader, key: str, gate: str, *, now_ms: int, task: str = "", by: str = ""
) -> Transaction | None:
    """Open one scheduling gate of a group; with its last gate open, the group joins the pending
    queue.

    Without a `task`, open the group's own gate of that name or, if it has none, those in its tasks'
    templates. Returns None if it has been opened already: several controllers may open the same
    gate, and one that lost the answer repeats the request. Raises NotFound for a missing group,
    task or gate, Conflict if the group has finished.
    """
    group = _unfinished_with_gates(reader, key)
    _check_task(group, task)
    there = [one for one in gates_of(group.spec) if task in ("", one.task)]
    named = [one for one in there if one.name == gate]
    own = [one for one in named if not one.task]
    if named:
        return _opened(reader, group, own or named, now_ms, by)
    if pods := _pods_with(reader, group, gate, task):
        return _opened_on_pods(reader, group, pods, gate, now_ms, by)
    if any(one.name == gate and task in ("", one.task) for one in group.status.opened_gates):
        return None
    whose = f": task {task}" if task else ""
    raise NotFound(
        f"{title(group)}{whose} has no scheduling gate {gate!r}",
        hint=name_hint(gate, list(dict.fromkeys(one.name for one in there))),
    )


def open_all_gates(
    reader: Reader, key: str, *, now_ms: int, task: str = "", by: str = ""
) -> Transaction | None:
    """Open every gate of a group and its tasks, or of one task; None if there is none.

    Raises NotFound for a missing group or task, Conflict if the group has finished.
    """
    group = _unfinished_with_gates(reader, key)
    _check_task(group, task)
    opened = [one for one in gates_of(group.spec) if task in ("", one.task)]
    return _opened(reader, group, opened, now_ms, by) if opened else None


def with_opened(new: PodGroup, stored: PodGroup, *, now_ms: int, by: str) -> PodGroup:
    """Return an edited group, with a note of the gates that the edit opens.

    The gates of a removed task do not count as opened: its pods are no longer wanted.
    """
    opened = _removed_gates(stored, new)
    return _with_notes(new, opened, now_ms, by) if opened else new


def opening_events(new: PodGroup, stored: PodGroup, *, now_ms: int, by: str) -> tuple[Event, ...]:
    """Return the event about the gates that an edit opens, if there are any."""
    opened = _removed_gates(stored, new)
    return (_gates_event(new, opened, now_ms, by),) if opened else ()


def check_only_go(stored: PodGroup, new: PodGroup) -> None:
    """Raise Conflict if an edit adds gates: after the creation they are only removed."""
    there = set(gates_of(stored.spec))
    for gate in gates_of(new.spec):
        if gate not in there:
            where = f"spec.tasks: task {gate.task}" if gate.task else "spec.schedulingGates"
            raise Conflict(
                f"{title(stored)}: {where}: gate {gate.name!r} cannot be added after creation;"
                " gates can only be removed",
                hint="suspend the group to hold it back",
            )


def in_stored_gate_order(new: PodGroup, stored: PodGroup) -> PodGroup:
    """Return the group with its gates in the stored order, so that only changes count."""
    former = {task.name: task.template.scheduling_gates for task in stored.spec.tasks}
    tasks = tuple(
        with_task_gates(task, _in_order(task.template.scheduling_gates, former.get(task.name, ())))
        for task in new.spec.tasks
    )
    gates = _in_order(new.spec.scheduling_gates, stored.spec.scheduling_gates)
    spec = structs.replace(new.spec, scheduling_gates=gates, tasks=tasks)
    return structs.replace(new, spec=spec)


def only_gates_differ(one: Sequence[Task], other: Sequence[Task]) -> bool:
    """Return whether two lists of tasks are equal but for the gates in their templates."""
    return [with_task_gates(task, ()) for task in one] == [
        with_task_gates(task, ()) for task in other
    ]


def _unfinished_with_gates(reader: Reader, key: str) -> PodGroup:
    group = find(reader, PodGroup, key)
    if group.status.phase in TERMINAL:
        raise Conflict(
            f"{title(group)} is {group.status.phase} already and cannot have a gate opened"
        )
    return group


def _check_task(group: PodGroup, task: str) -> None:
    names = [one.name for one in group.spec.tasks]
    if task and task not in names:
        raise NotFound(f"{title(group)} has no task {task!r}", hint=name_hint(task, names))


def _opened(
    reader: Reader, group: PodGroup, opened: Sequence[Gate], now_ms: int, by: str
) -> Transaction:
    spec = without_gates(group.spec, opened)
    new = _with_notes(structs.replace(group, spec=spec), opened, now_ms, by)
    event = _gates_event(new, opened, now_ms, by)
    return put(reader, new, expect=group.metadata.revision, event=event)


def _opened_on_pods(
    reader: Reader, group: PodGroup, pods: Sequence[Pod], gate: str, now_ms: int, by: str
) -> Transaction:
    """Open a gate of single pods, which only a simulated cluster can have."""
    opened = [Gate(task, gate) for task in dict.fromkeys(pod.spec.task for pod in pods)]
    new = _with_notes(group, opened, now_ms, by)
    event = _gates_event(new, opened, now_ms, by)
    transaction = put(reader, new, expect=group.metadata.revision, event=event)
    writes = (
        Write(
            kind="Pod",
            key=key_of(pod),
            expect=pod.metadata.revision,
            value=structs.replace(pod, spec=structs.replace(pod.spec, scheduling_gates=left)),
        )
        for pod in pods
        for left in [tuple(one for one in pod.spec.scheduling_gates if one.name != gate)]
    )
    return structs.replace(transaction, writes=(*transaction.writes, *writes))


def _pods_with(reader: Reader, group: PodGroup, gate: str, task: str) -> list[Pod]:
    return [
        pod
        for pod in reader.list("Pod", namespace=group.metadata.namespace)
        if isinstance(pod, Pod)
        and pod.status.group_uid == group.metadata.uid
        and task in ("", pod.spec.task)
        and any(one.name == gate for one in pod.spec.scheduling_gates)
    ]


def _with_notes(group: PodGroup, opened: Iterable[Gate], now_ms: int, by: str) -> PodGroup:
    notes = [OpenedGate(name=gate.name, task=gate.task, by=by, at=now_ms) for gate in opened]
    status = group.status
    return structs.replace(
        group, status=structs.replace(status, opened_gates=(*status.opened_gates, *notes))
    )


def _gates_event(group: PodGroup, opened: Sequence[Gate], now_ms: int, by: str) -> Event:
    named = [
        f"{gate.name} of task {gate.task}" if gate.task else gate.name
        for gate in opened[:_MOST_GATES_NAMED]
    ]
    more = f" and {len(opened) - _MOST_GATES_NAMED} more" if len(opened) > _MOST_GATES_NAMED else ""
    left = len(gates_of(group.spec))
    return Event(
        kind="PodGroup",
        key=key_of(group),
        reason="GateOpened",
        message=(
            f"{'gate' if len(opened) == 1 else 'gates'} {', '.join(named)}{more}"
            f"{f' by {by}' if by else ''}; {counted(left, 'gate') if left else 'no gate'} left"
        ),
        at=now_ms,
    )


def _removed_gates(stored: PodGroup, new: PodGroup) -> list[Gate]:
    kept = set(gates_of(new.spec))
    tasks = {"", *(task.name for task in new.spec.tasks)}
    return [gate for gate in gates_of(stored.spec) if gate not in kept and gate.task in tasks]


def _in_order(
    gates: Iterable[SchedulingGate], stored: Iterable[SchedulingGate]
) -> tuple[SchedulingGate, ...]:
    place = {gate.name: index for index, gate in enumerate(stored)}
    return tuple(sorted(gates, key=lambda gate: (place.get(gate.name, len(place)), gate.name)))


_ALWAYS_EDITABLE = frozenset({"suspend", "priorityClassName", "share"})


def check_references(
    reader: Reader, group: PodGroup, stored: PodGroup | None, *, described: bool
) -> None:
    """Check that the queue and the priority class exist, and that the queue accepts the group,
    unless the stored group names them already.

    Raises NotFound or Rejected.
    """
    if described:
        return
    if stored is None or stored.spec.queue != group.spec.queue:
        _check_queue(reader, group)
    if stored is None or stored.spec.priority_class_name != group.spec.priority_class_name:
        _check_priority_class(reader, group)


def bind_dependencies(
    reader: Reader, group: PodGroup, stored: PodGroup | None, *, described: bool
) -> PodGroup:
    """Return the group with each name in `dependsOn` bound to the uid of the group with that name.

    A name that was bound before keeps its uid, whichever group has the name now. Raises NotFound
    for a missing group, Rejected for a circle.
    """
    if not group.spec.depends_on:
        return group
    bound_before = {
        dependency.name: dependency.uid for dependency in (stored.spec.depends_on if stored else ())
    }
    namespace, name = group.metadata.namespace, group.metadata.name
    bound = []
    for place, dependency in enumerate(group.spec.depends_on):
        if dependency.name == name and not described:
            raise Rejected(
                f"{title(group)}: spec.dependsOn[{place}]: a group cannot depend on itself"
            )
        uid = bound_before.get(dependency.name) or _uid_of(
            reader, group, f"{namespace}/{dependency.name}", described
        )
        bound.append(structs.replace(dependency, uid=uid))
    result = structs.replace(group, spec=structs.replace(group.spec, depends_on=tuple(bound)))
    if stored is not None:
        _check_no_circle(reader, result)
    return result


def with_checks(reader: Reader, group: PodGroup) -> PodGroup:
    """Return a new group with the checks of its queue and the queues above, all Unknown, so that
    they are visible from its submission on. The scheduler adds checks that queues list later.
    """
    names = checks_for(reader, group.spec.queue)
    if not names:
        return group
    since = group.metadata.creation_timestamp
    states = tuple(CheckState(name=name, since=since) for name in names)
    return structs.replace(group, status=structs.replace(group.status, checks=states))


def checks_for(reader: Reader, queue: str) -> tuple[str, ...]:
    """Return the admission checks of a queue and its ancestors, the root's first, each once."""
    return _ExistingQueues(reader.list("Queue")).checks_for(queue)


def _check_queue(reader: Reader, group: PodGroup) -> None:
    """Check that the group's queue exists, and accepts it. Raises NotFound or Rejected."""
    # All queues, since a queue does not name its children; a store with 10,000 takes 0.1 s.
    _ExistingQueues(reader.list("Queue")).check(group)


class _ExistingQueues:
    """All queues, for questions about any number of groups: each takes the same time, however many
    queues there are.
    """

    def __init__(self, queues: Iterable[Object]) -> None:
        self._there = [queue for queue in queues if isinstance(queue, Queue)]
        # `default` always exists, even before it is first written.
        self._names = {DEFAULT, *(queue.metadata.name for queue in self._there)}
        self._parents = {queue.spec.parent for queue in self._there}
        self._have_checks = any(queue.spec.admission_checks for queue in self._there)
        self._have_namespaces = any(queue.spec.namespaces for queue in self._there)

    @cached_property
    def _tree(self) -> QueueTree:
        return QueueTree(self._there)

    def check(self, group: PodGroup) -> None:
        """Check that the group's queue exists, and accepts it. Raises NotFound or Rejected."""
        name = group.spec.queue
        if name == ROOT:
            raise Rejected(
                f"{title(group)}: spec.queue: the root queue holds no groups",
                hint="name another queue, or omit the field for the queue default",
            )
        if name not in self._names:
            names = [queue.metadata.name for queue in self._there]
            raise NotFound(
                f"{title(group)}: spec.queue: there is no queue {name!r}",
                hint=name_hint(name, names),
            )
        if name in self._parents:
            leaves = sorted(self._tree.leaves_below(name))
            namespace = group.metadata.namespace
            suitable = [one for one in leaves if self._tree.accepts(one, namespace)]
            raise Rejected(
                f"{title(group)}: spec.queue: queue {name} has queues below it, and holds no"
                " groups",
                # If none accepts the group, the next refusal says whose list to change.
                hint=f"name a queue below it: {abbreviated(suitable or leaves)}",
            )
        if self._have_namespaces:
            self._check_namespace(group)

    def _check_namespace(self, group: PodGroup) -> None:
        """Raise Rejected unless the group's queue accepts groups of its namespace."""
        tree, name, namespace = self._tree, group.spec.queue, group.metadata.namespace
        if tree.accepts(name, namespace):
            return
        queues = tree.open_to(namespace)
        others = [f"another queue ({abbreviated(queues)})"] if queues else []
        others += ["another namespace"] if tree.accepted(name) else []
        named = f"name {' or '.join(others)}, or " if others else ""
        closed = ", ".join(tree.closed_to(name, namespace))
        raise Rejected(
            f"{title(group)}: spec.queue: {tree.why_closed(name, namespace)}",
            hint=f"{named}have {namespace} added to spec.namespaces of {closed}",
        )

    def checks_for(self, queue: str) -> tuple[str, ...]:
        """Return the admission checks of a queue and its ancestors, the root's first, each once."""
        if not self._have_checks:
            return ()
        tree = self._tree
        named = [
            check
            for name in tree.chain(queue)
            if name in tree.records
            for check in tree.records[name].spec.admission_checks
        ]
        return tuple(dict.fromkeys(named))


def _check_priority_class(reader: Reader, group: PodGroup) -> None:
    """Check that the group's priority class exists, if it names one. Raises NotFound."""
    name = group.spec.priority_class_name
    if not name or reader.get("PriorityClass", name) is not None:
        return
    there = [item.metadata.name for item in reader.list("PriorityClass")]
    raise NotFound(
        f"{title(group)}: spec.priorityClassName: there is no priority class {name!r}",
        hint=name_hint(name, there) if there else _how_to_make_a_class(name),
    )


def _how_to_make_a_class(name: str) -> str:
    written = "NAME" if label_problem(name) else name
    return (
        "there is none; make one: echo '{apiVersion: batchq/v1, kind: PriorityClass, metadata:"
        f" {{name: {written}}}, spec: {{value: 100}}}}' | batchq apply -f -"
    )


def _uid_of(reader: Reader, group: PodGroup, key: str, described: bool) -> str:
    other = reader.get("PodGroup", key)
    if other is not None:
        return other.metadata.uid
    if described:
        return ""
    there = [
        item.metadata.name for item in reader.list("PodGroup", namespace=group.metadata.namespace)
    ]
    name = key.rpartition("/")[2]
    raise NotFound(
        f"{title(group)}: spec.dependsOn: there is no PodGroup {key}", hint=name_hint(name, there)
    )


def _check_no_circle(reader: Reader, group: PodGroup) -> None:
    """Raise Rejected if an edit closes a circle, which a new group cannot do."""
    others = reader.list("PodGroup", namespace=group.metadata.namespace)
    by_uid = {item.metadata.uid: item for item in others if isinstance(item, PodGroup)}
    by_uid[group.metadata.uid] = group
    try:
        dependency_order(
            {
                uid: [dependency.uid for dependency in item.spec.depends_on]
                for uid, item in by_uid.items()
            }
        )
    except CycleError as error:
        raise circular(group, [by_uid[uid].metadata.name for uid in error.args[1]]) from None


def dependency_order(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """Return each id after all that it needs, without needed ids that are not keys of the graph.

    Raises CycleError, which holds the circle.
    """
    inside = {one: [other for other in others if other in needs] for one, others in needs.items()}
    if not any(inside.values()):
        # Most requests are a single group, and sorting would take a twentieth of its submission.
        return list(inside)
    return list(TopologicalSorter(inside).static_order())


def circular(group: PodGroup, circle: list[str]) -> Rejected:
    """Return the refusal of groups that wait for each other; `circle` is closed."""
    way = " -> ".join(reversed(circle))
    return Rejected(
        f"{title(group)}: spec.dependsOn goes in a circle: {way}",
        hint="each of them would wait for ever; remove one of the dependencies",
    )


def check_edit(stored: PodGroup, new: PodGroup) -> None:
    """Raise Conflict, naming the field, if the group's state does not allow the change."""
    changed = _changed_fields(stored.spec, new.spec)
    if not changed:
        return
    phase = stored.status.phase
    if phase in TERMINAL:
        raise Conflict(
            f"{title(stored)} is {phase}, so spec.{changed[0]} can no longer change",
            hint="delete it first, or choose another name",
        )
    check_only_go(stored, new)
    for field in changed:
        if field == "schedulingGates" or (
            field == "tasks" and only_gates_differ(stored.spec.tasks, new.spec.tasks)
        ):
            continue
        if field == "queue" and not is_gated(stored):
            raise Conflict(
                f"{title(stored)}: spec.queue can change only while the group has scheduling gates",
                hint="cancel it and submit it to the other queue",
            )
        if field not in _ALWAYS_EDITABLE and not _may_be_edited(stored):
            raise Conflict(
                f"{title(stored)}: spec.{field} can change only while the group is Pending and"
                f" nothing is reserved for it; it is {phase}",
                hint="cancel it and submit it again",
            )


def _may_be_edited(group: PodGroup) -> bool:
    status = group.status
    return (
        status.phase == PodGroupPhase.PENDING
        and status.reserved_at is None
        and not status.reservation
        and not status.claim.is_open
    )


def _changed_fields(old: PodGroupSpec, new: PodGroupSpec) -> list[str]:
    return [
        written
        for field, written in zip(
            PodGroupSpec.__struct_fields__, PodGroupSpec.__struct_encode_fields__, strict=True
        )
        if getattr(old, field) != getattr(new, field)
    ]


#: What everyday commands change in a submitted group: `suspend`, `resume`.
_MAY_DIFFER = frozenset({"suspend"})


class NewGroups:
    """A caching Reader for new groups: of queues, priority classes, and dependencies.

    What it has read stays valid until `forget`. Groups passed to `note` count as stored.
    `before_reading` is called before each question to the store. Belongs to one thread.
    """

    def __init__(self, store: Store, *, before_reading: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._before_reading = before_reading
        self._lists: dict[tuple[str, str], Sequence[Object]] = {}
        self._classes: dict[str, Object | None] = {}
        #: Key -> uid of an existing group; "" for a missing one.
        self._groups: dict[str, str] = {}
        #: Namespace, queue and priority class of an accepted group -> the checks of the queue.
        self._accepted: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self._queues: _ExistingQueues | None = None
        #: Existing groups whose pods could have the names of other groups' pods, by key.
        self._rivals: dict[str, PodGroup] = {}
        #: The names to suggest for a missing one, read once: only mistakes need them.
        self._neighbours: dict[str, Sequence[Object]] = {}

    def forget(self) -> None:
        """Drop queues and priority classes, so that they are read again."""
        self._lists.clear()
        self._classes.clear()
        self._accepted.clear()
        self._queues = None
        self._rivals.clear()

    def take_queues(self, queues: Sequence[Object]) -> None:
        """Forget what was read, and take these as all queues."""
        self.forget()
        self._lists["Queue", ""] = queues

    def note(self, group: PodGroup) -> None:
        """Note that the group is stored now, or counts as such."""
        # Only its identity is kept: groups may be many.
        self._groups[key_of(group)] = group.metadata.uid

    def is_noted(self, key: str) -> bool:
        """Return whether a group of this name is known to be stored, or counts as such."""
        return bool(self._groups.get(key))

    def find_groups(self, keys: Iterable[str]) -> None:
        """Look up unknown groups in one round trip. Raises StoreUnavailable."""
        wanted = list(dict.fromkeys(keys))
        if all(key in self._groups for key in wanted):
            return
        self._before_reading()
        unknown = [key for key in wanted if key not in self._groups]
        there = self._store.get_many("PodGroup", unknown)
        for key in unknown:
            item = there.get(key)
            self._groups[key] = item.metadata.uid if item is not None else ""

    def forget_groups(self) -> None:
        """Drop all groups, so that their names are looked up again."""
        self._groups.clear()

    def forget_missing(self) -> None:
        """Drop the missing groups: they may exist by now."""
        for key in [key for key, uid in self._groups.items() if not uid]:
            del self._groups[key]

    def note_rivals(self, groups: Iterable[Object]) -> None:
        """Note these existing groups, to compare new groups with."""
        for group in groups:
            if isinstance(group, PodGroup):
                # Only the parts that determine the names of its pods.
                slim = PodGroup(metadata=group.metadata, spec=group.spec)
                self._rivals[key_of(group)] = slim

    def free_names(self, group: PodGroup) -> tuple[Write, ...]:
        """As the function `free_names`, without asking the store: groups not noted here must be
        absent when the group is written.

        Raises Rejected.
        """
        keys = rivals(group)
        for key in keys:
            if key in self._rivals:
                check_apart(group, self._rivals[key])
        return tuple(must_not_be_there(key) for key in keys if key not in self._rivals)

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object, as far as new groups refer to it: for a group, only its identity.

        Raises StoreUnavailable.
        """
        if kind == "PodGroup":
            self.find_groups((key,))
            namespace, _, name = key.partition("/")
            uid = self._groups[key]
            return (
                PodGroup(metadata=Metadata(name=name, namespace=namespace, uid=uid))
                if uid
                else None
            )
        if kind == "PriorityClass":
            if key not in self._classes:
                self._before_reading()
                self._classes[key] = self._store.get(kind, key)
            return self._classes[key]
        self._before_reading()
        return self._store.get(kind, key)

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind. Raises StoreUnavailable."""
        kept = self._neighbours if kind == "PodGroup" else None
        found = self._lists.get((kind, namespace)) if kept is None else kept.get(namespace)
        if found is None:
            self._before_reading()
            found = self._store.list(kind, namespace=namespace)
            if kept is None:
                self._lists[kind, namespace] = found
            else:
                kept[namespace] = found
        return found

    def check(self, group: PodGroup) -> tuple[str, ...]:
        """Check that the group's queue and priority class exist, and that the queue accepts it;
        return the queue's admission checks.

        Raises NotFound, Rejected, StoreUnavailable.
        """
        place = group.metadata.namespace, group.spec.queue, group.spec.priority_class_name
        checks = self._accepted.get(place)
        if checks is None:
            if self._queues is None:
                self._queues = _ExistingQueues(self.list("Queue"))
            self._queues.check(group)
            _check_priority_class(self, group)
            checks = self._accepted[place] = self._queues.checks_for(group.spec.queue)
        return checks

    def submission(self, group: PodGroup, *, now_ms: int, uid: str, by: str) -> Transaction:
        """As `create` of a valid group whose name is free.

        Raises NotFound (it names a missing object), Rejected, StoreUnavailable.
        """
        if group.spec.depends_on:
            name = group.metadata.name
            if any(dependency.name == name for dependency in group.spec.depends_on):
                raise circular(group, [name, name])
            group = bind_dependencies(self, group, None, described=False)
        checks = self.check(group)
        meta = group.metadata
        key = f"{meta.namespace}/{meta.name}"
        new = PodGroup(
            metadata=Metadata(
                name=meta.name,
                namespace=meta.namespace,
                labels=meta.labels,
                annotations=meta.annotations,
                uid=uid,
                creation_timestamp=now_ms,
            ),
            spec=group.spec,
            status=PodGroupStatus(
                queue_time=now_ms,
                checks=tuple([CheckState(name=name, since=now_ms) for name in checks]),
                submitted_by=by,
            ),
        )
        message = f"to queue {new.spec.queue} by {by}" if by else f"to queue {new.spec.queue}"
        event = Event(kind="PodGroup", key=key, reason="Submitted", message=message, at=now_ms)
        return Transaction(
            subject=f"PodGroup {key}",
            writes=(Write(kind="PodGroup", key=key, expect=0, value=new), *self.free_names(new)),
            charges=(object_charge(new),),
            events=(event,),
        )


def check_same(stored: PodGroup, wanted: PodGroup) -> None:
    """Raise Conflict, naming the difference, unless a submission of `wanted` could have made
    `stored`.

    Later changes by batchq's commands do not count: opened gates, suspension and resumption.
    """
    field = _first_difference(stored, wanted)
    if field:
        raise Conflict(
            f"{title(stored)} exists already, is {stored.status.phase}, and has another {field}",
            hint="choose another name, or delete it once it has finished",
        )


def _first_difference(stored: PodGroup, wanted: PodGroup) -> str:
    for field in ("labels", "annotations"):
        if getattr(stored.metadata, field) != getattr(wanted.metadata, field):
            return f"metadata.{field}"
    if not set(gates_of(stored.spec)) <= set(gates_of(wanted.spec)):
        return "spec.schedulingGates"
    one, other = _comparable(stored.spec), _comparable(wanted.spec)
    fields = zip(PodGroupSpec.__struct_fields__, PodGroupSpec.__struct_encode_fields__, strict=True)
    for name, written in fields:
        if name not in _MAY_DIFFER and getattr(one, name) != getattr(other, name):
            return f"spec.{written}"
    return ""


def _comparable(spec: PodGroupSpec) -> PodGroupSpec:
    """Return the spec without gates, and without the fields that batchq fills in."""
    return structs.replace(
        spec,
        scheduling_gates=(),
        tasks=tuple(with_task_gates(task, ()) for task in spec.tasks),
        depends_on=tuple(structs.replace(one, uid="") for one in spec.depends_on),
    )
