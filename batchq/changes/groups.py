"""Pods of two groups never have one name: groups whose pods would be called alike are refused.

A pod is called `<group>-<task>-<index>`. The index is what follows the last hyphen, so pods of two
groups of a namespace have one name only if `<group>-<task>` of both is the same text: task `b-c` of
group `a`, and task `c` of group `a-b`. Which groups that could be follows from the text alone: each
of its hyphens may end the name of a group. So only a few names are looked up, however many groups
there are, and whichever of the two came first.

Of two submissions at one moment the script that writes refuses the second: it is written on the
condition that the groups that were not there still are not. What it cannot see is another group's
tasks: an edit of those at the very moment of a submission can go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from msgspec import structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.notation import LABEL_MOST, counted
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
from batchq.changes.object_writes import object_charge, put
from batchq.changes.refusals import few, find, instead, title
from batchq.core.quota.queue_tree import ROOT, QueueTree
from batchq.errors import Conflict, NotFound, Rejected
from batchq.ports import Reader, Store


def rivals(group: PodGroup) -> dict[str, list[tuple[str, str]]]:
    """Key of a group that may be there -> (task of `group`, task of that one) whose pods would have
    one name.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    meta = group.metadata
    for task in _with_pods(group):
        prefix = f"{meta.name}-{task.name}"
        for name, other in _divided(prefix):
            if name != meta.name:
                found.setdefault(f"{meta.namespace}/{name}", []).append((task.name, other))
    return found


def free_names(reader: Reader, group: PodGroup) -> tuple[Write, ...]:
    """What to write with a group so that no other with pods of its names is there, or comes
    meanwhile: groups that were not there must not be there when it is written.

    Raises Rejected if one is, and StoreUnavailable.
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
    """A condition of a transaction: there is no group of this name."""
    return Write(kind="PodGroup", key=key, expect=0, value=None)


def check_apart(group: PodGroup, other: PodGroup) -> None:
    """Raise Rejected if pods of the two would have one name."""
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
    """The tasks for which there will be pods; an external group has none of ours."""
    if group.spec.controller == "external":
        return iter(())
    return (task for task in group.spec.tasks if task.replicas)


def _divided(prefix: str) -> Iterator[tuple[str, str]]:
    """Each way to read a text as `<group>-<task>`."""
    place = prefix.find("-")
    while place >= 0:
        name, task = prefix[:place], prefix[place + 1 :]
        # What is left of two labels is one if hyphens do not end or begin it.
        if name[-1] != "-" and task[0] != "-" and max(len(name), len(task)) <= LABEL_MOST:
            yield name, task
        place = prefix.find("-", place + 1)


#: So many gates are named in one event.
_MOST_GATES_NAMED = 16


def open_gate(
    reader: Reader, key: str, gate: str, *, now_ms: int, task: str = "", by: str = ""
) -> Transaction | None:
    """Open one scheduling gate of a group; when the last is open, the group stands in line.

    Without a `task` the group's own gate of that name, or else those in the templates of its
    tasks. None if it has been opened already: several may see to the same gate, and one whose
    answer was lost asks again.
    Raises NotFound if there is no such group, task or gate, or Conflict if it has finished already.
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
        hint=instead(gate, list(dict.fromkeys(one.name for one in there))),
    )


def open_all_gates(
    reader: Reader, key: str, *, now_ms: int, task: str = "", by: str = ""
) -> Transaction | None:
    """Open every gate of a group and of its tasks, or of one task; None if there is none.

    Raises NotFound if there is no such group or task, or Conflict if it has finished already.
    """
    group = _unfinished_with_gates(reader, key)
    _check_task(group, task)
    opened = [one for one in gates_of(group.spec) if task in ("", one.task)]
    return _opened(reader, group, opened, now_ms, by) if opened else None


def with_opened(new: PodGroup, stored: PodGroup, *, now_ms: int, by: str) -> PodGroup:
    """An edited group, with a note of the gates that the edit opens.

    Those of a task that the edit takes away were not opened: their pods are not wanted any more.
    """
    opened = _gone(stored, new)
    return _noted(new, opened, now_ms, by) if opened else new


