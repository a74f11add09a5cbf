"""Tests of run files: a record is complete, whenever its writer is killed."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from batchq.api.node_report import PodAttempt, PodOutcome
from batchq.worker.rendezvous import Peer
from batchq.worker.workhorse.run_file import RunFile, RunFiles


def a_run(group: int) -> RunFile:
    return RunFile(pod="u-1-0", attempt=1, horse=7, horse_started_ms=1, group=group)


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


class Killed(Exception):
    """The writer is killed."""


def cut_to(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def test_a_writer_that_is_killed_leaves_the_former_record_or_the_new_one(
    files: RunFiles, tmp_path: Path
) -> None:
    path = tmp_path / "u-1-0-1.json"
    files.write(a_run(1))
    former = path.stat().st_size
    files.write(a_run(2))
    content = path.read_bytes()
    for size in range(former, len(content) + 1):
        path.write_bytes(content)
        cut_to(path, size)
        group = 2 if size == len(content) else 1
        assert files.read("u-1-0", 1) == a_run(group)
        assert list(files.all()) == [a_run(group)]
        files.write(a_run(3))
        assert files.read("u-1-0", 1) == a_run(3)
        assert list(files.all()) == [a_run(3)]


def test_a_reader_sees_a_whole_record_whatever_its_writer_does(files: RunFiles) -> None:
    files.write(a_run(0))
    is_over = threading.Event()

    def write() -> None:
        for group in range(1, 500):
            files.write(structs.replace(a_run(group), result=b"x" * (group % 7) * 1000))
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not is_over.is_set():
        run = files.read("u-1-0", 1)
        assert run is not None
        assert run.result is None or len(run.result) == run.group % 7 * 1000
        seen.append(run.group)
    writer.join()
    assert seen == sorted(seen)


def test_a_record_that_is_written_during_a_read_is_left_to_the_next_one(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in (1, 2):
        files.write(a_run(group))
    read = os.pread

    def read_late(file: int, length: int, start: int) -> bytes:
        patch.undo()
        files.write(a_run(3))
        return read(file, length, start)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", read_late)
        assert files.read("u-1-0", 1) == a_run(2)
    assert files.read("u-1-0", 1) == a_run(3)


def test_a_record_that_a_full_disk_has_cut_off_loses_only_itself(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(a_run(1))
    write, left = os.pwrite, [20]

    def write_until_full(file: int, data: bytes, place: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "full")
        done = write(file, data[: left[0]], place)
        left[0] -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_until_full)
        files.write(a_run(2))
    assert files.read("u-1-0", 1) == a_run(1)
    files.write(a_run(3))
    assert files.read("u-1-0", 1) == a_run(3)


def test_a_record_of_a_former_version_counts_until_the_next_one(
    files: RunFiles, tmp_path: Path
) -> None:
    (tmp_path / "u-1-0-1.json").write_bytes(msgspec.json.encode(a_run(1)))
    assert files.read("u-1-0", 1) == a_run(1)
    files.write(a_run(2))
    assert files.read("u-1-0", 1) == a_run(2)
    (tmp_path / "u-1-0-2.draft").write_bytes(msgspec.json.encode(a_run(5)))
    assert files.read("u-1-0", 2) == a_run(5)


def test_a_former_version_reads_the_last_record(files: RunFiles, tmp_path: Path) -> None:
    outcome = PodOutcome(exit_code=3, how="exited with 3")
    ended = structs.replace(a_run(2), outcome=outcome, result=b'"{\n}"', hands_over=True)
    for run in (a_run(0), a_run(2), ended):
        files.write(run)
        # It decoded the file as a whole.
        content = (tmp_path / "u-1-0-1.json").read_bytes()
        assert msgspec.json.decode(content, type=RunFile) == run


def test_records_that_a_version_wrote_as_lines_are_read_and_replaced(
    files: RunFiles, tmp_path: Path
) -> None:
    path = tmp_path / "u-1-0-1.json"
    first, second = (b"\n%b\n" % msgspec.json.encode(a_run(group)) for group in (1, 2))
    for size in range(len(second)):
        path.write_bytes(first + second[:size])
        assert files.read("u-1-0", 1) == a_run(2 if size == len(second) - 1 else 1), size
    path.write_bytes(first + second)
    assert files.read("u-1-0", 1) == a_run(2)
    files.write(a_run(3))
    files.write(a_run(4))
    assert files.read("u-1-0", 1) == a_run(4)


def test_a_torn_draft_is_not_a_record_and_hides_none(files: RunFiles, tmp_path: Path) -> None:
    (tmp_path / "u-1-0-1.draft").write_text("{torn")
    assert files.read("u-1-0", 1) is None
    assert list(files.all()) == []
    files.write(a_run(1))
    (tmp_path / "u-1-0-1.draft").write_text("{torn")
    assert files.read("u-1-0", 1) == a_run(1)


def test_an_unfinished_stop_file_is_not_a_record(
    files: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            files.write_stop("u-1-0", 1, "Preempted")
    assert files.read("u-1-0", 1) is None
    assert list(files.all()) == []
    files.forget("u-1-0", 1)
    assert list(tmp_path.iterdir()) == []


def test_forgetting_an_attempt_removes_all_its_files(files: RunFiles, tmp_path: Path) -> None:
    files.write(a_run(1))
    files.write_stop("u-1-0", 1, "Preempted")
    (tmp_path / "u-1-0-1.draft").write_text("{torn")
    Path(files.unsent_file("u-1-0", 1)).write_text("output")
    files.forget("u-1-0", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [2, 20])
def test_forgetting_attempts_removes_all_their_files_and_no_others(
    files: RunFiles, tmp_path: Path, count: int
) -> None:
    over = [PodAttempt(f"u-{number}-0", 1) for number in range(count)]
    for one in over:
        files.write(RunFile(pod=one.pod, attempt=1, horse=0, horse_started_ms=0))
        files.write_stop(one.pod, 1, "Preempted")
        (tmp_path / f"{one.id}.draft").write_text("{torn")
    files.write(RunFile(pod="u-1-0", attempt=12, horse=0, horse_started_ms=0))
    (tmp_path / "agent.lock").touch()
    files.forget_each([*over, PodAttempt("u-gone-0", 1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.lock", "u-1-0-12.json"]


def test_forgetting_attempts_without_a_folder_does_nothing(tmp_path: Path) -> None:
    RunFiles(tmp_path / "gone").forget_each([PodAttempt(f"u-{n}-0", 1) for n in range(20)])
    assert not (tmp_path / "gone").exists()


def a_peer(rank: int, port: int) -> Peer:
    return Peer(
        rank=rank, task="w", index=rank, node="n1", address="10.0.0.1", host="h", ports=(port,)
    )


def test_changed_peers_replace_the_files_of_a_pod(files: RunFiles) -> None:
    first = files.write_peers("u-1-0", 1, [a_peer(0, 7_000), a_peer(1, 7_001)])
    before = Path(first.hosts).stat().st_ino
    files.rewrite_peers("u-1-0", 1, [a_peer(0, 7_000), a_peer(1, 7_009)])
    assert [peer["ports"] for peer in json.loads(Path(first.peers).read_text())] == [
        [7_000],
        [7_009],
    ]
    # The slots of the address are what they were, so that file is left alone.
    assert Path(first.hosts).stat().st_ino == before


def test_a_pod_that_makes_its_peers_file_huge_does_not_fill_the_memory_of_its_agent(
    files: RunFiles,
) -> None:
    written = Path(files.write_peers("u-1-0", 1, [a_peer(0, 7_000)]).peers)
    # A file with a hole takes no space, and reading it whole would take a terabyte of memory.
    os.truncate(written, 1 << 40)
    files.rewrite_peers("u-1-0", 1, [a_peer(0, 7_001)])
    assert [peer["ports"] for peer in json.loads(written.read_text())] == [[7_001]]


def test_peers_are_not_written_for_a_pod_that_has_no_files(files: RunFiles, tmp_path: Path) -> None:
    files.rewrite_peers("u-1-0", 1, [a_peer(0, 7_000)])
    assert list(tmp_path.iterdir()) == []


def test_changed_peers_can_be_read_by_the_account_of_the_pod(files: RunFiles) -> None:
    written = files.write_peers("u-1-0", 1, [a_peer(0, 7_000)])
    if os.geteuid() == 0:
        os.chown(written.peers, 4_711, 4_711)
    owner = Path(written.peers).stat().st_uid
    files.rewrite_peers("u-1-0", 1, [a_peer(0, 7_001)])
    assert Path(written.peers).stat().st_uid == owner
