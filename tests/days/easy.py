"""A plain EASY that knows every run time, node by node; it shares no code with batchq.

There is one queue, ordered by urgency and then by when a piece became ready. A gang's pods start
together, an array's one by one; of an elastic group the required pods start together and the others
one by one. The first piece that does not fit gets a reservation at the earliest time at which the
known ends free enough of the nodes; later pieces start only if they end by then or do not use it. A
lost node's pods start again with the same urgency and age. Limits of queues and namespaces are
ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.days.making import Day, Work

#: The use of a node's pods: (cpu, count).
Free = dict[str, int]


@dataclass
class Piece:
    """Pods that start together. `first`: the index of the first of them in its group."""

    work: Work
    first: int
    pods: int
    runtime_s: int
    retries: bool = False

    def order(self, ready_at: int) -> tuple[int, int, str, int]:
        return (not self.work.urgent, ready_at, self.work.name, self.first)


@dataclass
class _Running:
    piece: Piece
    ready_at: int
    end: int
    nodes: list[str]


@dataclass
class Easy:
    """One day's machines and queue; `waits` has each pod's wait until its first start."""

    day: Day
    now: int = 0
    free: Free = field(default_factory=dict)
    line: list[tuple[tuple[int, int, str, int], int, Piece]] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    waits: dict[tuple[str, int], int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    _events: list[tuple[int, int, str, object]] = field(default_factory=list)
    _left: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def play(self) -> dict[tuple[str, int], int]:
        """Play the day; return (group, pod's index) -> seconds from ready to first start."""
        self.free = dict(self.day.nodes)
        for work in self.day.works:
            self._left[work.name] = sum(1 for _ in pieces_of(work))
            if not work.after:
                self._at(work.ready_at, "ready", work)
        for loss in self.day.losses:
            self._at(loss.at, "lost", loss.node)
            self._at(loss.back_at, "back", loss.node)
        while self._events:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                _, _, what, of = heapq.heappop(self._events)
                self._happen(what, of)
            self._run_pass()
        return self.waits

    def _at(self, at: int, what: str, of: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what, of))

    def _happen(self, what: str, of: object) -> None:
        match what, of:
            case "ready", Work() as work:
                for piece in pieces_of(work):
                    self._submit(piece, self.now)
            case "again", (Piece() as piece, int() as ready_at):
                self._submit(piece, ready_at)
            case "end", _Running() as one if any(one is other for other in self.running):
                self._end(one)
            case "lost", str() as node:
                self._lose(node)
            case "back", str() as node:
                self.away.discard(node)
            case _:
                pass

    def _submit(self, piece: Piece, ready_at: int) -> None:
        self.line.append((piece.order(ready_at), ready_at, piece))
        self.line.sort(key=lambda one: one[0])

    def _end(self, one: _Running) -> None:
        self._release(one)
        if one.piece.retries:
            again = Piece(one.piece.work, one.piece.first, one.piece.pods, one.piece.work.runtime_s)
            self._at(self.now + one.piece.work.backoff_s, "again", (again, one.ready_at))
            return
        name = one.piece.work.name
        self._left[name] -= 1
        if self._left[name] == 0:
            self.ended[name] = self.now
            for other in self.day.works:
                if other.after == name and other.namespace == one.piece.work.namespace:
                    self._at(max(self.now, other.ready_at), "ready", other)

    def _release(self, one: _Running) -> None:
        self.running = [other for other in self.running if other is not one]
        for node in one.nodes:
            self.free[node] += one.piece.work.cpu

    def _lose(self, node: str) -> None:
        self.away.add(node)
        for one in [other for other in self.running if node in other.nodes]:
            self._release(one)
            self._submit(one.piece, one.ready_at)

    def _run_pass(self) -> None:
        while self.line:
            nodes = self._nodes_for(self.line[0][2], self.free)
            if nodes is None:
                break
            self._start(0, nodes)
        if len(self.line) < 2:
            return
        promise = self._promise(self.line[0][2])
        place = 1
        while place < len(self.line):
            piece = self.line[place][2]
            nodes = self._nodes_for(piece, self.free)
            if nodes is not None and self._keeps_reservation(piece, nodes, promise):
                self._start(place, nodes)
            else:
                place += 1

    def _start(self, place: int, nodes: list[str]) -> None:
        _, ready_at, piece = self.line.pop(place)
        for node in nodes:
            self.free[node] -= piece.work.cpu
        for index in range(piece.first, piece.first + piece.pods):
            self.waits.setdefault((piece.work.key, index), self.now - ready_at)
        one = _Running(piece, ready_at, self.now + piece.runtime_s, nodes)
        self.running.append(one)
        self._at(one.end, "end", one)

    def _nodes_for(self, piece: Piece, free: Free) -> list[str] | None:
        """Return the fullest node that takes a pod, for each pod; None if one fits nowhere."""
        left = {name: units for name, units in free.items() if name not in self.away}
        found = []
        for _ in range(piece.pods):
            takers = [name for name in sorted(left) if left[name] >= piece.work.cpu]
            if not takers:
                return None
            node = min(takers, key=lambda name: (left[name], name))
            left[node] -= piece.work.cpu
            found.append(node)
        return found

    def _promise(self, head: Piece) -> tuple[int, list[str]] | None:
        """Return when and where the head starts by known ends; None while it lacks a lost node."""
        free = dict(self.free)
        for one in sorted(self.running, key=lambda one: one.end):
            for node in one.nodes:
                free[node] += one.piece.work.cpu
            nodes = self._nodes_for(head, free)
            if nodes is not None:
                return one.end, nodes
        return None

    def _keeps_reservation(
        self, piece: Piece, nodes: Sequence[str], promise: tuple[int, list[str]] | None
    ) -> bool:
        """Return whether it ends before the head's start, or leaves the head's reservation."""
        if promise is None:
            return True
        at, of_head = promise
        if self.now + piece.runtime_s <= at:
            return True
        free = dict(self.free)
        for one in self.running:
            if one.end <= at:
                for node in one.nodes:
                    free[node] += one.piece.work.cpu
        for node in nodes:
            free[node] -= piece.work.cpu
        head = self.line[0][2]
        return all(
            free[node] >= head.work.cpu * of_head.count(node) for node in dict.fromkeys(of_head)
        )


def pieces_of(work: Work) -> Iterator[Piece]:
    """Yield the pieces of a group that start together. Pods of a gang do not fail here, because the
    others would run on meanwhile, and the gang would hardly end later.
    """
    if work.fails_after_s is not None and work.least == 1:
        yield Piece(work, 0, 1, work.fails_after_s, retries=True)
    else:
        yield Piece(work, 0, work.least, work.runtime_s)
    for index in range(work.least, work.pods):
        yield Piece(work, index, 1, work.runtime_s)
