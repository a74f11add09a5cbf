"""The log of a detached process stays small while it runs."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from batchq.daemon.detached import reap, spawn
from batchq.daemon.logs import LossyStream, OwnFile, own_file
from tests.daemon.waiting import until


def opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def test_a_file_that_is_too_large_is_rotated_and_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    descriptor = opened(path)
    file = OwnFile(path, descriptor, largest_bytes=10)
    for line in (b"first line\n", b"second line\n", b"third\n"):
        file.bound()
        os.write(descriptor, line)
    os.close(descriptor)
    assert path.read_text() == "third\n"
    assert (tmp_path / "a.log.1").read_text() == "second line\n"


def test_a_rotation_in_progress_delays_no_other_process(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    descriptor = opened(path)
    os.write(descriptor, b"x" * 100)
    rotated = opened(tmp_path / "a.log.1")
    other = os.fork()
    if other == 0:
        fcntl.lockf(rotated, fcntl.LOCK_EX)
        os.write(rotated, b"locked")
        os.read(os.pipe()[0], 1)
        os._exit(0)
    until(lambda: (tmp_path / "a.log.1").read_text() == "locked")
    OwnFile(path, descriptor, largest_bytes=10).bound()
    os.kill(other, 9)
    os.waitpid(other, 0)
    os.close(rotated)
    os.close(descriptor)
    assert path.stat().st_size == 100


def test_only_the_file_that_was_named_is_ours_to_cut(tmp_path: Path) -> None:
    descriptor = opened(tmp_path / "theirs.log")
    (tmp_path / "named.log").touch()
    assert own_file(descriptor, {}) is None
    assert own_file(descriptor, {"BATCHQ_LOG_FILE": str(tmp_path / "named.log")}) is None
    assert own_file(descriptor, {"BATCHQ_LOG_FILE": str(tmp_path / "gone.log")}) is None
    assert own_file(descriptor, {"BATCHQ_LOG_FILE": str(tmp_path / "theirs.log")}) is not None
    os.close(descriptor)


def test_a_stream_bounds_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("a") as file:
        stream = LossyStream(file, environ={"BATCHQ_LOG_FILE": str(path)})
        os.truncate(path, 17 << 20)
        stream.write("after")
    assert path.read_text() == "after\n"
    assert (tmp_path / "a.log.1").stat().st_size == 17 << 20
    assert stream.lost == 0


def test_a_process_gets_the_name_of_its_log_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    script = "import os; print(os.environ['BATCHQ_LOG_FILE'])"
    pid = spawn([sys.executable, "-c", script], log=log, environ={"PATH": os.environ["PATH"]})
    until(lambda: reap(pid) == 0)
    assert log.read_text() == f"{log}\n"
