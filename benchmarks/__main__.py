"""`python -m benchmarks [NAME …]`: run the named benchmarks, or all of them.

All processes that it started are killed when it ends, also after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module
from types import FrameType

import psutil

ALL = (
    "kueue",
    "backlog",
    "placement",
    "arrays",
    "endtoend",
    "array",
    "submission",
    "traces",
    "easynodes",
    "reclaim",
    "queues",
    "commits",
    "agents",
    "thousand",
    "flood",
    "api",
)
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Adopt descendants whose parents end, so that `end_children` finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill all descendants, including any that they fork in the meantime."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            child.kill()
        psutil.wait_procs(children)


def on_sigterm(number: int, frame: FrameType | None) -> None:
    """Exit through every `finally`, as Ctrl-C does."""
    sys.exit(128 + number)


def run(names: list[str]) -> None:
    """Run the named benchmarks, or all of them."""
    # A run of all benchmarks includes the largest backlog.
    if not names:
        os.environ.setdefault("BATCHQ_BENCH_MOST", "1000000")
    for name in names or ALL:
        match name:
            case "kueue-large":
                import_module("benchmarks.kueue").main(["large-scale"])
            case "api":
                import_module("benchmarks.http_api").main()
            case "array":
                import_module("benchmarks.endtoend").main_array()
            case _ if name in ALL:
                import_module(f"benchmarks.{name}").main()
            case _:
                known = ", ".join((*ALL, "kueue-large"))
                sys.exit(f"unknown benchmark {name!r}; known benchmarks: {known}")


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv[1:]):
        names = ", ".join((*ALL, "kueue-large"))
        print(f"python -m benchmarks [NAME ...]; without names, runs all of them: {names}")
        sys.exit(0)
    adopt_orphans()
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        run(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        end_children()
