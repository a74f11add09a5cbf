"""Tests of local output files: their number is bounded in age and in size."""

from __future__ import annotations

import os
from pathlib import Path

from batchq.worker.agent.leftovers import prune_logs
from batchq.worker.workhorse.run_file import RunFile, RunFiles

NOW_S = 1_000_000_000.0
DAY_S = 86_400


def write(folder: Path, name: str, *, size: int = 10, age_s: float = 0) -> None:
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_output_older_than_a_week_is_removed(tmp_path: Path) -> None:
    write(tmp_path, "u-1-0-1.log", age_s=8 * DAY_S)
    write(tmp_path, "u-1-0-1.log.1", age_s=8 * DAY_S)
    write(tmp_path, "u-1-0-2.log", age_s=6 * DAY_S)
    prune_logs(tmp_path, running=(), now_s=NOW_S)
    assert left(tmp_path) == ["u-1-0-2.log"]


def test_the_oldest_output_is_removed_when_there_is_too_much(tmp_path: Path) -> None:
    for age in range(10):
        write(tmp_path, f"u-1-{age}-1.log", size=100, age_s=age)
    prune_logs(tmp_path, running=(), now_s=NOW_S, most_bytes=350)
    assert left(tmp_path) == ["u-1-0-1.log", "u-1-1-1.log", "u-1-2-1.log"]


def test_the_log_of_a_running_pod_stays_and_counts(tmp_path: Path) -> None:
    write(tmp_path, "u-1-0-1.log", size=300, age_s=9 * DAY_S)
    write(tmp_path, "u-1-1-1.log", size=50, age_s=1)
    write(tmp_path, "u-1-2-1.log", size=50, age_s=2)
    prune_logs(tmp_path, running={"u-1-0-1"}, now_s=NOW_S, most_bytes=350)
    assert left(tmp_path) == ["u-1-0-1.log", "u-1-1-1.log"]


def test_pruning_keeps_the_logs_of_processes_other_than_pods(tmp_path: Path) -> None:
    for name in ("scheduler.log", "agent-n1.log", "notes.log.1"):
        write(tmp_path, name, size=1000, age_s=99 * DAY_S)
    prune_logs(tmp_path, running=(), now_s=NOW_S, most_bytes=1)
    assert left(tmp_path) == ["agent-n1.log", "notes.log.1", "scheduler.log"]


def test_a_missing_folder_has_nothing_to_prune(tmp_path: Path) -> None:
    prune_logs(tmp_path / "logs", running=(), now_s=NOW_S)


def test_a_starting_agent_removes_stray_files_of_former_pods(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.occupy()
    files.write(RunFile(pod="u-1-0", attempt=1, horse=1, horse_started_ms=1))
    files.write_stop("u-1-1", 1, "Preempted")
    Path(files.unsent_file("u-1-2", 1)).write_bytes(b"")
    (tmp_path / "u-1-3-1.json").write_text("{torn")
    files.forget_all()
    files.release()
    assert left(tmp_path) == ["agent.lock"]
