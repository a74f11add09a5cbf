"""Play scenarios: one seed with its story, or many on all cores."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterable, Iterator
from functools import partial

from msgspec import Struct

from batchq.errors import InvariantBroken
from tests.faults.cluster import REST_WITHIN_MS, Cluster, Ended, Say
from tests.faults.seeded_scenarios import CANCELLED, scenario_of
from tests.progress import leave_to_parent


class Failure(Struct, frozen=True):
    """A seed that failed, and the failure."""

    seed: int
    why: str
    trace: str


def play(
    seed: int,
    *,
    say: Say | None = None,
    restores: bool = True,
    launches: bool = False,
    devices: bool = False,
    beside: bool = False,
    rest_within_ms: int = REST_WITHIN_MS,
) -> Ended:
    """Play one seed to its end. Raises InvariantBroken."""
    scenario, ends = scenario_of(
        seed, restores=restores, launches=launches, devices=devices, beside=beside
    )
    ended = Cluster(scenario, say=say, rest_within_ms=rest_within_ms).run()
    forgot = scenario.copies_every_ms is not None
    for name, meant in ends.items():
        phase = ended.phases.get(name)
        if phase is None:
            # The checker ensures that acknowledged submissions are kept. Others may be lost.
            if forgot or not ended.granted.get(f"submit {name}"):
                continue
            raise InvariantBroken(f"{name} is gone")
        wanted = meant
        if not forgot and ended.granted.get(f"cancel {name}"):
            wanted = frozenset({CANCELLED})
        if phase not in wanted:
            raise InvariantBroken(f"{name} is {phase}; meant: {' or '.join(sorted(wanted))}")
    return ended


def failure_of(
    seed: int,
    *,
    restores: bool = True,
    launches: bool = False,
    devices: bool = False,
    beside: bool = False,
    rest_within_ms: int = REST_WITHIN_MS,
) -> Failure | None:
    """Return what is wrong with a seed; every exception counts, so that a swarm goes on with the
    next.
    """
    try:
        play(
            seed,
            restores=restores,
            launches=launches,
            devices=devices,
            beside=beside,
            rest_within_ms=rest_within_ms,
        )
    except Exception as wrong:  # a crash anywhere is a finding, as a broken invariant is
        return Failure(seed, f"{type(wrong).__name__}: {wrong}", traceback.format_exc())
    return None


def failures_of(
    seeds: Iterable[int],
    *,
    processes: int,
    restores: bool = True,
    launches: bool = False,
    devices: bool = False,
    beside: bool = False,
) -> Iterator[Failure | None]:
    """Return the failures of the seeds, in order, played on this many processes."""
    failure = partial(
        failure_of, restores=restores, launches=launches, devices=devices, beside=beside
    )
    if processes == 1:
        yield from map(failure, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes, leave_to_parent) as pool:
        yield from pool.imap(failure, seeds, chunksize=25)
