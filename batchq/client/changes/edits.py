"""Creating, updating and deleting objects, and the summary of an edit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError

from msgspec import Struct, structs

from batchq.api import validation
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.notation import counted
from batchq.api.objects import (
    BY_ANNOTATION,
    DEFAULT,
    KINDS,
    PARENT_ANNOTATION,
    AdmissionCheck,
    AdmissionCheckStatus,
    Dependency,
    Metadata,
    Node,
    NodeStatus,
    Object,
    Pod,
    PodGroup,
    PodGroupStatus,
    PriorityClass,
    Queue,
    ResourceQuota,
    SchedulingGate,
    full_name,
    key_of,
    kind_of,
    with_task_gates,
)
from batchq.api.resources import describe_quantity
from batchq.api.transaction import Charge, Event, Transaction, Write
from batchq.client.changes.groups import (
    bind_dependencies,
    check_edit,
    check_references,
    circular,
    dependency_order,
    free_names,
    in_stored_gate_order,
    opening_events,
    with_checks,
    with_opened,
)
from batchq.client.changes.object_writes import find, object_charge, put, remove, title
from batchq.client.changes.queue_rules import parents_first, settled
from batchq.core.eligibility import WANTED
from batchq.core.quota import ROOT
from batchq.core.quota.ledger import holders_in_store
from batchq.errors import Conflict, Rejected
from batchq.ports import Reader

_MOST_DIFFERENCES_NAMED = 8


def differences(old: object, new: object) -> str:
    """Return the differences of two queues or quotas by field and resource, for the line that
    `apply` prints and for the event: `deserved cpu 4 -> unstated, weight 1 -> 2`. "" for equal
    ones, and for other kinds.
    """
    kinds = Queue | ResourceQuota
    if type(old) is not type(new) or not isinstance(old, kinds) or not isinstance(new, kinds):
        return ""
    fields = _fields("", old.spec, new.spec)
    found = [*fields, *_metadata_differences(old.metadata, new.metadata)]
    more = len(found) - _MOST_DIFFERENCES_NAMED
    return ", ".join(found[:_MOST_DIFFERENCES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _fields(before: str, old: Struct, new: Struct) -> Iterator[str]:
    """Yield `preemption.borrowing Never -> 0`; fields in alphabetical order."""
    names = zip(old.__struct_encode_fields__, old.__struct_fields__, strict=True)
    for written, name in sorted(names):
        was, becomes = getattr(old, name), getattr(new, name)
        if was == becomes:
            continue
        if isinstance(was, Struct):
            yield from _fields(f"{before}{written}.", was, becomes)
        elif isinstance(was, dict):
            for resource in sorted({*was, *becomes}):
                if was.get(resource) != becomes.get(resource):
                    amounts = [_amount(resource, one.get(resource)) for one in (was, becomes)]
                    yield f"{before}{written} {resource} {' -> '.join(amounts)}"
        else:
            yield f"{before}{written} {_word(written, was)} -> {_word(written, becomes)}"


def _metadata_differences(old: Metadata, new: Metadata) -> Iterator[str]:
    for field in ("annotations", "labels"):
        if getattr(old, field) != getattr(new, field):
            yield field


def _amount(resource: str, units: int | None) -> str:
    return "unstated" if units is None else describe_quantity(resource, units)


def _word(field: str, value: object) -> str:
    """Return a value as a manifest states it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if field == "overcommit":
            return describe_quantity(field, value)
        case () if field == "namespaces":
            # Without the field, a queue accepts groups of every namespace.
            return "all"
        case tuple():
            return "+".join(map(str, value)) or "none"
        case None:
            return "unstated"
        case "" if field == "parent":
            return ROOT
        case _:
            return str(value)


#: Kinds in the order of their references: referenced objects come first.
_ORDER = ("PriorityClass", "AdmissionCheck", "Queue", "ResourceQuota", "Node", "PodGroup", "Pod")


