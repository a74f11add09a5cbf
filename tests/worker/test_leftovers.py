"""Tests of the processes that a new agent ends as leftovers of its predecessor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.worker.agent import leftovers
from batchq.worker.agent.leftovers import sweep
from batchq.worker.host import processes
from batchq.worker.host.processes import has_mark, mark_of, set_mark
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
    read = processes.read_kernel_file

    def ending(path: str) -> bytes:
        if path.endswith("/environ"):
            raise ProcessLookupError
        return read(path)

    monkeypatch.setattr(processes, "read_kernel_file", ending)
    with subprocess.Popen(["sleep", "600"]) as child:
        # It may have forked another one, so the search has to go on.
        assert has_mark(child.pid, mark_of(tmp_path), tmp_path) is None
        child.kill()


@pytest.mark.parametrize("moment", ["limits", "stat"])
def test_a_marked_process_that_ends_while_it_is_read_has_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    read, mark = processes.read_kernel_file, mark_of(tmp_path)

    def ending(path: str) -> bytes:
        if path.endswith(f"/{moment}"):
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return read(path)

    with subprocess.Popen(["sleep", "600"], preexec_fn=lambda: set_mark(mark)) as child:
        assert has_mark(child.pid, mark, tmp_path) is True
        monkeypatch.setattr(processes, "read_kernel_file", ending)
        assert has_mark(child.pid, mark, tmp_path) is None


def test_zombies_of_others_do_not_make_the_search_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def has_no_mark(pid: int, *_: object) -> bool | None:
        looks.append(pid)
        return None if pid == zombie.pid else False

    monkeypatch.setattr(leftovers, "has_mark", has_no_mark)
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert sweep(tmp_path, []) == []
    assert looks.count(zombie.pid) == 2


#: Only its first thread ends, as by pthread_exit in main() of a program in C.
_ENDS_ITS_FIRST_THREAD = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_process_whose_first_thread_has_ended_is_killed(tmp_path: Path) -> None:
    mark = mark_of(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", _ENDS_ITS_FIRST_THREAD],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: set_mark(mark),
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        until(lambda: b") Z " in Path(f"/proc/{child.pid}/stat").read_bytes())
        assert child.poll() is None
        assert sweep(tmp_path, []) == []
        assert child.wait(60) == -9


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
