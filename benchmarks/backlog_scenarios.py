"""Scenarios of the benchmark `backlog`: a change of the cluster, and the cycle after it, timed.

Wrappers between the `Cycle` and the objects that it calls time its parts: the store's `snapshot` is
reading, the scheduler's `decide` is deciding, and the rest of the cycle is writing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec import Struct, structs

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Ended, PodOutcome
from batchq.api.objects import Object, Pod, PodGroup, Queue, key_of, kind_of
from batchq.api.transaction import Event, Transaction
from batchq.client.changes import object_writes
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.ports import Clock, Store
from batchq.scheduler import node_reports
from batchq.scheduler.cycle import Cycle, CycleReport, Scheduler
from batchq.store.redis import RedisStore
from batchq.system import RandomIds
from benchmarks.backlog_world import (
    CPUS,
    NAMESPACES,
    NODE,
    AnyStore,
    Spec,
    a_quota_of,
    queue_names,
    replace_running,
    submit,
    waiting,
    withdraw,
    write,
)

#: A cluster that is not at rest after this many cycles never will be.
_MOST_TURNS = 10
_SUBMITTED = 1_000


class Took(Struct, kw_only=True):
    """The times of one cycle in seconds: wall time in total and by part, and CPU time."""

    all_s: float = 0.0
    all_cpu_s: float = 0.0
    read_s: float = 0.0
    decide_s: float = 0.0
    decide_cpu_s: float = 0.0
    commit_s: float = 0.0
    writes: int = 0
    rested: bool = False
    admitted: int = 0


class Stage:
    """A store, and a cycle over it whose parts are timed. Not thread-safe."""

    def __init__(
        self,
        store: AnyStore,
        scheduler: Scheduler,
        clock: Clock,
        spec: Spec,
        *,
        epoch: int | None = None,
    ) -> None:
        self.store = store
        self.spec = spec
        self._clock = clock
        self._epoch = epoch
        self._run_id = ""
        self._took = Took()
        self._cycle = Cycle(
            cast("Store", _Timed(store, {"snapshot": self._reads})),
            cast("Scheduler", _Timed(scheduler, {"decide": self._decides})),
            clock,
            RandomIds(),
        )
        #: The number of the next submitted group.
        self._next_waiting = spec.waiting
        self._limit_changes = 0
        #: The number of the next running group.
        self._next_running = CPUS
        #: Keys of submitted groups that the next `settle` deletes.
        self._submitted: list[str] = []

    def turn(self) -> Took:
        """Run one cycle. Raises RuntimeError if a write is refused."""
        self._beat()
        self._took = took = Took()
        started_at, cpu_at = time.perf_counter(), time.process_time()
        report = self._cycle.run_once(self._epoch)
        took.all_s = time.perf_counter() - started_at
        took.all_cpu_s = time.process_time() - cpu_at
        took.commit_s = max(0.0, took.all_s - took.read_s - took.decide_s)
        took.writes = sum(len(one.writes) for one in report.commit.applied)
        took.rested = report.rested
        took.admitted = _admitted(report)
        if report.commit.refused:
            raise RuntimeError(f"a write was refused: {report.commit.refused[0].answer}")
        return took

    def settle(self) -> int:
        """Restore the cluster and run cycles until one writes nothing.

        Return the number of cycles that wrote. Raises RuntimeError after 10 of them.
        """
        self._delete_submitted()
        for writing in range(_MOST_TURNS):
            self._replace_admitted()
            if not self.turn().writes:
                return writing
        raise RuntimeError(f"the cluster is not at rest after {_MOST_TURNS} cycles")

    def end_one(self) -> None:
        """End a running pod successfully, which frees one cpu."""
        pod = next(pod for pod in self._pods() if pod.status.phase == PodPhase.RUNNING)
        report = Ended(
            pod=pod.metadata.uid, attempt=pod.status.attempt, outcome=PodOutcome(exit_code=0)
        )
        ended = node_reports.end(pod, NODE, report, now_ms=self._clock.now_ms())
        assert isinstance(ended, Transaction)
        write(self.store, [ended])

    def submit_many(self) -> None:
        """Submit a thousand more groups of the same shapes, which stay pending."""
        now_ms = self._clock.now_ms()
        groups = list(waiting(self.spec, now_ms, first=self._next_waiting, most=_SUBMITTED))
        self._next_waiting += _SUBMITTED
        submit(self.store, groups)
        self._submitted = [key_of(group) for group in groups]

    def change_limits(self) -> None:
        """Change the quotas of all namespaces and the capability of a queue.

        Any group may have become admissible, so all are evaluated again; the limits are so high
        that the results stay the same.
        """
        self._limit_changes += 1
        queue = self.store.get("Queue", queue_names(self.spec)[0])
        assert isinstance(queue, Queue)
        capability = {"cpu": 1_000_000_000 + self._limit_changes}
        queue = structs.replace(queue, spec=structs.replace(queue.spec, capability=capability))
        quotas = [a_quota_of(name, self._limit_changes) for name in NAMESPACES]
        changed: list[Object] = [queue, *quotas]
        for item in changed:
            stored = self.store.get(kind_of(item), key_of(item))
            assert stored is not None
            event = Event(kind=kind_of(item), key=key_of(item), reason="Updated")
            expect = stored.metadata.revision
            write(self.store, [object_writes.put(self.store, item, expect=expect, event=event)])

    def _beat(self) -> None:
        """Send the node's heartbeat, or the node would count as dead during a long session."""
        if isinstance(self.store, RedisStore):
            self._run_id = self._run_id or self.store.run_id()
            self.store.beat(NODE, self._run_id)

    def _delete_submitted(self) -> None:
        """Delete the submitted groups, so that the backlog keeps its length."""
        stored = self.store.get_many("PodGroup", self._submitted)
        withdraw(self.store, [one for one in stored.values() if isinstance(one, PodGroup)])
        self._submitted = []

    def _replace_admitted(self) -> None:
        """Replace groups that were just bound by groups of the highest class.

        Otherwise a waiting group would evict them, and each repeat would start from another state.
        """
        for pod in self._pods():
            if pod.status.phase != PodPhase.BOUND:
                continue
            key = f"{pod.metadata.namespace}/{pod.spec.pod_group}"
            group = self.store.get("PodGroup", key)
            assert isinstance(group, PodGroup)
            number, now_ms = self._next_running, self._clock.now_ms()
            replace_running(self.store, self.spec, group, [pod], number, now_ms)
            self._next_running += 1

    def _pods(self) -> Sequence[Pod]:
        return [pod for pod in self.store.list("Pod") if isinstance(pod, Pod)]

    def _reads(self, snapshot: Callable[[], Snapshot]) -> Snapshot:
        started_at = time.perf_counter()
        seen = snapshot()
        self._took.read_s = time.perf_counter() - started_at
        return seen

    def _decides(
        self,
        decide: Callable[..., Session],
        snapshot: Snapshot,
        now_ms: int,
        *,
        writes_status: bool,
    ) -> Session:
        started_at, cpu_at = time.perf_counter(), time.process_time()
        session = decide(snapshot, now_ms, writes_status=writes_status)
        self._took.decide_s = time.perf_counter() - started_at
        self._took.decide_cpu_s = time.process_time() - cpu_at
        return session


