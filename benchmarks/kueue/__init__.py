"""Kueue's own two scheduling benchmarks, replayed: the same quotas, classes, times and evictions.

A real server, the daemon, a submitter and a consumer that mimics workers, each a process of its
own, as Kueue's runner mimics them. Beside what Kueue publishes of its runs, and beside the floor:
what the same work takes where nothing but its units limits it.

`python -m benchmarks.kueue [baseline] [large-scale] [--profile]`
"""

from __future__ import annotations

from benchmarks.kueue.run import main

__all__ = ["main"]
