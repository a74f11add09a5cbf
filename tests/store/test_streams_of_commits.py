"""Commits check and repair the streams that they append to before they write anything else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import redis

from batchq.api.transaction import Event, Transaction
from batchq.errors import StoreUnavailable
from batchq.store import keys
from batchq.store.redis import RedisStore
from tests.contract.made import limiting, put, queue, words, writing

LAST = "18446744073709551615-18446744073709551615"


def told(name: str) -> Transaction:
    """Return a transaction with a write and an event."""
    event = Event(kind="Queue", key=name, reason="Made")
    return Transaction(subject=name, writes=(put(queue(name)),), events=(event,))


def contents(raw: redis.Redis) -> Mapping[bytes, object]:
    return {key: raw.dump(key) for key in raw.keys("{bq}:*")}


def test_the_count_follows_a_change_stream_whose_last_id_belongs_to_no_entry(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.commit([told("a"), writing(put(queue("b")))], request_id="1")
    raw.execute_command("XSETID", keys.CHANGES, "5000-0")
    result = redis_store.commit([told("c"), writing(put(queue("d")))], request_id="2")
    assert (words(result), result.revision) == ([], 5002)
    [(_, first), (_, second)] = raw.xrange(keys.CHANGES, min="5001-0")
    assert (first[b"repaired"], first[b"was"]) == (keys.REVISION.encode(), b"2")
    assert (first[b"key"], second[b"key"], b"repaired" in second) == (b"c", b"d", False)
    revisions = {one.metadata.name: one.metadata.revision for one in redis_store.list("Queue")}
    assert revisions == {"a": 1, "b": 2, "c": 5001, "d": 5002}
    assert [event.key for event in redis_store.events()] == ["a", "c"]


def test_limits_change_at_a_revision_that_no_reader_has_passed(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.commit([writing(put(queue("a")))], request_id="1")
    raw.execute_command("XSETID", keys.CHANGES, "5000-0")
    redis_store.commit([limiting("ns:x", cpu=1)], request_id="2")
    assert raw.hget(keys.LIMITS, "last change") == b"5000"


@pytest.fixture
def unmended(redis_store: RedisStore) -> RedisStore:
    """Return a store in which no leader repairs damage."""
    redis_store.link.waits_for_mending = False
    return redis_store


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_a_commit_whose_event_cannot_be_appended_writes_nothing(
    unmended: RedisStore, raw: redis.Redis, is_first: bool
) -> None:
    unmended.commit([told("a")], request_id="1")
    raw.execute_command("XSETID", keys.EVENTS, LAST)
    before = contents(raw)
    some = [told("b"), writing(put(queue("c")))]
    with pytest.raises(StoreUnavailable, match="damaged value"):
        unmended.commit(some if is_first else some[::-1], request_id="2")
    assert contents(raw) == before


def test_a_commit_of_an_event_to_a_key_of_another_type_writes_nothing(
    unmended: RedisStore, raw: redis.Redis
) -> None:
    raw.set(keys.EVENTS, "text")
    before = contents(raw)
    with pytest.raises(StoreUnavailable, match="damaged value"):
        unmended.commit([told("a"), told("b")], request_id="1")
    assert contents(raw) == before


@pytest.mark.parametrize(
    "transaction",
    [told("b"), writing(put(queue("b"))), limiting("ns:x", cpu=1)],
    ids=["an event", "a write", "a limit"],
)
def test_a_full_server_is_left_as_it_was(
    redis_store: RedisStore, raw: redis.Redis, transaction: Transaction
) -> None:
    redis_store.commit([told("a")], request_id="1")
    before = contents(raw)
    raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            redis_store.commit([transaction], request_id="2")
    finally:
        raw.config_set("maxmemory", 0)
    assert contents(raw) == before


def test_streams_that_only_small_commits_extend_stay_bounded(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    small = RedisStore(redis_store.url, changes_kept=100)
    for number in range(200):
        small.commit(
            [told(f"a{number}"), writing(put(queue(f"b{number}")))], request_id=f"{number}"
        )
    small.close()
    # A stream is trimmed by whole nodes of a hundred entries, and once in 64 writes.
    assert 100 <= raw.xlen(keys.CHANGES) <= 100 + 100 + 64
    assert len(redis_store.list("Queue")) == 400
