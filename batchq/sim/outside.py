"""Carrying out a Timeline: what people and machines do to the world while it runs.

People's requests go through `batchq.changes`, so that what apply refuses is refused here. Two
things are said in one word that take two steps on a live system: deleting a group that has not
finished cancels it first, and takes it away when its pods have ended; deleting a node takes it
down first.
"""

from __future__ import annotations

from msgspec import structs

from batchq import changes
from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.objects import Node, Object, Pod, PodGroup
from batchq.api.transaction import Event, Transaction
from batchq.errors import BatchqError, Conflict, InvalidInput, NotFound, Rejected
from batchq.ports import Clock, IdSource
from batchq.sim.execution import Execution
from batchq.sim.timeline import (
    Apply,
    Deed,
    Delete,
    FailNode,
    FailPod,
    FinishPod,
    OpenGate,
    RecoverNode,
    Resume,
    SetCheck,
    Step,
    Suspend,
)
from batchq.sim.writing import write
from batchq.store.memory import MemoryStore


class Outside:
    """Those who act on the world; owns the list of groups that are to go once they have ended."""

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        ids: IdSource,
        requests: IdSource,
        execution: Execution,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._requests = requests
        self._execution = execution
        self._leaving: list[str] = []
        self.refused: list[str] = []

    def carry_out(self, step: Step) -> None:
        """Do what the step says; one that the rules refuse is kept in `refused`.

        So it would be to a person, and the world goes on. Raises InvalidInput, with the step's
        place, for one that means nothing: a name that nobody bears, a value that is none.
        """
        where = f"{step.where}: {_verb(step.deed)} at {step.after_ms // 1000}s"
        try:
            self._do(step.deed)
        except (Conflict, Rejected) as problem:
            self.refused.append(f"{where}: {problem.message}")
        except BatchqError as problem:
            raise InvalidInput(f"{where}: {problem.message}", hint=problem.hint) from None

    def take_away(self) -> None:
        """Delete the groups that were to go, as soon as their last pod has ended."""
        for key in list(self._leaving):
            group = self._store.get("PodGroup", key)
            if not isinstance(group, PodGroup):
                self._leaving.remove(key)
            elif group.status.phase in TERMINAL and not self._still_runs(group):
                self._leaving.remove(key)
                self._write(changes.delete(self._store, "PodGroup", key, now_ms=self._now_ms()))

    # --- deeds -----------------------------------------------------------------------------

    def _do(self, deed: Deed) -> None:
        store, now_ms = self._store, self._now_ms()
        match deed:
            case Apply(obj):
                self._apply(obj)
            case Delete(kind, key):
                self._delete(kind, key)
            case OpenGate(group, gate, task):
                self._write(changes.open_gate(store, group, gate, task=task, now_ms=now_ms))
            case SetCheck():
                self._answer(deed)
            case Suspend(group):
                self._write(changes.suspend(store, group, now_ms=now_ms))
            case Resume(group):
                self._write(changes.resume(store, group, now_ms=now_ms))
            case FailNode(node):
                self._fail_node(node)
            case RecoverNode(node):
                self._set_ready(self._node(node), ready=True)
            case FinishPod(pod):
                self._execution.finish_pod(pod, 0)
            case FailPod(pod, exit_code):
                self._execution.finish_pod(pod, exit_code)

    def _answer(self, deed: SetCheck) -> None:
        answer = (deed.group, deed.check, deed.status, deed.reason, deed.message)
        self._write(changes.set_check(self._store, *answer, now_ms=self._now_ms()))

    def _apply(self, obj: Object) -> None:
        uid = obj.metadata.uid or self._ids.new_uid()
        self._write(changes.apply(self._store, obj, now_ms=self._now_ms(), uid=uid, described=True))

    def _delete(self, kind: str, key: str) -> None:
        obj = self._store.get(kind, key)
        if isinstance(obj, PodGroup):
            if obj.status.phase not in TERMINAL:
                self._write(changes.cancel(self._store, key, now_ms=self._now_ms()))
            self._leaving.append(key)
            self.take_away()
            return
        if isinstance(obj, Node):
            self._fail_node(key)
        self._write(changes.delete(self._store, kind, key, now_ms=self._now_ms()))

    def _fail_node(self, name: str) -> None:
        self._set_ready(self._node(name), ready=False)
        self._execution.lose_pods_on(name)

    # ----------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        node = self._store.get("Node", name)
        if not isinstance(node, Node):
            there = ", ".join(item.metadata.name for item in self._store.list("Node"))
            raise NotFound(f"there is no Node {name}", hint=f"nodes: {there or 'none'}")
        return node

    def _set_ready(self, node: Node, *, ready: bool) -> None:
        """A node that fails was heard of until now; a described node that is well needs no beat."""
        now_ms = self._now_ms()
        status = structs.replace(node.status, ready=ready, heartbeat=None if ready else now_ms)
        event = Event(
            kind="Node",
            key=node.metadata.name,
            reason="Ready" if ready else "NotReady",
            at=now_ms,
        )
        new = structs.replace(node, status=status)
        self._write(changes.put_node(new, expect=node.metadata.revision, event=event))

    def _still_runs(self, group: PodGroup) -> bool:
        return group.status.claim.is_open or any(
            isinstance(pod, Pod)
            and pod.status.group_uid == group.metadata.uid
            and pod.status.phase in ON_NODE
            for pod in self._store.list("Pod", namespace=group.metadata.namespace)
        )

    def _write(self, transaction: Transaction | None) -> None:
        write(self._store, self._requests, transaction)

    def _now_ms(self) -> int:
        return self._clock.now_ms()


def _verb(deed: Deed) -> str:
    """As it is written in a Timeline: `failNode`."""
    name = type(deed).__name__
    return name[0].lower() + name[1:]
