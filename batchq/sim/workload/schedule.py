"""What became of a load: when each job ran, and how the machine was used over time. Values.

Times are whole seconds of the load. `size` is in the load's own unit: processors, for a log.
"""

from __future__ import annotations

from msgspec import Struct


class Ran(Struct, frozen=True, kw_only=True):
    """One job. `start_s` is its last start, `first_start_s` its first; None: it never started.

    `end_s` None: it has not finished. `run_s` is how long it asks to run, None for ever.
    `evictions` counts how often it was stopped for others, and began anew.
    """

    number: int
    tenant: str
    size: int
    submit_s: int
    run_s: int | None
    start_s: int | None = None
    end_s: int | None = None
    first_start_s: int | None = None
    evictions: int = 0


class Sample(Struct, frozen=True, kw_only=True):
    """The mean over the `long_s` seconds from `at_s` on.

    `used`: tenant -> resource -> units that its pods held (milli-cores for cpu); `waiting`: how
    many jobs waited.
    """

    at_s: int
    long_s: int
    used: dict[str, dict[str, float]] = {}
    waiting: float = 0.0

    def total(self, resource: str) -> float:
        """What all tenants held together."""
        return sum(amounts.get(resource, 0.0) for amounts in self.used.values())


class Schedule(Struct, frozen=True, kw_only=True):
    """A load as one policy or configuration, called `name`, has run it.

    `capacity` is what all nodes have, in the unit of `Ran.size`; `resources` the same, resource by
    resource in units. `jobs` are in the order of the load; `usage` covers it from the first submit
    to the last end in steps of equal length, bounded in number. `weights`: tenant -> the weight of
    its queue. `lost_s`: size times seconds of work that evictions threw away. `real_s`: how long
    the play took, if a stopwatch was given. `refused`: transactions that the store refused; with
    one scheduler there should be none.
    """

    name: str
    load: str
    capacity: int
    resources: dict[str, int]
    jobs: tuple[Ran, ...]
    usage: tuple[Sample, ...] = ()
    weights: dict[str, int] = {}
    evictions: int = 0
    lost_s: int = 0
    sessions: int = 0
    real_s: float = 0.0
    refused: int = 0
