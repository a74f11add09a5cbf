"""The simulated server knows, like the real one, which limits a commit was decided under."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from batchq.api.objects import Queue
from batchq.api.transaction import Charge, Commit, Event, Transaction
from batchq.client.changes import object_writes
from batchq.errors import StoreUnavailable
from batchq.lab.simulation.world import VirtualClock
from tests.builders import a_queue, amounts
from tests.faults.server import FaultyStore, Server
from tests.faults.store_faults import Line, Mode


def carry_out(
    _: Server, __: Sequence[Transaction], ___: int | None, commit: Callable[[], Commit]
) -> Commit:
    """A witness that checks nothing."""
    return commit()


class Scene:
    """A server, an operator that reaches it, and a leader whose calls are late as planned."""

    def __init__(self, *late: int) -> None:
        clock = VirtualClock(0)
        self.under_way: list[Callable[[], object]] = []
        self.server = Server(clock, witness=carry_out, bell=lambda _: None)
        self.operator = FaultyStore(self.server, Line("operator", clock))
        plan = dict.fromkeys(late, Mode.LATE)
        line = Line("leader", clock, plan=plan, later=self.under_way.append)
        self.leader = FaultyStore(self.server, line)

    def edit(self, queue: Queue) -> None:
        event = Event(kind="Queue", key=queue.metadata.name, reason="Configured")
        made = object_writes.put(self.operator, queue, expect=0, event=event)
        assert self.operator.commit([made], request_id="edit").refused == ()

    def admit(self, *, seen: int) -> list[str]:
        grown = Charge(holder="group:g", scopes=("queue:a",), amounts=amounts(cpu=1), checked=True)
        asked = Transaction(subject="g", charges=(grown,))
        commit = self.leader.commit([asked], request_id="admit", seen=seen)
        return [one.answer.subject for one in commit.refused]


def test_a_commit_decided_before_an_edit_is_refused() -> None:
    scene = Scene()
    seen = scene.leader.snapshot().revision
    scene.edit(a_queue("b", guarantee=amounts(cpu=1)))
    assert scene.admit(seen=seen) == ["the limits"]
    assert scene.server.store.ledger() == {}


def test_a_commit_decided_after_an_edit_is_not_refused() -> None:
    scene = Scene()
    scene.edit(a_queue("b", guarantee=amounts(cpu=1)))
    assert scene.admit(seen=scene.leader.snapshot().revision) == []


def test_a_commit_sent_before_an_edit_that_arrives_after_it_is_refused() -> None:
    scene = Scene(2)
    seen = scene.leader.snapshot().revision
    with pytest.raises(StoreUnavailable):
        scene.admit(seen=seen)
    scene.edit(a_queue("b", guarantee=amounts(cpu=1)))
    [arrives] = scene.under_way
    arrives()
    assert scene.server.store.ledger() == {}
