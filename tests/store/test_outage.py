"""Waiting for an unavailable store, and reporting it once."""

from __future__ import annotations

import random
import threading
import time

import pytest
from structlog.testing import capture_logs

from batchq.errors import StoreUnavailable
from batchq.store.link import Link
from batchq.store.outage import Backoff, Outage, Patience
from batchq.store.rq_link import RqLink
from tests.daemon.waiting import until


def test_waits_double_up_to_a_bound_and_start_again_after_success() -> None:
    backoff = Backoff(first_ms=100, longest_ms=1000, chance=random.Random(1))
    waits = [backoff.next_ms() for _ in range(8)]
    steps = [100, 200, 400, 800, 1000, 1000, 1000, 1000]
    assert all(step // 2 <= wait <= step for wait, step in zip(waits, steps, strict=True))
    backoff.reset()
    assert 50 <= backoff.next_ms() <= 100


def test_two_waiters_wait_for_different_times() -> None:
    first, second = (Backoff(chance=random.Random(seed)) for seed in (1, 2))
    assert [first.next_ms() for _ in range(5)] != [second.next_ms() for _ in range(5)]


def test_after_a_million_failures_the_wait_is_still_bounded() -> None:
    backoff = Backoff(first_ms=100, longest_ms=1000)
    backoff._failures = 1_000_000
    assert backoff.next_ms() <= 1000


def test_the_start_and_the_end_of_an_outage_are_each_logged_once() -> None:
    outage = Outage()
    with capture_logs() as lines:
        outage.succeeded()
        for _ in range(3):
            outage.failed(StoreUnavailable("the server is not running", hint="start it"))
        assert outage.unavailable
        outage.succeeded()
        outage.succeeded()
    assert [line["event"] for line in lines] == ["store.unavailable", "store.back"]
    assert lines[0]["error"] == "the server is not running"
    assert not outage.unavailable


def test_patience_tells_each_outage_once_and_ends_with_its_time() -> None:
    seen: list[str] = []
    away = StoreUnavailable("the server is not running")
    patience = Patience(seen.append)
    patience.answered()
    waits = [patience.next_wait_s(away) for _ in range(8)]
    patience.answered()
    patience.next_wait_s(away)
    assert seen == [
        "the server is not running; waiting for it",
        "the server is back after 0 s; continuing",
        "the server is not running; waiting for it",
    ]
    assert all(wait is not None and 0.1 <= wait <= 2.0 for wait in waits)
    over = Patience(seen.append, deadline=time.monotonic() - 1.0)
    assert over.next_wait_s(away) is None
    soon = Patience(seen.append, deadline=time.monotonic() + 0.05).next_wait_s(away)
    assert soon is not None
    assert soon <= 0.05


def test_patience_does_not_wait_out_lasting_errors() -> None:
    seen: list[str] = []
    refused = StoreUnavailable("the server does not permit this", lasts=True)
    assert Patience(seen.append).next_wait_s(refused) is None
    assert seen == []


def test_a_link_tells_which_thread_waits_for_an_answer_and_for_how_long() -> None:
    link, answered = Link("redis://127.0.0.1:1/0"), threading.Event()
    asker = threading.Thread(target=link.ask, args=(lambda _: answered.wait(60),))
    asker.start()
    number = asker.ident or 0
    until(lambda: link.asking_s(number) > 0.05)
    assert link.asking_s(threading.get_ident()) == 0.0
    answered.set()
    asker.join(60)
    assert link.asking_s(number) == 0.0


def test_a_failed_answer_ends_the_wait() -> None:
    link = Link("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        link.ask(lambda client: client.ping(), tries=1)
    assert link.asking_s(threading.get_ident()) == 0.0


def test_calls_of_rq_count_as_waiting_too() -> None:
    link = RqLink("redis://127.0.0.1:1/0")
    with link.errors():
        until(lambda: link.asking_s(threading.get_ident()) > 0.01)
    assert link.asking_s(threading.get_ident()) == 0.0
    link.close()
