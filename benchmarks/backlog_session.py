"""The scheduler of the benchmark `backlog`: a process of its own, so that its memory is its own.

`python -m benchmarks.backlog_session` reads what to do from stdin, JSON of `Order`, and writes a
line of JSON (`Answer`) for each scenario. The first turn, which lists everything, is `cold`.
"""

from __future__ import annotations

import resource
import sys
import time

import msgspec
from msgspec import Struct

# What the daemon has in memory, this has too.
import batchq.daemon.app  # noqa: F401
from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.daemon import app
from batchq.store.redis import RedisStore
from benchmarks.backlog_scenarios import Stage, Took, median_of, play
from benchmarks.backlog_world import LEADER, LONG_MS, Spec

#: Besides those in `SCENARIOS`: the first turn of a process.
COLD = "cold"


class Order(Struct, frozen=True, kw_only=True):
    """`started_at`: when the process was started, by the machine's monotonic clock, in seconds."""

    url: str
    spec: Spec
    scenarios: tuple[str, ...]
    repeats: int
    most_s: float
    started_at: float


class Answer(Struct, frozen=True, kw_only=True):
    """The median turn of so many; `mb`: the most memory that the process has had by then."""

    scenario: str
    took: Took
    turns: int
    mb: float


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    # The turns of a daemon are a second apart, so each hears the nodes.
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
    _tell(COLD, [cold])
    if not order.scenarios:
        return
    stage.settle()
    for scenario in order.scenarios:
        _tell(scenario, play(stage, scenario, order.repeats, most_s=order.most_s))
    store.close()


def _tell(scenario: str, took: list[Took]) -> None:
    answer = Answer(scenario=scenario, took=median_of(took), turns=len(took), mb=peak_mb())
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def peak_mb() -> float:
    """The most memory that this process has had, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In KiB on Linux, in bytes on macOS.
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
