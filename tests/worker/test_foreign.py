"""Tests of RQ jobs that are not pods: the agent refuses them, whatever enqueued them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from rq import Callback, Queue

from batchq.api.lifecycle import PodPhase
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqConnection, rq_connection
from tests.daemon.waiting import until
from tests.worker.stage import WITHIN_S, Stage

pytestmark = pytest.mark.e2e


@pytest.fixture
def node(redis_store: RedisStore) -> Iterator[RqConnection]:
    """A connection with which RQ itself uses the keys of n1."""
    made = rq_connection(redis_store.url)
    yield made.of("n1")
    made.close()


def _is_gone(raw: redis.Redis, job: str) -> bool:
    listed = raw.lrange("{bq}-rq:n1:queue:bq-node-n1", 0, -1)
    listed += raw.lrange("{bq}-rq:n1:queue:bq-node-n1:intermediate", 0, -1)
    return job.encode() not in listed


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("os.system", ["touch {mark}"]),
        ("builtins.eval", ["open('{mark}', 'w')"]),
        ("batchq.worker.entry.run_pod", ["x", 1, "more"]),
        ("batchq.worker.entry.run_pod", []),
    ],
)
def test_a_foreign_function_is_refused_and_pods_still_run(
    stage: Stage, raw: redis.Redis, node: RqConnection, function: str, arguments: list[Any]
) -> None:
    stage.start_agent()
    mark = stage.home / "mark"
    queue = Queue("bq-node-n1", connection=node, serializer="json")
    filled = [one.format(mark=mark) if isinstance(one, str) else one for one in arguments]
    job = queue.enqueue(function, args=filled)
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    until(lambda: _is_gone(raw, job.id), within_s=WITHIN_S)
    assert not mark.exists()
    assert "foreign rq job refused" in stage.log_text()


def test_a_foreign_function_with_a_pods_arguments_is_refused_and_the_pod_is_not_changed(
    stage: Stage, node: RqConnection
) -> None:
    stage.start_agent()
    (pod,) = stage.bound("true", node="elsewhere")
    queue = Queue("bq-node-n1", connection=node, serializer="json")
    queue.enqueue("os.system", args=[pod.metadata.uid, 1], job_id=f"{pod.metadata.uid}-1")
    until(lambda: "it names the function 'os.system'" in stage.log_text(), within_s=WITHIN_S)
    assert stage.now(pod).status.phase == PodPhase.BOUND


def test_a_pickled_payload_is_never_loaded(
    stage: Stage, raw: redis.Redis, node: RqConnection
) -> None:
    stage.start_agent()
    mark = stage.home / "mark"
    queue = Queue("bq-node-n1", connection=node, serializer="json")
    job = queue.enqueue("os.getpid")
    raw.hset(
        f"{{bq}}-rq:n1:job:{job.id}",
        "data",
        pickle.dumps(("os.system", None, (f"touch {mark}",), {})),
    )
    raw.hset("{bq}-rq:n1:job:broken", "data", b"\xff\x00")
    raw.hset("{bq}-rq:n1:job:broken", "created_at", b"yesterday")
    raw.rpush("{bq}-rq:n1:queue:bq-node-n1", job.id, "broken", "missing")
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert not mark.exists()


def test_callbacks_of_a_pods_own_rq_job_are_not_called(stage: Stage, node: RqConnection) -> None:
    stage.start_agent()
    mark = stage.home / "mark"
    (pod,) = stage.bound("true")
    queue = Queue("bq-node-n1", connection=node, serializer="json")
    queue.enqueue(
        "batchq.worker.entry.run_pod",
        args=[pod.metadata.uid, 1],
        job_id=f"{pod.metadata.uid}-1",
        on_success=Callback("os.abort"),
    )
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    (other,) = stage.bind("true")
    assert stage.ended(other).status.phase == PodPhase.SUCCEEDED
    assert not mark.exists()
    assert "work-horse" not in stage.log_text()
