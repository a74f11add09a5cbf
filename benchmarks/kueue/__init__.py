"""Kueue's own two scheduling benchmarks, replayed: the same quotas, classes, times and evictions.

A real server, the daemon, a submitter and a consumer, which imitates workers as Kueue's runner
does, run as separate processes. The references are Kueue's published figures and the floor: the
time that the same work takes when only its units limit it.

`python -m benchmarks.kueue [baseline] [large-scale] [--profile]`
"""

from __future__ import annotations

from benchmarks.kueue.run import main

__all__ = ["main"]
