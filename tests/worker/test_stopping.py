"""Tests of stopping pods: they get SIGTERM first, then their grace period, then SIGKILL."""

from __future__ import annotations

import pytest

from batchq.api.lifecycle import PodPhase
from tests.daemon.waiting import until
from tests.worker.stage import WITHIN_S, Stage, is_alive, members

pytestmark = pytest.mark.e2e

#: Prints why it is stopped, and exits with 0.
POLITE = """
trap 'echo "stop: $(cat "$BATCHQ_STOP_FILE")"; exit 0' TERM
echo up
while :; do sleep 0.1; done
"""
STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.1; done"


def test_a_stopped_pod_reads_the_reason_and_is_evicted_even_if_it_exits_with_0(
    stage: Stage,
) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", POLITE)
    stage.started(pod, saying="up")
    stage.stop(pod, "Preempted")
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.exit_code) == (PodPhase.EVICTED, "Preempted", 0)
    assert stage.output(pod) == "up\nstop: Preempted\n"
    assert status.failures == 0
    assert not status.terminating


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", STUBBORN, termination_grace=700)
    group = stage.started(pod, saying="up")
    before = stage.store.now_ms()
    stage.stop(pod, "Reclaimed")
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.signal) == (PodPhase.EVICTED, "Reclaimed", 9)
    assert (status.finished_at or 0) - before >= 700
    assert members(group) == []


def test_a_pod_stopped_for_its_walltime_has_failed(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sleep", "60")
    stage.started(pod)
    stage.stop(pod, "WalltimeExceeded")
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.signal) == (PodPhase.FAILED, "WalltimeExceeded", 15)


def test_the_walltime_of_an_array_pod_counts_from_its_own_start(stage: Stage) -> None:
    stage.start_agent()
    array = {"min_member": 1, "walltime": 1500}
    slow, quick = stage.bind(
        "sh", "-c", 'test "$BATCHQ_INDEX" = 1 || sleep 60', replicas=2, group_spec=array
    )
    status = stage.ended(quick).status
    # On a busy machine, it may take as long.
    lasted_ms = (status.finished_at or 0) - (status.started_at or 0)
    assert status.phase == PodPhase.SUCCEEDED or lasted_ms >= 1500
    status = stage.ended(slow).status
    assert (status.phase, status.reason) == (PodPhase.FAILED, "WalltimeExceeded")
    assert (status.finished_at or 0) - (status.started_at or 0) >= 1500


def test_a_pod_that_is_stopped_before_it_starts_is_evicted_and_never_runs(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bound("touch", str(stage.home / "ran"))
    stage.stop(pod, "Suspended")
    stage.deliver(pod)
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.started_at) == (PodPhase.EVICTED, "Suspended", None)
    assert not (stage.home / "ran").exists()


def test_processes_left_by_a_pod_in_the_background_end_with_it(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "sleep 600 & setsid sleep 601 & echo $! ; exit 0")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    escaped = int(stage.output(pod))
    until(lambda: not is_alive(escaped), within_s=WITHIN_S)


def test_a_superseded_attempt_is_killed_and_reports_nothing(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    group = stage.started(pod, saying="up")
    stage.change(pod, phase=PodPhase.EVICTED, reason="NodeLost")
    stage.change(pod, phase=PodPhase.PENDING, node="")
    until(lambda: not members(group), within_s=WITHIN_S)
    until(lambda: stage.run_of(pod) is None, within_s=WITHIN_S)
    assert stage.now(pod).status.phase == PodPhase.PENDING
