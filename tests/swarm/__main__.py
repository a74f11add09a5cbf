"""`python -m tests.swarm --kills 500 --seed N`: exits with 1 if anything was lost or ran twice."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.swarm.run import swarm


def main() -> int:
    """Run a swarm, and print its progress and result."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills and pauses (100)")
    parser.add_argument("--seed", type=int, help="seed of all random choices (a new one)")
    parser.add_argument(
        "--every", type=float, default=1.6, help="seconds between two strikes, on average (1.6)"
    )
    parser.add_argument(
        "--devices", action="store_true", help="have agents share devices, one for each pod"
    )
    chosen = parser.parse_args()
    # Neither may leave the stack behind: the exit ends all processes of the machine.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda number, _: sys.exit(128 + number))
    seed = chosen.seed if chosen.seed is not None else secrets.randbelow(1_000_000)
    _print(f"seed {seed}")
    keep = Path(tempfile.mkdtemp(prefix=f"swarm-{seed}-")) / "kept"
    report = swarm(
        kills=chosen.kills,
        seed=seed,
        every_s=chosen.every,
        tell=_print,
        keep=keep,
        devices=chosen.devices,
    )
    _print(report.text())
    if keep.exists():
        _print(f"logs, diaries and objects are kept in {keep}")
    else:
        keep.parent.rmdir()
    return 0 if report.is_clean else 1


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
