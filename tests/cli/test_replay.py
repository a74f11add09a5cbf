"""The figures of a replay, and the check that every job ran exactly once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from batchq.api.objects import Strategy
from batchq.cli.replay import POLICY_NAMES, as_table, in_words
from batchq.lab.replay import (
    JournalLine,
    Replayed,
    ReplayPlan,
    ReplayStanding,
    command,
    group_of,
    not_exactly_once,
    queue_of,
    read_journal,
    report_of,
)
from batchq.lab.traces import POLICIES, Trace, TraceJob
from tests.cli.conftest import run

JOBS = (
    TraceJob(number=1, submit_s=1000, run_s=100, processors=4, request_s=200),
    TraceJob(number=2, submit_s=1050, run_s=50, processors=2, request_s=50),
)
PLAN = ReplayPlan(
    name="replay-abc",
    trace=Trace(processors=4, jobs=JOBS),
    speed=10.0,
    nodes=1,
    queue="replay-abc",
    journal=Path("/tmp/journal"),
)


def replayed(job: TraceJob, **changes: object) -> Replayed:
    """Return a correct replay of a job: job 2 waits 20 s of the log for the end of job 1."""
    start = 100_000 if job.number == 1 else 110_000
    result: dict[str, object] = {
        "phase": "Completed",
        "submitted_at": start if job.number == 1 else start - 2_000,
        "started_at": start,
        "finished_at": start + job.run_s * 100 + 40,
        "admissions": 1,
        "attempts": 1,
    }
    return Replayed(job=job, **{**result, **changes})  # type: ignore[arg-type] # names are checked


def test_the_figures_are_in_seconds_of_the_log() -> None:
    report = report_of(PLAN, [replayed(job) for job in JOBS], {}, real_s=17.0)
    assert (report.jobs, report.finished_exactly_once, report.problems) == (2, 2, ())
    assert (report.mean_wait_s, report.median_wait_s, report.p95_wait_s) == (10.0, 10.0, 20.0)
    assert report.mean_bounded_slowdown == (1.0 + (20 + 50) / 50) / 2
    assert report.makespan_s == 150.4
    assert report.utilisation == (4 * 100 + 2 * 50) / (4 * 150.4)
    assert report.mean_overhead_real_ms == 40.0


def test_a_job_that_did_not_finish_exactly_once_is_reported() -> None:
    outcomes = [
        replayed(JOBS[0], admissions=2, attempts=3),
        replayed(JOBS[1], phase="Failed", started_at=None, finished_at=None),
    ]
    report = report_of(PLAN, outcomes, {2: "started never, ended never"}, real_s=1.0)
    assert report.finished_exactly_once == 0
    assert report.problems == (
        "job 1: admitted 2 times, bound 3 times",
        "job 2: its group is Failed, started never, ended never",
    )
    assert report.mean_wait_s == 0.0


def test_figures_of_nothing_are_left_open() -> None:
    report = report_of(PLAN, [], {}, real_s=1.0)
    assert (report.mean_wait_s, report.utilisation, report.makespan_s) == (None, None, None)
    assert "Wait, mean             -" in list(as_table(report))


def test_the_journal_judges_by_lines_of_start_and_end() -> None:
    lines = [
        JournalLine("start", 1, 11),
        JournalLine("end", 1, 11),
        JournalLine("start", 2, 12),
        JournalLine("start", 2, 13),
        JournalLine("end", 2, 13),
    ]
    assert not_exactly_once(lines, [1, 2, 3]) == {
        2: "started 2 times, ended once",
        3: "started never, ended never",
    }


def test_a_pod_writes_what_the_journal_reads(tmp_path: Path) -> None:
    path = tmp_path / "with space"
    subprocess.run(command(path, 7, 0.01), check=True)
    [start, end] = read_journal(path)
    assert (start.word, start.job, end.word, end.job) == ("start", 7, "end", 7)
    assert start.pid == end.pid
    assert read_journal(tmp_path / "none") == []


def test_a_job_becomes_a_group_of_one_pod_that_sleeps_its_scaled_run_time() -> None:
    group = group_of(PLAN, JOBS[0])
    [task] = group.spec.tasks
    assert (group.metadata.name, group.metadata.namespace) == ("job-1", "replay-abc")
    assert task.template.requests == {"cpu": 4000}
    assert task.template.command[-3:] == ("/tmp/journal", "1", "10.000000")
    # Its request, and 3 s for the start of its process and the report of its end.
    assert group.spec.walltime == 20_000 + 3_000
    assert (PLAN.due_s(JOBS[0]), PLAN.due_s(JOBS[1])) == (0.0, 5.0)
    assert queue_of(PLAN).spec.capability == {"cpu": 4000}


def test_progress_is_described_in_words() -> None:
    now = ReplayStanding(jobs=9, submitted=5, waiting=1, running=2, finished=2, next_in_s=4.2)
    assert in_words(now) == "2 running, 1 waiting, the next in 4 s"


def test_the_replays_own_queue_has_the_strategy_that_was_asked_for() -> None:
    plan = replace(PLAN, strategy=Strategy(type="Backfill", order="shortest"))
    assert queue_of(plan).spec.strategy == Strategy(type="Backfill", order="shortest")
    assert queue_of(PLAN).spec.strategy == Strategy(type="BestEffortFIFO")


def test_replay_knows_the_policies_that_simulate_knows() -> None:
    assert tuple(POLICIES) == POLICY_NAMES


LOG = "; MaxProcs: 4\n1 0 -1 5 1 -1 -1 1 5 -1 1 1 1 -1 1 -1 -1 -1\n"


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (
            ("--queue", "mine", "--policy", "easy"),
            2,
            "--policy easy applies to the replay's own queue, but --queue mine names another",
        ),
        (
            ("--queue", "mine", "--against", "simulate"),
            2,
            "--against simulate applies to the replay's own queue, but --queue mine names another",
        ),
        (("--skip", "1"), 1, "log.swf: --skip 1 leaves nothing, there is 1 usable job"),
        (
            ("--starts", "/nowhere/starts.csv"),
            1,
            "--starts /nowhere/starts.csv: the file cannot be written",
        ),
    ],
)
def test_impossible_options_are_refused_before_anything_is_started(
    words: tuple[str, ...], code: int, error: str, tmp_path: Path, home: Path
) -> None:
    log = tmp_path / "log.swf"
    log.write_text(LOG)
    ran = run("replay", str(log), *words)
    assert (ran.code, ran.out) == (code, "")
    assert error in ran.err
    assert not home.exists()
