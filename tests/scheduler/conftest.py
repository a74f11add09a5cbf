"""A small stack without processes: a store, a clock under the test's control, and a cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node, Object, Pod, PodGroup
from batchq.api.transaction import Charge, Event, Transaction, Write
from batchq.assembly import assemble
from batchq.client import changes
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.scheduler.cycle import Cycle, CycleReport, Scheduler
from batchq.store.memory import MemoryStore
from batchq.store.redis import RedisStore
from batchq.system import CountingIds
from tests.harness.server import Server

_set = msgspec.structs.replace


class DrivenClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def now_ms(self) -> int:
        return self.at_ms


class InTouch(RedisStore):
    """A store that was never out of contact, because its server's clock is not the test's."""

    def snapshot(self) -> Snapshot:
        return _set(super().snapshot(), standing=ContactStanding())


class Stack:
    """The actions of a client, an agent and the scheduler on the store."""

    def __init__(self, store: MemoryStore | RedisStore, config: SchedulerConfig) -> None:
        self.store = store
        self.clock = DrivenClock()
        self.ids = CountingIds()
        self._cycle = Cycle(store, assemble(config), self.clock, self.ids)

    def go_by(self, scheduler: Scheduler) -> None:
        self._cycle.go_by(scheduler)

    def apply(self, *objects: Object) -> None:
        for item in objects:
            transaction = changes.apply(
                self.store, item, now_ms=self.clock.at_ms, uid=self.ids.new_uid()
            )
            assert transaction is not None
            self.commit(transaction)

    def ready(self, *nodes: Node) -> None:
        for node in nodes:
            stored = self.store.get("Node", node.metadata.name)
            event = Event(kind="Node", key=node.metadata.name, reason="Ready")
            expect = 0 if stored is None else stored.metadata.revision
            self.commit(changes.put_node(node, expect=expect, event=event))

    def commit(self, transaction: Transaction | None) -> None:
        assert transaction is not None
        commit = self.store.commit([transaction], request_id=self.ids.new_uid())
        assert commit.refused == ()

    def turn(self, *, writes_status: bool = True) -> CycleReport:
        return self._cycle.run_once(writes_status=writes_status)

    def until_idle(self) -> list[CycleReport]:
        reports = [self.turn()]
        while reports[-1].intents:
            assert len(reports) < 10
            reports.append(self.turn())
        return reports

    def group(self, name: str) -> PodGroup:
        found = self.store.get("PodGroup", f"default/{name}")
        assert isinstance(found, PodGroup)
        return found

    def pods(self, phase: PodPhase | None = None) -> list[Pod]:
        pods = [pod for pod in self.store.list("Pod") if isinstance(pod, Pod)]
        return [pod for pod in pods if phase is None or pod.status.phase == phase]

    def start_pods(self) -> None:
        """Start every bound pod, as its node would."""
        for pod in self.pods(PodPhase.BOUND):
            self.move(pod, phase=PodPhase.RUNNING, started_at=self.clock.at_ms)

    def end_pods(self, phase: PodPhase = PodPhase.SUCCEEDED, **status: Any) -> None:
        """End every running pod."""
        for pod in self.pods(PodPhase.RUNNING):
            self.move(pod, phase=phase, finished_at=self.clock.at_ms, **status)

    def move(self, pod: Pod, **changed: Any) -> None:
        moved = _set(pod, status=_set(pod.status, **changed))
        uid = pod.metadata.uid
        holds = moved.status.phase == PodPhase.RUNNING
        self.commit(
            Transaction(
                subject=uid,
                writes=(Write(kind="Pod", key=uid, expect=pod.metadata.revision, value=moved),),
                charges=() if holds else (Charge(holder=f"pod:{uid}"),),
            )
        )


@pytest.fixture
def in_touch(server: Server) -> Iterator[InTouch]:
    store = InTouch(server.url)
    yield store
    store.close()


@pytest.fixture(params=["memory", "real"])
def make_stack(request: pytest.FixtureRequest) -> Callable[..., Stack]:
    def made(config: SchedulerConfig | None = None) -> Stack:
        store: MemoryStore | RedisStore = MemoryStore()
        if request.param == "real":
            store = request.getfixturevalue("in_touch")
        return Stack(store, config or SchedulerConfig())

    return made


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    return make_stack()
