"""Tests of the agent's wake-up channel: an idle agent is notified and seldom polls."""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.store.node_channels import WakeReason, notify
from batchq.store.redis import RedisStore
from batchq.worker.agent.wakeups import WakeUpListener
from tests.daemon.waiting import until
from tests.worker.stage import Stage

pytestmark = pytest.mark.e2e


def test_an_empty_queue_is_read_again_after_a_second_or_a_wake_up(
    redis_store: RedisStore,
) -> None:
    poll = select.poll()
    listener = WakeUpListener(redis_store.url, "n1", poll)
    listener.listen()
    listener.note_look(now_ms=5_000, has_more=False)
    assert (listener.look_at, listener.limit(8), listener.limit(0)) == (6_000, 1, 0)
    notify(redis_store.link, ["n1"], WakeReason.CLAIMS)
    [(descriptor, _)] = poll.poll(10_000)
    assert listener.is_at(descriptor)
    assert listener.answer() == {WakeReason.CLAIMS}
    assert (listener.look_at, listener.limit(8)) == (6_000, 1)
    listener.listen()
    notify(redis_store.link, ["n1"], WakeReason.PODS)
    assert poll.poll(10_000)
    assert listener.answer() == {WakeReason.PODS}
    assert (listener.look_at, listener.limit(8), listener.limit(1)) == (0, 2, 1)
    listener.note_look(now_ms=5_000, has_more=True)
    assert (listener.look_at, listener.limit(8)) == (5_000, 8)
    listener.close()
    assert poll.poll(0) == []


def test_jobs_that_come_along_are_taken_without_a_look_unless_one_is_due(
    redis_store: RedisStore,
) -> None:
    poll = select.poll()
    listener = WakeUpListener(redis_store.url, "n1", poll)

    def hear(*jobs: str) -> None:
        fields = [word for job in jobs for word in ("pod", f"pod of {job}")]
        listener.listen()
        redis_store.link.ask(
            lambda client: client.execute_command(
                *("XADD", "{bq}:doorbell:n1", "*", "word", "pods", "jobs", " ".join(jobs), *fields)
            )
        )
        assert poll.poll(10_000)
        assert listener.answer() == {WakeReason.PODS}

    # What the first answer has may be old.
    hear("a-1")
    assert (listener.look_at, listener.take_arrived(free=8, now_ms=5_000)) == (0, {})
    listener.note_look(now_ms=5_000, has_more=False)
    hear("b-1", "c-1")
    arrived = {b"b-1": b"pod of b-1", b"c-1": b"pod of c-1"}
    assert listener.take_arrived(free=2, now_ms=5_001) == arrived
    assert listener.take_arrived(free=2, now_ms=5_002) == {}
    assert (listener.look_at, listener.take_announced()) == (6_000, [])
    hear("d-1", "e-1")
    assert listener.take_arrived(free=1, now_ms=5_003) == {}
    assert listener.look_at == 0
    listener.note_look(now_ms=5_003, has_more=False)
    hear("f-1")
    assert listener.take_arrived(free=1, now_ms=6_003) == {}
    assert listener.take_announced()[-1] == b"f-1"
    listener.close()


def test_an_agent_that_never_polls_is_notified_of_pods_and_of_applied_claims(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TEST_AGENT_IS_RUNG", "1")
    stage.start_agent(slots=2)
    pods = stage.bind("true", replicas=5)
    assert {stage.ended(pod).status.phase for pod in pods} == {PodPhase.SUCCEEDED}
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_an_agent_with_an_unreadable_wake_up_channel_still_finds_its_pods(
    stage: Stage, raw: redis.Redis
) -> None:
    raw.set("{bq}:doorbell:n1", "spoiled")
    stage.start_agent()
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_an_idle_agent_sends_few_requests(stage: Stage, raw: redis.Redis, tmp_path: Path) -> None:
    stage.start_agent(beat_s=5.0)
    since = time.monotonic()
    raw.config_resetstat()
    until(lambda: time.monotonic() - since > 3.0)
    asked = raw.info("commandstats")
    seconds = time.monotonic() - since
    # One look a second; without wake-ups there were twenty.
    assert asked["cmdstat_lmove"]["calls"] <= seconds + 1