def create(
    reader: Reader,
    obj: Object,
    *,
    now_ms: int,
    uid: str,
    described: bool = False,
    in_part: bool = False,
    by: str = "",
) -> Transaction:
    """Create an object; batchq sets its status, uid and time of creation.

    `by` is the requesting user, for later readers. Raises InvalidInput, NotFound (it names a
    missing object), Conflict (it exists) or Rejected.
    """
    validation.check(obj, described=described)
    if isinstance(obj, Pod):
        raise _pods_are_derived(obj)
    stored = reader.get(kind_of(obj), key_of(obj))
    if stored is not None:
        raise already_exists(stored)
    new = _stamped(obj, now_ms=now_ms, uid=uid, described=described)
    if not isinstance(new, PodGroup):
        _check_only_default(reader, new)
        transaction = put(reader, new, expect=0, event=_event(new, "Created", now_ms))
        return transaction if in_part else settled(reader, transaction)
    new = bind_dependencies(reader, new, None, described=described)
    check_references(reader, new, None, described=described)
    new = with_checks(reader, new)
    new = structs.replace(new, status=structs.replace(new.status, submitted_by=by))
    who = f" by {by}" if by else ""
    event = _event(new, "Submitted", now_ms, f"to queue {new.spec.queue}{who}")
    transaction = put(reader, new, expect=0, event=event, charges=(object_charge(new),))
    return _with_free_names(reader, new, transaction)


def update(
    reader: Reader,
    obj: Object,
    *,
    now_ms: int,
    described: bool = False,
    in_part: bool = False,
    by: str = "",
) -> Transaction | None:
    """Give a stored object the spec, labels and annotations of `obj`; its status stays, except for
    a note of the gates that the edit (`by` a user) opens.

    If `obj` states a revision, it must be the stored one. Raises InvalidInput, NotFound, Conflict
    (not in this state, or changed since it was read) or Rejected.
    """
    validation.check(obj, described=described)
    if isinstance(obj, Pod):
        raise _pods_are_derived(obj)
    stored = find(reader, type(obj), key_of(obj))
    revision = stored.metadata.revision
    if obj.metadata.revision not in (0, revision):
        raise Conflict(
            f"{title(stored)} has changed since it was read: it is at revision {revision},"
            f" and the edit is of {obj.metadata.revision}",
            hint="get it again and repeat the edit",
        )
    new = _with_stored_state(obj, stored)
    if isinstance(new, PodGroup) and isinstance(stored, PodGroup):
        new = bind_dependencies(
            reader, in_stored_gate_order(new, stored), stored, described=described
        )
        check_edit(stored, new)
        check_references(reader, new, stored, described=described)
    if new == stored:
        return None
    _check_only_default(reader, new)
    event = _event(new, "Updated", now_ms, differences(stored, new))
    of_gates: tuple[Event, ...] = ()
    if isinstance(new, PodGroup) and isinstance(stored, PodGroup):
        new = with_opened(new, stored, now_ms=now_ms, by=by)
        of_gates = opening_events(new, stored, now_ms=now_ms, by=by)
    transaction = put(reader, new, expect=revision, event=event)
    transaction = structs.replace(transaction, events=(*transaction.events, *of_gates))
    if isinstance(new, PodGroup) and isinstance(stored, PodGroup) and _other_pods(stored, new):
        transaction = _with_free_names(reader, new, transaction)
    return transaction if in_part else settled(reader, transaction)


def _other_pods(before: PodGroup, after: PodGroup) -> bool:
    """Return whether an edit could change the names of a group's pods."""
    return before.spec.tasks != after.spec.tasks


def _with_free_names(reader: Reader, group: PodGroup, transaction: Transaction) -> Transaction:
    """Return the transaction, on the condition that no other group's pods have this group's pod
    names.

    Raises Rejected if such a group exists.
    """
    conditions = free_names(reader, group)
    return structs.replace(transaction, writes=(*transaction.writes, *conditions))


def _cannot_hold(dependency: Dependency, other: PodGroup) -> bool:
    """Return whether a group has ended otherwise than a dependency on it wants."""
    completed = other.status.phase == PodGroupPhase.COMPLETED
    return other.status.phase in TERMINAL and (
        (dependency.condition == "ok" and not completed)
        or (dependency.condition == "failed" and completed)
    )


