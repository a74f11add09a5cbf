"""The scheduler of the benchmark `backlog`, in a separate process so that its memory is separate.

`python -m benchmarks.backlog_session` reads an `Order` as JSON from stdin, and writes an `Answer`
as a line of JSON for each scenario. The first cycle, which lists everything, is `cold`.
"""

from __future__ import annotations

import resource
import sys
import time

import msgspec
from msgspec import Struct

# Load the same modules as the daemon, so that the memory is comparable.
import batchq.daemon.app  # noqa: F401
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.daemon import app
from batchq.store.redis import RedisStore
from benchmarks.backlog_scenarios import Stage, Took, median_of, play
from benchmarks.backlog_world import LEADER, LONG_MS, Spec

#: The first cycle of a process, a scenario besides those in `SCENARIOS`.
COLD = "cold"


class Order(Struct, frozen=True, kw_only=True):
    """What to measure. `started_at`: the start of the process in seconds of the monotonic clock."""

    url: str
    spec: Spec
    scenarios: tuple[str, ...]
    repeats: int
    most_s: float
    started_at: float


class Answer(Struct, frozen=True, kw_only=True):
    """The median times of `turns` cycles; `mb`: the peak memory of the process so far, in MiB."""

    scenario: str
    took: Took
    turns: int
    mb: float


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    # The cycles of a daemon are a second apart, so each reads the heartbeats; so does each here.
    store = RedisStore(order.url, heartbeats_every_ms=0)
    config = SchedulerConfig()
    store.judge_silence_by(config.settings.pod_lease_ms)
    epoch = store.lead(LEADER, LONG_MS)
    assert epoch is not None, "another leads"
    stage = Stage(store, assemble(config), store, order.spec, epoch=epoch)
    # As the daemon does.
    app.disable_gc()
    cold = stage.turn()
    app.freeze_gc()
    cold.all_s = time.monotonic() - order.started_at
    cold.all_cpu_s = time.process_time()
    _print_answer(COLD, [cold])
    if not order.scenarios:
        return
    stage.settle()
    for scenario in order.scenarios:
        _print_answer(scenario, play(stage, scenario, order.repeats, most_s=order.most_s))
    store.close()


def _print_answer(scenario: str, took: list[Took]) -> None:
    answer = Answer(scenario=scenario, took=median_of(took), turns=len(took), mb=peak_mb())
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def peak_mb() -> float:
    """Return the peak memory of this process, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In KiB on Linux, in bytes on macOS.
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