def opening_events(new: PodGroup, stored: PodGroup, *, now_ms: int, by: str) -> tuple[Event, ...]:
    """What to tell of the gates that an edit opens: one event, if there are any."""
    opened = _gone(stored, new)
    return (_gates_event(new, opened, now_ms, by),) if opened else ()


def check_only_go(stored: PodGroup, new: PodGroup) -> None:
    """Gates are set at creation, and afterwards only removed. Raises Conflict."""
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
    """The order of gates means nothing: bring them into the stored one, so that it is no change."""
    former = {task.name: task.template.scheduling_gates for task in stored.spec.tasks}
    tasks = tuple(
        with_task_gates(task, _in_order(task.template.scheduling_gates, former.get(task.name, ())))
        for task in new.spec.tasks
    )
    gates = _in_order(new.spec.scheduling_gates, stored.spec.scheduling_gates)
    spec = structs.replace(new.spec, scheduling_gates=gates, tasks=tasks)
    return structs.replace(new, spec=spec)


def only_gates_differ(one: Sequence[Task], other: Sequence[Task]) -> bool:
    """Whether two lists of tasks say the same but for the gates in their templates."""
    return [with_task_gates(task, ()) for task in one] == [
        with_task_gates(task, ()) for task in other
    ]


# --- parts ----------------------------------------------------------------------------------


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
        raise NotFound(f"{title(group)} has no task {task!r}", hint=instead(task, names))


def _opened(
    reader: Reader, group: PodGroup, opened: Sequence[Gate], now_ms: int, by: str
) -> Transaction:
    spec = without_gates(group.spec, opened)
    new = _noted(structs.replace(group, spec=spec), opened, now_ms, by)
    event = _gates_event(new, opened, now_ms, by)
    return put(reader, new, expect=group.metadata.revision, event=event)


def _opened_on_pods(
    reader: Reader, group: PodGroup, pods: Sequence[Pod], gate: str, now_ms: int, by: str
) -> Transaction:
    """A gate of single pods, which only a described world has."""
    opened = [Gate(task, gate) for task in dict.fromkeys(pod.spec.task for pod in pods)]
    new = _noted(group, opened, now_ms, by)
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


def _noted(group: PodGroup, opened: Iterable[Gate], now_ms: int, by: str) -> PodGroup:
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


def _gone(stored: PodGroup, new: PodGroup) -> list[Gate]:
    kept = set(gates_of(new.spec))
    tasks = {"", *(task.name for task in new.spec.tasks)}
    return [gate for gate in gates_of(stored.spec) if gate not in kept and gate.task in tasks]


def _in_order(
    gates: Iterable[SchedulingGate], stored: Iterable[SchedulingGate]
) -> tuple[SchedulingGate, ...]:
    place = {gate.name: index for index, gate in enumerate(stored)}
    return tuple(sorted(gates, key=lambda gate: (place.get(gate.name, len(place)), gate.name)))


_ALWAYS_EDITABLE = frozenset({"suspend", "priorityClassName"})


# --- what it refers to ----------------------------------------------------------------------


def check_references(
    reader: Reader, group: PodGroup, stored: PodGroup | None, *, described: bool
) -> None:
    """The queue and the priority class are there, as far as this request names them anew.

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
    """The group with each name in `dependsOn` bound to the uid that it stands for now.

    A name that was bound before keeps its uid, whatever bears the name today.
    Raises NotFound for a missing one, Rejected for a circle.
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
    """A new group with the checks of its queue and the queues above, all Unknown: each appears
    from its submission on. What queues list later is the scheduler's to bring in.
    """
    names = checks_for(reader, group.spec.queue)
    if not names:
        return group
    since = group.metadata.creation_timestamp
    states = tuple(CheckState(name=name, since=since) for name in names)
    return structs.replace(group, status=structs.replace(group.status, checks=states))


