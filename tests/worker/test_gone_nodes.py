"""What RQ keeps of nodes that never come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqLink
from batchq.worker.gonenodes import forget_gone_nodes
from batchq.worker.nodequeue import PodAttempt, enqueue, node_queue

_DEAD = "rq:worker:dead"


@pytest.fixture
def link(redis_store: RedisStore) -> Iterator[RqLink]:
    made = RqLink(redis_store.url)
    yield made
    made.close()


def _leave_traces(link: RqLink, raw: redis.Redis, node: str) -> None:
    """A node whose agent died: two attempts in its queue, one taken off it, old records."""
    queue = node_queue(node, link)
    enqueue(queue, [PodAttempt(f"{node}-1-{number}", 1) for number in range(3)])
    raw.lmove(queue.key, queue.intermediate_queue_key)
    raw.zadd(queue.finished_job_registry.key, {"u-1-7-1": 1})
    raw.zadd(queue.started_job_registry.key, {f"{node}-1-0-1:execution": 1})
    raw.sadd("rq:workers", _DEAD)
    raw.sadd(f"rq:workers:{queue.name}", _DEAD)


def test_nothing_is_left_of_a_node_that_is_gone(link: RqLink, raw: redis.Redis) -> None:
    _leave_traces(link, raw, "gone")
    assert forget_gone_nodes(link, lambda node: True) == ["gone"]
    assert raw.keys("rq:*") == []


def test_a_node_that_exists_keeps_its_queue(link: RqLink, raw: redis.Redis) -> None:
    _leave_traces(link, raw, "stays")
    _leave_traces(link, raw, "gone")
    assert forget_gone_nodes(link, lambda node: node == "gone") == ["gone"]
    assert raw.llen("rq:queue:bq-node-stays") == 2
    assert raw.smembers("rq:queues") == {b"rq:queue:bq-node-stays"}


def test_a_queue_that_a_living_worker_serves_is_left_alone(link: RqLink, raw: redis.Redis) -> None:
    _leave_traces(link, raw, "n1")
    raw.set(_DEAD, "lives")
    assert forget_gone_nodes(link, lambda node: True) == []
    assert raw.llen("rq:queue:bq-node-n1") == 2


def test_queues_of_other_programs_are_none_of_ours(link: RqLink, raw: redis.Redis) -> None:
    raw.sadd("rq:queues", "rq:queue:default")
    raw.rpush("rq:queue:default", "a-job")
    assert forget_gone_nodes(link, lambda node: True) == []
    assert raw.lrange("rq:queue:default", 0, -1) == [b"a-job"]


def test_more_queues_than_one_round_sees_are_gone_after_some_rounds(
    link: RqLink, raw: redis.Redis
) -> None:
    for number in range(50):
        enqueue(node_queue(f"n{number}", link), [PodAttempt(f"u{number}-1-0", 1)])
    rounds = [len(forget_gone_nodes(link, lambda node: True)) for _ in range(3)]
    assert rounds == [20, 20, 10]
    assert raw.keys("rq:*") == []
