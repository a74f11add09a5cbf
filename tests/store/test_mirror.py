"""The mirror shows what the server holds, whatever happened meanwhile; watchers miss nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import redis

from batchq.api.objects import Metadata, Object, Queue, QueueSpec
from batchq.api.transaction import Transaction
from batchq.daemon.leader import Mender
from batchq.store.redis import MirrorDifference, RedisStore, Trimmed
from batchq.system import RandomIds
from tests.contract.made import gone, put, queue, writing
from tests.harness.server import Server


def names(store: RedisStore) -> list[str]:
    return [one.metadata.name for one in store.snapshot().queues]


def make(store: RedisStore, *wanted: str) -> None:
    for name in wanted:
        store.commit([writing(put(queue(name)))], request_id=f"make {name}")


def test_one_store_sees_what_another_wrote(open_redis: Callable[[], RedisStore]) -> None:
    writer, reader = open_redis(), open_redis()
    make(writer, "a", "b")
    assert names(reader) == ["a", "b"]
    make(writer, "c")
    writer.commit([writing(gone(queue("a"), expect=1))], request_id="delete")
    assert names(reader) == ["b", "c"]
    assert reader.snapshot().revision == 4


def test_a_reader_behind_the_trimmed_stream_lists_again(
    redis_store: RedisStore, open_redis: Callable[[], RedisStore]
) -> None:
    reader = open_redis()
    make(redis_store, "a")
    assert names(reader) == ["a"]
    writer = RedisStore(redis_store.url, changes_kept=10)
    for number in range(10):
        many = writing(*(put(queue(f"q{number}-{place}")) for place in range(100)))
        writer.commit([many], request_id=str(number))
    writer.commit([writing(gone(queue("a"), expect=1))], request_id="delete")
    writer.close()
    assert len(names(reader)) == 1_000
    assert list(reader.compare()) == []


class Decoded:
    """Notes which objects are decoded."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        reader = store.mirror._reader
        read = reader.read

        def noting(kind: str, stored: bytes) -> Object:
            item = read(kind, stored)
            self.names.append(item.metadata.name)
            return item

        monkeypatch.setattr(reader, "read", noting)


def weighing(weight: int, expect: int = 0) -> Transaction:
    """Write the queue `a` with this weight."""
    return writing(
        put(Queue(metadata=Metadata(name="a"), spec=QueueSpec(weight=weight)), expect=expect)
    )


