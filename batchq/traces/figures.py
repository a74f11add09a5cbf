"""The figures that schedules are judged by, so that every report means the same by them."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Below this many seconds a job's run time does not make its slowdown any larger.
SLOWDOWN_BOUND_S = 10


def bounded_slowdown(wait_s: float, run_s: float) -> float:
    """max(1, (wait + run) / max(run, 10 s)): Feitelson's, with the usual bound."""
    return max(1.0, (wait_s + run_s) / max(run_s, SLOWDOWN_BOUND_S))


def nearest_rank(values: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` of them do not exceed. `values` is not empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
