"""One leader at a time; each change of leader is a new epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from batchq.store.redis import Leader, RedisStore


def until_past(store: RedisStore, instant_ms: int) -> None:
    """Returns once the server's clock has passed the instant."""
    pause = threading.Event()
    while store.now_ms() <= instant_ms:
        pause.wait(0.002)


def test_nobody_leads_at_first(redis_store: RedisStore) -> None:
    assert redis_store.leader() is None


def test_the_first_to_ask_leads_and_keeps_leading(redis_store: RedisStore) -> None:
    assert redis_store.lead("one", 30_000) == 1
    assert redis_store.lead("two", 30_000) is None
    assert redis_store.lead("one", 30_000) == 1
    leader = redis_store.leader()
    assert leader is not None
    assert (leader.identity, leader.epoch) == ("one", 1)
    assert 0 < leader.expires_at - redis_store.now_ms() <= 30_000


def test_another_leads_once_the_lease_has_ended(open_redis: Callable[[], RedisStore]) -> None:
    first, second = open_redis(), open_redis()
    assert first.lead("one", 20) == 1
    leader = second.leader()
    assert leader is not None
    until_past(second, leader.expires_at)
    assert second.lead("two", 30_000) == 2
    assert first.lead("one", 30_000) is None


def test_a_late_leader_goes_on_in_its_epoch_if_nobody_led_meanwhile(
    redis_store: RedisStore,
) -> None:
    assert redis_store.lead("one", 0) == 1
    assert redis_store.lead("one", 30_000) == 1


def test_who_resigns_makes_room_at_once(redis_store: RedisStore) -> None:
    redis_store.lead("one", 30_000)
    redis_store.resign("two")
    assert redis_store.lead("two", 30_000) is None
    redis_store.resign("one")
    assert redis_store.leader() is None
    assert redis_store.lead("two", 30_000) == 2


def test_the_leaders_lease_ends_by_the_servers_clock(redis_store: RedisStore) -> None:
    before = redis_store.now_ms()
    redis_store.lead("one", 5_000)
    leader = redis_store.leader()
    assert isinstance(leader, Leader)
    assert before + 5_000 <= leader.expires_at <= redis_store.now_ms() + 5_000
