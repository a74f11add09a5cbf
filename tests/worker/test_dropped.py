"""Tests of what an agent that died between two steps leaves in RQ."""

from __future__ import annotations

import redis

from batchq.api.node_report import PodAttempt
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqLink
from batchq.worker.agent.slots import Slots
from batchq.worker.rq_delivery import enqueue, node_queue

_ATTEMPT = PodAttempt("0123456789abcdef-1-0", 1)


def _dropped(link: RqLink) -> Slots:
    """Return the slots of an agent whose predecessor only took an attempt from the queue."""
    queue = node_queue("n1", link)
    enqueue(queue, [_ATTEMPT])
    queue.connection.lmove(queue.key, queue.intermediate_queue_key)
    return Slots(link, "n1", prefix="test")


def test_a_dropped_attempt_that_is_no_longer_bound_leaves_no_keys(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    link = RqLink(redis_store.url)
    assert _dropped(link).enqueue_missing([]) == []
    link.close()
    assert raw.keys("{bq}-rq:n1:job:*") == []
    assert raw.keys("{bq}-rq:n1:queue:*") == []


def test_a_dropped_attempt_that_is_still_bound_is_enqueued_again(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    link = RqLink(redis_store.url)
    slots = _dropped(link)
    assert slots.enqueue_missing([_ATTEMPT]) == [_ATTEMPT]
    (job,), _ = slots.take(1)
    assert job.requested_attempt() == _ATTEMPT
    link.close()
