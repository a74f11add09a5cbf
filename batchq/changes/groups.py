"""What a PodGroup may refer to, and what of it may still be edited.

The rules: names in `dependsOn` are bound to uids at submission, missing and cyclic ones are
refused; a spec may be edited while the group is Pending and nothing is reserved, the queue only
while it is gated; gates only ever go; they, suspension and priority class may change always.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from msgspec import structs

from batchq.api.gates import is_gated
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import DEFAULT, CheckState, PodGroup, PodGroupSpec, Queue
from batchq.changes.gates import check_only_go, only_gates_differ
from batchq.changes.lookup import few, instead, title
from batchq.errors import Conflict, NotFound, Rejected
from batchq.framework.tree import ROOT, QueueTree
from batchq.ports import Reader

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
