"""Detached processes: found again, and never mistaken for others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchq.daemon import detached
from batchq.daemon.detached import ProcessFate, Record, birth_of, end, is_running, tail
from tests.daemon.waiting import until

Start = Callable[..., Record]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a shell line, and kill what is left of it after the test."""
    started: list[Record] = []

    def spawn(line: str) -> Record:
        log = tmp_path / "log"
        pid = detached.spawn(["/bin/sh", "-c", line], log=log, environ=os.environ)
        birth = birth_of(pid) or ""
        started.append(Record(name="it", pid=pid, birth=birth, log=str(log), started_at=0))
        return started[-1]

    yield spawn
    for record in started:
        end(record, patience_s=60, ask=signal.SIGKILL)


def test_a_process_is_recognised_until_it_has_ended(start: Start) -> None:
    record = start("exec sleep 60")
    assert is_running(record)
    assert end(record, patience_s=60) is ProcessFate.ENDED
    assert not is_running(record)
    assert end(record, patience_s=60) is ProcessFate.ABSENT


def test_a_zombie_does_not_run(start: Start) -> None:
    record = start("exit 0")
    until(lambda: birth_of(record.pid) is None)
    assert not is_running(record)


def test_another_process_with_the_same_pid_is_another(start: Start) -> None:
    record = start("exec sleep 60")
    recycled = Record(name="it", pid=record.pid, birth="another:1", log="", started_at=0)
    assert not is_running(recycled)
    assert end(recycled, patience_s=60) is ProcessFate.ABSENT
    assert is_running(record)


def test_a_process_that_ignores_sigterm_is_killed(start: Start, tmp_path: Path) -> None:
    record = start("trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    until(lambda: "deaf" in tail(tmp_path / "log"))
    assert end(record, patience_s=0.1) is ProcessFate.KILLED


def test_a_detached_process_has_a_session_of_its_own_and_its_output_in_the_log(
    start: Start, tmp_path: Path
) -> None:
    record = start("echo out; echo err >&2; exec sleep 60")
    until(lambda: tail(tmp_path / "log") == "out\nerr")
    assert os.getsid(record.pid) == record.pid != os.getsid(0)


def test_a_signal_that_the_parent_ignores_is_not_ignored_by_the_child(start: Start) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        record = start("exec sleep 60")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end(record, patience_s=60) is ProcessFate.ENDED


def test_a_record_survives_writing_and_a_broken_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    record = Record(name="it", pid=7, birth="b:1", log="/l", started_at=3, notes={"a": "b"})
    detached.write_record(path, record)
    assert detached.read_record(path) == record
    path.write_text('{"name": "it"')
    assert detached.read_record(path) is None
    assert detached.read_record(tmp_path / "none.json") is None


def test_the_tail_of_a_log_is_its_last_lines_after_an_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n" * 5000)
    since = detached.size_of(log)
    assert tail(log, since=since) == ""
    with log.open("a") as file:
        file.write("one\n\ntwo\nthree\n")
    assert tail(log, since=since, lines=2) == "two\nthree"
    assert tail(tmp_path / "none") == ""


def test_a_large_log_is_rotated_at_the_next_start(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detached, "LARGEST_LOG_BYTES", 10)
    (tmp_path / "log").write_text("a long story\n")
    start("echo new")
    until(lambda: tail(tmp_path / "log") == "new")
    assert (tmp_path / "log.1").read_text() == "a long story\n"
