"""A plain EASY on many nodes, which shares no code with batchq.

Jobs use whole nodes or a part of one. The first job that fits no nodes gets a reservation by the
estimates of running jobs; jobs behind it start now if they end by then or do not use it. The
reservation is on nodes, or, with `ledger_only`, in sums, as if all nodes were one machine.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class NodeJob(NamedTuple):
    """A job, in seconds. Each of its pods uses `cpu` of one node. Estimates are upper bounds."""

    number: int
    submit: int
    run: int
    estimate: int
    pods: int
    cpu: int


class Promise(NamedTuple):
    """The head's reserved start by the estimates, and its nodes."""

    at: int
    nodes: tuple[int, ...]
    spare: int


class NodeMachine:
    """Nodes of one size; owns running and waiting jobs, and the heads' reserved starts."""

    def __init__(self, nodes: int, cpu: int, *, ledger_only: bool) -> None:
        self.free = [cpu] * nodes
        self.waiting: list[NodeJob] = []
        self.starts: dict[int, int] = {}
        #: Job -> its first reserved start as the head of the queue.
        self.promised: dict[int, int] = {}
        self._ledger_only = ledger_only
        #: (end, turn, estimated end, job, its nodes).
        self._running: list[tuple[int, int, int, NodeJob, list[int]]] = []

    def play(self, jobs: Sequence[NodeJob]) -> dict[int, int]:
        """Return job -> its start."""
        coming = sorted(jobs, key=lambda job: (job.submit, job.number))[::-1]
        while coming or self._running:
            due = [self._running[0][0]] if self._running else []
            now = min([*due, *([coming[-1].submit] if coming else [])])
            while self._running and self._running[0][0] <= now:
                _, _, _, job, nodes = heapq.heappop(self._running)
                for node in nodes:
                    self.free[node] += job.cpu
            while coming and coming[-1].submit <= now:
                self.waiting.append(coming.pop())
            self._run_pass(now)
        return self.starts

    def _run_pass(self, now: int) -> None:
        while self.waiting and (nodes := place(self.waiting[0], self.free)) is not None:
            self._start(0, nodes, now)
        if not self.waiting:
            return
        head = self.waiting[0]
        promise = self._promise(head, now)
        self.promised.setdefault(head.number, promise.at)
        at = 1
        while at < len(self.waiting):
            job = self.waiting[at]
            nodes = place(job, self.free)
            if nodes is None or not self._keeps_reservation(job, nodes, head, promise, now):
                at += 1
                continue
            if now + job.estimate > promise.at:
                promise = promise._replace(spare=promise.spare - job.pods * job.cpu)
            self._start(at, nodes, now)

    def _start(self, at: int, nodes: list[int], now: int) -> None:
        job = self.waiting.pop(at)
        for node in nodes:
            self.free[node] -= job.cpu
        turn = len(self.starts)
        self.starts[job.number] = now
        heapq.heappush(self._running, (now + job.run, turn, now + job.estimate, job, nodes))

    def _promise(self, head: NodeJob, now: int) -> Promise:
        free = list(self.free)
        asks = head.pods * head.cpu
        for one in sorted(self._running, key=lambda one: one[2]):
            for node in one[4]:
                free[node] += one[3].cpu
            if self._ledger_only and sum(free) >= asks:
                return Promise(max(now, one[2]), (), sum(free) - asks)
            if not self._ledger_only and (nodes := place(head, free)) is not None:
                return Promise(one[2], tuple(nodes), 0)
        raise AssertionError(f"job {head.number} is larger than the machine")

    def _keeps_reservation(
        self, job: NodeJob, nodes: list[int], head: NodeJob, promise: Promise, now: int
    ) -> bool:
        if now + job.estimate <= promise.at:
            return True
        if self._ledger_only:
            return job.pods * job.cpu <= promise.spare
        free = list(self.free)
        for _, _, estimated, other, held in self._running:
            if estimated <= promise.at:
                for node in held:
                    free[node] += other.cpu
        for node in nodes:
            free[node] -= job.cpu
        needs = Counter(promise.nodes)
        return all(free[node] >= head.cpu * count for node, count in needs.items())


def place(job: NodeJob, free: Sequence[int]) -> list[int] | None:
    """Return the emptiest node for each pod, the first of equals; None if one fits nowhere."""
    left = [(-units, node) for node, units in enumerate(free) if units >= job.cpu]
    if not left:
        return None
    heapq.heapify(left)
    found = []
    for _ in range(job.pods):
        if not left or -left[0][0] < job.cpu:
            return None
        units, node = left[0]
        found.append(node)
        heapq.heapreplace(left, (units + job.cpu, node))
    return found
