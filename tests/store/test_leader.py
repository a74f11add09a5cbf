"""One leader at a time; each change of leader is a new epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import redis

from batchq.api.transaction import Transaction, Word, count_of, generation_of
from batchq.store.redis import Leader, RedisStore
from tests.contract.made import put, queue, writing
from tests.harness.server import Server
from tests.store.test_leases import CLOCK_ERROR_MS, clock_of


def until_past(store: RedisStore, instant_ms: int) -> None:
    """Wait until the server's clock has passed the instant."""
    pause = threading.Event()
    while store.now_ms() <= instant_ms:
        pause.wait(0.002)


def counted_epoch(store: RedisStore, identity: str, lease_ms: int = 30_000) -> int | None:
    """Return the epoch of a process that asks to lead, as people count it."""
    epoch = store.lead(identity, lease_ms)
    return None if epoch is None else count_of(epoch)


def a_write(name: str) -> Transaction:
    return writing(put(queue(name)))


def test_a_new_store_has_no_leader(redis_store: RedisStore) -> None:
    assert redis_store.leader() is None


def test_the_first_to_ask_leads_and_keeps_leading(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    assert counted_epoch(redis_store, "one") == 1
    assert redis_store.lead("two", 30_000) is None
    assert counted_epoch(redis_store, "one") == 1
    leader = redis_store.leader()
    assert leader is not None
    assert (leader.identity, count_of(leader.epoch)) == ("one", 1)
    assert 0 < leader.expires_at - clock_of(raw) <= 30_000 + CLOCK_ERROR_MS


def test_another_leads_once_the_lease_has_ended(open_redis: Callable[[], RedisStore]) -> None:
    first, second = open_redis(), open_redis()
    assert counted_epoch(first, "one", lease_ms=20) == 1
    leader = second.leader()
    assert leader is not None
    until_past(second, leader.expires_at)
    assert counted_epoch(second, "two") == 2
    assert first.lead("one", 30_000) is None


def test_a_late_leader_keeps_its_epoch_if_no_other_led_meanwhile(
    redis_store: RedisStore,
) -> None:
    assert counted_epoch(redis_store, "one", lease_ms=0) == 1
    assert counted_epoch(redis_store, "one") == 1


def test_another_leads_at_once_after_a_resignation(redis_store: RedisStore) -> None:
    redis_store.lead("one", 30_000)
    redis_store.resign("two")
    assert redis_store.lead("two", 30_000) is None
    redis_store.resign("one")
    assert redis_store.leader() is None
    assert counted_epoch(redis_store, "two") == 2


def test_the_leaders_lease_ends_by_the_servers_clock(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    before = clock_of(raw)
    redis_store.lead("one", 5_000)
    leader = redis_store.leader()
    assert isinstance(leader, Leader)
    assert before + 5_000 <= leader.expires_at + CLOCK_ERROR_MS
    assert leader.expires_at - CLOCK_ERROR_MS <= clock_of(raw) + 5_000


def test_a_server_restored_from_an_older_file_repeats_no_epoch() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url)
        before = store.lead("one", 0)
        older = server.copy_of_files()
        lost = store.lead("two", 0)
        server.stop()
        server.restore(older)
        server.start()
        after = store.lead("three", 30_000)
        assert before is not None
        assert lost is not None
        assert after is not None
        assert count_of(lost) == count_of(after) == 2
        assert generation_of(before) == generation_of(lost) < generation_of(after)
        store.close()


def test_an_epoch_from_before_a_restart_is_refused_even_without_a_new_leader() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url)
        epoch = store.lead("one", 30_000)
        assert store.commit([a_write("a")], request_id="1", epoch=epoch).applied
        server.stop()
        server.start()
        late = store.commit([a_write("b")], request_id="2", epoch=epoch)
        assert [refusal.answer.word for refusal in late.refused] == [Word.EPOCH]
        # A transaction without an epoch is only compared with what it changes.
        assert store.commit([a_write("c")], request_id="3").applied
        again = store.lead("one", 30_000)
        assert store.commit([a_write("d")], request_id="4", epoch=again).applied
        stale = store.commit([a_write("e")], request_id="5", epoch=epoch)
        assert [refusal.answer.word for refusal in stale.refused] == [Word.EPOCH]
        store.close()


def test_after_a_restart_the_first_to_ask_leads() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url)
        store.lead("one", 30_000)
        server.stop()
        server.start()
        assert counted_epoch(store, "two") == 2
        assert store.lead("one", 30_000) is None
        store.close()
