"""Compare a session over 1,000 queues in a tree of depth 4 with the same groups in 10 flat queues.

The first session admits groups until the cluster is full; the second finds it full and admits none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import msgspec

from batchq.api.objects import Queue
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from benchmarks.table import median_s, report
from tests.builders import a_group, a_node, a_queue, a_snapshot

_SCHEDULER = assemble(SchedulerConfig())
_WIDTH = 10


def main() -> None:
    report(
        "queues",
        ["session", "admitted", "10 queues s", "1000 queues s", "ratio"],
        compare(waiting=20_000, nodes=100),
    )


def compare(*, waiting: int, nodes: int, cpu: int = 64, times: int = 5) -> list[list[object]]:
    """Return a row for the session that admits some groups, and one for that which admits none."""
    worlds = []
    for queues in (flat(), tree()):
        machines = [a_node(f"n{place:03}", cpu=cpu, memory="256Gi") for place in range(nodes)]
        worlds.append([*machines, *queues, *_groups(leaves_of(queues), waiting)])
    first = _row("some fit", worlds, times=times)
    return [first, _row("none fits", [_after(world) for world in worlds], times=times)]


def flat() -> list[Queue]:
    """Return ten queues without parents."""
    return [a_queue(f"q{place}", weight=1 + place % 3) for place in range(_WIDTH)]


def tree() -> list[Queue]:
    """Return 10 queues below the root, 10 below each of these, and 10 below each of those."""
    queues = []
    for depth in (1, 2, 3):
        for path in product(range(_WIDTH), repeat=depth):
            name = "-".join(map(str, ("q", *path)))
            queues.append(a_queue(name, parent=_above(path), weight=1 + path[-1] % 3))
    return queues


def leaves_of(queues: list[Queue]) -> list[str]:
    parents = {queue.spec.parent for queue in queues}
    return [queue.metadata.name for queue in queues if queue.metadata.name not in parents]


def _above(path: tuple[int, ...]) -> str:
    return "-".join(map(str, ("q", *path[:-1]))) if len(path) > 1 else ""


def _groups(leaves: list[str], count: int) -> list[Any]:
    return [
        a_group(f"g{n:05}", 1 + n % 3, queue=leaves[n % len(leaves)], created=n, min_member=1)
        for n in range(count)
    ]


def _after(world: list[Any]) -> list[Any]:
    """Return the objects as a session leaves them."""
    session = _SCHEDULER.decide(a_snapshot(*world), 0)
    kept = [item for item in world if type(item).__name__ != "PodGroup"]
    groups = [
        msgspec.structs.replace(group.record, status=group.status)
        for group in session.groups.values()
    ]
    return [*kept, *groups, *_pods_of(session)]


def _pods_of(session: Session) -> Iterator[Any]:
    return (pod for group in session.groups.values() for pod in group.pods.values())


def _row(name: str, worlds: list[list[Any]], *, times: int) -> list[object]:
    snapshots = [a_snapshot(*world) for world in worlds]
    taken: list[list[float]] = [[], []]
    # The two alternate, because the speed of a machine drifts.
    for _ in range(times):
        for place, snapshot in enumerate(snapshots):
            run = partial(_SCHEDULER.decide, snapshot, 0)
            taken[place].append(median_s(run, times=1))
    few, many = map(median, taken)
    return [name, _admitted(_SCHEDULER.decide(snapshots[1], 0)), few, many, many / few]


def _admitted(session: Session) -> int:
    return sum(type(intent).__name__ == "AdmitGroup" for intent in session.intents)


if __name__ == "__main__":
    main()
