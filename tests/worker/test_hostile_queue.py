"""Tests of foreign data under RQ's keys of a node: the agent survives it and runs its pods."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import cache

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import SPOILED
from batchq.api.objects import Node
from tests.daemon.waiting import until
from tests.worker.stage import WITHIN_S, Stage

pytestmark = pytest.mark.e2e

QUEUE = "{bq}-rq:n1:queue:bq-node-n1"
ENTRY = "batchq.worker.entry.run_pod"


#: At the server, which takes a fraction of the time of a client.
MANY_JOBS = "for n = 1, 50000 do redis.call('RPUSH', KEYS[1], 'no-job-' .. n .. '-1') end"


def payload(name: str = ENTRY) -> bytes:
    return json.dumps([name, None, ["x", 1], {}]).encode()


def a_job(raw: redis.Redis, id_: str, **fields: bytes | str) -> None:
    raw.hset(
        f"{{bq}}-rq:n1:job:{id_}", mapping={"data": payload(), "origin": "bq-node-n1", **fields}
    )
    raw.rpush(QUEUE, id_)


@cache
def bomb() -> bytes:
    """Return a few bytes that expand to more than a hundred megabytes."""
    return zlib.compress(bytes(1 << 27), level=1)


def spoil(raw: redis.Redis) -> None:
    """Enqueue malformed jobs, and ids that are not text."""
    raw.rpush(QUEUE, b"\xff", b"\xff\xfe-1", b"a b", b"", b"x" * 5000, "no-such-job")
    raw.rpush(f"{QUEUE}:intermediate", b"\xff", b"../..", b"x" * 5000)
    a_job(raw, "timeout", timeout="1e999")
    a_job(raw, "deep", dependency_ids="[" * 200_000)
    a_job(raw, "date", created_at="yesterday", enqueued_at=b"\xff")
    a_job(raw, "status", status="unheard of", retries_left="many", origin=b"\xff")
    a_job(raw, "bomb", data=bomb(), exc_info=bomb())
    a_job(raw, "bytes", data=b"\xff" * 100)
    a_job(raw, "deep-data", data=b"[" * 10_000)
    a_job(raw, "long-data", data=b"[" * 1_000_000)
    a_job(raw, "meta", meta=b"\xff", result=b"\xff", webhooks=b"[" * 100_000)
    raw.set("{bq}-rq:n1:job:string", "x")
    raw.rpush(QUEUE, "string")
    raw.sadd("{bq}-rq:n1:workers:bq-node-n1", b"\xff")


REGISTRIES = ("wip", "finished", "failed", "deferred", "canceled", "scheduled")


def spoil_types(raw: redis.Redis) -> None:
    """Give each of RQ's keys that the agent uses the wrong type."""
    names = ["{bq}-rq:n1:workers", "{bq}-rq:n1:workers:bq-node-n1", QUEUE, f"{QUEUE}:intermediate"]
    names += [f"{{bq}}-rq:n1:{registry}:bq-node-n1" for registry in REGISTRIES]
    raw.delete(*names)
    for name in names:
        raw.set(name, "x")


