"""Tests of the processes that a new agent ends as leftovers of its predecessor."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.worker.agent.leftovers import sweep
from batchq.worker.host import processes
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


def parent_of(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def test_kernel_threads_bear_no_mark_and_have_not_vanished(tmp_path: Path) -> None:
    # The parent of most of them is kthreadd.
    threads = [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and parent_of(folder) == 2
    ]
    if not threads:
        pytest.skip("no kernel threads are visible here")
    assert {has_mark(pid, mark_of(tmp_path), tmp_path) for pid in threads[:20]} == {False}


def test_a_process_that_ends_while_it_is_read_has_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = processes._read

    def ending(path: str) -> bytes:
        if path.endswith("/environ"):
            raise ProcessLookupError
        return read(path)

    monkeypatch.setattr(processes, "_read", ending)
    with subprocess.Popen(["sleep", "600"]) as child:
        # It may have forked another one, so the search has to go on.
        assert has_mark(child.pid, mark_of(tmp_path), tmp_path) is None
        child.kill()


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
