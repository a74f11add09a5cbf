"""Pods from their bind to their end, on a real server with a real agent."""

from __future__ import annotations

import sys

import pytest

from batchq.api.lifecycle import PodPhase
from tests.worker.stage import Stage

pytestmark = pytest.mark.e2e


def test_a_pod_that_exits_with_0_has_succeeded_and_frees_its_node(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("true")
    ended = stage.ended(pod)
    assert (ended.status.phase, ended.status.exit_code) == (PodPhase.SUCCEEDED, 0)
    assert ended.status.started_at is not None
    assert ended.status.finished_at is not None
    assert stage.store.ledger().get("node:n1", {}) == {}


def test_a_pod_that_exits_otherwise_has_failed_with_its_exit_code(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "exit 3")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.signal) == (PodPhase.FAILED, 3, None)
    assert (status.failures, status.message) == (1, "exited with 3")


def test_a_pod_that_is_killed_has_failed_with_the_signal(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "kill -SEGV $$")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.signal) == (PodPhase.FAILED, 139, 11)
    assert status.message == "killed by signal 11 (SIGSEGV)"