def as_submitted(
    stored: PodGroup, together: Collection[str], others: Mapping[str, PodGroup]
) -> PodGroup:
    """Return a group that has ended as it was submitted, to submit it again: the gates opened since
    are closed again, and it is not suspended.

    `together` are the keys of the groups that are submitted again with it. Of its dependencies, it
    keeps those, and all of them if it was never admitted; the others have held once. `others` are
    the groups that now have the names of its dependencies, by key.

    Raises Conflict if it has not ended, or would fail at once because of how these have ended.
    """
    meta, spec, status = stored.metadata, stored.spec, stored.status
    key = key_of(stored)
    if status.phase not in TERMINAL:
        raise Conflict(
            f"{title(stored)} is {status.phase}: only a group that has ended is submitted again",
            hint=f"`batchq wait {key}` waits for its end, `batchq cancel {key}` ends it",
        )
    outside = {
        f"{meta.namespace}/{one.name}": one
        for one in spec.depends_on
        if f"{meta.namespace}/{one.name}" not in together
    }
    never = [
        name
        for name, one in outside.items()
        if not status.admission and name in others and _cannot_hold(one, others[name])
    ]
    if never:
        first = outside[never[0]]
        raise Conflict(
            f"{title(stored)} would fail at once: it waits for"
            f" {first.name} {WANTED[first.condition]}, which is impossible now",
            hint="submit what it waits for again with it:"
            f" `batchq resubmit {' '.join([*never, key])}`",
        )
    kept = [one for one in spec.depends_on if not (status.admission and one in outside.values())]
    gates = {"": spec.scheduling_gates} | {
        task.name: task.template.scheduling_gates for task in spec.tasks
    }
    for opened in status.opened_gates:
        gate = SchedulingGate(name=opened.name)
        if opened.task in gates and gate not in gates[opened.task]:
            gates[opened.task] += (gate,)
    own = {PARENT_ANNOTATION, BY_ANNOTATION}
    return PodGroup(
        metadata=Metadata(
            name=meta.name,
            namespace=meta.namespace,
            labels=meta.labels,
            annotations={name: it for name, it in meta.annotations.items() if name not in own},
        ),
        spec=structs.replace(
            spec,
            scheduling_gates=gates[""],
            suspend=False,
            depends_on=tuple(structs.replace(one, uid="") for one in kept),
            tasks=tuple(with_task_gates(task, gates[task.name]) for task in spec.tasks),
        ),
    )


def apply(
    reader: Reader,
    obj: Object,
    *,
    now_ms: int,
    uid: str,
    described: bool = False,
    in_part: bool = False,
    by: str = "",
) -> Transaction | None:
    """Create a missing object, or update an existing one; None if nothing changes.

    Raises what `create` and `update` raise.
    """
    if isinstance(obj, Pod) or reader.get(kind_of(obj), key_of(obj)) is None:
        return create(
            reader, obj, now_ms=now_ms, uid=uid, described=described, in_part=in_part, by=by
        )
    return update(reader, obj, now_ms=now_ms, described=described, in_part=in_part, by=by)


def delete(
    reader: Reader, kind: str, key: str, *, now_ms: int, in_part: bool = False
) -> Transaction:
    """Delete an object, with its dependents: a finished group's pods are deleted with it.

    Raises NotFound, Conflict (something still needs it) or Rejected.
    """
    obj: Object = find(reader, KINDS[kind], key)
    event = _event(obj, "Deleted", now_ms)
    match obj:
        case PodGroup():
            return _delete_group(reader, obj, event)
        case Pod():
            raise _pods_are_derived(obj)
        case Queue():
            _check_queue_empty(reader, obj)
        case Node():
            _check_node_empty(reader, obj)
        case PriorityClass():
            _check_class_unused(reader, obj)
    transaction = remove(reader, obj, event=event)
    return transaction if in_part else settled(reader, transaction)


