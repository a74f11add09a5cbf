"""A small stack in memory, without threads, whose sessions feed the daemon's metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from prometheus_client.exposition import generate_latest

from batchq.api.objects import PodGroup, SchedulingGate
from batchq.api.transaction import Transaction, Write
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.daemon.metrics import Metrics
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.store.memory import MemoryStore
from batchq.store.outage import Outage
from tests.builders import a_group
from tests.daemon.scrapes import Scrape
from tests.scheduler.conftest import Stack

_set = msgspec.structs.replace


GATE = (SchedulingGate(name="budget"),)


class Watched(Stack):
    """A small stack in memory with metrics."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, SchedulerConfig())
        # Gauges are updated after every session, however soon it follows another.
        self.metrics = Metrics(levels_every_s=0, clock=lambda: self.clock.at_ms / 1000)
        self.outage = Outage()
        self.epoch: int | None = 7
        scheduler = replace(assemble(SchedulerConfig()), instrument=self.metrics.stopwatch)
        self._cycle = Cycle(store, scheduler, self.clock, self.ids)
        self.metrics.follow(
            epoch=lambda: self.epoch,
            revision=lambda: 42,
            config_hash=lambda: "0badcafe",
            unreadable=lambda: {"PodGroup": 1},
            mended=lambda: 3,
            outage=self.outage,
        )

    def turn(self) -> CycleReport:
        report = super().turn()
        self.metrics.observed(report)
        return report

    def submit(self, name: str, replicas: int = 1, **spec: Any) -> None:
        self.apply(with_command(a_group(name, replicas, **spec)))

    def delete(self, kind: str, key: str) -> None:
        stored = self.store.get(kind, key)
        assert stored is not None
        write = Write(kind=kind, key=key, expect=stored.metadata.revision, value=None)
        self.commit(Transaction(subject=key, writes=(write,)))

    def later(self, milliseconds: int) -> None:
        self.clock.at_ms += milliseconds

    def scrape(self) -> Scrape:
        return Scrape(generate_latest(self.metrics.registry).decode())


def with_command(group: PodGroup) -> PodGroup:
    tasks = tuple(
        _set(task, template=_set(task.template, command=("true",))) for task in group.spec.tasks
    )
    return _set(group, spec=_set(group.spec, tasks=tasks))


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def put(watched: Watched, kind: str, key: str, value: Any) -> None:
    write = Write(kind=kind, key=key, expect=value.metadata.revision, value=value)
    watched.commit(Transaction(subject=key, writes=(write,)))
