"""An idle agent is rung for what is brought to it, and seldom looks by itself."""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.store.node_channels import WakeReason, ring
from batchq.store.redis import RedisStore
from batchq.worker.agent.wakeups import WakeUpListener
from tests.daemon.waiting import until
from tests.worker.stage import Stage

pytestmark = pytest.mark.e2e


def test_after_a_look_in_vain_the_next_is_a_second_later_unless_it_rings(
    redis_store: RedisStore,
) -> None:
    poll = select.poll()
    door = WakeUpListener(redis_store.url, "n1", poll)
    door.listen()
    door.note_look(now_ms=5_000, has_more=False)
    assert (door.look_at, door.limit(8), door.limit(0)) == (6_000, 1, 0)
    ring(redis_store.link, ["n1"], WakeReason.CLAIMS)
    [(descriptor, _)] = poll.poll(10_000)
    assert door.is_at(descriptor)
    assert door.answer()
    assert (door.look_at, door.limit(8)) == (6_000, 1)
    door.listen()
    ring(redis_store.link, ["n1"], WakeReason.PODS)
    assert poll.poll(10_000)
    assert not door.answer()
    assert (door.look_at, door.limit(8)) == (0, 8)
    door.note_look(now_ms=5_000, has_more=True)
    assert (door.look_at, door.limit(8)) == (5_000, 8)
    door.close()
    assert poll.poll(0) == []


def test_an_agent_that_never_looks_by_itself_is_rung_for_pods_and_for_their_claims(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TEST_AGENT_IS_RUNG", "1")
    stage.start_agent(slots=2)
    pods = stage.bind("true", replicas=5)
    assert {stage.ended(pod).status.phase for pod in pods} == {PodPhase.SUCCEEDED}
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_one_whose_bell_is_spoiled_finds_its_pods_all_the_same(
    stage: Stage, raw: redis.Redis
) -> None:
    raw.set("{bq}:doorbell:n1", "spoiled")
    stage.start_agent()
    (pod,) = stage.bind("true")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_an_idle_agent_asks_little(stage: Stage, raw: redis.Redis, tmp_path: Path) -> None:
    stage.start_agent(beat_s=5.0)
    since = time.monotonic()
    raw.config_resetstat()
    until(lambda: time.monotonic() - since > 3.0)
    asked = raw.info("commandstats")
    # A look every second; it was twenty, before there was a bell.
    assert asked["cmdstat_lmove"]["calls"] <= 4