@pytest.fixture(autouse=True)
def watchful_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let agents notice within a second that a pod is lost: many entries keep them busy."""
    monkeypatch.setenv("A_TEST_AGENT_IS_WATCHFUL", "yes")


def reason_of(stage: Stage) -> str:
    """Return why the node is not ready; empty if it is."""
    node = stage.store.get("Node", "n1")
    assert isinstance(node, Node)
    return "" if node.status.ready else node.status.reason


def reasons_so_far(stage: Stage) -> str:
    """Return all reasons for which the node was not ready: each lasts for some seconds only."""
    events = stage.store.events(kind="Node", key="n1")
    return " ".join(event.message for event in events if event.reason == "NotReady")


@pytest.mark.parametrize("spoiled", [spoil, spoil_types])
def test_an_agent_survives_foreign_data_and_starts_again_with_it(
    stage: Stage, raw: redis.Redis, spoiled: Callable[[redis.Redis], None]
) -> None:
    agent = stage.start_agent()
    (before,) = stage.bind("true")
    assert stage.ended(before).status.phase == PodPhase.SUCCEEDED
    spoiled(raw)
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    # The pod that is bound here runs; no more pods come for a while.
    until(lambda: reason_of(stage).startswith(f"{SPOILED}: "), within_s=WITHIN_S)
    assert agent.poll() is None
    agent.terminate()
    agent.wait(WITHIN_S)
    spoiled(raw)
    agent = stage.start_agent()
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    until(lambda: raw.llen(QUEUE) == 0, within_s=WITHIN_S)
    assert agent.poll() is None


def test_foreign_members_of_rqs_sets_and_registries_are_removed(
    stage: Stage, raw: redis.Redis
) -> None:
    workers = [f"{{bq}}-rq:n1:{name}" for name in ("workers", "workers:bq-node-n1")]
    registries = [f"{{bq}}-rq:n1:{name}:bq-node-n1" for name in ("wip", "finished", "deferred")]
    members = (b"\xff", b"garbage", b"rq:worker:\xff", b"", b"a b")
    for name in workers:
        raw.sadd(name, *members)
    for name in registries:
        raw.zadd(name, {b"\xff": 1, b"": 1, b"a b": float("inf")})
    stage.start_agent()
    until(lambda: raw.smembers(workers[1]).isdisjoint(members), within_s=WITHIN_S)
    until(lambda: raw.smembers(workers[0]).isdisjoint(members), within_s=WITHIN_S)
    until(lambda: not any(map(raw.zcard, registries)), within_s=WITHIN_S)
    assert "chore failed" not in stage.log_text()
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_an_endless_queue_is_taken_out_and_pods_still_run(stage: Stage, raw: redis.Redis) -> None:
    stage.start_agent()

    def is_taken_out() -> bool:
        if "endless rq key taken out" in stage.log_text():
            return True
        # An agent also empties the queue one by one, and counts it only now and then.
        if raw.llen(QUEUE) < 100_000:
            raw.eval(MANY_JOBS, 1, QUEUE)
        return False

    assert not is_taken_out()
    (pod,) = stage.bind("true")
    until(is_taken_out, within_s=WITHIN_S)
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    until(lambda: raw.llen(QUEUE) == 0, within_s=WITHIN_S)


def test_endless_sets_and_registries_are_taken_out_unread(stage: Stage, raw: redis.Redis) -> None:
    workers, finished = "{bq}-rq:n1:workers:bq-node-n1", "{bq}-rq:n1:finished:bq-node-n1"
    for start in range(0, 200_000, 50_000):
        numbers = range(start, start + 50_000)
        raw.sadd(workers, *(f"rq:worker:{number}" for number in numbers))
        raw.zadd(finished, dict.fromkeys((f"{number}-1" for number in numbers), float("inf")))
    stage.start_agent()
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    # The slot that ran the pod is there.
    until(lambda: raw.scard(workers) == 1 and not raw.exists(finished), within_s=WITHIN_S)
    until(lambda: f"50,000 entries: {workers}" in reasons_so_far(stage), within_s=WITHIN_S)


def test_an_agent_repairs_its_keys_while_no_leader_knows_its_node(
    stage: Stage, raw: redis.Redis
) -> None:
    stage.start_agent()
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    for name in ("{bq}:alive:n1", "{bq}:inbox:n1", "{bq}:doorbell:n1"):
        raw.set(name, "x")
    for name in ("{bq}:Node", "{bq}:Node:head"):
        raw.delete(name)
    until(lambda: stage.store.get("Node", "n1") is not None, within_s=WITHIN_S)
    until(lambda: "the wrong type: {bq}:alive:n1" in reasons_so_far(stage), within_s=WITHIN_S)


def test_an_agent_repairs_the_keys_of_a_node_that_no_leader_knows(
    stage: Stage, raw: redis.Redis
) -> None:
    for name in ("{bq}:alive:n1", "{bq}:inbox:n1", "{bq}:doorbell:n1"):
        raw.set(name, "x")
    agent = stage.start_agent()
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert agent.poll() is None
