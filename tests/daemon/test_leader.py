"""Leadership: one leader at a time, with an epoch that rises at each change."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from batchq.api.transaction import count_of
from batchq.daemon import embedded_server
from batchq.daemon.embedded_server import ensure_server
from batchq.daemon.leader import Leadership, new_identity
from batchq.errors import StoreUnavailable
from batchq.paths import Home
from batchq.store.outage import Outage
from batchq.store.redis import RedisStore, open_store
from tests.daemon.waiting import until


@pytest.fixture
def store(home: Home) -> Iterator[RedisStore]:
    opened = open_store(ensure_server(home).url)
    yield opened
    opened.close()


class AwayLease:
    """A lease whose store the test can make unavailable."""

    def __init__(self) -> None:
        self.away = False
        self.calls = 0

    def lead(self, identity: str, lease_ms: int) -> int | None:
        self.calls += 1
        if self.away:
            raise StoreUnavailable("the server is not running")
        return 7

    def resign(self, identity: str) -> None:
        if self.away:
            raise StoreUnavailable("the server is not running")


def candidate(store: RedisStore | AwayLease, name: str, *, lease_ms: int = 3_000) -> Leadership:
    return Leadership(store, identity=name, outage=Outage(), lease_ms=lease_ms)


def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a lease of a minute every 200 ms; a busy machine does not miss so many renewals."""
    monkeypatch.setattr("batchq.daemon.leader._RENEWALS_PER_LEASE", 300)


def test_an_identity_names_host_and_process_and_is_never_the_same() -> None:
    host, pid, chance = new_identity().rsplit(":", 2)
    assert (host, int(pid), len(chance)) == (socket.gethostname(), os.getpid(), 8)
    assert new_identity() != new_identity()


def test_the_only_candidate_leads_and_keeps_leading(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_often(monkeypatch)
    only = candidate(store, "only", lease_ms=60_000)
    only.start()
    until(lambda: count_of(only.epoch() or 0) == 1)
    first_end = store.now_ms() + 60_000
    until(lambda: (leader := store.leader()) is not None and leader.expires_at > first_end)
    assert count_of(only.epoch() or 0) == 1
    only.stop()


def test_a_second_candidate_waits_and_logs_it_once(store: RedisStore) -> None:
    first = candidate(store, "first", lease_ms=60_000)
    second = candidate(store, "second", lease_ms=30)
    first.start()
    until(lambda: first.epoch() is not None)
    with capture_logs() as lines:
        second.start()
        until(lambda: len(lines) > 0)
        seen = first.epoch()
        threading.Event().wait(0.1)
        second.stop()
    assert count_of(seen or 0) == 1
    assert second.epoch() is None
    assert [line["event"] for line in lines] == ["leader.waiting"]
    first.stop()


def test_a_resigning_leader_is_succeeded_at_once_in_a_higher_epoch(store: RedisStore) -> None:
    first = candidate(store, "first", lease_ms=60_000)
    second = candidate(store, "second")
    first.start()
    until(lambda: count_of(first.epoch() or 0) == 1)
    second.start()
    first.stop()
    assert first.epoch() is None
    until(lambda: count_of(second.epoch() or 0) == 2)
    second.stop()


def test_a_silent_leader_is_succeeded_when_its_lease_is_over(store: RedisStore) -> None:
    assert count_of(store.lead("silent", 200) or 0) == 1
    second = candidate(store, "second")
    second.start()
    until(lambda: count_of(second.epoch() or 0) == 2)
    second.stop()


def test_a_candidate_tells_the_loop_when_it_is_elected(store: RedisStore) -> None:
    elected = threading.Event()
    only = Leadership(store, identity="only", outage=Outage(), lease_ms=60_000, elected=elected.set)
    only.start()
    assert elected.wait(90)
    assert count_of(only.epoch() or 0) == 1
    only.stop()


def test_without_its_store_it_stops_deciding_when_the_lease_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skipped_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped_s)
    monkeypatch.setattr("batchq.daemon.leader.time", clock)
    renew_often(monkeypatch)
    lease = AwayLease()
    leader = candidate(lease, "leader", lease_ms=60_000)
    leader.start()
    until(lambda: leader.epoch() == 7)
    with capture_logs() as lines:
        lease.away = True
        until(lambda: "store.unavailable" in [line["event"] for line in lines])
        assert leader.epoch() == 7
        skipped_s = 60.0
        assert leader.epoch() is None
        until(lambda: "leader.lost" in [line["event"] for line in lines])
        lease.away = False
        until(lambda: leader.epoch() == 7)
    assert [line["event"] for line in lines] == [
        "store.unavailable",
        "leader.lost",
        "store.back",
        "leader.elected",
    ]
    leader.stop()


def test_the_log_counts_epochs_as_the_status_does() -> None:
    class LaterLease(AwayLease):
        def lead(self, identity: str, lease_ms: int) -> int | None:
            return 1_795_281_289_000_004

    leader = candidate(LaterLease(), "leader", lease_ms=60_000)
    with capture_logs() as lines:
        leader.start()
        until(lambda: leader.epoch() == 1_795_281_289_000_004)
        leader.stop()
    assert [(line["event"], line["epoch"], line["generation"]) for line in lines] == [
        ("leader.elected", 4, 1_795_281_289),
        ("leader.resigned", 4, 1_795_281_289),
    ]


def test_a_leader_that_cannot_resign_ends_all_the_same() -> None:
    lease = AwayLease()
    leader = candidate(lease, "leader", lease_ms=60_000)
    leader.start()
    until(lambda: leader.epoch() == 7)
    lease.away = True
    leader.stop()
    leader.stop()
    assert not leader.alive
    assert leader.epoch() is None


def test_a_leader_not_fit_to_lead_lets_its_lease_run_out() -> None:
    lease, fit = AwayLease(), threading.Event()
    fit.set()
    leader = Leadership(lease, identity="leader", outage=Outage(), lease_ms=1_500, fit=fit.is_set)
    leader.start()
    until(lambda: leader.epoch() == 7)
    fit.clear()
    until(lambda: leader.epoch() is None)
    calls = lease.calls
    fit.set()
    until(lambda: leader.epoch() == 7)
    assert lease.calls > calls
    leader.stop()


def test_a_killed_server_that_comes_back_knows_its_leader(home: Home, store: RedisStore) -> None:
    leader = candidate(store, "leader")
    leader.start()
    until(lambda: count_of(leader.epoch() or 0) == 1)
    embedded_server.stop_server(home)
    ensure_server(home)
    until(lambda: (found := store.leader()) is not None and found.identity == "leader")
    leader.stop()
