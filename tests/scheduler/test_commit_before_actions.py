"""Groups that have ended are committed while the actions still decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import PodGroup
from batchq.api.transaction import CLUSTER, Commit, Transaction
from batchq.assembly import assemble
from batchq.client import changes
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.scheduler import cycle
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.scheduler.transactions import final_transactions, transactions_of
from batchq.store.memory import MemoryStore
from tests.builders import (
    a_group,
    a_node,
    a_pod,
    a_quota,
    a_running_group,
    a_snapshot,
)
from tests.scheduler.conftest import Stack


class Portions:
    """A commit in which a store applies each portion at once."""

    def __init__(self, store: MemoryStore, request_id: str, **more: Any) -> None:
        self._store = store
        self._request_id = request_id
        self._more = more
        self._commits: list[Commit] = []

    def add(self, transactions: Iterable[Transaction]) -> None:
        request_id = f"{self._request_id}.{len(self._commits)}"
        self._commits.append(
            self._store.commit(list(transactions), request_id=request_id, **self._more)
        )

    def finish(self) -> Commit:
        return Commit(
            applied=tuple(one for commit in self._commits for one in commit.applied),
            refused=tuple(one for commit in self._commits for one in commit.refused),
            revision=self._commits[-1].revision,
        )


class Look:
    """An action that reads the store before the others decide."""

    name = "look"

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.found: dict[str, PodGroupPhase] = {}
        self.fails = False

    def execute(self, session: Session) -> None:
        groups = self._store.list("PodGroup")
        self.found = {
            one.metadata.name: one.status.phase for one in groups if isinstance(one, PodGroup)
        }
        if self.fails:
            raise ZeroDivisionError


class Early:
    """A stack with two groups for one place, whose cycle commits in portions."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.stack = Stack(self.store, SchedulerConfig())
        self.look = Look(self.store)
        scheduler = assemble(SchedulerConfig())
        self._cycle = Cycle(
            self.store,
            replace(scheduler, actions=(self.look, *scheduler.actions)),
            self.stack.clock,
            self.stack.ids,
            begin_commit=self._begin_commit,
        )
        #: What another client does just before the next commit.
        self.before_commit: Callable[[], None] | None = None
        self.epoch = self.store.next_epoch()
        self.stack.ready(a_node(cpu=4))
        self.stack.apply(a_quota(cpu=4), _startable("first"), _startable("second"))
        self.turn()
        self.stack.start_pods()
        self.turn()

    def _begin_commit(self, *, request_id: str, **more: Any) -> Portions:
        meanwhile, self.before_commit = self.before_commit, None
        if meanwhile is not None:
            meanwhile()
        return Portions(self.store, request_id, **more)

    def turn(self) -> CycleReport:
        return self._cycle.run_once(self.epoch)

    def phases(self) -> list[PodGroupPhase]:
        return [self.stack.group(name).status.phase for name in ("first", "second")]


def _startable(name: str) -> PodGroup:
    group = a_group(name, cpu=4)
    tasks = tuple(
        msgspec.structs.replace(
            task, template=msgspec.structs.replace(task.template, command=("true",))
        )
        for task in group.spec.tasks
    )
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, tasks=tasks))


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> Early:
    monkeypatch.setattr(cycle, "TOUCHED_FOR_A_STREAM", 1)
    return Early()


def test_the_end_of_a_group_is_stored_before_the_actions_use_what_it_frees(early: Early) -> None:
    early.stack.end_pods()
    report = early.turn()
    assert early.look.found == {"first": PodGroupPhase.COMPLETED, "second": PodGroupPhase.PENDING}
    assert early.phases() == [PodGroupPhase.COMPLETED, PodGroupPhase.IN_QUEUE]
    assert [one.subject for one in report.commit.applied] == ["default/first", "default/second"]
    assert report.commit.refused == ()
    assert early.store.ledger()[CLUSTER] == {"cpu": 4000, "pods": 1000, "podgroups": 1000}


def test_a_session_that_fails_after_that_loses_nothing(early: Early) -> None:
    early.stack.end_pods()
    early.look.fails = True
    with pytest.raises(ZeroDivisionError):
        early.turn()
    assert early.phases() == [PodGroupPhase.COMPLETED, PodGroupPhase.PENDING]
    assert CLUSTER not in early.store.ledger()
    early.look.fails = False
    early.turn()
    assert early.phases() == [PodGroupPhase.COMPLETED, PodGroupPhase.IN_QUEUE]


def test_a_former_leader_commits_no_portion(early: Early) -> None:
    early.stack.end_pods()
    early.store.next_epoch()
    report = early.turn()
    assert [one.answer.word for one in report.commit.refused] == ["epoch", "epoch"]
    assert early.phases() == [PodGroupPhase.RUNNING, PodGroupPhase.PENDING]


def test_an_end_that_is_refused_is_decided_again(early: Early) -> None:
    early.stack.end_pods()
    early.before_commit = lambda: early.stack.commit(
        changes.suspend(early.store, "default/first", now_ms=0)
    )
    report = early.turn()
    # What it holds was not freed, so the other group is refused as well.
    assert [one.answer.word for one in report.commit.refused] == ["conflict", "limit"]
    early.turn()
    assert early.phases() == [PodGroupPhase.COMPLETED, PodGroupPhase.IN_QUEUE]


def begun(*objects: Any, **more: Any) -> Session:
    now_ms = more.pop("now_ms", 0)
    return assemble(SchedulerConfig()).begin(a_snapshot(*objects, **more), now_ms)


def ended(name: str) -> tuple[Any, ...]:
    group, *_ = a_running_group(name)
    return group, a_pod(group, phase=PodPhase.SUCCEEDED)


def test_only_groups_that_have_ended_and_hold_nothing_are_final() -> None:
    running = a_running_group("running")
    session = begun(a_node(cpu=8), *ended("done"), *running)
    assert [session.groups[uid].key for uid in final_transactions(session)] == ["default/done"]
    overdue = begun(a_node(cpu=8), *a_running_group("late", walltime=1), now_ms=600_000)
    # Its pod is still to be stopped.
    assert [one.subject for one in transactions_of(overdue)] == ["default/late"]
    assert final_transactions(overdue) == {}


def test_an_end_that_was_committed_before_is_not_committed_again() -> None:
    session = begun(a_node(cpu=8), *ended("done"))
    final = final_transactions(session)
    assert len(final) == 1
    assert list(transactions_of(session, without=final)) == []
    assert list(transactions_of(session)) == list(final.values())


def test_an_end_that_is_tied_to_a_pledge_waits_for_the_decisions() -> None:
    session = begun(a_node(cpu=8), *ended("done"))
    [uid] = final_transactions(session)
    session.effects.joined.append((uid, "another"))
    assert final_transactions(session) == {}
