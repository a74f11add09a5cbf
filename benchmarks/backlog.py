"""A session over n waiting groups that cannot be admitted, when nothing has changed."""

from __future__ import annotations

import msgspec

from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.scheduler.effects import transactions_of
from benchmarks.table import median_s, report
from tests.builders import a_group, a_node, a_queue, a_running_group, a_snapshot

_SCHEDULER = assemble(SchedulerConfig())


def main() -> None:
    rows: list[list[object]] = []
    former = 0.0
    for waiting in (100, 1_000, 10_000):
        groups = [a_group(f"g{n}", 1 + n % 10, queue=f"q{n % 10}") for n in range(waiting)]
        queues = [a_queue(f"q{n}") for n in range(10)]
        full = a_running_group("full", cpu=64)
        first = _SCHEDULER.decide(a_snapshot(a_node(cpu=64), *full, *queues, *groups), 0)
        # The reasons are written down once; what is measured is the turn after that.
        settled = [
            msgspec.structs.replace(group.record, status=group.status)
            for group in first.groups.values()
        ]
        world = a_snapshot(a_node(cpu=64), *full[1:], *queues, *settled)
        seconds = median_s(lambda world=world: _SCHEDULER.decide(world, 0))  # type: ignore[misc]
        intents = len(transactions_of(_SCHEDULER.decide(world, 0)))
        rows.append([waiting, seconds, intents, seconds / former if former else "-"])
        former = seconds
    report("backlog", ["waiting", "session s", "writes", "ratio to a tenth"], rows)


if __name__ == "__main__":
    main()
