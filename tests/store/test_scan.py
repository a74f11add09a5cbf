"""A scan asks for the next page ahead, and gives every object whatever interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from batchq.api.objects import Object, Unreadable
from batchq.errors import StoreUnavailable
from batchq.store import pages
from batchq.store.keys import objects
from batchq.store.link import Link, is_wrong_type, read_revision
from batchq.store.pages import scan_objects
from batchq.store.redis import RedisStore
from batchq.store.sharing_reader import SharingReader
from tests.contract.made import put, queue, writing
from tests.harness.proxy import ControlledProxy, LossyProxy
from tests.harness.server import Server

#: More than a server keeps in one piece, which it would list at once.
NAMES = [f"q{number:03}" for number in range(600)]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE", 10)
    monkeypatch.setattr(pages, "LARGEST_PAGE", 20)


@pytest.fixture
def link(redis_store: RedisStore) -> Iterator[Link]:
    """A connection to a server with many queues."""
    fill(redis_store)
    link = Link(redis_store.url)
    yield link
    link.close()


def fill(store: RedisStore) -> None:
    store.commit([writing(*(put(queue(name)) for name in NAMES))], request_id="fill")


def scans_asked(raw: redis.Redis) -> int:
    stats: Any = raw.info("commandstats")
    return int(stats.get("cmdstat_hscan", {"calls": 0})["calls"])


def test_the_next_page_is_asked_before_the_first_is_used(link: Link, raw: redis.Redis) -> None:
    before = scans_asked(raw)
    found = scan_objects(link, "Queue")
    first = next(found)[0]
    assert scans_asked(raw) - before == 2
    assert sorted([first, *(key for key, _ in found)]) == NAMES
    assert link.connections == 1


def test_pages_grow_while_objects_are_small_and_stay_bounded() -> None:
    assert pages._objects_a_page({b"a": b"x" * 100}) == 20
    assert pages._objects_a_page({b"a": b"x" * (pages.BYTES_A_PAGE // 15)}) == 15
    assert pages._objects_a_page({b"a": b"x" * pages.BYTES_A_PAGE}) == 10
    assert pages._objects_a_page({}) == 10


def test_a_scan_that_is_left_early_leaves_no_answer_behind(link: Link, raw: redis.Redis) -> None:
    for _ in range(20):
        found = scan_objects(link, "Queue")
        next(found)
        found.close()
        assert read_revision(link) == len(NAMES)
    assert sorted(key for key, _ in scan_objects(link, "Queue")) == NAMES


def test_a_scan_whose_user_fails_leaves_no_answer_behind(link: Link) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        sum(int(stored) for _, stored in scan_objects(link, "Queue"))
    assert read_revision(link) == len(NAMES)


def test_a_scan_goes_on_after_its_connection_was_cut_between_pages(
    link: Link, server: Server
) -> None:
    with ControlledProxy(server.socket) as proxy:
        cut = Link(proxy.url)
        found = scan_objects(cut, "Queue")
        keys = {next(found)[0]}
        for _ in range(3):
            proxy.cut()
            proxy.mend()
            keys |= {next(found)[0] for _ in range(25)}
        keys |= {key for key, _ in found}
        assert sorted(keys) == NAMES
        assert read_revision(cut) == len(NAMES)
        cut.close()


@pytest.mark.parametrize("times", [1, 3])
def test_a_page_whose_answer_is_lost_is_asked_again(link: Link, server: Server, times: int) -> None:
    with LossyProxy(server.socket) as proxy:
        lossy = Link(proxy.url)
        found = scan_objects(lossy, "Queue")
        first = next(found)[0]
        proxy.lose("HSCAN", times=times)
        assert sorted({first, *(key for key, _ in found)}) == NAMES
        assert proxy.lost == times
        lossy.close()


def test_a_scan_of_a_server_that_is_gone_fails_with_the_reason(link: Link, server: Server) -> None:
    with ControlledProxy(server.socket) as proxy:
        cut = Link(proxy.url)
        found = scan_objects(cut, "Queue")
        next(found)
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            list(found)
        proxy.mend()
        assert read_revision(cut) == len(NAMES)
        cut.close()


def test_a_key_of_another_type_between_pages_is_told_and_leaves_no_answer_behind(
    link: Link, raw: redis.Redis
) -> None:
    link.waits_for_mending = False
    found = scan_objects(link, "Queue")
    next(found)
    raw.set(objects("Queue"), "no hash")
    with pytest.raises(StoreUnavailable) as failed:
        list(found)
    assert is_wrong_type(failed.value.__cause__)
    assert read_revision(link) == len(NAMES)


def test_damage_on_a_page_costs_only_its_record(
    redis_store: RedisStore, open_redis: Callable[[], RedisStore], raw: redis.Redis
) -> None:
    fill(redis_store)
    raw.hset(objects("Queue"), "q100", b'{"metadata":{"name":')
    raw.hset(objects("Queue"), b"\xff\xfe", b"\x00")
    reader = open_redis()
    found = [one.metadata.name for one in reader.snapshot().queues]
    assert found == [name for name in NAMES if name != "q100"]
    assert len(reader.unreadable()) == 2


def test_a_server_that_restarts_between_pages_is_listed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store, reader = RedisStore(server.url), RedisStore(server.url)
        fill(store)
        read = SharingReader.read_record
        seen = 0

        def restarting(
            self: SharingReader, kind: str, key: str, stored: bytes
        ) -> Object | Unreadable:
            nonlocal seen
            seen += kind == "Queue"
            if seen == 25:
                seen += 1
                server.stop()
                server.start()
            return read(self, kind, key, stored)

        monkeypatch.setattr(SharingReader, "read_record", restarting)
        assert [one.metadata.name for one in reader.snapshot().queues] == NAMES
        assert seen > len(NAMES)
        store.close()
        reader.close()
