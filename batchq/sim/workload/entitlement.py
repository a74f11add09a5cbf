"""What each tenant deserves of the machine over time, by its weight and by what it asks for.

A weight alone says little of a moment: most tenants of a log are away most of the time, and what
they leave is everybody's. So the machine is shared out by weight among those who want some of it,
nobody getting more than it wants: max-min fairness, by water-filling (Bertsekas and Gallager, Data
Networks, section 6.5). What a tenant wants is the size of its jobs that have been submitted and
have not ended. A `deserved` stated by a queue is left out of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from batchq.sim.workload.schedule import Ran, Schedule


class Due(NamedTuple):
    """The part of the machine that was due to a tenant, on the average over the whole time, and
    how much of that it held; None if nothing was due to it.
    """

    part: float
    met: float | None


def entitled(schedule: Schedule, width_s: int) -> list[dict[str, float]]:
    """For each step of so many seconds since the first submit: tenant -> its part of the machine.

    Nobody stands in a step without being due anything.
    """
    if not schedule.usage:
        return []
    start = schedule.usage[0].at_s
    whole_s = schedule.usage[-1].at_s + schedule.usage[-1].long_s - start
    # Size times seconds, until the steps' lengths are known: the last one may be shorter.
    wanted = [dict[str, float]() for _ in range(-(-whole_s // width_s))]
    for one in schedule.jobs:
        end_s = whole_s if one.end_s is None else one.end_s - start
        _want(wanted, one, one.submit_s - start, min(end_s, whole_s), width_s)
    steps = []
    for step, amounts in enumerate(wanted):
        length = min(width_s, whole_s - step * width_s)
        wants = {tenant: amount / length for tenant, amount in amounts.items()}
        due = shared_out(schedule.capacity, wants, schedule.weights)
        steps.append({tenant: amount / schedule.capacity for tenant, amount in due.items()})
    return steps


def dues(schedule: Schedule, *, resource: str = "cpu") -> dict[str, Due]:
    """Tenant -> what was due to it, and how much of that it held, step by step as recorded.

    What a tenant holds beyond its due was idle otherwise, and makes up for nothing.
    """
    if not schedule.usage:
        return {}
    whole_s = sum(sample.long_s for sample in schedule.usage)
    machine = schedule.resources.get(resource) or 1
    sums: dict[str, tuple[float, float]] = {}
    for sample, parts in zip(
        schedule.usage, entitled(schedule, schedule.usage[0].long_s), strict=False
    ):
        for tenant, due in parts.items():
            held = sample.used.get(tenant, {}).get(resource, 0.0) / machine
            due_s, met_s = sums.get(tenant, (0.0, 0.0))
            sums[tenant] = (due_s + due * sample.long_s, met_s + min(held, due) * sample.long_s)
    return {
        tenant: Due(part=due_s / whole_s, met=met_s / due_s if due_s else None)
        for tenant, (due_s, met_s) in sums.items()
    }


def shared_out(
    capacity: float, wants: Mapping[str, float], weights: Mapping[str, int]
) -> dict[str, float]:
    """`capacity` by weight (1, if not named), nobody getting more than it wants."""
    given: dict[str, float] = {}
    left = float(capacity)
    # Who wants least for its weight is satisfied first; what it leaves is for the others.
    heavy = [(wants[name] / weights.get(name, 1), name) for name in wants if weights.get(name, 1)]
    weight_left = sum(weights.get(name, 1) for _, name in heavy)
    for _, name in sorted(heavy):
        weight = weights.get(name, 1)
        given[name] = min(wants[name], left * weight / weight_left)
        left -= given[name]
        weight_left -= weight
    return given


def _want(wanted: list[dict[str, float]], one: Ran, begin_s: int, end_s: int, width_s: int) -> None:
    """Add a job to the steps during which it is there."""
    for step in range(begin_s // width_s, -(-end_s // width_s)):
        length = min(end_s, (step + 1) * width_s) - max(begin_s, step * width_s)
        wanted[step][one.tenant] = wanted[step].get(one.tenant, 0.0) + one.size * length
