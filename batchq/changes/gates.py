"""Opening scheduling gates, and what an edit may do to them: they only ever go.

Who opened which gate, and when, is kept with the group: an event is gone after a while, and a gate
may be looked for weeks later. Who set them is who submitted the group, since nobody can add one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from batchq.api.gates import Gate, gates_of, with_task_gates, without_gates
from batchq.api.lifecycle import TERMINAL
from batchq.api.names import counted
from batchq.api.objects import OpenedGate, Pod, PodGroup, SchedulingGate, Task, key_of
from batchq.api.transaction import Event, Transaction, Write
from batchq.changes.lookup import find, instead, title
from batchq.changes.records import put
from batchq.errors import Conflict, NotFound
from batchq.ports import Reader

#: So many gates are named in one event.
_MOST_NAMED = 16


def open_gate(
    reader: Reader, key: str, gate: str, *, now_ms: int, task: str = "", by: str = ""
) -> Transaction | None:
    """Open one scheduling gate of a group; when the last is open, the group stands in line.

    Without a `task` the group's own gate of that name, or else those in the templates of its
    tasks. None if it has been opened already: several may see to the same gate, and one whose
    answer was lost asks again.
    Raises NotFound if there is no such group, task or gate, or Conflict if it has finished already.
    """
    group = _unfinished(reader, key)
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
    group = _unfinished(reader, key)
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
    return (_event(new, opened, now_ms, by),) if opened else ()


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


def _unfinished(reader: Reader, key: str) -> PodGroup:
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
    event = _event(new, opened, now_ms, by)
    return put(reader, new, expect=group.metadata.revision, event=event)


def _opened_on_pods(
    reader: Reader, group: PodGroup, pods: Sequence[Pod], gate: str, now_ms: int, by: str
) -> Transaction:
    """A gate of single pods, which only a described world has."""
    opened = [Gate(task, gate) for task in dict.fromkeys(pod.spec.task for pod in pods)]
    new = _noted(group, opened, now_ms, by)
    event = _event(new, opened, now_ms, by)
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


def _event(group: PodGroup, opened: Sequence[Gate], now_ms: int, by: str) -> Event:
    named = [
        f"{gate.name} of task {gate.task}" if gate.task else gate.name
        for gate in opened[:_MOST_NAMED]
    ]
    more = f" and {len(opened) - _MOST_NAMED} more" if len(opened) > _MOST_NAMED else ""
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
