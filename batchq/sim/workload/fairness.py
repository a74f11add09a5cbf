"""How evenly the tenants of a load were served: one number between 0 and 1.

R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of Fairness and Discrimination for Resource
Allocation in Shared Computer Systems, DEC Research Report TR-301, 1984: (Σ x)² / (n · Σ x²), which
is 1 where all x are equal and 1/n where one has everything. Here x is a tenant's mean bounded
slowdown. It cannot be the processor-seconds: in the end every job has had those it asked for,
whoever was served first.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchq.sim.workload.figures import TenantFigures


def jain(values: Sequence[float]) -> float | None:
    """The index of numbers that are not negative; None where there is none, or none above zero."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def fairness_of(tenants: Sequence[TenantFigures]) -> float | None:
    """The index over the tenants of whom a job has finished."""
    slowdowns = [one.mean_bounded_slowdown for one in tenants]
    return jain([slowdown for slowdown in slowdowns if slowdown is not None])
