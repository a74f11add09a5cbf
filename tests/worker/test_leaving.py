"""What an agent that is asked to end leaves behind in RQ: nothing that nobody would take away."""

from __future__ import annotations

import signal
import subprocess

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from tests.worker.stage import WITHIN_S, Stage

pytestmark = pytest.mark.e2e


def _leave(agent: subprocess.Popen[bytes]) -> None:
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=WITHIN_S) == 0


def _records(raw: redis.Redis) -> list[str]:
    """RQ's jobs, and the lists that they stand in."""
    found = [*raw.scan_iter("{bq}-rq:n1:job:*"), *raw.scan_iter("{bq}-rq:n1:queue:*")]
    return sorted(key.decode() for key in found)


def _why(stage: Stage, pod: Pod) -> tuple[str, str]:
    status = stage.ended(pod).status
    return status.phase, status.reason


def test_the_records_of_what_was_started_last_are_removed(
    stage: Stage, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looking for more would remove the records of what was taken before.
    monkeypatch.setenv("A_TEST_AGENT_IS_RUNG", "1")
    agent = stage.start_agent(drain_timeout_s=0)
    # With this one the agent is past its first look, for which nobody has to ring.
    stage.ended(*stage.bind("true"))
    (pod,) = stage.bind("sleep", "600")
    stage.started(pod)
    _leave(agent)
    assert _why(stage, pod) == (PodPhase.EVICTED, "NodeLost")
    assert _records(raw) == []


def test_the_records_of_what_found_no_slot_are_removed(stage: Stage, raw: redis.Redis) -> None:
    agent = stage.start_agent(drain_timeout_s=0, slots=1)
    runs, waits = (*stage.bind("sleep", "600"), *stage.bind("sleep", "600"))
    stage.started(runs)
    _leave(agent)
    assert _why(stage, runs) == _why(stage, waits) == (PodPhase.EVICTED, "NodeLost")
    assert _records(raw) == []


def test_a_pod_handed_over_to_an_ending_agent_is_run_by_the_next(
    stage: Stage, raw: redis.Redis
) -> None:
    _leave(stage.start_agent())
    (pod,) = stage.bind("true")
    stage.start_agent()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert raw.llen("{bq}-rq:n1:queue:bq-node-n1") == 0
