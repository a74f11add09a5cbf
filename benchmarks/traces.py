"""Play whole real logs under every policy with the daemon's sessions, in virtual time.

The reference of each run is a plain simulator of the same policy (`tests/traces/oracle.py`), which
shares no code with batchq: its duration, and the number of jobs that it starts at another second.
Schedules of the first 5,000 jobs are also compared with published schedules, and the mean bounded
slowdown of all of KTH-SP2 and SDSC-BLUE, with a pass per event, with the published one (Gaussier,
Glesser, Reis and Trystram, SC'15). The logs are not part of this project; without them, nothing is
measured.

batchq plays in one process for each cpu where a log has idle moments, the plain simulator in one.
BATCHQ_BENCH_JOBS=10000 limits the number of jobs in the runs of whole logs, and
BATCHQ_BENCH_PROCESSES=1 that of batchq's processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from batchq.daemon import app
from batchq.lab.load_player import play_load
from batchq.lab.schedule import Schedule, figures_of
from batchq.lab.traces import POLICY_CONFIG, read_swf, strategy_of, swf_load
from benchmarks.table import report
from tests.harness.traces import COLUMNS, GOLDEN, golden_starts, trace_folder
from tests.traces.oracle import read_log, starts

#: Every policy with one pass per instant; some also with one pass per event.
RUNS: Sequence[tuple[str, bool]] = tuple(COLUMNS)
#: Log -> its runs; the last has 232,542 jobs.
LOGS: Mapping[str, Sequence[tuple[str, bool]]] = {
    "KTH-SP2-1996-2": RUNS,
    "SDSC-SP2-1998-4.2-cln": RUNS,
    "SDSC-BLUE-2000-4.1-cln": [("easy", True)],
}
_GOLDEN_JOBS = 5_000
#: (log, jobs, policy, whether with one pass per event) -> mean bounded slowdown.
PUBLISHED: Mapping[tuple[str, int, str, bool], str] = {
    ("KTH-SP2-1996-2", 28_481, "easy", True): "92.57654",
    ("KTH-SP2-1996-2", 28_481, "easy-sjf", True): "69.40540",
    ("SDSC-BLUE-2000-4.1-cln", 232_542, "easy", True): "36.52336",
}
TITLES = [
    *("log", "jobs", "policy", "pass", "processes", "batchq s", "jobs/s", "sessions", "plain s"),
    *("batchq/plain", "unlike plain", "unlike published", "slowdown", "published"),
]


def main() -> None:
    most = int(os.environ.get("BATCHQ_BENCH_JOBS", "0")) or None
    rows: list[list[object]] = []
    for name in LOGS:
        path = trace_folder() / f"{name}.swf.gz"
        if not path.is_file():
            print(f"\ntraces: {path} does not exist; BATCHQ_TRACES names the folder of the logs")
            continue
        for jobs in (_GOLDEN_JOBS, most):
            for row in compare(path, name, jobs):
                print("  ".join(map(str, row)), file=sys.stderr, flush=True)
                rows.append(row)
    if rows:
        report("traces", TITLES, rows)


def compare(path: Path, name: str, most: int | None) -> Iterator[list[object]]:
    """Yield a row for each run over the first `most` jobs of a log; None means all of them.

    A log that `LOGS` does not name is run under every policy.
    """
    processes = int(os.environ.get("BATCHQ_BENCH_PROCESSES", "0")) or None
    trace = read_swf(path, most=most)
    processors, jobs = read_log(path, most)
    for policy, per_event in LOGS.get(name, RUNS):
        began = time.perf_counter()
        expected = starts(jobs, processors, policy, per_event=per_event)
        plain_s = time.perf_counter() - began
        load = swf_load(trace, title=name, strategy=strategy_of(policy))
        # As the daemon does with its long-lived objects.
        app.freeze_gc()
        schedule = play_load(
            load,
            POLICY_CONFIG,
            name=policy,
            per_event=per_event,
            stopwatch=time.perf_counter,
            processes=processes,
        )
        app.restore_gc()
        yield [
            *(name, len(jobs), policy, "event" if per_event else "instant"),
            len(os.sched_getaffinity(0)) if processes is None else processes,
            schedule.real_s,
            round(len(jobs) / schedule.real_s),
            schedule.sessions,
            plain_s,
            schedule.real_s / plain_s,
            _unlike(schedule, expected),
            _unlike_published(schedule, name, policy, per_event=per_event),
            f"{figures_of(schedule).mean_bounded_slowdown or 0:.5f}",
            PUBLISHED.get((name, len(jobs), policy, per_event), "-"),
        ]


def _unlike(schedule: Schedule, expected: Mapping[int, int]) -> int:
    """Return how many jobs start at another second."""
    found = {one.number: one.start_s for one in schedule.jobs}
    return sum(found.get(number) != start for number, start in expected.items())


def _unlike_published(schedule: Schedule, log: str, policy: str, *, per_event: bool) -> object:
    """Compare with the published schedule; return "-" if none has exactly these jobs."""
    golden = trace_folder() / "golden" / f"{GOLDEN.get(log)}.starts.csv.gz"
    if not golden.is_file():
        return "-"
    published = golden_starts(log, policy, per_event=per_event)
    if set(published) != {one.number for one in schedule.jobs}:
        return "-"
    return _unlike(schedule, published)


if __name__ == "__main__":
    main()
