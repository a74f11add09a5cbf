"""Read logs in the Standard Workload Format, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

from msgspec import Struct
from msgspec.structs import replace

from batchq.errors import InvalidInput

_LONGEST_LINE_BYTES = 4096


def lines_of(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield the non-blank lines, stripped, each with its number in the file.

    Raises InvalidInput if the file cannot be read or unpacked, or has a line of more than 4096
    bytes.
    """
    try:
        with _opened(path) as file:
            place = 0
            while data := file.readline(_LONGEST_LINE_BYTES + 1):
                place += 1
                if len(data) > _LONGEST_LINE_BYTES:
                    raise InvalidInput(
                        f"{path}, line {place}: expected at most {_LONGEST_LINE_BYTES} bytes"
                    )
                line = data.decode("utf-8", "replace").strip()
                if line:
                    yield place, line
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"{path}: this gzip file is damaged: {error}") from None
    except OSError as error:
        raise InvalidInput(f"{path}: the log cannot be read: {error.strerror or error}") from None


def _opened(path: Path) -> BinaryIO:
    """Open the file, and unpack it if its content is gzipped, whatever its name."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


#: Run times below this many seconds do not increase a job's slowdown further.
SLOWDOWN_BOUND_S = 10


def bounded_slowdown(wait_s: float, run_s: float) -> float:
    """Return Feitelson's bounded slowdown, max(1, (wait + run) / max(run, 10 s))."""
    return max(1.0, (wait_s + run_s) / max(run_s, SLOWDOWN_BOUND_S))


def nearest_rank(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least `percent` % of `values` (not empty) do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


#: The longest log in the public archive has fewer than four million jobs.
MOST_JOBS = 10_000_000
_FIELDS = 18

#: Indices of the fields that are read.
_NUMBER, _SUBMIT, _RUN, _ALLOCATED, _REQUESTED, _ESTIMATE = 0, 1, 3, 4, 7, 8
_USER, _GROUP, _QUEUE = 11, 12, 14


class TraceJob(Struct, frozen=True, kw_only=True):
    """One job of a log; times in seconds, `submit_s` from the log's start.

    `request_s` is the owner's upper bound of the duration; `run_s` is never longer. `user`, `group`
    and `queue` are the log's numbers; -1: unknown.
    """

    number: int
    submit_s: int
    run_s: int
    processors: int
    request_s: int
    user: int = -1
    group: int = -1
    queue: int = -1


class Trace(Struct, frozen=True, kw_only=True):
    """The jobs of a log in its order, the size of its machine, and how many were dropped."""

    processors: int
    jobs: tuple[TraceJob, ...]
    dropped: int = 0


def read_swf(path: str | Path, *, processors: int | None = None, most: int | None = None) -> Trace:
    """Read the first `most` jobs (all, if None) of the log at `path`, gzipped or not.

    `processors` overrides the machine's size in the log. Jobs larger than the machine are dropped,
    and jobs whose run time, request or processors are zero or unknown, or whose submit time is
    negative. Processors are the requested ones, else the allocated ones. In a log without
    estimates, the run time is the request; a run time beyond the request is cut there, as the
    machine did. Raises InvalidInput.
    """
    machine, rows = _read(Path(path), processors)
    # A single job without an estimate is dropped, but a log may have none at all.
    estimated = any(row.request_s > 0 for row in rows)
    jobs: list[TraceJob] = []
    dropped = 0
    for row in rows:
        if most is not None and len(jobs) >= most:
            break
        job = row if estimated else replace(row, request_s=row.run_s)
        if _is_usable(job, machine):
            jobs.append(replace(job, run_s=min(job.run_s, job.request_s)))
        else:
            dropped += 1
    if not jobs:
        raise InvalidInput(
            f"{path}: expected jobs in the Standard Workload Format, found none"
            + (f" that can be run on {machine} processors" if dropped else ""),
            hint="logs of real machines are at https://www.cs.huji.ac.il/labs/parallel/workload/",
        )
    return Trace(processors=machine, jobs=tuple(jobs), dropped=dropped)


def _read(path: Path, processors: int | None) -> tuple[int, list[TraceJob]]:
    """Return the machine's size, and every job as written."""
    machine = processors
    rows: list[TraceJob] = []
    seen: set[int] = set()
    with closing(lines_of(path)) as lines:
        for place, line in lines:
            if line.startswith(";"):
                machine = machine or _stated_size(line)
                continue
            row = _row(line, f"{path}, line {place}")
            if row.number in seen:
                raise InvalidInput(f"{path}, line {place}: job {row.number} is there twice")
            seen.add(row.number)
            rows.append(row)
            if len(rows) > MOST_JOBS:
                raise InvalidInput(f"{path}: expected at most {MOST_JOBS} jobs")
    if machine is None and rows:
        raise InvalidInput(
            f"{path}: the log does not state its machine's number of processors (MaxProcs)",
            hint="state it with --procs",
        )
    return machine or 0, rows


def _row(line: str, place: str) -> TraceJob:
    fields = line.split()
    if len(fields) != _FIELDS:
        raise InvalidInput(
            f"{place}: expected {_FIELDS} numbers (Standard Workload Format), found {len(fields)}"
        )
    number, submit, run, allocated, requested, estimate, user, group, queue = (
        _whole(fields[at], place)
        for at in (
            *(_NUMBER, _SUBMIT, _RUN, _ALLOCATED, _REQUESTED, _ESTIMATE),
            *(_USER, _GROUP, _QUEUE),
        )
    )
    return TraceJob(
        number=number,
        submit_s=submit,
        run_s=run,
        processors=requested if requested > 0 else allocated,
        request_s=estimate,
        user=user,
        group=group,
        queue=queue,
    )


def _is_usable(job: TraceJob, machine: int) -> bool:
    return (
        0 < job.processors <= machine and job.run_s > 0 and job.request_s > 0 and job.submit_s >= 0
    )


def _whole(text: str, place: str) -> int:
    try:
        # Some logs write 12.00; fractions of a second are cut off.
        return int(text) if "." not in text else int(float(text))
    except (ValueError, OverflowError):
        raise InvalidInput(f"{place}: expected a number, found {text[:40]!r}") from None


def _stated_size(remark: str) -> int | None:
    """Return the machine's size from `; MaxProcs: 100`, or from MaxNodes."""
    name, _, value = remark.lstrip("; \t").partition(":")
    if name.strip() not in ("MaxProcs", "MaxNodes"):
        return None
    first = value.split()[:1]
    return int(first[0]) if first and first[0].isdecimal() and int(first[0]) > 0 else None
