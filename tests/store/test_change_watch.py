"""A scheduler that waits for changes hears of those by others, and of its own where it writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
import redis

from batchq.api.transaction import Transaction
from batchq.store import change_watch
from batchq.store.link import Link, read_revision
from batchq.store.redis import RedisStore
from tests.contract.made import gone, put, queue, writing


def make(store: RedisStore, *wanted: str) -> None:
    for name in wanted:
        store.commit([writing(put(queue(name)))], request_id=f"make {name}")


@pytest.fixture
def own(open_redis: Callable[[], RedisStore]) -> RedisStore:
    """Return a store whose own changes are known, as a scheduler's are."""
    store = open_redis()
    store.changes.wrote = lambda _: None
    store.follow()
    return store


def test_its_own_changes_are_no_news(own: RedisStore) -> None:
    make(own, "a", "b")
    assert not own.wait_for_change(0)


def test_a_change_by_another_is_news_once(own: RedisStore, redis_store: RedisStore) -> None:
    make(own, "a")
    make(redis_store, "b")
    assert own.wait_for_change(0)
    assert not own.wait_for_change(0)


def test_a_change_that_was_read_is_no_news(own: RedisStore, redis_store: RedisStore) -> None:
    make(redis_store, "a")
    own.snapshot()
    assert not own.wait_for_change(0)


def test_a_client_hears_of_a_change_that_came_between_two_of_its_reads(
    open_redis: Callable[[], RedisStore], redis_store: RedisStore
) -> None:
    client = open_redis()
    client.list("Queue")
    make(redis_store, "a")
    # It may use this for something else than queues.
    client.snapshot()
    assert client.wait_for_change(0)
    assert not client.wait_for_change(0)


def test_its_own_change_hides_no_unread_change_before_it(
    own: RedisStore, redis_store: RedisStore
) -> None:
    make(redis_store, "a")
    make(own, "b")
    assert own.wait_for_change(0)


def test_its_own_change_hides_no_unread_change_between_two_of_its_own(
    own: RedisStore, redis_store: RedisStore
) -> None:
    make(own, "a")
    make(redis_store, "b")
    make(own, "c")
    assert own.wait_for_change(0)
    own.snapshot()
    make(own, "d")
    assert not own.wait_for_change(0)


def test_a_condition_that_writes_nothing_is_not_counted(
    own: RedisStore, redis_store: RedisStore
) -> None:
    make(redis_store, "b")
    absent = gone(queue("absent"), expect=0)
    done = own.commit([writing(absent, put(queue("a")))], request_id="1")
    assert len(done.applied) == 1
    assert own.wait_for_change(0)


def test_an_emptied_server_is_news(own: RedisStore, raw: redis.Redis) -> None:
    make(own, "a", "b")
    raw.flushall()
    assert own.wait_for_change(0)
    assert not own.wait_for_change(0)


def test_a_store_says_what_it_has_written_and_not_what_was_refused(own: RedisStore) -> None:
    told: list[Sequence[Transaction]] = []
    own.changes.wrote = told.append
    first, second = writing(put(queue("a"))), writing(put(queue("b")))
    own.commit([first], request_id="1")
    own.commit([first, second], request_id="2")
    own.commit([first], request_id="3")
    assert told == [[first], [second]]


@pytest.mark.parametrize("writes_within_s", [0.0, 60.0])
def test_the_wait_for_a_change_by_another_ends_with_it_whether_this_process_writes_or_not(
    own: RedisStore,
    redis_store: RedisStore,
    monkeypatch: pytest.MonkeyPatch,
    writes_within_s: float,
) -> None:
    monkeypatch.setattr(change_watch, "_WRITES_WITHIN_S", writes_within_s)
    make(own, "a")
    heard: list[bool] = []
    thread = threading.Thread(target=lambda: heard.append(own.wait_for_change(60_000)))
    thread.start()
    make(own, "b")
    make(redis_store, "c")
    thread.join(timeout=90)
    assert heard == [True]


def test_a_process_whose_turns_read_all_changes_does_not_ask_for_them_besides(
    own: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(own, "a")
    asked: list[int] = []

    def read(link: Link) -> int:
        asked.append(1)
        return read_revision(link)

    def take_a_turn(_seconds: float) -> None:
        own.snapshot()

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(change_watch, "read_revision", read)
    monkeypatch.setattr(own.link, "pause", take_a_turn)
    assert not own.wait_for_change(10 * change_watch.LOOK_MS)
    # At the beginning and at the end of the wait.
    assert len(asked) == 2
