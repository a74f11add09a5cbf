"""Tests of the delivery to RQ: one round trip writes what RQ would write job by job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from rq import Queue

from batchq.api.node_report import PodAttempt
from batchq.store.rq_link import RqLink
from batchq.worker.rq_delivery import ENTRY, PodJob, enqueue, enqueue_all, node_queue
from tests.harness.server import Server


@pytest.fixture
def link(server: Server) -> Iterator[RqLink]:
    made = RqLink(server.url)
    yield made
    made.close()


def test_a_record_is_the_one_that_rq_itself_writes(link: RqLink, raw: redis.Redis) -> None:
    queue = node_queue("n1", link)
    enqueue(queue, [PodAttempt("ours", 3)])
    queue.enqueue_many(
        [
            Queue.prepare_data(
                ENTRY,
                args=["rqs", 3],
                job_id="rqs-3",
                timeout=-1,
                result_ttl=60,
                failure_ttl=60,
                description="rqs-3",
            )
        ]
    )
    ours, rqs = (raw.hgetall(f"{{bq}}-rq:n1:job:{id_}-3") for id_ in ("ours", "rqs"))
    instants = (b"created_at", b"enqueued_at")
    assert ours.keys() == rqs.keys()
    differing = {name for name in ours if name not in instants and ours[name] != rqs[name]}
    assert differing == {b"data", b"description"}
    assert ours[b"description"] == b"ours-3"


def test_rq_reads_the_delivered_attempt_from_the_record(link: RqLink) -> None:
    queue = node_queue("n1", link)
    enqueue(queue, [PodAttempt("p", 3)])
    job = PodJob.fetch("p-3", connection=queue.connection, serializer=queue.serializer)
    assert isinstance(job, PodJob)
    assert job.requested_attempt() == PodAttempt("p", 3)
    assert (job.origin, job.timeout, job.result_ttl) == ("bq-node-n1", -1, 60)
    assert job.enqueued_at is not None


def test_each_node_gets_its_own_attempts_in_order(link: RqLink, raw: redis.Redis) -> None:
    one, other, none = (node_queue(name, link) for name in ("n1", "n2", "n3"))
    enqueue_all(
        {one: [PodAttempt("b", 1), PodAttempt("a", 1)], other: [PodAttempt("c", 2)], none: []}
    )
    assert one.get_job_ids() == ["b-1", "a-1"]
    assert other.get_job_ids() == ["c-2"]
    enqueue_all({none: []})
    assert sorted(raw.keys("*")) == [
        *(b"{bq}-rq:n1:job:a-1", b"{bq}-rq:n1:job:b-1", b"{bq}-rq:n1:queue:bq-node-n1"),
        *(b"{bq}-rq:n2:job:c-2", b"{bq}-rq:n2:queue:bq-node-n2"),
    ]


def test_an_attempt_that_no_agent_takes_expires(link: RqLink, raw: redis.Redis) -> None:
    enqueue(node_queue("n1", link), [PodAttempt("p", 1)])
    names = raw.keys("*")
    assert len(names) == 2
    assert {0 < raw.ttl(name) <= 24 * 3600 for name in names} == {True}


def test_an_attempt_delivered_again_is_queued_again(link: RqLink) -> None:
    queue = node_queue("n1", link)
    for _ in range(2):
        enqueue(queue, [PodAttempt("p", 1)])
    assert queue.get_job_ids() == ["p-1", "p-1"]
