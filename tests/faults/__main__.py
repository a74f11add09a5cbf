"""The command line of the seeded faults.

    python -m tests.faults --seeds 10000            ten thousand, from 0 on, on all cores
    python -m tests.faults --seeds 500 --first 7000
    python -m tests.faults --seed 1234              one, with its story event by event
    python -m tests.faults --mutations              the first seed that finds each known fault

Exit code 0 if every seed was played to its end, 1 if not; each failure names the command that
replays it.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from functools import partial

import structlog

from batchq.errors import InvariantBroken
from tests.faults.mutations import MUTATIONS, first_seed
from tests.faults.play import failures_of, play
from tests.progress import Progress

_MOST_SHOWN = 10


def main() -> int:
    """Play the seeds that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this seed and print its story")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--no-restores", action="store_true", help="never restore the server from an older copy"
    )
    parser.add_argument(
        "--launches", action="store_true", help="give every gang of several pods spec.launch"
    )
    parser.add_argument("--devices", action="store_true", help="have every pod request GPUs")
    parser.add_argument(
        "--beside", action="store_true", help="run all agents on the machine of the server"
    )
    parser.add_argument(
        "--mutations",
        action="store_true",
        help="show which seed finds each fault put into the code",
    )
    asked = parser.parse_args()
    # The agents' own log lines would hide the story.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if asked.seed is not None:
        return _replay(asked)
    if asked.mutations:
        return _show_mutations(asked)
    return _swarm(asked)


def _show_mutations(asked: argparse.Namespace) -> int:
    seeds = range(asked.first, asked.first + asked.seeds)
    missed = 0
    with multiprocessing.get_context("fork").Pool(asked.processes) as pool:
        found = pool.imap(partial(first_seed, seeds=seeds), range(len(MUTATIONS)))
        for mutation, seed in zip(MUTATIONS, found, strict=True):
            missed += seed is None
            _tell(f"{'missed' if seed is None else seed:>6}  {mutation.what}")
    return 1 if missed else 0


def _replay(asked: argparse.Namespace) -> int:
    seed = asked.seed
    try:
        ended = play(
            seed,
            say=_tell,
            restores=not asked.no_restores,
            launches=asked.launches,
            devices=asked.devices,
            beside=asked.beside,
        )
    except InvariantBroken as wrong:
        _tell(f"seed {seed}: {wrong}")
        return 1
    _tell(f"seed {seed}: at rest at {ended.rested_at} ms, {ended.events} events: {ended.phases}")
    return 0


def _swarm(asked: argparse.Namespace) -> int:
    seeds = range(asked.first, asked.first + asked.seeds)
    began = time.monotonic()
    failures = []
    restores, launches, devices = not asked.no_restores, asked.launches, asked.devices
    progress = Progress(asked.seeds, _tell)
    found_by_seed = failures_of(
        seeds,
        processes=asked.processes,
        restores=restores,
        launches=launches,
        devices=devices,
        beside=asked.beside,
    )
    for found in progress.through(found_by_seed):
        if found is None:
            continue
        failures.append(found)
        if len(failures) <= _MOST_SHOWN:
            options = "" if restores else " --no-restores"
            options += " --launches" if launches else ""
            options += " --devices" if devices else ""
            options += " --beside" if asked.beside else ""
            _tell(f"seed {found.seed}: {found.why}")
            _tell(f"    python -m tests.faults --seed {found.seed}{options}")
    took_s = time.monotonic() - began
    _tell(
        f"{progress.count} seeds from {asked.first}, {len(failures)} failed, in {took_s:.1f} s"
        f" ({took_s * 1000 / max(1, progress.count):.1f} ms each)"
    )
    return progress.exit_code(len(failures))


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