def test_a_leader_does_not_decode_what_it_wrote_itself(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = redis_store.lead("me", 60_000)
    decoded = Decoded(redis_store, monkeypatch)
    redis_store.snapshot()
    redis_store.commit([weighing(3)], request_id="1", epoch=epoch)
    [mirrored] = redis_store.snapshot().queues
    assert decoded.names == []
    assert mirrored == redis_store.get("Queue", "a")
    assert (mirrored.spec.weight, mirrored.metadata.revision) == (3, 1)


def test_a_leader_decodes_what_another_process_wrote_after_it(
    redis_store: RedisStore,
    open_redis: Callable[[], RedisStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epoch = redis_store.lead("me", 60_000)
    decoded = Decoded(redis_store, monkeypatch)
    redis_store.snapshot()
    redis_store.commit([weighing(3)], request_id="1", epoch=epoch)
    open_redis().commit([weighing(5, expect=1)], request_id="2")
    [mirrored] = redis_store.snapshot().queues
    assert (mirrored.spec.weight, mirrored.metadata.revision) == (5, 2)
    assert decoded.names == ["a"]


def test_a_refused_write_of_a_leader_is_not_taken_for_what_is_stored(
    redis_store: RedisStore,
    open_redis: Callable[[], RedisStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epoch = redis_store.lead("me", 60_000)
    decoded = Decoded(redis_store, monkeypatch)
    redis_store.snapshot()
    open_redis().commit([weighing(5)], request_id="1")
    refused = redis_store.commit([weighing(5)], request_id="2", epoch=epoch)
    assert len(refused.refused) == 1
    [mirrored] = redis_store.snapshot().queues
    assert (mirrored.spec.weight, mirrored.metadata.revision) == (5, 1)
    assert decoded.names == ["a"]


def test_an_object_that_changed_several_times_is_decoded_once(
    redis_store: RedisStore,
    open_redis: Callable[[], RedisStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = open_redis()
    reader.snapshot()
    decoded = Decoded(reader, monkeypatch)
    redis_store.commit([weighing(3)], request_id="1")
    make(redis_store, "b")
    redis_store.commit([weighing(5, expect=1)], request_id="2")
    redis_store.commit([weighing(7, expect=3)], request_id="3")
    seen = reader.snapshot()
    assert [(one.metadata.name, one.spec.weight) for one in seen.queues] == [("a", 7), ("b", 1)]
    assert seen.revision == 4
    assert decoded.names == ["b", "a"]


def test_an_object_that_was_deleted_and_created_anew_has_its_last_state(
    redis_store: RedisStore, open_redis: Callable[[], RedisStore]
) -> None:
    reader = open_redis()
    redis_store.commit([weighing(3)], request_id="1")
    assert names(reader) == ["a"]
    redis_store.commit([writing(gone(queue("a"), expect=1))], request_id="2")
    redis_store.commit([weighing(5)], request_id="3")
    make(redis_store, "b", "c")
    redis_store.commit([writing(gone(queue("c"), expect=5))], request_id="4")
    assert names(reader) == ["a", "b"]
    assert reader.snapshot().queues[0].spec.weight == 5
    assert list(reader.compare()) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_mirror_that_reads_now_and_then_shows_what_is_stored(
    redis_store: RedisStore, open_redis: Callable[[], RedisStore], seed: int
) -> None:
    """Whatever was created, changed and deleted in between, and by whom."""
    epoch = redis_store.lead("me", 60_000)
    other, chance = open_redis(), random.Random(seed)
    for number in range(150):
        name, mine = chance.choice("abcde"), chance.random() < 0.5
        stored = redis_store.get("Queue", name)
        revision = stored.metadata.revision if stored else 0
        if stored and chance.random() < 0.3:
            write = gone(queue(name), expect=revision)
        else:
            made = Queue(metadata=Metadata(name=name), spec=QueueSpec(weight=number + 1))
            write = put(made, expect=revision)
        writer = redis_store if mine else other
        writer.commit([writing(write)], request_id=f"{number}", epoch=epoch if mine else None)
        if chance.random() < 0.2:
            seen = redis_store.snapshot()
            assert list(seen.queues) == list(redis_store.list("Queue"))
            assert seen.revision == number + 1


def test_an_emptied_server_is_noticed(redis_store: RedisStore, raw: redis.Redis) -> None:
    make(redis_store, "a", "b")
    assert names(redis_store) == ["a", "b"]
    raw.flushall()
    assert names(redis_store) == []
    make(redis_store, "c")
    assert names(redis_store) == ["c"]


def test_a_restarted_server_that_lost_writes_is_noticed() -> None:
    with Server() as server:
        store, other = RedisStore(server.url), RedisStore(server.url)
        make(store, "a", "b")
        assert names(store) == ["a", "b"]
        server.stop()
        server.start()
        make(other, "c", "d")
        assert names(store) == ["c", "d"]
        store.close()
        other.close()


def test_a_restarted_server_that_kept_its_file_has_everything() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url)
        make(store, "a")
        server.stop()
        server.start()
        make(store, "b")
        assert names(store) == ["a", "b"]
        assert store.snapshot().revision == 2
        store.close()


def test_the_comparison_finds_changes_made_past_batchq(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    make(redis_store, "a", "b", "c")
    assert names(redis_store) == ["a", "b", "c"]
    assert list(redis_store.compare()) == []
    raw.hdel("{bq}:Queue", "a")
    raw.hset("{bq}:Queue", "b", '{"metadata":{"revision":2,"name":"b"},"spec":{"weight":7}}')
    raw.hset("{bq}:Queue", "d", '{"metadata":{"revision":9,"name":"d"}}')
    assert sorted(redis_store.compare(), key=lambda one: one.key) == [
        MirrorDifference(kind="Queue", key="a", mirrored=1, stored=0),
        MirrorDifference(kind="Queue", key="b", mirrored=2, stored=2),
        MirrorDifference(kind="Queue", key="d", mirrored=0, stored=9),
    ]
    assert names(redis_store) == ["b", "c", "d"]


def test_the_comparison_goes_on_where_it_stopped(redis_store: RedisStore, raw: redis.Redis) -> None:
    many = writing(*(put(queue(f"q{number:04}")) for number in range(3_000)))
    redis_store.commit([many], request_id="1")
    redis_store.snapshot()
    raw.hdel("{bq}:Queue", "q2999")
    found = [one for _ in range(10) for one in redis_store.compare(1_000)]
    assert [one.key for one in found] == ["q2999"]


def test_a_watcher_hears_of_each_change_in_order(redis_store: RedisStore) -> None:
    make(redis_store, "a")
    place, heard = redis_store.watch(None, 0)
    assert list(heard) == []
    make(redis_store, "b")
    redis_store.commit([writing(gone(queue("a"), expect=1))], request_id="delete")
    place, heard = redis_store.watch(place, 0)
    assert [(one.key, one.revision, one.value is None) for one in heard] == [
        ("b", 2, False),
        ("a", 3, True),
    ]
    assert redis_store.watch(place, 10) == (place, [])


def test_a_watcher_behind_the_trimmed_stream_is_refused(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    make(redis_store, "a")
    place, _ = redis_store.watch(None, 0)
    make(redis_store, "b", "c")
    raw.xtrim("{bq}:changes", maxlen=1, approximate=False)
    with pytest.raises(Trimmed):
        redis_store.watch(place, 0)
    raw.flushall()
    with pytest.raises(Trimmed):
        redis_store.watch(place, 0)


def test_waiting_for_a_change_ends_with_the_change_or_in_time(
    open_redis: Callable[[], RedisStore],
) -> None:
    waiter, writer = open_redis(), open_redis()
    make(writer, "a")
    assert waiter.wait_for_change(0)
    assert not waiter.wait_for_change(20)
    heard: list[bool] = []
    thread = threading.Thread(target=lambda: heard.append(waiter.wait_for_change(15_000)))
    thread.start()
    make(writer, "b")
    thread.join(timeout=60)
    assert heard == [True]
    assert not waiter.wait_for_change(0)


@pytest.mark.parametrize("far", ["99999999-0", "99999999-7", "1-7", f"{2**64 - 1}-1"])
@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "x"},
        {"kind": "Queue", "key": "a", "value": "no JSON"},
        {"kind": b"\xff", "key": "a", "value": ""},
    ],
)
def test_a_foreign_change_is_ignored_and_does_not_stop_the_leader(
    redis_store: RedisStore, raw: redis.Redis, far: str, entry: dict[str, str]
) -> None:
    make(redis_store, "a")
    epoch = redis_store.lead("one", 30_000)
    assert epoch is not None
    assert names(redis_store) == ["a"]
    raw.xadd("{bq}:changes", entry, id=far)
    Mender(redis_store, RandomIds()).look(epoch)
    assert names(redis_store) == ["a"]
    make(redis_store, "b")
    assert names(redis_store) == ["a", "b"]


def test_a_deleted_change_does_not_stop_commits(redis_store: RedisStore, raw: redis.Redis) -> None:
    make(redis_store, "a")
    raw.xadd("{bq}:changes", {"kind": "x"}, id="99999999-0")
    raw.xdel("{bq}:changes", "99999999-0")
    make(redis_store, "b")
    assert names(redis_store) == ["a", "b"]
