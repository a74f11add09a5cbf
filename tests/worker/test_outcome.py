"""Tests of a pod's phase after its end, of its environment, and of its lease."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.scheduler.node_reports import ended
from batchq.worker.agent.pod_states import LOST
from batchq.worker.workhorse.leases import Lease
from batchq.worker.workhorse.process import base_environment
from batchq.worker.workhorse.run_file import PodOutcome
from tests.builders import a_group, a_pod

STOPPED = {"terminating": True, "reason": "Preempted"}
OVER = {"terminating": True, "reason": "WalltimeExceeded"}


@pytest.mark.parametrize(
    ("sentence", "status", "outcome", "phase", "reason", "failures"),
    [
        ("0 is success", {}, PodOutcome(exit_code=0), "Succeeded", "", 0),
        ("3 is failure", {}, PodOutcome(exit_code=3), "Failed", "", 1),
        (
            "0 before the order to stop arrived is success",
            STOPPED,
            PodOutcome(exit_code=0),
            "Succeeded",
            "",
            0,
        ),
        (
            "0 after the order is no success",
            STOPPED,
            PodOutcome(exit_code=0, stopped="Preempted"),
            "Evicted",
            "Preempted",
            0,
        ),
        (
            "an end while it is to stop is no failure",
            STOPPED,
            PodOutcome(exit_code=1),
            "Evicted",
            "Preempted",
            0,
        ),
        (
            "its time was up",
            OVER,
            PodOutcome(exit_code=143, signal=15, stopped="WalltimeExceeded"),
            "Failed",
            "WalltimeExceeded",
            1,
        ),
        (
            "an array's pod whose time was up",
            {},
            PodOutcome(exit_code=0, stopped="WalltimeExceeded"),
            "Failed",
            "WalltimeExceeded",
            1,
        ),
        (
            "an end at the walltime itself",
            OVER,
            PodOutcome(exit_code=0),
            "Succeeded",
            "",
            0,
        ),
        ("its work-horse died", {}, LOST, "Evicted", "NodeLost", 0),
        ("its work-horse died while it was to stop", STOPPED, LOST, "Evicted", "Preempted", 0),
    ],
)
def test_the_end_of_a_process_determines_the_phase(
    sentence: str,
    status: dict[str, Any],
    outcome: PodOutcome,
    phase: str,
    reason: str,
    failures: int,
) -> None:
    pod = a_pod(a_group("g"), phase=PodPhase.RUNNING, node="n1", **status)
    after = ended(pod, outcome, now_ms=5).status
    assert (after.phase, after.reason, after.failures) == (phase, reason, failures), sentence
    assert (after.finished_at, after.terminating) == (5, False)


def test_secrets_of_the_agent_are_not_passed_to_pods() -> None:
    agents = {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "BATCHQ_REDIS_URL": "redis://:pw@h",
        "BATCHQ_HOME": "/x",
        "RQ_WORKER_ID": "x",
        "REDIS_PASSWORD": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "GITHUB_TOKEN": "x",
        "my_password": "x",
        "SETTINGS": "url=redis://:pw@h;other",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert base_environment(agents, secrets=("redis://:pw@h",)) == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
    }


def test_a_lease_counts_as_lost_a_sixth_before_its_end() -> None:
    lease = Lease(now_ms=0, lease_ms=30_000)
    assert not lease.is_lost(24_999)
    assert lease.is_lost(25_000)


def test_a_renewal_that_was_sent_when_the_lease_was_lost_does_not_extend_it() -> None:
    lease = Lease(now_ms=0, lease_ms=30_000)
    assert not lease.extend(asked_at=25_000)
    assert lease.is_lost(25_001)
    assert lease.ends_at == 30_000


def test_a_lease_counts_from_the_request_of_its_renewal() -> None:
    lease = Lease(now_ms=0, lease_ms=30_000)
    lease.extend(asked_at=10_000)
    assert not lease.is_lost(34_999)
    assert lease.is_lost(35_000)
