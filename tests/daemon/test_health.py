"""When a scheduler is alive and ready, and the reasons that it gives otherwise."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from batchq.core.session.snapshot import Settings
from batchq.daemon import metrics_server
from batchq.daemon.loop import Loop, Turn, TurnReport
from batchq.daemon.metrics_server import Health, MetricsServer
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage
from tests.daemon.scrapes import get
from tests.daemon.waiting import until

QUICK = Settings(schedule_period_ms=10, min_session_interval_ms=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all limits to what a busy machine still keeps."""
    monkeypatch.setattr(metrics_server, "_LEAST_STILL_S", 2.0)
    monkeypatch.setattr(metrics_server, "_LEAST_RECENT_S", 2.0)
    monkeypatch.setattr(metrics_server, "_SLOW_STORE_S", 0.1)
    monkeypatch.setattr(metrics_server, "UNFIT_AFTER_PERIODS", 10)


@contextmanager
def looping(
    turn: Turn, *, asking_s: Callable[[int], float] = lambda _: 0.0
) -> Iterator[tuple[Health, Outage]]:
    """Run a loop with this turn, watched by a Health."""
    watched, outage = Health(ending=lambda: False), Outage()
    loop = Loop(
        watched.watching(turn),
        settings=QUICK,
        outage=outage,
        crashed=lambda _: None,
        asking_s=asking_s,
        backoff=Backoff(first_ms=10, longest_ms=20),
        patience_s=60,
    )
    watched.follow(loop, outage)
    loop.start()
    try:
        yield watched, outage
    finally:
        loop.stop()


def test_while_it_waits_for_its_server_it_is_alive_and_not_ready() -> None:
    waiting = Health(ending=lambda: False)
    assert waiting.why_not_live() == ""
    assert waiting.why_not_ready() == "waiting for the server"


def test_a_scheduler_is_ready_once_a_turn_has_ended_well() -> None:
    let_go = threading.Event()

    def turn() -> TurnReport:
        let_go.wait(60)
        return TurnReport()

    with looping(turn) as (watched, _):
        assert watched.why_not_ready() == "no session has ended yet"
        let_go.set()
        until(lambda: watched.why_not_live() == watched.why_not_ready() == "")


def test_a_turn_that_hangs_is_neither_alive_nor_ready() -> None:
    let_go = threading.Event()
    turns = iter([TurnReport()])

    def turn() -> TurnReport:
        for report in turns:
            return report
        let_go.wait(60)
        return TurnReport()

    with looping(turn) as (watched, _):
        until(lambda: "no progress" in watched.why_not_live())
        live, ready = watched.why_not_live(), watched.why_not_ready()
        assert re.fullmatch(r"the session thread has made no progress for \d+ s", live)
        assert re.fullmatch(r"no session has succeeded for \d+ s", ready)
        let_go.set()
        until(lambda: watched.why_not_live() == watched.why_not_ready() == "")


def test_an_unavailable_server_makes_it_unready_but_stays_alive() -> None:
    away = threading.Event()

    def turn() -> TurnReport:
        if away.is_set():
            raise StoreUnavailable("the server does not answer")
        return TurnReport()

    with looping(turn) as (watched, outage):
        until(lambda: watched.why_not_ready() == "")
        away.set()
        until(lambda: outage.unavailable)
        why = watched.why_not_ready()
        assert re.fullmatch(r"the server has not answered for \d+ s", why)
        until(lambda: outage.lasts_s() > 3.0)
        until(lambda: watched.why_not_live() == "")
        assert outage.unavailable
        away.clear()
        until(lambda: watched.why_not_ready() == "")


def test_a_hanging_server_makes_it_unready_before_the_call_fails() -> None:
    hangs, let_go = threading.Event(), threading.Event()

    def turn() -> TurnReport:
        if hangs.is_set():
            let_go.wait(60)
        return TurnReport()

    def asking_s(_: int) -> float:
        return 3_600.0 if hangs.is_set() else 0.0

    with looping(turn, asking_s=asking_s) as (watched, _):
        until(lambda: watched.why_not_ready() == "")
        hangs.set()
        until(lambda: watched.why_not_ready() == "the server has not answered for 3600 s")
        assert watched.why_not_live() == ""
        hangs.clear()
        let_go.set()


def test_an_ending_scheduler_is_not_ready_and_needs_no_restart() -> None:
    ending = Health(ending=lambda: True)
    assert ending.why_not_live() == ""
    assert ending.why_not_ready() == "the scheduler is ending"


def test_the_answers_are_served_as_200_and_503_with_the_reason() -> None:
    server = MetricsServer("0")
    server.start()
    assert server.listener is not None
    url = server.listener.url
    try:
        assert get(f"{url}/livez") == (200, "ok\n")
        assert get(f"{url}/readyz") == (503, "waiting for the server\n")
    finally:
        server.stop()
