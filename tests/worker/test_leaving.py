"""Tests of what a stopping agent leaves in RQ: no key that would stay forever."""

from __future__ import annotations

import signal
import subprocess

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from tests.worker.stage import WITHIN_S, Stage

pytestmark = pytest.mark.e2e


def _stop(agent: subprocess.Popen[bytes]) -> None:
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=WITHIN_S) == 0


def _records(raw: redis.Redis) -> list[str]:
    """Return RQ's jobs, and the lists that contain them."""
    found = [*raw.scan_iter("{bq}-rq:n1:job:*"), *raw.scan_iter("{bq}-rq:n1:queue:*")]
    return sorted(key.decode() for key in found)


def _phase_and_reason(stage: Stage, pod: Pod) -> tuple[str, str]:
    status = stage.ended(pod).status
    return status.phase, status.reason


def test_records_of_the_last_started_pods_are_removed(
    stage: Stage, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A further read of the queue would remove the records of the jobs taken before.
    monkeypatch.setenv("A_TEST_AGENT_IS_RUNG", "1")
    agent = stage.start_agent(drain_timeout_s=0)
    # This pod takes the agent past its first look, for which no wake-up is needed.
    stage.ended(*stage.bind("true"))
    (pod,) = stage.bind("sleep", "600")
    stage.started(pod)
    _stop(agent)
    assert _phase_and_reason(stage, pod) == (PodPhase.EVICTED, "NodeLost")
    assert _records(raw) == []


def test_records_of_pods_that_found_no_slot_are_removed(stage: Stage, raw: redis.Redis) -> None:
    agent = stage.start_agent(drain_timeout_s=0, slots=1)
    runs, waits = (*stage.bind("sleep", "600"), *stage.bind("sleep", "600"))
    stage.started(runs)
    _stop(agent)
    assert (
        _phase_and_reason(stage, runs)
        == _phase_and_reason(stage, waits)
        == (PodPhase.EVICTED, "NodeLost")
    )
    assert _records(raw) == []


def test_a_pod_delivered_to_a_stopping_agent_is_run_by_the_next(
    stage: Stage, raw: redis.Redis
) -> None:
    _stop(stage.start_agent())
    (pod,) = stage.bind("true")
    stage.start_agent()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert raw.llen("{bq}-rq:n1:queue:bq-node-n1") == 0
