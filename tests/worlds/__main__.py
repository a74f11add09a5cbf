"""The command line of the seeded worlds.

    python -m tests.worlds --seeds 5000            five thousand, from 0 on, on all cores
    python -m tests.worlds --seeds 500 --first 7000
    python -m tests.worlds --seed 1234             one, with its story session by session
    python -m tests.worlds --seed 1234 --write DIR the smallest world that still shows what is
                                                   wrong, as DIR/world.yaml and DIR/scheduler.yaml,
                                                   for `batchq simulate`
    python -m tests.worlds --wide --seeds 5000     the busy worlds of these seeds: what users and
                                                   machines do within some minutes; with --seed,
                                                   too

Exit code 0 if every rule held in every seed, 1 if not; each failure names the command that
replays it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from msgspec import to_builtins

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.errors import EndlessSessions
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from tests.progress import Progress
from tests.worlds.making import Described
from tests.worlds.play import (
    MOST_SESSIONS,
    failure_of_wide,
    failure_of_world,
    failures_of,
    smaller,
    world_of,
)
from tests.worlds.wide import MOST_SESSIONS_OF_WIDE, wide_world

_MOST_SHOWN = 30


def main() -> int:
    """Play the seeds that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this seed and print its story")
    parser.add_argument("--write", type=Path, help="where to write the smallest failing world")
    parser.add_argument("--wide", action="store_true", help="the busy worlds of the seeds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if asked.seed is not None:
        return _replay(asked.seed, asked.write, wide=asked.wide)
    return _swarm(asked)


def _replay(seed: int, folder: Path | None, *, wide: bool) -> int:
    world = wide_world(seed) if wide else world_of(seed)
    find = failure_of_wide if wide else failure_of_world
    found = find(world)
    if folder is not None:
        world = smaller(world, find)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "world.yaml").write_text(world.text)
        (folder / "scheduler.yaml").write_text(world.config_text)
    _tell_story(world, MOST_SESSIONS_OF_WIDE if wide else MOST_SESSIONS)
    if found is None:
        _tell(f"seed {seed}: every rule holds")
        return 0
    _tell(f"seed {seed}: {found.why}\n{found.trace}")
    return 1


def _tell_story(world: Described, most: int) -> None:
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    stage = WorldRun(read_world(world.text, f"seed {world.seed}"), scheduler)
    try:
        cycles = stage.run(most, bounded=True).outcome.cycles
    except EndlessSessions as endless:
        _tell(str(endless))
        return
    for cycle in cycles:
        result = {what: value for what, value in to_builtins(cycle).items() if value}
        _tell(" ".join(f"{what}={value}" for what, value in result.items()))


def _swarm(asked: argparse.Namespace) -> int:
    seeds = range(asked.first, asked.first + asked.seeds)
    began = time.monotonic()
    failed = 0
    progress = Progress(asked.seeds, _tell)
    found_by_seed = failures_of(seeds, processes=asked.processes, wide=asked.wide)
    for found in progress.through(found_by_seed):
        if found is None:
            continue
        failed += 1
        if failed <= _MOST_SHOWN:
            _tell(f"seed {found.seed}: {found.why}")
            _tell(f"    python -m tests.worlds{' --wide' * asked.wide} --seed {found.seed}")
    took_s = time.monotonic() - began
    _tell(
        f"{progress.count} seeds from {asked.first}, {failed} failed, in {took_s:.1f} s"
        f" ({took_s * 1000 / max(1, progress.count):.1f} ms each)"
    )
    return progress.exit_code(failed)


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