class _Timed:
    """A proxy for `inner` that routes calls of the methods in `through` through a function."""

    def __init__(self, inner: object, through: Mapping[str, Callable[..., Any]]) -> None:
        self._inner = inner
        self._through = through

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        through = self._through.get(name)
        return found if through is None else partial(through, found)


def _admitted(report: CycleReport) -> int:
    return sum(type(intent).__name__ == "AdmitGroup" for intent in report.intents)


#: Scenario -> the change before the timed cycle.
SCENARIOS: dict[str, Callable[[Stage], None]] = {
    "quiet": lambda stage: None,
    "freed": Stage.end_one,
    "submitted": Stage.submit_many,
    "full": Stage.change_limits,
}


def play(stage: Stage, scenario: str, repeats: int, *, most_s: float = 60.0) -> list[Took]:
    """Play a scenario up to `repeats` times, and return the times of the cycle after each change.

    The cluster is brought to rest in between. No repeat begins after `most_s` seconds.
    """
    took: list[Took] = []
    until = time.perf_counter() + most_s
    while len(took) < repeats and (not took or time.perf_counter() < until):
        SCENARIOS[scenario](stage)
        took.append(stage.turn())
        if scenario != "quiet":
            stage.settle()
    return took


def median_of(took: Sequence[Took]) -> Took:
    """Return the median of each part over these cycles."""
    return Took(
        **{
            part: statistics.median(getattr(one, part) for one in took)
            for part in ("all_s", "all_cpu_s", "read_s", "decide_s", "decide_cpu_s", "commit_s")
        },
        writes=statistics.median_low([one.writes for one in took]),
        admitted=statistics.median_low([one.admitted for one in took]),
        rested=all(one.rested for one in took),
    )
