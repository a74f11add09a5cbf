"""The cost of a session in which one pod of an array has ended and the next one starts, by how many
pods of the array run and how many have ended before.

The store is in memory. `cycle` is the CPU time from the snapshot to the commit; `times least` is
its ratio to the first row's.
"""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod, PodGroup, key_of
from batchq.api.transaction import Transaction, Write
from batchq.assembly import assemble
from batchq.client.changes import create
from batchq.config import SchedulerConfig
from batchq.lab.simulation import end, start
from batchq.lab.simulation.world import CountedIds, VirtualClock, write
from batchq.scheduler.cycle import Cycle
from batchq.store.memory import MemoryStore
from benchmarks.table import report
from tests.builders import a_group, a_node, a_queue

_ENDS = 200
_COLUMNS = ["running", "ended before", "cycle ms", "times least"]
#: (running, ended before)
_SIZES = ((4, 0), (4, 10_000), (4, 100_000), (1_000, 0), (1_000, 10_000), (10_000, 100_000))


def main() -> None:
    report("arrays", _COLUMNS, compare(_SIZES, ends=_ENDS))


def compare(sizes: tuple[tuple[int, int], ...], *, ends: int) -> list[list[object]]:
    """Return a row for each number of running pods and of pods that have ended before."""
    rows: list[list[object]] = []
    for running, before in sizes:
        array = ArrayRun(running, before, ends)
        cycle_ms = 1000 * median(array.end_one() for _ in range(ends))
        rows.append([running, before, cycle_ms, cycle_ms / (rows[0][2] if rows else cycle_ms)])  # type: ignore[operator]
    return rows


class ArrayRun:
    """An array on one node, in a store in memory."""

    def __init__(self, running: int, before: int, ends: int) -> None:
        self._store, self._clock, self._ids = MemoryStore(), VirtualClock(0), CountedIds()
        self._cycle = Cycle(self._store, assemble(SchedulerConfig()), self._clock, self._ids)
        self._running: deque[str] = deque()
        array = a_group("array", running + before + ends, min_member=1)
        for one in (a_queue(), a_node("n1", cpu=running, memory="1Ti"), array):
            created = create(self._store, one, now_ms=0, uid=one.metadata.name, described=True)
            write(self._store, self._ids, created)
        while len(self._running) < running:
            self._turn()
        first = self._pod(self._running[0])
        ended = (_ended(array, first, running + place) for place in range(before))
        writes = tuple(Write(kind="Pod", key=key_of(one), expect=0, value=one) for one in ended)
        write(self._store, self._ids, Transaction(subject="benchmark", writes=writes))
        self._turn()

    def end_one(self) -> float:
        """End the pod that started first; return the CPU seconds of the cycle that follows."""
        pod = self._pod(self._running.popleft())
        now_ms = self._clock.now_ms()
        write(self._store, self._ids, end(pod, PodPhase.SUCCEEDED, now_ms=now_ms, exit_code=0))
        return self._turn()

    def _turn(self) -> float:
        self._clock.jump_to(self._clock.now_ms() + 20)
        began_s = time.process_time()
        self._cycle.run_once()
        took_s = time.process_time() - began_s
        bound = self._store.outbox()
        self._store.delivered(bound)
        for one in bound:
            now_ms = self._clock.now_ms()
            write(self._store, self._ids, start(self._pod(one.pod), now_ms=now_ms))
            self._running.append(one.pod)
        return took_s

    def _pod(self, uid: str) -> Pod:
        pod = self._store.get("Pod", uid)
        assert isinstance(pod, Pod)
        return pod


def _ended(array: PodGroup, like: Pod, index: int) -> Pod:
    """Return a pod of the array that has succeeded, made like another one."""
    meta = structs.replace(
        like.metadata,
        name=f"{array.metadata.name}-w-{index}",
        uid=f"{array.metadata.uid}-{like.status.admission}-{index}",
    )
    status = structs.replace(like.status, phase=PodPhase.SUCCEEDED, finished_at=1, exit_code=0)
    return structs.replace(
        like, metadata=meta, spec=structs.replace(like.spec, index=index), status=status
    )