def checks_for(reader: Reader, queue: str) -> tuple[str, ...]:
    """The admission checks of a queue and its ancestors, the root's first, each once."""
    # A list, since whoever submits many groups at once has asked for it already.
    there = [item for item in reader.list("Queue") if isinstance(item, Queue)]
    if not any(item.spec.admission_checks for item in there):
        return ()
    tree = QueueTree(there)
    named = [
        check
        for name in tree.chain(queue)
        if name in tree.records
        for check in tree.records[name].spec.admission_checks
    ]
    return tuple(dict.fromkeys(named))


def _check_queue(reader: Reader, group: PodGroup) -> None:
    """The group's queue is there, and may hold groups.

    Raises NotFound or Rejected.
    """
    name = group.spec.queue
    if name == ROOT:
        raise Rejected(
            f"{title(group)}: spec.queue: the root queue holds no groups",
            hint="name another queue, or leave it out for default",
        )
    # All of them, since a queue does not know what stands below it; a store of 10,000 takes 0.1 s.
    there = [queue for queue in reader.list("Queue") if isinstance(queue, Queue)]
    # `default` is there from the start, even if nobody has written it down yet.
    if name != DEFAULT and all(queue.metadata.name != name for queue in there):
        names = [queue.metadata.name for queue in there]
        raise NotFound(
            f"{title(group)}: spec.queue: there is no queue {name!r}", hint=instead(name, names)
        )
    if any(queue.spec.parent == name for queue in there):
        leaves = sorted(QueueTree(there).leaves_below(name))
        raise Rejected(
            f"{title(group)}: spec.queue: queue {name} has queues below it, and holds no groups",
            hint=f"name one of those below it: {few(leaves)}",
        )


def _check_priority_class(reader: Reader, group: PodGroup) -> None:
    """The group's priority class, if it names one, is there.

    Raises NotFound.
    """
    name = group.spec.priority_class_name
    if not name or reader.get("PriorityClass", name) is not None:
        return
    there = [item.metadata.name for item in reader.list("PriorityClass")]
    raise NotFound(
        f"{title(group)}: spec.priorityClassName: there is no priority class {name!r}",
        hint=instead(name, there),
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
        f"{title(group)}: spec.dependsOn: there is no PodGroup {key}", hint=instead(name, there)
    )


def _check_no_circle(reader: Reader, group: PodGroup) -> None:
    """A new group cannot close a circle, since nothing depends on its uid yet; an edit can."""
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
    """Each id after all that it needs; what is needed but not a key of the graph is left out.

    Raises CycleError, which holds the circle.
    """
    inside = {one: [other for other in others if other in needs] for one, others in needs.items()}
    return list(TopologicalSorter(inside).static_order())


def circular(group: PodGroup, circle: list[str]) -> Rejected:
    """The refusal of groups that wait for each other; `circle` starts and ends with one of them."""
    way = " -> ".join(reversed(circle))
    return Rejected(
        f"{title(group)}: spec.dependsOn goes in a circle: {way}",
        hint="each of them would wait for ever; take one of the dependencies out",
    )


# --- what may be edited ---------------------------------------------------------------------


