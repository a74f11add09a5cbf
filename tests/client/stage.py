"""A server, a scheduler that takes a turn when told to, and pods that do as they are told.

No worker: a pod is started and ended by writing what an agent would have written.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node, Object, Pod, PodGroup, Queue, key_of
from batchq.api.transaction import Charge, Transaction, Write
from batchq.assembly import assemble
from batchq.client import Client
from batchq.config.model import SchedulerConfig
from batchq.scheduler.cycle import Cycle
from batchq.store.redis import RedisStore
from batchq.store.schedulers import publish_object_limit
from batchq.system import RandomIds
from tests.builders import a_node, a_queue


class Stage:
    """One store for the scheduler and the pods, another for the client."""

    def __init__(self, store: RedisStore, client: Client) -> None:
        self.store = store
        self.client = client
        self._ids = RandomIds()
        scheduler = assemble(SchedulerConfig())
        self._cycle = Cycle(store, scheduler, store, self._ids)
        self._epoch = store.lead("stage", 60_000)

    def furnish(self, *objects: Object) -> None:
        """Put these objects on the stage; a node stays ready for as long as a test lasts."""
        self.client.apply(objects)
        for item in objects:
            if isinstance(item, Node):
                self.store.beat(item.metadata.name, self.store.run_id())

    def lead_again(self) -> None:
        """A server that was started anew has forgotten who leads."""
        self._epoch = self.store.lead("stage", 60_000)

    def allow_groups(self, most: int) -> None:
        """So many unfinished groups each namespace may have from now on, as the scheduler says."""
        assert self._epoch is not None
        publish_object_limit(self.store, most, request_id=self._ids.new_uid(), epoch=self._epoch)

    def turn(self) -> None:
        """The scheduler takes turns until nothing is left to decide."""
        for _ in range(10):
            if not self._cycle.run_once(self._epoch).intents:
                return

    def start(self, group: str) -> None:
        """All bound pods of a group start, and the scheduler notices."""
        for pod in self._pods(group, PodPhase.BOUND):
            self._write(pod, phase=PodPhase.RUNNING, started_at=self.store.now_ms())
        self.turn()

    def end(
        self, group: str, exit_code: int = 0, *, most: int | None = None, message: str = ""
    ) -> None:
        """Running pods of a group end (all, or the first few), and the scheduler notices."""
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

    def run(self, group: str, exit_code: int = 0) -> None:
        """From submission to the end."""
        self.turn()
        self.start(group)
        self.end(group, exit_code)

    def erase(self, group: str) -> None:
        """Take a group's record away, whatever its phase."""
        key = f"default/{group}"
        item = self.store.get("PodGroup", key)
        assert item is not None
        write = Write(kind="PodGroup", key=key, expect=item.metadata.revision, value=None)
        gone = Transaction(subject=key, writes=(write,))
        assert not self.store.commit([gone], request_id=self._ids.new_uid()).refused

    def pods(self, group: str) -> list[Pod]:
        """The pods of a group in namespace default, by name."""
        found = [pod for pod in self.store.list("Pod") if isinstance(pod, Pod)]
        mine = [pod for pod in found if pod.spec.pod_group == group]
        return sorted(mine, key=lambda pod: pod.metadata.name)

    def phase(self, group: str) -> str:
        """A group's phase."""
        item = self.store.get("PodGroup", f"default/{group}")
        assert isinstance(item, PodGroup)
        return str(item.status.phase)

    def names(self) -> list[str]:
        """Everything that is stored, with its revision: equal before and after, if nothing was."""
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
    """The default queue, and one node."""
    return a_queue(), a_node("n1", cpu=cpu, memory="16Gi")
