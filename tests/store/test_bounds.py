"""What a server keeps is bounded, however much is written."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import redis

from batchq.api.transaction import Event, Transaction
from batchq.store import keys
from batchq.store.redis import EVENTS_KEPT, LOG_PIECES_KEPT, RedisStore

#: Redis trims a stream by whole nodes of a hundred entries, so "about" allows that many more.
ABOUT = 100


def write_events(store: RedisStore, raw: redis.Redis) -> None:
    for number in range(12):
        events = tuple(
            Event(kind="Queue", key=f"q{number}-{place}", reason="Seen") for place in range(1_000)
        )
        store.commit([Transaction(subject="many", events=events)], request_id=str(number))


def write_single_bytes(store: RedisStore, raw: redis.Redis) -> None:
    """Write as a pod does that flushes each byte; the server is filled by a shorter way."""
    key = keys.log("n1", "u1-1-0", 1)
    pipeline = raw.pipeline(transaction=False)
    for number in range(40_000):
        pipeline.xadd(key, {"request": number, "stream": "stdout", "data": "x", "length": number})
    pipeline.execute()
    store.append_log("n1", "u1-1-0", 1, "stdout", b"the end")


@pytest.mark.parametrize(
    ("flood", "key", "most", "newest"),
    [
        pytest.param(write_events, keys.EVENTS, 10_000, b"q11-999", id="events"),
        pytest.param(
            write_single_bytes, keys.log("n1", "u1-1-0", 1), 32_768, b"the end", id="output"
        ),
    ],
)
def test_a_stream_keeps_only_the_newest(
    redis_store: RedisStore,
    raw: redis.Redis,
    flood: Callable[[RedisStore, redis.Redis], None],
    key: str,
    most: int,
    newest: bytes,
) -> None:
    flood(redis_store, raw)
    assert most <= raw.xlen(key) <= most + ABOUT
    [(_, fields)] = raw.xrevrange(key, count=1)
    assert newest in b" ".join(fields.values())


def test_the_bounds_are_those_of_the_manual() -> None:
    assert (EVENTS_KEPT, LOG_PIECES_KEPT) == (10_000, 32_768)


@pytest.mark.parametrize(
    ("key", "seconds"),
    [
        pytest.param(keys.request("<id>"), 600, id="answers to requests"),
        pytest.param(keys.log("<node>", "<pod>", 1), 7 * 86_400, id="output"),
        pytest.param(keys.result("<node>", "<pod>", 1), 7 * 86_400, id="results"),
        pytest.param(keys.pod_token("<node>", "<pod>", 1), 86_400, id="pod tokens"),
        pytest.param(keys.exec_requests("<node>"), 86_400, id="requests for commands in pods"),
        pytest.param(keys.exec_input("<node>", "<session>"), 60, id="input of commands in pods"),
        pytest.param(keys.exec_output("<node>", "<session>"), 60, id="their output"),
        pytest.param(keys.report_queue("<node>"), 7 * 86_400, id="reports that no leader applies"),
        pytest.param(keys.alive("<node>"), 86_400, id="beats and leases"),
    ],
)
def test_transient_keys_expire(key: str, seconds: int) -> None:
    row = keys.declared(key)
    assert row is not None
    assert row.ttl_s == seconds


def test_an_answer_to_a_request_is_remembered_for_ten_minutes(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.commit([Transaction(subject="empty")], request_id="lost")
    [key] = raw.keys(keys.request("lost*"))
    assert 590 <= raw.ttl(key) <= 600
    assert json.loads(raw.get(key) or b"")[1] == [["ok"]]
