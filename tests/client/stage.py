"""A server, a scheduler that runs sessions on request, and pods controlled by the test.

There is no worker: a pod starts and ends when the test writes what an agent would write.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node, Object, Pod, PodGroup, Queue, key_of
from batchq.api.transaction import Charge, Transaction, Write
from batchq.assembly import assemble
from batchq.client import Client
from batchq.config import SchedulerConfig
from batchq.scheduler.cycle import Cycle
from batchq.store.redis import RedisStore
from batchq.store.schedulers import publish_object_limit
from batchq.system import RandomIds
from tests.builders import a_node, a_queue


class Stage:
    """A test environment: one store for the scheduler and the pods, another for the client."""

    def __init__(self, store: RedisStore, client: Client) -> None:
        self.store = store
        self.client = client
        self._ids = RandomIds()
        scheduler = assemble(SchedulerConfig())
        self._cycle = Cycle(store, scheduler, store, self._ids)
        self._epoch = store.lead("stage", 60_000)

    def furnish(self, *objects: Object) -> None:
        """Store these objects; a node stays ready for as long as a test lasts."""
        self.client.apply(objects)
        for item in objects:
            if isinstance(item, Node):
                self.store.beat(item.metadata.name, self.store.run_id())

    def lead_again(self) -> None:
        """Take the lead again after a restart of the server, which has forgotten the leader."""
        self._epoch = self.store.lead("stage", 60_000)

    def allow_groups(self, most: int) -> None:
        """Set the number of unfinished groups per namespace, as the scheduler does."""
        assert self._epoch is not None
        publish_object_limit(self.store, most, request_id=self._ids.new_uid(), epoch=self._epoch)

    def turn(self) -> None:
        """Run sessions until nothing is left to decide."""
        for _ in range(10):
            if not self._cycle.run_once(self._epoch).intents:
                return

    def start(self, group: str) -> None:
        """Start all bound pods of a group, and let the scheduler apply that."""
        for pod in self._pods(group, PodPhase.BOUND):
            self._write(pod, phase=PodPhase.RUNNING, started_at=self.store.now_ms())
        self.turn()

    def end(
        self, group: str, exit_code: int = 0, *, most: int | None = None, message: str = ""
    ) -> None:
        """End running pods of a group (all, or the first few), and let the scheduler apply that."""
        phase = PodPhase.SUCCEEDED if exit_code == 0 else PodPhase.FAILED
        for pod in self._pods(group, PodPhase.RUNNING)[:most]:
            ends = PodPhase.EVICTED if pod.status.terminating else phase
            self._write(
                pod,
                phase=ends,
                exit_code=exit_code,
                terminating=False,
                failures=int(ends is PodPhase.FAILED),
                message=message,
                finished_at=self.store.now_ms(),
            )
        self.turn()

    def exceed_walltime(self, group: str) -> None:
        """End the running pods of a group as a node does at their walltime."""
        for pod in self._pods(group, PodPhase.RUNNING):
            self._write(
                pod,
                phase=PodPhase.FAILED,
                reason="WalltimeExceeded",
                exit_code=143,
                signal=15,
                failures=1,
                message="killed by signal 15 (SIGTERM)",
                finished_at=self.store.now_ms(),
            )
        self.turn()

    def run(self, group: str, exit_code: int = 0) -> None:
        """Run a group from submission to its end."""
        self.turn()
        self.start(group)
        self.end(group, exit_code)

    def erase(self, group: str) -> None:
        """Remove a group's record, whatever its phase."""
        key = f"default/{group}"
        item = self.store.get("PodGroup", key)
        assert item is not None
        write = Write(kind="PodGroup", key=key, expect=item.metadata.revision, value=None)
        gone = Transaction(subject=key, writes=(write,))
        assert not self.store.commit([gone], request_id=self._ids.new_uid()).refused

    def pods(self, group: str) -> list[Pod]:
        """Return the pods of a group in namespace default, by name."""
        found = [pod for pod in self.store.list("Pod") if isinstance(pod, Pod)]
        mine = [pod for pod in found if pod.spec.pod_group == group]
        return sorted(mine, key=lambda pod: pod.metadata.name)

    def phase(self, group: str) -> str:
        """Return a group's phase."""
        item = self.store.get("PodGroup", f"default/{group}")
        assert isinstance(item, PodGroup)
        return str(item.status.phase)

    def names(self) -> list[str]:
        """Return the name and revision of every stored object, to compare before and after."""
        return [
            f"{kind} {key_of(item)} {item.metadata.revision}"
            for kind in ("Queue", "ResourceQuota", "Node", "PriorityClass", "PodGroup", "Pod")
            for item in self.store.list(kind)
        ]

    def _pods(self, group: str, phase: PodPhase) -> list[Pod]:
        return [pod for pod in self.pods(group) if pod.status.phase is phase]

    def _write(self, pod: Pod, **status: Any) -> None:
        after = structs.replace(pod, status=structs.replace(pod.status, **status))
        key = key_of(pod)
        ended = after.status.phase not in (PodPhase.BOUND, PodPhase.RUNNING)
        transaction = Transaction(
            subject=key,
            writes=(Write(kind="Pod", key=key, expect=pod.metadata.revision, value=after),),
            charges=(Charge(holder=f"pod:{key}"),) if ended else (),
        )
        commit = self.store.commit([transaction], request_id=self._ids.new_uid())
        assert not commit.refused, commit.refused


def a_cluster(cpu: int = 8) -> tuple[Queue, Node]:
    """Return the default queue, and one node."""
    return a_queue(), a_node("n1", cpu=cpu, memory="16Gi")
