"""The command line of the seeded faults.

    python -m tests.faults --seeds 10000            ten thousand, from 0 on, on all cores
    python -m tests.faults --seeds 500 --first 7000
    python -m tests.faults --seed 1234              one, with its story event by event

Exit code 0 if every seed was played to its end, 1 if not; each failure names the command that
replays it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from batchq.errors import InvariantBroken
from tests.faults.play import failures_of, play

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
    asked = parser.parse_args()
    restores = not asked.no_restores
    if asked.seed is not None:
        return _replay(asked.seed, restores=restores)
    return _swarm(asked, restores=restores)


def _replay(seed: int, *, restores: bool) -> int:
    try:
        ended = play(seed, say=_tell, restores=restores)
    except InvariantBroken as wrong:
        _tell(f"seed {seed}: {wrong}")
        return 1
    _tell(f"seed {seed}: at rest at {ended.rested_at} ms, {ended.events} events: {ended.phases}")
    return 0


def _swarm(asked: argparse.Namespace, *, restores: bool) -> int:
    seeds = range(asked.first, asked.first + asked.seeds)
    began = time.monotonic()
    failures = []
    for found in failures_of(seeds, processes=asked.processes, restores=restores):
        if found is None:
            continue
        failures.append(found)
        if len(failures) <= _MOST_SHOWN:
            option = "" if restores else " --no-restores"
            _tell(f"seed {found.seed}: {found.why}")
            _tell(f"    python -m tests.faults --seed {found.seed}{option}")
    took_s = time.monotonic() - began
    _tell(
        f"{asked.seeds} seeds from {asked.first}, {len(failures)} failed, in {took_s:.1f} s"
        f" ({took_s * 1000 / max(1, asked.seeds):.1f} ms each)"
    )
    return 1 if failures else 0


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
