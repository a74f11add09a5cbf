"""Run a module as `python -m` does, with a profiler for each of its threads.

`python -m benchmarks.kueue.profiled OUT MODULE ARGUMENT…`
"""

from __future__ import annotations

import cProfile
import pstats
import runpy
import sys
import threading

_profiles: list[cProfile.Profile] = []
_run_unprofiled = threading.Thread.run


def _run(thread: threading.Thread) -> None:
    profile = cProfile.Profile()
    _profiles.append(profile)
    profile.enable()
    try:
        _run_unprofiled(thread)
    finally:
        profile.disable()


def main(out: str, module: str, arguments: list[str]) -> None:
    threading.Thread.run = _run  # type: ignore[method-assign, assignment]
    sys.argv = [module, *arguments]
    profile = cProfile.Profile()
    profile.enable()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        profile.disable()
        stats = pstats.Stats(profile)
        for other in _profiles:
            if other.getstats():
                stats.add(other)
        stats.dump_stats(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