def check_edit(stored: PodGroup, new: PodGroup) -> None:
    """Whether the state of the group allows the change.

    Raises Conflict, which names the field.
    """
    changed = _changed_fields(stored.spec, new.spec)
    if not changed:
        return
    phase = stored.status.phase
    if phase in TERMINAL:
        raise Conflict(
            f"{title(stored)} is {phase}, so spec.{changed[0]} cannot change any more",
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
                hint="cancel it and submit it anew",
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


#: What everyday commands change in a group after it was submitted: `suspend`, `resume`.
_MAY_DIFFER = frozenset({"suspend"})


class NewGroups:
    """A Reader for new groups, with a memory: queues, priority classes, and groups depended on.

    What it has read holds until `forget`. Groups that are `noted` count as stored. `before_reading`
    is called before the store is asked for anything. Belongs to one thread.
    """

    def __init__(self, store: Store, *, before_reading: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._before_reading = before_reading
        self._lists: dict[tuple[str, str], Sequence[Object]] = {}
        self._classes: dict[str, Object | None] = {}
        #: Key -> uid of a group that is there; "" of one that is not.
        self._groups: dict[str, str] = {}
        #: Queue and priority class of a group that was accepted -> the checks of the queue.
        self._accepted: dict[tuple[str, str], tuple[str, ...]] = {}
        #: Those that were found to be there whose names begin those of other groups' pods, by key.
        self._rivals: dict[str, PodGroup] = {}
        #: The names to suggest instead of one that is not there, asked for once: by mistakes only.
        self._neighbours: dict[str, Sequence[Object]] = {}

    def forget(self) -> None:
        """Read queues and priority classes anew when they are asked for next."""
        self._lists.clear()
        self._classes.clear()
        self._accepted.clear()
        self._rivals.clear()

    # --- groups that others depend on ---------------------------------------------------------

    def note(self, group: PodGroup) -> None:
        """The group is stored now, or counts as such."""
        # No more than its identity is kept: there may be many.
        self._groups[key_of(group)] = group.metadata.uid

    def is_noted(self, key: str) -> bool:
        """Whether a group of this name is known to be stored, or counts as such."""
        return bool(self._groups.get(key))

    def find_groups(self, keys: Iterable[str]) -> None:
        """Look up groups that are not known yet, in one round trip. Raises StoreUnavailable."""
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
        """Whatever bears these names later is looked up anew."""
        self._groups.clear()

    def forget_missing(self) -> None:
        """What was not there may have come since."""
        for key in [key for key, uid in self._groups.items() if not uid]:
            del self._groups[key]

    # --- groups whose pods could be called like others' -----------------------------------------

    def note_rivals(self, groups: Iterable[Object]) -> None:
        """These groups are there: what comes is held against them."""
        for group in groups:
            if isinstance(group, PodGroup):
                # No more than what their pods are called by.
                slim = PodGroup(metadata=group.metadata, spec=group.spec)
                self._rivals[key_of(group)] = slim

    def free_names(self, group: PodGroup) -> tuple[Write, ...]:
        """As `podnames.free_names`, without asking the store: of whom nothing is known must not be
        there when the group is written.

        Raises Rejected.
        """
        keys = rivals(group)
        for key in keys:
            if key in self._rivals:
                check_apart(group, self._rivals[key])
        return tuple(must_not_be_there(key) for key in keys if key not in self._rivals)

    # --- as a Reader ----------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> Object | None:
        """The object, as far as new groups refer to it: of a group, no more than its identity.

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
        """All objects of a kind. Raises StoreUnavailable."""
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

    # --- what is written ------------------------------------------------------------------------

    def check(self, group: PodGroup) -> tuple[str, ...]:
        """The admission checks of the group's queue, which is there, as is its priority class.

        Raises NotFound, Rejected, StoreUnavailable.
        """
        place = group.spec.queue, group.spec.priority_class_name
        checks = self._accepted.get(place)
        if checks is None:
            check_references(self, group, None, described=False)
            checks = checks_for(self, group.spec.queue)
            self._accepted[place] = checks
        return checks

    def submission(self, group: PodGroup, *, now_ms: int, uid: str, by: str) -> Transaction:
        """As `create` of a group that is right by itself and whose name is free.

        Raises NotFound (a name in it stands for nothing), Rejected, StoreUnavailable.
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


# --- what is there already ------------------------------------------------------------------------


def check_same(stored: PodGroup, wanted: PodGroup) -> None:
    """Whether somebody who submits `wanted` may take `stored`, of the same name, for it.

    What has happened since does not count: gates that were opened, suspended and resumed.
    Raises Conflict, which names what differs.
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
    """Without gates, and without what batchq has filled in."""
    return structs.replace(
        spec,
        scheduling_gates=(),
        tasks=tuple(with_task_gates(task, ()) for task in spec.tasks),
        depends_on=tuple(structs.replace(one, uid="") for one in spec.depends_on),
    )
