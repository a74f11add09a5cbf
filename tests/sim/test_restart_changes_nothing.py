"""A scheduler decides in each session what one that was started just now decides."""

from __future__ import annotations

import heapq
from itertools import count
from random import Random

import pytest

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.objects import (
    Metadata,
    Object,
    PodGroup,
    PodGroupSpec,
    Queue,
    QueuePreemption,
    QueueSpec,
    is_claimable,
    key_of,
    stop_reason_of,
)
from batchq.api.transaction import Transaction
from batchq.assembly import assemble
from batchq.client import changes
from batchq.client.changes import consumer_leases
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from batchq.scheduler.cycle import Cycle
from batchq.store.memory import MemoryStore
from batchq.system import CountingIds
from tests.builders import a_priority, amounts
from tests.effort import usually
from tests.scheduler.conftest import DrivenClock

#: Name, priority, cpus, duration in ms.
_SIZES = (("small", 50, 1, 150), ("medium", 100, 5, 350), ("large", 200, 20, 700))
_HOUR_S = 3_600
_ACTIONS = ("enqueue", "reclaim", "preempt")
_BY_SHARE = SchedulerConfig(actions=_ACTIONS)
_BY_USAGE = SchedulerConfig(
    actions=_ACTIONS, settings=Settings(half_life_ms=60_000, orders_by_usage=True)
)


class BusyQueues:
    """Queues that lend to each other below one limit, and consumers that run their groups."""

    def __init__(self, seed: int, config: SchedulerConfig) -> None:
        dice = Random(seed)
        cohorts, queues = dice.randint(2, 4), dice.randint(6, 12)
        self.store, self.clock, self.ids = MemoryStore(), DrivenClock(), CountingIds()
        self.cycle = Cycle(self.store, assemble(config), self.clock, self.ids)
        self.ms_a_session = dice.choice([20, 30, 40])
        limit = int(dice.uniform(0.4, 0.8) * cohorts * queues * 20)
        self.apply(
            Queue(metadata=Metadata(name="root"), spec=QueueSpec(capability=amounts(cpu=limit)))
        )
        for name, priority, _, _ in _SIZES:
            self.apply(a_priority(name, priority))
        for cohort in range(cohorts):
            together = amounts(cpu=20 * queues)
            spec = QueueSpec(deserved=together, capability=together)
            self.apply(Queue(metadata=Metadata(name=f"c{cohort}"), spec=spec))
            for number in range(queues):
                spec = QueueSpec(
                    parent=f"c{cohort}",
                    deserved=amounts(cpu=20),
                    preemption=QueuePreemption(within_queue="LowerPriority", reclaim="Any"),
                )
                self.apply(Queue(metadata=Metadata(name=f"q{cohort}-{number}"), spec=spec))
        #: (Submitted at, name, size) of the groups to come, the last one first.
        self._to_come = sorted(
            (
                ((number + 1) * every, f"{size[0]}-{cohort}-{queue}-{number}", size)
                for size, every, most in zip(_SIZES, (60, 300, 700), (14, 4, 2), strict=True)
                for cohort in range(cohorts)
                for queue in range(queues)
                for number in range(most)
            ),
            reverse=True,
        )
        self._numbers = count()
        #: (Ends at, number, key, token).
        self._running: list[tuple[int, int, str, str]] = []
        self._tokens: dict[str, str] = {}

    def commit(self, transaction: Transaction | None) -> None:
        assert transaction is not None
        assert self.store.commit([transaction], request_id=self.ids.new_uid()).refused == ()

    def apply(self, item: Object) -> None:
        now_ms = self.clock.at_ms
        self.commit(changes.apply(self.store, item, now_ms=now_ms, uid=self.ids.new_uid()))

    def go_on(self, since_ms: int) -> None:
        """Submit what is due, and report what has ended."""
        now_ms = self.clock.at_ms
        while self._to_come and self._to_come[-1][0] <= since_ms:
            _, name, (size, _, cpu, _) = self._to_come.pop()
            _, cohort, queue, _ = name.split("-")
            spec = PodGroupSpec(
                queue=f"q{cohort}-{queue}",
                controller="external",
                min_resources=amounts(cpu=cpu),
                priority_class_name=size,
            )
            self.apply(PodGroup(metadata=Metadata(name=name, namespace="default"), spec=spec))
        while self._running and self._running[0][0] <= now_ms:
            _, _, key, token = heapq.heappop(self._running)
            if self._tokens.get(key) == token:
                self._end(key, "evicted" if self._must_stop(key) else "succeeded")

    def follow(self, session: Session) -> None:
        """Claim what the session has admitted, and stop what it has evicted."""
        for group in list(session.effects.touched.values()):
            stored = self.store.get("PodGroup", group.key)
            if not isinstance(stored, PodGroup):
                continue
            if is_claimable(stored):
                self._claim(stored)
            elif group.key in self._tokens and self._must_stop(group.key):
                self._end(group.key, "evicted")

    def _claim(self, group: PodGroup) -> None:
        number, now_ms = next(self._numbers), self.clock.at_ms
        taken = consumer_leases.claim(
            self.store,
            key_of(group),
            holder="w",
            ttl_ms=_HOUR_S * 1000,
            secret=f"s{number}",
            now_ms=now_ms,
            reported="running",
        )
        self.commit(taken.transaction)
        lasts_ms = next(ms for size, _, _, ms in _SIZES if size == group.spec.priority_class_name)
        self._tokens[key_of(group)] = taken.token
        heapq.heappush(self._running, (now_ms + lasts_ms, number, key_of(group), taken.token))

    def _must_stop(self, key: str) -> bool:
        group = self.store.get("PodGroup", key)
        return isinstance(group, PodGroup) and bool(stop_reason_of(group))

    def _end(self, key: str, phase: consumer_leases.Reported) -> None:
        token = self._tokens.pop(key)
        self.commit(consumer_leases.report(self.store, token, phase, now_ms=self.clock.at_ms))


def _decisions(made: list[Intent] | tuple[Intent, ...]) -> list[Intent]:
    return [one for one in made if not isinstance(one, intents.SetReasons)]


@pytest.mark.parametrize("config", [_BY_SHARE, _BY_USAGE], ids=["by share", "by usage"])
@pytest.mark.parametrize("seed", range(usually(2, 60)))
def test_a_scheduler_that_was_restarted_decides_the_same(
    seed: int, config: SchedulerConfig
) -> None:
    busy = BusyQueues(seed, config)
    evicted = 0
    for session in range(60):
        busy.clock.at_ms += busy.ms_a_session
        busy.go_on((session + 1) * busy.ms_a_session)
        snapshot = busy.store.snapshot()
        report = busy.cycle.run_once()
        restarted = assemble(config).decide(snapshot, busy.clock.at_ms)
        assert _decisions(report.intents) == _decisions(restarted.intents), session
        evicted += sum(isinstance(one, intents.Pledge) for one in report.intents)
        busy.follow(report.session)
    assert evicted > 0
