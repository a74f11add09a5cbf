"""What happens to the world of the benchmark `backlog`, and how long a session then takes.

A scenario is a change that somebody else makes, and the one turn of the real `Cycle` after it. What
it takes is told apart by standing between the cycle and what it calls: the store's `snapshot` is
reading, the scheduler's `decide` is deciding, and the rest of the turn is writing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct, structs

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Ended, PodOutcome
from batchq.api.objects import Object, Pod, PodGroup, Queue, key_of, kind_of
from batchq.api.transaction import Event, Transaction
from batchq.changes import object_writes
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.ports import Clock, Store
from batchq.scheduler import node_reports
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.scheduler.scheduler import Scheduler
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

#: A world that is not at rest after so many turns never will be.
_MOST_TURNS = 10
_SUBMITTED = 1_000


class Took(Struct, kw_only=True):
    """One turn: wall time of each part and of all in seconds, and CPU of this process."""

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
    """A store, and a cycle over it whose parts are timed. One thread at a time."""

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
        #: The number of the next group that is submitted, and how often limits have changed.
        self._next = spec.waiting
        self._made = 0
        #: The number of the next group that runs.
        self._runners = CPUS
        #: Keys of groups that were submitted, and are taken away again.
        self._submitted: list[str] = []

    def turn(self) -> Took:
        """One turn of the cycle."""
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
        """Turns until one has nothing to write, in a world as it was; how many had."""
        self._take_away()
        for writing in range(_MOST_TURNS):
            self._replace_admitted()
            if not self.turn().writes:
                return writing
        raise RuntimeError(f"the world is not at rest after {_MOST_TURNS} turns")

    # --- what others do ---------------------------------------------------------------------

    def end_one(self) -> None:
        """One pod that runs has ended well, so that one cpu is free."""
        pod = next(pod for pod in self._pods() if pod.status.phase == PodPhase.RUNNING)
        fact = Ended(
            pod=pod.metadata.uid, attempt=pod.status.attempt, outcome=PodOutcome(exit_code=0)
        )
        ended = node_reports.end(pod, NODE, fact, now_ms=self._clock.now_ms())
        assert isinstance(ended, Transaction)
        write(self.store, [ended])

    def submit_many(self) -> None:
        """A thousand more groups of the same shapes, which have to wait, too."""
        now_ms = self._clock.now_ms()
        groups = list(waiting(self.spec, now_ms, first=self._next, most=_SUBMITTED))
        self._next += _SUBMITTED
        submit(self.store, groups)
        self._submitted = [key_of(group) for group in groups]

    def change_limits(self) -> None:
        """Every namespace's quota, and a queue's capability: anybody may fit now, as far as can be
        told without asking. All stay far away, so nobody does.
        """
        self._made += 1
        queue = self.store.get("Queue", queue_names(self.spec)[0])
        assert isinstance(queue, Queue)
        capability = {"cpu": 1_000_000_000 + self._made}
        queue = structs.replace(queue, spec=structs.replace(queue.spec, capability=capability))
        changed: list[Object] = [queue, *(a_quota_of(name, self._made) for name in NAMESPACES)]
        for item in changed:
            stored = self.store.get(kind_of(item), key_of(item))
            assert stored is not None
            event = Event(kind=kind_of(item), key=key_of(item), reason="Updated")
            expect = stored.metadata.revision
            write(self.store, [object_writes.put(self.store, item, expect=expect, event=event)])

    def _beat(self) -> None:
        """The node's agent lives, or the node would be taken for dead during a long session."""
        if isinstance(self.store, RedisStore):
            self._run_id = self._run_id or self.store.run_id()
            self.store.beat(NODE, self._run_id)

    def _take_away(self) -> None:
        """What was submitted is deleted, so that the backlog stays as long as it was."""
        stored = self.store.get_many("PodGroup", self._submitted)
        withdraw(self.store, [one for one in stored.values() if isinstance(one, PodGroup)])
        self._submitted = []

    def _replace_admitted(self) -> None:
        """What has just been bound makes way for one of the class of all that run: else somebody
        who waits would evict it, and each repeat would be about another world.
        """
        for pod in self._pods():
            if pod.status.phase != PodPhase.BOUND:
                continue
            key = f"{pod.metadata.namespace}/{pod.spec.pod_group}"
            group = self.store.get("PodGroup", key)
            assert isinstance(group, PodGroup)
            number, now_ms = self._runners, self._clock.now_ms()
            replace_running(self.store, self.spec, group, [pod], number, now_ms)
            self._runners += 1

    def _pods(self) -> Sequence[Pod]:
        return [pod for pod in self.store.list("Pod") if isinstance(pod, Pod)]

    # --- the parts --------------------------------------------------------------------------

    def _reads(self, snapshot: Callable[[], Snapshot]) -> Snapshot:
        started_at = time.perf_counter()
        seen = snapshot()
        self._took.read_s = time.perf_counter() - started_at
        return seen

    def _decides(
        self, decide: Callable[[Snapshot, int], Session], snapshot: Snapshot, now_ms: int
    ) -> Session:
        started_at, cpu_at = time.perf_counter(), time.process_time()
        session = decide(snapshot, now_ms)
        self._took.decide_s = time.perf_counter() - started_at
        self._took.decide_cpu_s = time.process_time() - cpu_at
        return session


class _Timed:
    """Passes everything on to what it stands for; calls of some methods go through another."""

    def __init__(self, inner: object, through: Mapping[str, Callable[..., Any]]) -> None:
        self._inner = inner
        self._through = through

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        through = self._through.get(name)
        return found if through is None else lambda *given: through(found, *given)


def _admitted(report: CycleReport) -> int:
    return sum(type(intent).__name__ == "AdmitGroup" for intent in report.intents)


#: Scenario -> what happens before the turn that is timed.
SCENARIOS: dict[str, Callable[[Stage], None]] = {
    "quiet": lambda stage: None,
    "freed": Stage.end_one,
    "submitted": Stage.submit_many,
    "full": Stage.change_limits,
}


def play(stage: Stage, scenario: str, repeats: int, *, most_s: float = 60.0) -> list[Took]:
    """The turn after each time that it happens; the world is brought to rest in between.

    What takes long is not repeated as often: no repeat is begun after `most_s`.
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
    """A turn of which each part is the median of these."""
    return Took(
        **{
            part: statistics.median(getattr(one, part) for one in took)
            for part in ("all_s", "all_cpu_s", "read_s", "decide_s", "decide_cpu_s", "commit_s")
        },
        writes=statistics.median_low([one.writes for one in took]),
        admitted=statistics.median_low([one.admitted for one in took]),
        rested=all(one.rested for one in took),
    )
