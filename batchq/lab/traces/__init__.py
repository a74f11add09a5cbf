"""Readers of logs of real machines, and two figures shared by all reports on them.

`swf.py` reads the Standard Workload Format, `openb.py` Alibaba's tables of GPU pods.
"""

from batchq.lab.traces.swf import (
    MOST_JOBS,
    SLOWDOWN_BOUND_S,
    Trace,
    TraceJob,
    bounded_slowdown,
    nearest_rank,
    read_swf,
)

__all__ = [
    "MOST_JOBS",
    "SLOWDOWN_BOUND_S",
    "Trace",
    "TraceJob",
    "bounded_slowdown",
    "nearest_rank",
    "read_swf",
]
