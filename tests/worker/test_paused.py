"""Tests of work-horses and agents under SIGSTOP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.worker.agent.slots import Paused
from batchq.worker.host.processes import stopped
from tests.daemon.waiting import until
from tests.worker.stage import Stage, is_alive, members

LEASE_MS = 12_000


def test_a_work_horse_that_stays_paused_is_overdue_after_the_patience() -> None:
    paused = Paused(patience_ms=100)
    assert paused.overdue([7, 8], now_ms=1000) == []
    assert paused.overdue([7, 8], now_ms=1099) == []
    assert paused.overdue([7, 8], now_ms=1100) == [7, 8]


def test_the_time_of_a_work_horse_that_continued_starts_again() -> None:
    paused = Paused(patience_ms=100)
    paused.overdue([7], now_ms=1000)
    paused.overdue([], now_ms=1050)
    assert paused.overdue([7], now_ms=1100) == []
    assert paused.overdue([7], now_ms=1200) == [7]


def test_a_stopped_process_is_distinguished_from_a_sleeping_or_dead_one() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert stopped([process.pid]) == []
        process.send_signal(signal.SIGSTOP)
        until(lambda: stopped([process.pid]) == [process.pid])
        process.kill()
        process.wait()
        assert stopped([process.pid]) == []


#: A work-horse that stops right after it has started its command.
_STOPS_ITSELF = """
import os, signal, sys
from batchq.worker.workhorse.reporter import monotonic_ms
from batchq.worker.workhorse.process import start

until_ms = monotonic_ms() + int(sys.argv[1])
command = start(["sleep", "600"], dict(os.environ), "", until_ms=until_ms)
print(command.group, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("lease_ms", [500, -1])
def test_a_command_ends_with_its_lease_even_if_its_work_horse_stops_at_once(
    lease_ms: int,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STOPS_ITSELF, str(lease_ms)], stdout=subprocess.PIPE, text=True
    ) as horse:
        assert horse.stdout is not None
        group = int(horse.stdout.readline())
        try:
            until(lambda: members(group) == [])
        finally:
            horse.kill()


@pytest.mark.e2e
def test_a_paused_work_horse_loses_its_pod_before_the_lease_ends(stage: Stage) -> None:
    stage.start_agent(lease_ms=LEASE_MS)
    (pod,) = stage.bind("sh", "-c", "sleep 600 & echo up; wait")
    group, horse = stage.started(pod, saying="up"), stage.horse_of(pod)
    os.kill(horse, signal.SIGSTOP)
    until(lambda: not members(group))
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.failures) == (PodPhase.EVICTED, "NodeLost", 0)
    assert not is_alive(horse)
    # It was the agent that killed it, and not the guard at the end of its lease.
    assert "paused work-horse killed" in stage.log_text()


@pytest.mark.e2e
def test_a_work_horse_that_is_paused_for_a_moment_continues(stage: Stage) -> None:
    stage.start_agent(lease_ms=60_000)
    flag = stage.home / "flag"
    (pod,) = stage.bind("sh", "-c", f"echo up; while ! test -e {flag}; do sleep 0.05; done")
    stage.started(pod, saying="up")
    os.kill(stage.horse_of(pod), signal.SIGSTOP)
    until(lambda: stopped([stage.horse_of(pod)]) != [])
    os.kill(stage.horse_of(pod), signal.SIGCONT)
    flag.touch()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


@pytest.mark.e2e
def test_the_pods_of_a_paused_agent_outlive_their_first_lease(stage: Stage) -> None:
    agent = stage.start_agent(lease_ms=LEASE_MS)
    flag = stage.home / "flag"
    (pod,) = stage.bind("sh", "-c", f"echo up; while ! test -e {flag}; do sleep 0.05; done")
    group = stage.started(pod, saying="up")
    agent.send_signal(signal.SIGSTOP)
    # Some renewals of the agent may have been under way; the work-horse's follow a third of a
    # lease later.
    stage.await_renewals(pod, 3)
    assert members(group) != []
    flag.touch()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    agent.send_signal(signal.SIGCONT)


@pytest.mark.e2e
def test_a_pod_ends_with_its_lease_when_agent_and_work_horse_are_both_paused(
    stage: Stage,
) -> None:
    agent = stage.start_agent(lease_ms=LEASE_MS)
    (pod,) = stage.bind("sh", "-c", "sleep 600 & echo up; wait")
    group, horse = stage.started(pod, saying="up"), stage.horse_of(pod)
    agent.send_signal(signal.SIGSTOP)
    os.kill(horse, signal.SIGSTOP)
    until(lambda: members(group) == [])
    os.kill(horse, signal.SIGCONT)
    agent.send_signal(signal.SIGCONT)
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