def in_order(objects: Sequence[Object]) -> list[Object]:
    """Return the objects of one request with referenced ones first, otherwise in their order.

    Raises Rejected if groups depend on each other in a circle.
    """
    groups = {key_of(item): item for item in objects if isinstance(item, PodGroup)}
    needs = {key: keys_needed(group) for key, group in groups.items()}
    depth: dict[str, int] = {}
    try:
        for key in dependency_order(needs):
            depth[key] = max(
                (depth[other] + 1 for other in needs[key] if other in needs), default=0
            )
    except CycleError as error:
        circle = error.args[1]
        raise circular(groups[circle[0]], [key.rpartition("/")[2] for key in circle]) from None
    level = parents_first(item for item in objects if isinstance(item, Queue))
    return sorted(
        objects, key=lambda item: (_ORDER.index(kind_of(item)), _place(item, depth, level))
    )


def found_defaults(reader: Reader, *, now_ms: int, uid: str) -> Transaction | None:
    """Return the creation of the queue `default`; None if it exists."""
    if reader.get("Queue", DEFAULT) is not None:
        return None
    return create(reader, Queue(metadata=Metadata(name=DEFAULT)), now_ms=now_ms, uid=uid)


def _stamped(obj: Object, *, now_ms: int, uid: str, described: bool) -> Object:
    meta = obj.metadata
    created_at = meta.creation_timestamp if described else None
    created_at = now_ms if created_at is None else created_at
    meta = structs.replace(
        meta,
        uid=(meta.uid if described else "") or uid,
        creation_timestamp=created_at,
        revision=0,
    )
    match obj:
        case PodGroup():
            return structs.replace(obj, metadata=meta, status=PodGroupStatus(queue_time=created_at))
        case AdmissionCheck():
            # Inactive until its controller renews it.
            state = obj.status if described else AdmissionCheckStatus(active=False)
            return structs.replace(obj, metadata=meta, status=state)
        case Node():
            status = obj.status if described else NodeStatus(ready=True, heartbeat=now_ms)
            return structs.replace(obj, metadata=meta, status=status)
        case _:
            return structs.replace(_with_short_parent(obj), metadata=meta)


def _with_short_parent(obj: Object) -> Object:
    """Normalise `parent: root` to no parent, which means the same."""
    if not isinstance(obj, Queue) or obj.spec.parent != ROOT:
        return obj
    return structs.replace(obj, spec=structs.replace(obj.spec, parent=""))


def _with_stored_state(obj: Object, stored: Object) -> Object:
    """Return the edit's spec, labels and annotations with the stored identity and status."""
    obj = _with_short_parent(obj)
    meta = structs.replace(
        stored.metadata, labels=obj.metadata.labels, annotations=obj.metadata.annotations
    )
    status = getattr(stored, "status", None)
    if status is None:
        return structs.replace(obj, metadata=meta)
    return structs.replace(obj, metadata=meta, status=status)


def _check_only_default(reader: Reader, obj: Object) -> None:
    """Raise Rejected for a second default priority class: only one can count."""
    if not isinstance(obj, PriorityClass) or not obj.spec.default:
        return
    for other in reader.list("PriorityClass"):
        if isinstance(other, PriorityClass) and other.spec.default and key_of(other) != key_of(obj):
            raise Rejected(
                f"{title(obj)}: spec.default: {title(other)} is the default already",
                hint="set its spec.default to false first",
            )


def _delete_group(reader: Reader, group: PodGroup, event: Event) -> Transaction:
    if group.status.phase not in TERMINAL:
        raise Conflict(
            f"{title(group)} is {group.status.phase}, and only finished groups can be deleted",
            hint=f"cancel it first: `batchq cancel {_short_name(group)}`",
        )
    pods = [pod for pod in _pods(reader, group.metadata.namespace) if _belongs(pod, group)]
    stopping = sum(pod.status.phase in ON_NODE for pod in pods)
    if stopping:
        raise Conflict(
            f"{title(group)} is {group.status.phase}, but {counted(stopping, 'pod')} of it"
            " must end first",
            hint="try again when they have ended",
        )
    claim = group.status.claim
    if claim.is_open:
        raise Conflict(
            f"{title(group)} is {group.status.phase}, but its consumer {claim.holder} must stop"
            " first",
            hint="try again when it has reported the end, or its claim has lapsed",
        )
    uid = group.metadata.uid
    holders = dict.fromkeys((f"object:{uid}", f"group:{uid}", *holders_in_store(group)))
    transaction = remove(reader, group, event=event)
    return structs.replace(
        transaction,
        writes=(*transaction.writes, *(_delete_pod(pod) for pod in pods)),
        charges=tuple(Charge(holder=holder) for holder in holders),
    )


