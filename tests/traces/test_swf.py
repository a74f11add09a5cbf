"""Reading logs in the Standard Workload Format: what is kept, what is dropped, what is refused."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from batchq.errors import InvalidInput
from batchq.lab.schedule import bounded_slowdown, nearest_rank
from batchq.lab.traces import TraceJob, read_swf
from tests.harness.traces import real_log


def job_line(
    number: int = 1,
    *,
    submit: str = "0",
    run: str = "100",
    allocated: int = 4,
    requested: int = 4,
    estimate: int = 200,
) -> str:
    """A line of a log."""
    rest = "-1 1 11 12 -1 13 -1 -1 -1"
    return f"{number} {submit} 5 {run} {allocated} -1 -1 {requested} {estimate} {rest}\n"


def log_of(folder: Path, *lines: str, head: str = "; MaxProcs: 8\n") -> Path:
    """A log with a machine of eight processors."""
    path = folder / "log.swf"
    path.write_text(head + "".join(lines))
    return path


def test_a_job_is_read_with_its_size_times_and_estimate(tmp_path: Path) -> None:
    trace = read_swf(log_of(tmp_path, job_line(7, submit="30", run="100", requested=3)))
    assert (trace.processors, trace.dropped) == (8, 0)
    assert trace.jobs == (
        TraceJob(
            number=7,
            submit_s=30,
            run_s=100,
            processors=3,
            request_s=200,
            user=11,
            group=12,
            queue=13,
        ),
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (job_line(requested=9), "larger than the machine"),
        (job_line(requested=-1, allocated=-1), "of unknown size"),
        (job_line(run="0"), "that did not run"),
        (job_line(run="-1"), "of unknown run time"),
        (job_line(estimate=-1), "without an estimate, where others have one"),
        (job_line(submit="-5"), "submitted before the log began"),
    ],
    ids=lambda value: value if "that" in value or "with" in value else None,
)
def test_a_job_is_dropped(tmp_path: Path, line: str, why: str) -> None:
    trace = read_swf(log_of(tmp_path, line, job_line(2)))
    assert ([job.number for job in trace.jobs], trace.dropped) == ([2], 1), why


def test_the_size_is_the_requested_one_else_the_allocated_one(tmp_path: Path) -> None:
    lines = (job_line(1, requested=2, allocated=4), job_line(2, requested=-1, allocated=4))
    assert [job.processors for job in read_swf(log_of(tmp_path, *lines)).jobs] == [2, 4]


def test_a_run_time_beyond_the_request_is_cut_there(tmp_path: Path) -> None:
    [job] = read_swf(log_of(tmp_path, job_line(run="500", estimate=200))).jobs
    assert (job.run_s, job.request_s) == (200, 200)


def test_a_log_without_estimates_takes_the_run_times_for_them(tmp_path: Path) -> None:
    [job] = read_swf(log_of(tmp_path, job_line(run="500", estimate=-1))).jobs
    assert job.request_s == 500


def test_only_the_first_jobs_after_the_filter_are_read(tmp_path: Path) -> None:
    lines = [job_line(1, run="0"), *(job_line(number) for number in range(2, 6))]
    trace = read_swf(log_of(tmp_path, *lines), most=2)
    assert [job.number for job in trace.jobs] == [2, 3]


def test_a_gzipped_log_is_recognised_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(f"; MaxNodes: 8 (two cabinets)\n{job_line()}".encode()))
    assert read_swf(path).processors == 8


def test_a_machine_with_several_processors_per_node_has_the_stated_processors(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, job_line(), head="; MaxNodes: 2\n; MaxProcs: 16\n")
    assert read_swf(log).processors == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "; MaxProcs: 8\n1 2 3\n",
            "line 2: expected 18 numbers (Standard Workload Format), found 3",
        ),
        (f"; MaxProcs: 8\n{job_line(submit='soon')}", "line 2: expected a number, found 'soon'"),
        (f"; MaxProcs: 8\n{job_line()}{job_line()}", "line 3: job 1 occurs twice"),
        (job_line(), "the log does not state its machine's number of processors (MaxProcs)"),
        ("; MaxProcs: 8\n", "expected jobs in the Standard Workload Format, found none"),
        (
            f"; MaxProcs: 2\n{job_line()}",
            "expected jobs in the Standard Workload Format, found none that can be run on 2",
        ),
        ("; MaxProcs: 8\n" + "1 " * 5000, "line 2: expected at most 4096 bytes"),
    ],
)
def test_a_wrong_log_is_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.swf"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_swf(path)
    assert refused.value.message.startswith(str(path))
    assert message in refused.value.message


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(b"; a remark\n" * 1000)[:-20])
    with pytest.raises(InvalidInput) as refused:
        read_swf(path)
    assert "this gzip file is damaged" in refused.value.message


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the log cannot be read: No such file or directory"):
        read_swf(tmp_path / "none.swf")
    with pytest.raises(InvalidInput, match="the log cannot be read: Is a directory"):
        read_swf(tmp_path)


def test_bounded_slowdown_is_never_below_one_and_counts_ten_seconds_at_least() -> None:
    assert bounded_slowdown(0, 100) == 1.0
    assert bounded_slowdown(100, 100) == 2.0
    assert bounded_slowdown(99, 1) == 10.0
    assert bounded_slowdown(2, 1) == 1.0


def test_the_nearest_rank_is_one_of_the_values() -> None:
    assert nearest_rank([15, 20, 35, 40, 50], 30) == 20
    assert nearest_rank([15, 20, 35, 40, 50], 100) == 50
    assert nearest_rank(list(range(1, 21)), 95) == 19
    assert nearest_rank([7], 95) == 7


@pytest.mark.parametrize(
    ("log", "starts", "jobs", "slowdown"),
    [
        ("KTH-SP2-1996-2", "kth_first5000", 28_481, 138.078456),
        ("SDSC-SP2-1998-4.2-cln", "sdscsp2_first5000", 53_999, 17.306577),
        ("lublin_256", "lublin_256", 10_000, 291.054858),
    ],
)
def test_real_logs_are_read_as_others_read_them(
    log: str, starts: str, jobs: int, slowdown: float
) -> None:
    path = real_log(log)
    trace = read_swf(path)
    with gzip.open(path.parent / "golden" / f"{starts}.starts.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    expected = [
        tuple(int(row[name]) for name in ("job", "submit", "run", "procs", "estimate"))
        for row in rows
    ]
    first = trace.jobs[: len(rows)]
    assert len(trace.jobs) == jobs
    assert [
        (job.number, job.submit_s, job.run_s, job.processors, job.request_s) for job in first
    ] == expected
    waits = [int(row["start_easy"]) - job.submit_s for row, job in zip(rows, first, strict=True)]
    slowdowns = [bounded_slowdown(wait, job.run_s) for wait, job in zip(waits, first, strict=True)]
    assert sum(slowdowns) / len(slowdowns) == pytest.approx(slowdown, abs=1e-6)
