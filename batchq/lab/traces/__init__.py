"""Logs of real machines: how they are read, and the figures that schedules of them are judged by.

`swf.py` reads the Standard Workload Format, `openb.py` Alibaba's tables of GPU pods. `figures.py`
holds what every report means by a slowdown and a percentile.
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
