"""What pods do in virtual time: start at once, run as long as their template says, stop when told.

The place of the agents. A pod's end frees its node in the same transaction, as an agent's report
does; a pod that was told to stop ends when its grace is over, as Evicted, or as Failed when its
walltime had passed. Pods on a node that has fallen silent are not heard of any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Node, Pod, full_name
from batchq.api.reasons import Finish, Leaving
from batchq.api.transaction import Transaction
from batchq.errors import Conflict, NotFound
from batchq.ports import Clock, IdSource
from batchq.sim import podlife
from batchq.sim.clock import whole_second
from batchq.sim.podlife import grace_over_at
from batchq.sim.runtime import runtime_of
from batchq.sim.writing import write
from batchq.store.memory import MemoryStore


class Execution:
    """All nodes of the world; owns nothing but the way to its store."""

    def __init__(self, store: MemoryStore, clock: Clock, requests: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._requests = requests

    # --- by themselves ---------------------------------------------------------------------

    def start_bound(self) -> None:
        """Bound -> Running takes no time."""
        for pod in self._on_nodes():
            if pod.status.phase == PodPhase.BOUND and not pod.status.terminating:
                self._write(podlife.start(pod, now_ms=self._clock.now_ms()))
        self._store.delivered(self._store.outbox())

    def end_due(self) -> None:
        """First the pods whose work is done by now, then those whose grace is over."""
        now_ms = self._clock.now_ms()
        for pod in self._on_nodes():
            done_at = self._done_at(pod)
            if done_at is not None and done_at <= now_ms:
                self._write(podlife.end(pod, PodPhase.SUCCEEDED, now_ms=now_ms, exit_code=0))
        for pod in self._on_nodes():
            over_at = grace_over_at(pod)
            if over_at is not None and over_at <= now_ms:
                self._write(podlife.stop(pod, now_ms=now_ms))

    def next_end_at(self) -> int | None:
        """When the next pod ends by itself; None if none does."""
        instants = (
            at
            for pod in self._on_nodes()
            for at in (self._done_at(pod), grace_over_at(pod))
            if at is not None
        )
        return min(instants, default=None)

    # --- from outside ----------------------------------------------------------------------

    def finish_pod(self, name: str, exit_code: int) -> None:
        """A running pod's process ends with `exit_code`; one that was told to stop has stopped.

        Raises NotFound or Conflict.
        """
        pod, now_ms = self._running(name), self._clock.now_ms()
        if pod.status.terminating:
            self._write(podlife.stop(pod, now_ms=now_ms))
            return
        phase = PodPhase.FAILED if exit_code else PodPhase.SUCCEEDED
        message = f"exited with {exit_code}" if exit_code else ""
        self._write(podlife.end(pod, phase, now_ms=now_ms, exit_code=exit_code, message=message))

    def lose_pods_on(self, node: str) -> None:
        """Every pod on the node is Evicted at once."""
        for pod in self._on_nodes():
            if pod.status.node == node:
                reason = pod.status.reason if pod.status.terminating else Leaving.NODE_LOST
                overdue = reason == Finish.WALLTIME_EXCEEDED
                phase = PodPhase.FAILED if overdue else PodPhase.EVICTED
                now_ms = self._clock.now_ms()
                self._write(podlife.end(pod, phase, now_ms=now_ms, reason=reason))

    # ----------------------------------------------------------------------------------------

    def _on_nodes(self) -> Iterator[Pod]:
        for pod in self._store.list("Pod"):
            if isinstance(pod, Pod) and pod.status.phase in ON_NODE:
                yield pod

    def _running(self, name: str) -> Pod:
        namespace = name.partition("/")[0]
        there = [
            pod
            for pod in self._store.list("Pod", namespace=namespace)
            if isinstance(pod, Pod) and full_name(pod) == name
        ]
        if not there:
            raise NotFound(
                f"there is no Pod {name} at that moment",
                hint="pods are called <group>-<task>-<index>, and exist once their group is"
                " admitted",
            )
        # Two admissions of a group may both have a pod of this name: the live one is meant.
        running = [pod for pod in there if pod.status.phase in ON_NODE]
        if not running:
            raise Conflict(f"Pod {name} is {there[-1].status.phase} at that moment: it cannot end")
        return min(running, key=lambda pod: pod.status.terminating)

    def _done_at(self, pod: Pod) -> int | None:
        """When the pod succeeds by itself."""
        status, runtime = pod.status, runtime_of(pod.metadata.annotations)
        if runtime is None or status.started_at is None or status.terminating:
            return None
        node = self._store.get("Node", status.node)
        if isinstance(node, Node) and not node.status.ready:
            return None
        return whole_second(status.started_at + runtime)

    def _write(self, transaction: Transaction) -> None:
        write(self._store, self._requests, transaction)
