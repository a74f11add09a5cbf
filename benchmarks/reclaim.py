"""Measure the cost and the benefit of reclaim on a real log with a queue for each group of users.

EASY plays the same jobs twice: once with default queues, which do not reclaim, and once with
`preemption: {reclaim: Any}` in each queue. The table shows the waits, the work that evictions lost,
and the evictions per job. Work that a job lost protects it from later evictions, so no job may be
evicted more often than log2 of its length in seconds, rounded up.

The log is not part of this project; without it, nothing is measured.
BATCHQ_BENCH_JOBS=1500 limits the number of its jobs.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

from batchq.api.objects import DEFAULT, Metadata, Queue, QueuePreemption, QueueSpec
from batchq.daemon import app
from batchq.lab.load_player import play_load
from batchq.lab.schedule import Ran, Schedule, figures_of
from batchq.lab.traces import POLICY_CONFIG, read_swf, strategy_of, swf_load
from benchmarks.table import report
from tests.harness.traces import trace_folder

LOG = "SDSC-SP2-1998-4.2-cln"
_JOBS = 5_000
_DAY_S = 86_400
#: Name -> the preemption policy of all queues.
RUNS = {"defaults": QueuePreemption(), "reclaim: Any": QueuePreemption(reclaim="Any")}
TITLES = [
    *("queues", "jobs", "groups", "mean wait h", "useful util %", "lost node-days"),
    *("evictions", "most of one job", "its log2", "jobs above log2", "real s"),
]


def main() -> None:
    path = trace_folder() / f"{LOG}.swf.gz"
    if not path.is_file():
        print(f"\nreclaim: {path} does not exist; BATCHQ_TRACES names the folder of the logs")
        return
    most = int(os.environ.get("BATCHQ_BENCH_JOBS", "0")) or _JOBS
    rows = []
    for name, preemption in RUNS.items():
        rows.append(row_of(name, played(path, preemption, most)))
        print("  ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    report("reclaim", TITLES, rows)


def played(path: Path, preemption: QueuePreemption, most: int) -> Schedule:
    """Play the first `most` jobs of the log in queues with this preemption policy."""
    pattern = Queue(metadata=Metadata(name=DEFAULT), spec=QueueSpec(preemption=preemption))
    load = swf_load(
        read_swf(path, most=most),
        title=LOG,
        strategy=strategy_of("easy"),
        by="group",
        queues=[pattern],
    )
    # As the daemon does with its long-lived objects.
    app.freeze_gc()
    schedule = play_load(load, POLICY_CONFIG, stopwatch=time.perf_counter)
    app.restore_gc()
    return schedule


def row_of(name: str, schedule: Schedule) -> list[object]:
    """Return the figures of a run; the evictions of a job are compared with log2 of its length."""
    figures = figures_of(schedule)
    assert figures.mean_wait_s is not None
    assert figures.utilization is not None
    worst = max(schedule.jobs, key=lambda job: (job.evictions, -length_s(job)))
    above = sum(job.evictions > math.ceil(math.log2(length_s(job))) for job in schedule.jobs)
    return [
        *(name, figures.jobs, len({job.tenant for job in schedule.jobs})),
        round(figures.mean_wait_s / 3600, 2),
        round(100 * figures.utilization, 2),
        round(schedule.lost_s / _DAY_S, 1),
        figures.evictions,
        worst.evictions,
        round(math.log2(length_s(worst)), 1) if worst.evictions else "-",
        above,
        round(schedule.real_s),
    ]


def length_s(job: Ran) -> int:
    """Return the job's run time in seconds; at least 2, so that its logarithm is at least 1."""
    return max(2, job.run_s or 0)
