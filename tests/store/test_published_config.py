"""The leader's configuration is published, and only by the leader."""

from __future__ import annotations

from collections.abc import Callable

from batchq.store import keys
from batchq.store.redis import RedisStore
from batchq.store.schedulers import (
    publish_config,
    publish_object_limit,
    read_config_text,
    read_object_limit,
)


def test_no_configuration_is_published_at_first(redis_store: RedisStore) -> None:
    assert read_config_text(redis_store) is None


def test_others_read_the_configuration_the_leader_publishes(
    open_redis: Callable[[], RedisStore],
) -> None:
    leader, client = open_redis(), open_redis()
    epoch = leader.lead("one", 30_000)
    assert publish_config(leader, "actions: [allocate]  # größer\n", epoch=epoch)
    assert read_config_text(client) == "actions: [allocate]  # größer\n"
    assert publish_config(leader, "actions: [enqueue]\n", epoch=epoch)
    assert read_config_text(client) == "actions: [enqueue]\n"


def test_a_former_leader_publishes_nothing(open_redis: Callable[[], RedisStore]) -> None:
    former, present = open_redis(), open_redis()
    old = former.lead("one", 30_000)
    former.resign("one")
    new = present.lead("two", 30_000)
    assert publish_config(present, "actions: [enqueue]\n", epoch=new)
    assert not publish_config(former, "actions: [allocate]\n", epoch=old)
    assert read_config_text(present) == "actions: [enqueue]\n"


def test_the_configuration_stays_when_the_leader_has_resigned(redis_store: RedisStore) -> None:
    epoch = redis_store.lead("one", 30_000)
    publish_config(redis_store, "actions: [enqueue]\n", epoch=epoch)
    redis_store.resign("one")
    assert read_config_text(redis_store) == "actions: [enqueue]\n"


def test_only_the_leader_publishes_the_limit_of_groups_in_a_namespace(
    open_redis: Callable[[], RedisStore],
) -> None:
    former, present = open_redis(), open_redis()
    assert read_object_limit(present) is None
    old = former.lead("one", 30_000)
    former.resign("one")
    new = present.lead("two", 30_000)
    assert old is not None
    assert new is not None
    publish_object_limit(present, 10_000, request_id="1", epoch=new)
    publish_object_limit(former, 5, request_id="2", epoch=old)
    assert read_object_limit(former) == 10_000


def test_an_unreadable_published_number_reads_as_none(redis_store: RedisStore) -> None:
    redis_store.link.ask(lambda client: client.hset(keys.LIMITS, "objects:*", b"\xff"))
    assert read_object_limit(redis_store) is None
