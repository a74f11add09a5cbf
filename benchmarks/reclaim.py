"""What reclaim costs and brings: a real log with a queue for each of its groups, under EASY.

The same jobs twice, under the default configuration: once with queues as they are by default, which
reclaim from none, and once with `preemption: {reclaim: Any}` in each. Beside the waits stand what
evictions threw away, and how often a job was evicted: what reclaim has cost protects, so no job may
be evicted more often than log2 of its length in seconds, rounded up.

The log is not part of this project; where it is not at hand, nothing is measured.
BATCHQ_BENCH_JOBS=1500 plays only so many of its jobs.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

from batchq.api.objects import DEFAULT, Metadata, Queue, QueuePreemption, QueueSpec
from batchq.daemon import app
from batchq.lab.traces import read_swf
from batchq.lab.workload.figures import figures_of
from batchq.lab.workload.jobs import POLICY_CONFIG, strategy_of, swf_load
from batchq.lab.workload.play import play_load
from batchq.lab.workload.schedule import Ran, Schedule
from benchmarks.table import report
from tests.harness.traces import trace_folder

LOG = "SDSC-SP2-1998-4.2-cln"
_JOBS = 5_000
_DAY_S = 86_400
#: Name -> the preemption that every queue states.
RUNS = {"defaults": QueuePreemption(), "reclaim: Any": QueuePreemption(reclaim="Any")}
TITLES = [
    *("queues", "jobs", "groups", "mean wait h", "useful util %", "lost node-days"),
    *("evictions", "most of one job", "its log2", "jobs above log2", "real s"),
]


def main() -> None:
    path = trace_folder() / f"{LOG}.swf.gz"
    if not path.is_file():
        print(f"\nreclaim: there is no {path}; BATCHQ_TRACES may name another folder")
        return
    most = int(os.environ.get("BATCHQ_BENCH_JOBS", "0")) or _JOBS
    rows = []
    for name, preemption in RUNS.items():
        rows.append(row_of(name, played(path, preemption, most)))
        print("  ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    report("reclaim", TITLES, rows)


def played(path: Path, preemption: QueuePreemption, most: int) -> Schedule:
    """The first jobs of the log, with such queues."""
    pattern = Queue(metadata=Metadata(name=DEFAULT), spec=QueueSpec(preemption=preemption))
    load = swf_load(
        read_swf(path, most=most),
        title=LOG,
        strategy=strategy_of("easy"),
        by="group",
        queues=[pattern],
    )
    # As the daemon does with what lasts.
    app.freeze_gc()
    schedule = play_load(load, POLICY_CONFIG, stopwatch=time.perf_counter)
    app.restore_gc()
    return schedule


def row_of(name: str, schedule: Schedule) -> list[object]:
    """The figures of a run; evictions of a job are held against log2 of its length."""
    figures = figures_of(schedule)
    assert figures.mean_wait_s is not None
    assert figures.utilization is not None
    worst = max(schedule.jobs, key=lambda job: (job.evictions, -length_s(job)))
    above = sum(job.evictions > math.ceil(math.log2(length_s(job))) for job in schedule.jobs)
    return [
        *(name, figures.jobs, len({job.tenant for job in schedule.jobs})),
        round(figures.mean_wait_s / 3600, 2),
        round(100 * figures.utilization, 1),
        round(schedule.lost_s / _DAY_S, 1),
        figures.evictions,
        worst.evictions,
        round(math.log2(length_s(worst)), 1) if worst.evictions else "-",
        above,
        round(schedule.real_s),
    ]


def length_s(job: Ran) -> int:
    """How long it runs, if nobody stops it: 2 s at least, so that its logarithm is none below 1."""
    return max(2, job.run_s or 0)
