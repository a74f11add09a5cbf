"""Tests of run files: a record is complete, whenever its writer is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from batchq.api.node_report import PodAttempt
from batchq.worker.rendezvous import Peer
from batchq.worker.workhorse.run_file import RunFile, RunFiles


def a_run(group: int) -> RunFile:
    return RunFile(pod="u-1-0", attempt=1, horse=7, horse_started_ms=1, group=group)


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


class Killed(Exception):
    """The writer is killed."""


def killed_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have the writer killed just before it calls this function."""

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(f"batchq.worker.workhorse.run_file.{name}", die)


@pytest.mark.parametrize(
    ("killed_before", "group"),
    [("_write", 1), ("_remove", 1), ("os.replace", 2)],
)
def test_a_writer_that_is_killed_leaves_the_former_record_or_the_new_one(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch, killed_before: str, group: int
) -> None:
    files.write(a_run(1))
    with monkeypatch.context() as patch:
        killed_at(patch, killed_before)
        with pytest.raises(Killed):
            files.write(a_run(2))
    assert files.read("u-1-0", 1) == a_run(group)
    assert list(files.all()) == [a_run(group)]
    files.write(a_run(3))
    assert files.read("u-1-0", 1) == a_run(3)
    assert list(files.all()) == [a_run(3)]


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
