"""The scheduler daemon as a process: waiting, leading, standing by, succession, and end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from batchq.api.lifecycle import PodPhase
from batchq.api.reasons import Verdict
from batchq.api.transaction import Delivery, count_of
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.daemon import Termination, app, detached
from batchq.daemon.detached import Record
from batchq.daemon.embedded_server import ensure_server
from batchq.daemon.loop import Loop, TurnReport
from batchq.daemon.reload import Reload
from batchq.errors import InvariantBroken
from batchq.paths import HOME_VARIABLE, URL_VARIABLE, Home, default_url
from batchq.scheduler.cycle import Cycle, CycleReport, Scheduler
from batchq.store.redis import RedisStore, open_store
from batchq.store.schedulers import read_object_limit
from batchq.system import CountingIds, SystemClock
from tests.builders import a_node
from tests.contract.made import charge, gone, group, pod, put, queue, writing
from tests.daemon.waiting import until

Start = Callable[..., Record]


@pytest.fixture
def start(home: Home) -> Iterator[Start]:
    """Start `batchq scheduler` with a named log."""
    started: list[Record] = []
    root = Path(__file__).parents[2]
    environ = {
        **os.environ,
        HOME_VARIABLE: str(home.root),
        URL_VARIABLE: default_url(home),
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'actions'}",
    }

    def spawn(name: str, *options: str) -> Record:
        home.prepare()
        log = home.logs / f"{name}.log"
        command = [sys.executable, "-P", "-m", "batchq.cli", "scheduler", *options]
        pid = detached.spawn(command, log=log, environ=environ)
        birth = detached.birth_of(pid) or ""
        started.append(Record(name=name, pid=pid, birth=birth, log=str(log), started_at=0))
        return started[-1]

    yield spawn
    for record in started:
        detached.end(record, patience_s=60)


@pytest.fixture
def store(home: Home) -> Iterator[RedisStore]:
    opened = open_store(ensure_server(home).url)
    yield opened
    opened.close()


def said(record: Record, word: str) -> int:
    """Return how often its log has the word."""
    return Path(record.log).read_text().count(word)


def exit_code_of(record: Record) -> int:
    """Wait for the end of the process."""
    codes: list[int] = []

    def ended() -> bool:
        code = detached.reap(record.pid)
        if code is not None:
            codes.append(code)
        return bool(codes)

    until(ended)
    return codes[0]


@pytest.mark.e2e
def test_a_scheduler_logs_once_that_it_waits_for_its_server_and_ends_on_request(
    start: Start,
) -> None:
    waiting = start("waiting")
    until(lambda: said(waiting, "store.unavailable") == 1)
    os.kill(waiting.pid, signal.SIGTERM)
    assert exit_code_of(waiting) == 0
    assert said(waiting, "store.unavailable") == 1


@pytest.mark.e2e
def test_a_scheduler_waits_for_a_server_that_starts_later(start: Start, home: Home) -> None:
    waiting = start("waiting")
    until(lambda: said(waiting, "store.unavailable") == 1)
    ensure_server(home)
    until(lambda: said(waiting, "leader.elected") == 1, within_s=60)
    until(lambda: said(waiting, "store.back") == 1)


@pytest.mark.e2e
def test_a_leader_makes_the_default_queue_and_limits_objects_per_namespace(
    start: Start, store: RedisStore
) -> None:
    start("leader")
    until(lambda: store.get("Queue", "default") is not None, within_s=60)
    until(lambda: read_object_limit(store) == 10_000)


@pytest.mark.e2e
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_leader_that_is_asked_to_end_resigns(
    start: Start, store: RedisStore, how: signal.Signals
) -> None:
    leader = start("leader")
    until(lambda: said(leader, "leader.elected") == 1, within_s=60)
    os.kill(leader.pid, how)
    assert exit_code_of(leader) == 0
    assert said(leader, "leader.resigned") == 1
    assert count_of(store.lead("next", 1000) or 0) == 2


@pytest.mark.e2e
def test_a_standby_scheduler_leads_when_the_leader_is_killed(
    start: Start, store: RedisStore
) -> None:
    first = start("first")
    until(lambda: said(first, "leader.elected") == 1, within_s=60)
    second = start("second")
    until(lambda: said(second, "leader.waiting") == 1, within_s=60)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: said(second, "leader.elected") == 1, within_s=60)
    leader = store.leader()
    assert leader is not None
    assert count_of(leader.epoch) == 2
    assert leader.identity.split(":")[1] == str(second.pid)


@pytest.mark.e2e
def test_a_scheduler_outlives_its_server(start: Start, home: Home) -> None:
    pid = ensure_server(home).pid
    leader = start("leader")
    until(lambda: said(leader, "leader.elected") == 1, within_s=60)
    os.kill(pid, signal.SIGKILL)
    until(lambda: said(leader, "store.unavailable") >= 1)
    ensure_server(home)
    until(lambda: said(leader, "store.back") >= 1)
    assert detached.is_running(leader)


@pytest.mark.e2e
def test_a_wrong_configuration_keeps_it_from_starting(
    start: Start, tmp_path: Path, store: RedisStore
) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text("actions: [enqueue, alocate]\n")
    wrong = start("wrong", "--config", str(path))
    assert exit_code_of(wrong) == 1
    assert said(wrong, "allocate") >= 1
    assert said(wrong, "Traceback") == 0
    assert store.leader() is None


class BrokenCycle(Cycle):
    """A cycle that meets a state that must never occur."""

    def __init__(self) -> None:
        """Create it without a store."""

    def run_once(self, epoch: int | None = None, *, writes_status: bool = True) -> CycleReport:
        raise InvariantBroken("node n1 holds 5 cpu of 4 after Bind(default-train-0)")


def test_an_internal_error_ends_the_process_with_70_and_a_traceback(store: RedisStore) -> None:
    ending = Termination()
    with capture_logs() as lines:
        code = app._serve(store, BrokenCycle(), Reload(None), ending, lease_ms=1000)
    ending.close()
    assert code == 70
    crash = next(line for line in lines if line["event"] == "session.crashed")
    assert crash["error"] == "node n1 holds 5 cpu of 4 after Bind(default-train-0)"
    assert isinstance(crash["exc_info"], InvariantBroken)


class NoCycle(Cycle):
    """A cycle that must not be run."""

    def __init__(self) -> None:
        """Create it without a store."""


class Nothing:
    """An executor that delivers nothing."""

    def deliver(self, bound: Sequence[Delivery] | None = None) -> int:
        return 0


def test_a_scheduler_that_does_not_lead_decides_nothing(store: RedisStore) -> None:
    reload = Reload(None)
    turn = app.LeaderTurn(
        store,
        NoCycle(),
        Nothing(),
        effective=lambda: reload.current,
        clock=SystemClock(),
        epoch=lambda: None,
        ids=CountingIds(),
    )
    assert turn() == TurnReport()
    assert store.get("Queue", "default") is None


class BrokenClock:
    """A plugin that fails when it is asked for its next instant."""

    name = "broken-clock"

    def pre_enqueue(self, session: object, group: object) -> list[Verdict]:
        return []

    def due_at(self, session: object) -> list[int]:
        raise ValueError("no such instant")


def test_a_plugin_whose_clock_fails_is_logged_in_the_turn_that_asks_it(store: RedisStore) -> None:
    usual, reload = assemble(SchedulerConfig()), Reload(None)
    scheduler = Scheduler(
        actions=usual.actions,
        plugins={**usual.plugins, "preEnqueue": ((BrokenClock(), 1), *usual.plugins["preEnqueue"])},
        settings=usual.settings,
    )
    turn = app.LeaderTurn(
        store,
        Cycle(store, scheduler, store, CountingIds()),
        Nothing(),
        effective=lambda: reload.current,
        clock=store,
        epoch=lambda: epoch,
        ids=CountingIds(),
    )
    epoch = store.lead("the test", 60_000)
    failures = []
    for _ in range(2):
        with capture_logs() as logged:
            turn()
        failures.append([one["error"] for one in logged if one["event"] == "plugin.failed"])
    [[failure], again] = failures
    assert "no such instant" in failure
    assert again == []


def test_the_default_queue_is_made_once_and_never_replaced(store: RedisStore) -> None:
    for _ in range(2):
        app.ensure_default_queue(store, clock=store, ids=CountingIds())
    queue = store.get("Queue", "default")
    assert queue is not None
    assert queue.metadata.uid == "0000000000000001"


def test_the_servers_clock_is_close_to_this_machines(store: RedisStore) -> None:
    before = SystemClock().now_ms()
    servers = store.now_ms()
    assert before - 1000 < servers < SystemClock().now_ms() + 1000


def test_a_turn_may_wait_where_no_decision_depends_on_what_was_written() -> None:
    started, bound = (pod(phase=phase) for phase in (PodPhase.RUNNING, PodPhase.BOUND))
    of_gang = structs.replace(started, spec=structs.replace(started.spec, ports=1))
    waits = group("waits")
    charged = structs.replace(writing(put(waits, expect=1)), charges=(charge("group:waits"),))
    cases = {
        "a granted start": (writing(put(started)), True),
        "two granted starts": (writing(put(started), put(started)), True),
        "a start in a gang that launches together": (writing(put(of_gang)), False),
        "a pod that was bound": (writing(put(bound)), False),
        "a start, and another object": (writing(put(started), put(queue("q"))), False),
        "a pod that is asked to stop": (writing(put(pod(phase=PodPhase.RUNNING, stop="x"))), False),
        "a deleted pod": (writing(gone(started, expect=1)), False),
        "why a group waits": (writing(put(waits, expect=1)), True),
        "a new group": (writing(put(waits)), False),
        "a deleted group": (writing(gone(waits, expect=1)), False),
        "a group that holds more or less": (charged, False),
    }
    found = {name: app.may_wait_for_a_turn(one) for name, (one, _) in cases.items()}
    assert found == {name: expected for name, (_, expected) in cases.items()}


class AskedLoop(Loop):
    """A loop that takes no turn, and notes how soon one is wanted."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def wake_soon(self) -> None:
        self.asked.append("wake_soon")

    def wake(self) -> None:
        self.asked.append("wake")

    def hurry(self) -> None:
        self.asked.append("hurry")


def test_a_turn_follows_a_change_the_sooner_the_more_depends_on_it() -> None:
    grants, binds, ends = (
        writing(put(pod(phase=phase)))
        for phase in (PodPhase.RUNNING, PodPhase.BOUND, PodPhase.SUCCEEDED)
    )
    asked = {}
    for name, written in {
        "starts": [grants, grants],
        "a bind": [grants, binds],
        "an end": [grants, binds, ends],
        "a node that takes pods": [grants, writing(put(a_node()))],
    }.items():
        loop = AskedLoop()
        app.take_turn_after(written, loop)
        asked[name] = loop.asked
    assert asked == {
        "starts": ["wake_soon"],
        "a bind": ["wake"],
        "an end": ["hurry"],
        "a node that takes pods": ["hurry"],
    }
