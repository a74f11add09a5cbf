"""The command line of the random days.

    python -m tests.days --days 200          seeds 0 to 199, under every strategy
    python -m tests.days --days 20 --first 500
    python -m tests.days --day 7 --strategy easy   one, with its outcome
    python -m tests.days --day 7 --strategy easy --write world.yaml    as `batchq simulate` reads it
                                             (without the failures of pods)

Exit code 0 if on every day everything that can run has run by the end, and nothing has waited that
could start; 1 otherwise. Each failure names the command that replays it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.days.making import STRATEGIES, day_of, manifests
from tests.days.play import Failure, Outcome, result_of, results_of
from tests.progress import Progress
from tests.yaml_text import text_of_all

_MOST_SHOWN = 30


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.days")
    parser.add_argument("--days", type=int, default=20, help="how many days")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--day", type=int, help="replay this one")
    parser.add_argument("--strategy", choices=list(STRATEGIES), default="easy")
    parser.add_argument("--write", type=Path, help="write the day down as a world")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if asked.day is not None:
        return _replay(asked.day, asked.strategy, asked.write)
    return _swarm(asked)


def _replay(seed: int, strategy: str, path: Path | None) -> int:
    if path is not None:
        path.write_text(text_of_all(manifests(day_of(seed), strategy)))
    result = result_of((seed, strategy))
    if isinstance(result, Failure):
        _tell(f"day {seed} under {strategy}: {result.why}\n{result.trace}")
        return 1
    _tell(
        f"day {seed} under {strategy}: {result.groups} groups, {result.sessions} sessions,"
        f" {result.ends}, mean wait {result.wait_s:.0f} s, clairvoyant {result.easy_wait_s:.0f} s"
    )
    return 0


def _swarm(asked: argparse.Namespace) -> int:
    began = time.monotonic()
    outcomes: dict[str, list[Outcome]] = {name: [] for name in STRATEGIES}
    failed = 0
    seeds = range(asked.first, asked.first + asked.days)
    progress = Progress(asked.days * len(STRATEGIES), _tell)
    for result in progress.through(results_of(seeds, processes=asked.processes)):
        if isinstance(result, Outcome):
            outcomes[result.strategy].append(result)
            continue
        failed += 1
        if failed <= _MOST_SHOWN:
            _tell(f"day {result.seed} under {result.strategy}: {result.why}")
            _tell(f"    python -m tests.days --day {result.seed} --strategy {result.strategy}")
    for line in table(outcomes):
        _tell(line)
    took_s = time.monotonic() - began
    _tell(
        f"{progress.count} runs from day {asked.first} under {len(STRATEGIES)} strategies,"
        f" {failed} failed, in {took_s:.0f} s"
    )
    return progress.exit_code(failed)


def table(outcomes: dict[str, list[Outcome]]) -> list[str]:
    """Return a line for each strategy: how much was played, and the mean waits side by side."""
    lines = ["strategy      days  groups    pods  sessions  mean wait s  clairvoyant s  ratio"]
    for name, days in outcomes.items():
        pods = sum(one.pods for one in days)
        if not pods:
            continue
        wait_s, easy_s = (
            sum(value * one.pods for one, value in zip(days, values, strict=True)) / pods
            for values in ([one.wait_s for one in days], [one.easy_wait_s for one in days])
        )
        lines.append(
            f"{name:12} {len(days):5} {sum(one.groups for one in days):7} {pods:7}"
            f" {sum(one.sessions for one in days):9} {wait_s:12.0f} {easy_s:14.0f}"
            f" {wait_s / max(1.0, easy_s):6.2f}"
        )
    return lines


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
