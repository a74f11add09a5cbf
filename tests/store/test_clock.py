"""The server's clock: all its users agree on the time, whatever happens to the server."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import redis

from batchq.store import liveness
from batchq.store.link import Link
from batchq.store.liveness import ServerClock
from tests.daemon.waiting import until
from tests.harness.server import Server


class ASetClock(redis.Redis):
    """A server that tells only the time, which is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1_000_000

    def time(self) -> tuple[int, int]:
        return self.seconds, 0


def test_the_clock_runs_between_two_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 5_000
    monkeypatch.setattr(liveness, "_monotonic_ms", lambda: now_ms)
    server = ASetClock()
    ours = ServerClock(Link("redis://nowhere", client=server))
    assert ours.now_ms() == 1_000_000_000
    server.seconds += 3_600
    now_ms += 700
    assert ours.now_ms() == 1_000_000_700


def test_another_connection_may_lead_to_another_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_monotonic_ms", lambda: 5_000)
    server = ASetClock()
    link = Link("redis://nowhere", client=server)
    ours = ServerClock(link)
    ours.now_ms()
    server.seconds += 3_600
    link.connections += 1
    assert ours.now_ms() == 1_003_600_000


def test_the_time_that_opening_a_connection_takes_puts_no_clock_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two clients, the later one would submit at an earlier time, and stand first in line."""
    now_ms = 5_000
    monkeypatch.setattr(liveness, "_monotonic_ms", lambda: now_ms)

    class Connecting(ASetClock):
        def time(self) -> tuple[int, int]:
            nonlocal now_ms
            if not link.connections:
                link.connections, now_ms = 1, now_ms + 400
            return super().time()

    link = Link("redis://nowhere", client=Connecting())
    assert ServerClock(link).now_ms() == 1_000_000_000


def test_all_come_to_agree_on_a_clock_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "REMEASURE_AFTER_MS", 200)
    server = ASetClock()
    first, second = (ServerClock(Link("redis://nowhere", client=server)) for _ in range(2))
    first.now_ms()
    second.now_ms()
    for step in (3_600, -7_200):
        server.seconds += step
        until(lambda: abs(first.now_ms() - 1000 * server.seconds) < 2_000)
        until(lambda: abs(second.now_ms() - 1000 * server.seconds) < 2_000)


def test_a_server_that_stood_still_is_not_believed_to_be_ahead(server: Server) -> None:
    link = Link(server.url)
    ours = ServerClock(link)
    link.ask(lambda client: client.ping())
    os.kill(server.pid, signal.SIGSTOP)
    resumed = threading.Timer(3.0, os.kill, (server.pid, signal.SIGCONT))
    resumed.start()
    asked_at = time.monotonic()
    found = ours.now_ms()
    seconds, microseconds = link.ask(lambda client: client.time())
    since_ms = round((time.monotonic() - asked_at) * 1000)
    resumed.join()
    assert -500 < seconds * 1000 + microseconds // 1000 - found < 500 + since_ms
    link.close()
