"""Tests of the processes that a new agent ends as leftovers of its predecessor."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.worker.agent.leftovers import sweep
from batchq.worker.host.processes import has_mark, mark_of
from batchq.worker.workhorse.run_file import RunFile, own_boot, started_ms
from tests.daemon.waiting import until
from tests.worker.stage import members

#: A group whose leader is gone, so that its number does not show its owner.
_ORPHANED = "sleep 600 & echo; exit"


@pytest.fixture
def group() -> Iterator[int]:
    """An unrelated process group without its leader."""
    leader = subprocess.Popen(["sh", "-c", _ORPHANED], stdout=subprocess.PIPE, process_group=0)
    assert leader.stdout is not None
    leader.stdout.readline()
    leader.wait()
    yield leader.pid
    leader.stdout.close()
    for pid in members(leader.pid):
        os.kill(pid, 9)


def _record(group: int, *, boot: str) -> RunFile:
    return RunFile(pod="g1-1-0", attempt=1, horse=1, horse_started_ms=1, boot=boot, group=group)


def test_the_group_of_a_pod_is_killed_even_without_its_leader(tmp_path: Path, group: int) -> None:
    assert sweep(tmp_path, [_record(group, boot=own_boot())]) == []
    until(lambda: members(group) == [])


def test_a_group_with_the_number_of_a_pod_from_before_the_reboot_is_left_alone(
    tmp_path: Path, group: int
) -> None:
    assert sweep(tmp_path, [_record(group, boot="before the reboot")]) == []
    assert len(members(group)) == 1


def test_a_process_with_the_pid_of_a_work_horse_from_before_the_reboot_is_left_alone(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        started = started_ms(other.pid)
        assert started is not None
        record = RunFile(pod="g1-1-0", attempt=1, horse=other.pid, horse_started_ms=started)
        assert sweep(tmp_path, [record]) == []
        assert other.poll() is None
        other.kill()


def test_a_process_that_has_ended_and_was_not_collected_is_not_searched_for_again(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_mark(child.pid, mark_of(tmp_path), tmp_path) is False
    assert has_mark(child.pid, mark_of(tmp_path), tmp_path) is None


def test_the_start_of_a_process_is_measured_by_a_clock_that_is_never_set() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    with subprocess.Popen(["sleep", "600"]) as process:
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        started = started_ms(process.pid)
        process.kill()
    assert started is not None
    # The kernel counts in hundredths of a second.
    assert before - 10 <= started <= after
    assert started_ms(process.pid) is None
