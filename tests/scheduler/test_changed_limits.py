"""Limits that change between a snapshot and its commit: the decision waits for one turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Object, key_of, kind_of
from batchq.api.transaction import Event, Transaction
from batchq.assembly import assemble
from batchq.client.changes import object_writes
from batchq.config import SchedulerConfig
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.system import CountingIds
from tests.builders import a_group, a_node, a_priority, a_queue, a_quota, a_task, amounts
from tests.scheduler.conftest import Stack

EVENT = Event(kind="Queue", key="b", reason="Configured")


class Interrupted(CountingIds):
    """Ids whose first use, between decision and commit, makes another write first."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = [meanwhile]

    def new_uid(self) -> str:
        while self._meanwhile:
            self._meanwhile.pop()()
        return f"cycle-{super().new_uid()}"


def edited(stack: Stack, item: Object) -> Transaction:
    stored = stack.store.get(kind_of(item), key_of(item))
    expect = 0 if stored is None else stored.metadata.revision
    return object_writes.put(stack.store, item, expect=expect, event=EVENT)


def turn_with(stack: Stack, item: Object) -> CycleReport:
    """Run a turn in which `item` is written after the decision."""
    ids = Interrupted(lambda: stack.commit(edited(stack, item)))
    return Cycle(stack.store, assemble(SchedulerConfig()), stack.clock, ids).run_once()


@pytest.fixture
def waiting(stack: Stack) -> Stack:
    """Four cpus: a group of queue default has one, and a group of queue a wants the others."""
    for item in (a_queue("default"), a_queue("a"), a_queue("b")):
        stack.commit(edited(stack, item))
    stack.ready(a_node(cpu=4))
    stack.apply(a_group("first", tasks=(a_task("w", 1, command=("true",)),)))
    stack.until_idle()
    stack.apply(a_group("g", tasks=(a_task("w", 3, command=("true",)),), queue="a"))
    return stack


def refusals(report: CycleReport) -> list[tuple[str, str, str]]:
    return [
        (one.transaction.subject, one.answer.word, one.answer.subject)
        for one in report.commit.refused
    ]


def test_a_guarantee_set_meanwhile_is_not_given_away(waiting: Stack) -> None:
    before = waiting.store.ledger(), waiting.store.charges()
    guards = a_queue("b", guarantee=amounts(cpu=1))
    assert refusals(turn_with(waiting, guards)) == [("default/g", "conflict", "the limits")]
    waiting.until_idle()
    assert waiting.group("g").status.phase == PodGroupPhase.PENDING
    [reason] = waiting.group("g").status.reasons
    assert (reason.reason, reason.detail) == (
        "WaitingForResources",
        "1 of that is guaranteed to b",
    )
    assert (waiting.store.ledger(), waiting.store.charges()) == before


def test_a_group_refused_for_a_harmless_edit_is_admitted_in_the_next_turn(
    waiting: Stack,
) -> None:
    report = turn_with(waiting, a_quota("elsewhere", cpu=1))
    assert refusals(report) == [("default/g", "conflict", "the limits")]
    assert len(waiting.pods()) == 1
    assert waiting.turn().commit.refused == ()
    assert waiting.group("g").status.phase == PodGroupPhase.IN_QUEUE
    assert len(waiting.pods(PodPhase.BOUND)) == 4
    assert waiting.store.ledger()["queue:a"]["cpu"] == 3000


@pytest.mark.parametrize(
    "written",
    [a_node("n2", cpu=1), a_priority("high", 9), a_group("other", queue="b", uid="other")],
    ids=["a node", "a priority class", "a group"],
)
def test_other_writes_meanwhile_delay_no_admission(waiting: Stack, written: Object) -> None:
    assert refusals(turn_with(waiting, written)) == []
    assert waiting.group("g").status.phase == PodGroupPhase.IN_QUEUE


def test_groups_that_leave_are_written_whatever_was_edited_meanwhile(waiting: Stack) -> None:
    waiting.until_idle()
    waiting.start_pods()
    waiting.until_idle()
    waiting.end_pods()
    assert refusals(turn_with(waiting, a_quota("elsewhere", cpu=1))) == []
    assert waiting.group("g").status.phase == PodGroupPhase.COMPLETED
    assert "cluster" not in waiting.store.ledger()
