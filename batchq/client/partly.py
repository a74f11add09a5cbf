"""Pods of an admitted group that wait by themselves: gates of their task hold them back.

The group runs, or is about to, with the pods that it has without them; nothing stands against it,
and so the scheduler writes no reason down.
"""

from __future__ import annotations

from batchq.api.lifecycle import ADMITTED
from batchq.api.names import counted
from batchq.api.objects import Task
from batchq.api.reasons import Verdict, Waiting
from batchq.framework.panel import GATES
from batchq.framework.state import GroupState


def gated_pods(group: GroupState) -> tuple[Verdict, ...]:
    """One verdict for each task of an admitted group whose pods wait for gates; `subject` is the
    task's name.
    """
    if group.phase not in ADMITTED or not group.gates_hold:
        return ()
    reason = Waiting.SCHEDULING_GATED
    return tuple(
        Verdict(plugin=GATES, reason=reason, subject=shape.task.name, detail=_said(shape.task))
        for shape in group.tasks
        if shape.gated and shape.task.replicas
    )


def gates_of_task(group: GroupState, task: str) -> tuple[str, ...]:
    """The names of the gates in the template of a task."""
    shape = group.shape.by_task.get(task)
    return () if shape is None else tuple(one.name for one in shape.task.template.scheduling_gates)


def _said(task: Task) -> str:
    names = ", ".join(gate.name for gate in task.template.scheduling_gates)
    kind = "gate" if len(task.template.scheduling_gates) == 1 else "gates"
    wait = "waits" if task.replicas == 1 else "wait"
    return f"{counted(task.replicas, 'pod')} of task {task.name} {wait} for {kind} {names}"
