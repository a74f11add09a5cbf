"""The leak check finds each kind of leak."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from batchq.api.transaction import Delivery, Limit, Transaction
from batchq.store import keys
from batchq.store.redis import RedisStore
from tests.contract.made import charge, group, node, pod, put, queue
from tests.harness.leaks import lasting_keys, orphans


@pytest.fixture
def full(redis_store: RedisStore, raw: redis.Redis) -> redis.Redis:
    """A server with objects, and with something of each kind that belongs to them."""
    world = Transaction(
        subject="world",
        writes=(put(queue()), put(node()), put(group()), put(pod(0))),
        charges=(charge("group:u1", "queue:q", cpu=1), charge("pod:u1-1-0", "node:n1", cpu=1)),
        limits=(Limit(scope="queue:q", amounts={"cpu": 5}),),
        deliveries=(Delivery(pod="u1-1-0", attempt=1, node="n1"),),
    )
    assert not redis_store.commit([world], request_id="1").refused
    return raw


def test_keys_of_existing_objects_are_no_leak(full: redis.Redis) -> None:
    assert orphans(full) == []
    assert lasting_keys(full) == []


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (keys.CHARGES, "pod:gone-1-0"),
        (keys.CHARGES, "group:gone"),
        (keys.CHARGES, "object:gone"),
        (keys.CHARGES, "node:gone"),
        (keys.LIMITS, "queue:gone"),
        (keys.LIMITS, "node:gone"),
        (keys.OUTBOX, "gone-1-0-1"),
        (keys.heads("Pod"), "gone-1-0"),
        (keys.alive("n1"), "gone-1-0-1"),
        (keys.alive("gone"), "beat"),
        (keys.report_queue("gone"), "anything"),
    ],
)
def test_keys_of_a_deleted_object_are_a_leak(full: redis.Redis, key: str, field: str) -> None:
    full.hset(key, field, "1")
    assert orphans(full) == [f"{key}: {field}"]


def test_keys_left_by_a_deleted_node_expire(full: redis.Redis) -> None:
    for key in (keys.alive("gone"), keys.report_queue("gone")):
        full.hset(key, "beat", "1")
        full.expire(key, 60)
    assert orphans(full) == []


def test_a_pod_without_its_group_is_a_leak(full: redis.Redis) -> None:
    for key in (keys.objects("PodGroup"), keys.heads("PodGroup")):
        full.delete(key)
    full.hdel(keys.CHARGES, "group:u1")
    assert orphans(full) == [f"{keys.objects('Pod')}: u1-1-0"]


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda raw: raw.set("stray", "1"), id="a stranger's key"),
        pytest.param(lambda raw: raw.set(keys.request("1"), "1"), id="a passing key that stays"),
        pytest.param(
            lambda raw: raw.set("{bq}-rq:n1:job:1", "1"), id="an RQ job that is never removed"
        ),
    ],
)
def test_a_key_that_stays_and_is_not_declared_is_a_leak(
    full: redis.Redis, leave: Callable[[redis.Redis], object]
) -> None:
    leave(full)
    assert len(lasting_keys(full)) == 1