def _delete_pod(pod: Pod) -> Write:
    return Write(kind="Pod", key=key_of(pod), expect=pod.metadata.revision, value=None)


def _belongs(pod: Pod, group: PodGroup) -> bool:
    return pod.status.group_uid == group.metadata.uid


def _pods(reader: Reader, namespace: str) -> list[Pod]:
    return [pod for pod in reader.list("Pod", namespace=namespace) if isinstance(pod, Pod)]


def _unfinished_groups(reader: Reader) -> list[PodGroup]:
    return [
        group
        for group in reader.list("PodGroup")
        if isinstance(group, PodGroup) and group.status.phase not in TERMINAL
    ]


def _check_queue_empty(reader: Reader, queue: Queue) -> None:
    name = queue.metadata.name
    if name == DEFAULT:
        raise Rejected(
            "Queue default always exists and cannot be deleted",
            hint="set its spec.stopPolicy to Hold to keep groups from starting",
        )
    count = sum(group.spec.queue == name for group in _unfinished_groups(reader))
    if count:
        raise Conflict(
            f"Queue {name} still has {counted(count, 'unfinished pod group')}",
            hint="wait for them or cancel them; stopPolicy: Hold keeps new ones from starting",
        )


def _check_node_empty(reader: Reader, node: Node) -> None:
    name = node.metadata.name
    count = sum(
        pod.status.node == name and pod.status.phase in ON_NODE for pod in _pods(reader, "")
    )
    if count:
        raise Conflict(
            f"Node {name} still runs {counted(count, 'pod')}",
            hint=f"drain it first: `batchq nodes drain {name}`",
        )


def _check_class_unused(reader: Reader, item: PriorityClass) -> None:
    name = item.metadata.name
    groups = _unfinished_groups(reader)
    count = sum(group.spec.priority_class_name == name for group in groups)
    if count:
        raise Conflict(
            f"PriorityClass {name} is still named by {counted(count, 'unfinished pod group')}",
            hint="wait for them or cancel them",
        )


def keys_needed(group: PodGroup) -> list[str]:
    """Return the keys of the groups that a group depends on."""
    namespace = group.metadata.namespace
    return [f"{namespace}/{dependency.name}" for dependency in group.spec.depends_on]


def _place(obj: Object, depth: Mapping[str, int], level: Mapping[str, int]) -> int:
    """Return the least number of objects of its kind that the object comes after."""
    match obj:
        case PodGroup():
            return depth[key_of(obj)]
        case Queue():
            return level[key_of(obj)]
        case _:
            return 0


def _event(obj: Object, reason: str, now_ms: int, message: str = "") -> Event:
    return Event(kind=kind_of(obj), key=key_of(obj), reason=reason, message=message, at=now_ms)


def already_exists(stored: Object) -> Conflict:
    """Return the refusal of a new object with the name of a stored one."""
    if isinstance(stored, PodGroup):
        name = _short_name(stored)
        free = (
            f"delete it first: `batchq delete podgroup {name}`, or omit the name"
            if stored.status.phase in TERMINAL
            else f"wait for it with `batchq wait {name}`, end it with `batchq cancel {name}`,"
            " or choose another name"
        )
        return Conflict(f"{title(stored)} exists already and is {stored.status.phase}", hint=free)
    return Conflict(f"{title(stored)} exists already", hint="use apply to change it")


def _short_name(group: PodGroup) -> str:
    """Return what people type for a group: its namespace only if it is not `default`."""
    return full_name(group).removeprefix(f"{DEFAULT}/")


def _pods_are_derived(pod: Pod) -> Rejected:
    return Rejected(
        f"{title(pod)}: batchq makes pods from the tasks of a PodGroup, and deletes them with it",
        hint="apply or cancel the PodGroup instead",
    )
