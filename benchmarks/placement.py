"""Place 10,000 pods in gangs, and compare with the plain algorithm, which evaluates every node.

`session` is a whole session: admit groups, create pods, find nodes, bind pods and set statuses.
`allocate` is the action that finds nodes and binds; `ranked` is the search for nodes alone, with
its plugins and heaps. The plain algorithm only finds nodes, for a sample of the pods. All times are
CPU times. A shape is the request of a pod; the gangs take turns among the `shapes` of a row.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batchq.api.intents import Bind
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.placement.node_order import rank_of
from batchq.core.placement.placement import fill_nodes
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.daemon import app
from batchq.scheduler.cycle import Scheduler
from benchmarks.table import report
from tests.builders import a_group, a_node, a_snapshot, a_task

_PODS = 10_000
_RUNS = 5
#: Evaluations of nodes by the plain algorithm, enough for a stable rate.
_PLAIN_EVALUATIONS = 100_000
#: (nodes, pods of a gang, number of shapes)
_SIZES = (
    *((nodes, gang, 1) for nodes in (100, 1_000, 5_000) for gang in (1, 10, 500)),
    *((1_000, 10, shapes) for shapes in (30, 1_000)),
)
_COLUMNS = [
    "nodes",
    "gang",
    "shapes",
    "session s",
    "pods/s",
    "allocate s",
    "pods/s there",
    "ranked s",
    "plain pods/s",
    "session/plain",
]


@dataclass
class ActionTimes:
    """An Instrument that sums up the CPU seconds of each action, and does not time plugins."""

    seconds: dict[str, float] = field(default_factory=dict)

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            began = time.process_time()
            execute(*arguments)
            took = time.process_time() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took

        return timed


def main() -> None:
    report("placement", _COLUMNS, [_row(*size) for size in _SIZES])


def _row(nodes: int, gang: int, shapes: int) -> list[object]:
    world = _world(nodes, gang, shapes)
    session_s, allocate_s = _session(world)
    plain = _plain_rate(world, nodes)
    rate = _PODS / session_s
    ranked_s = _ranked(world, gang)
    return [
        nodes,
        gang,
        shapes,
        session_s,
        round(rate),
        allocate_s,
        round(_PODS / allocate_s),
        ranked_s,
        round(plain),
        rate / plain,
    ]


def _world(nodes: int, gang: int, shapes: int) -> Snapshot:
    return a_snapshot(
        *(a_node(f"n{place:04}", cpu=128, memory="512Gi") for place in range(nodes)),
        *(
            a_group(
                f"g{place:05}",
                tasks=(
                    a_task("w", gang, requests={"cpu": 1, "memory": f"{1 + place % shapes}Mi"}),
                ),
            )
            for place in range(_PODS // gang)
        ),
    )


def _session(world: Snapshot) -> tuple[float, float]:
    """Return the medians of a whole session and of its action `allocate`, in CPU seconds."""
    whole, allocate = zip(*(_first_turn(world) for _ in range(_RUNS)), strict=True)
    return statistics.median(whole), statistics.median(allocate)


def _first_turn(world: Snapshot) -> tuple[float, float]:
    """Return the times of one session; its garbage is collected after the measurement."""
    usual, times = assemble(SchedulerConfig()), ActionTimes()
    scheduler = Scheduler(
        actions=usual.actions,
        plugins=usual.plugins,
        settings=usual.settings,
        instrument=times,
    )
    # As in the first cycle of a daemon.
    app.disable_gc()
    began = time.process_time()
    session = scheduler.decide(world, 0)
    took_s = time.process_time() - began
    app.restore_gc()
    assert sum(isinstance(intent, Bind) for intent in session.intents) == _PODS
    return took_s, times.seconds["allocate"]


def _opened(world: Snapshot) -> Session:
    return assemble(SchedulerConfig()).open(world, 0)


def _ranked(world: Snapshot, gang: int) -> float:
    """Return the CPU seconds to find nodes for all pods."""
    session = _opened(world)
    shapes = [group.tasks[0] for group in session.groups.values()]
    began = time.process_time()
    for shape in shapes:
        fill_nodes(session, shape, gang, [])
    return time.process_time() - began


def _plain_rate(world: Snapshot, nodes: int) -> float:
    """Return the pods per second of the plain algorithm."""
    session = _opened(world)
    shapes = [group.tasks[0] for group in session.groups.values()]
    pods = _PLAIN_EVALUATIONS // nodes
    began = time.process_time()
    for place in range(pods):
        shape = shapes[place % len(shapes)]
        ranks = [rank_of(session, shape, node) for node in session.nodes.by_name.values()]
        best = min(rank for rank in ranks if rank is not None)
        session.nodes.by_name[best[1]].take(shape.requests)
    return pods / (time.process_time() - began)


if __name__ == "__main__":
    main()
