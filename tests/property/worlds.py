"""Random small worlds for property tests, and a readable dump of a session's state."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from batchq.api.objects import Strategy
from batchq.core.session.session import Session
from tests.builders import a_group, a_node, a_queue, a_quota, a_running_group, a_task

_CPU = st.integers(1, 6)
_WALLTIMES = st.sampled_from([None, 60_000, 120_000, 300_000])
_STRATEGIES = st.sampled_from(
    [
        Strategy(),
        Strategy(type="StrictFIFO"),
        Strategy(type="Backfill"),
        Strategy(type="Backfill", order="shortest"),
        Strategy(type="Backfill", reservations="all"),
        Strategy(type="Backfill", order="shortest", reservations="all"),
    ]
)


@st.composite
def worlds(draw: st.DrawFn) -> list[Any]:
    """Draw nodes, queues, quotas, and running and pending groups that may or may not fit."""
    objects: list[Any] = [
        a_node(f"n{place}", cpu=cpu, pods=draw(st.integers(1, 9)))
        for place, cpu in enumerate(draw(st.lists(_CPU, min_size=1, max_size=4)))
    ]
    queues = ["a", "b"]
    for name in queues:
        capability = {"cpu": draw(_CPU)} if draw(st.booleans()) else {}
        queue = a_queue(name, weight=draw(st.integers(0, 3)), capability=capability)
        spec = structs.replace(queue.spec, strategy=draw(_STRATEGIES))
        objects.append(structs.replace(queue, spec=spec))
    if draw(st.booleans()):
        objects.append(a_quota(cpu=draw(st.integers(1, 12))))
    if draw(st.booleans()):
        walltime = draw(_WALLTIMES)
        objects += a_running_group("r", node="n0", cpu=1, queue="a", created=0, walltime=walltime)
    for place in range(draw(st.integers(0, 6))):
        tasks = tuple(
            a_task(f"t{number}", draw(st.integers(1, 3)), requests={"cpu": draw(_CPU)})
            for number in range(draw(st.integers(1, 2)))
        )
        pods = sum(task.replicas for task in tasks)
        objects.append(
            a_group(
                f"g{place}",
                tasks=tasks,
                queue=draw(st.sampled_from(queues)),
                created=draw(st.integers(0, 3)),
                min_member=draw(st.integers(1, pods)),
                walltime=draw(_WALLTIMES),
            )
        )
    return objects


def dump(session: Session) -> dict[str, Any]:
    """Return everything that a Statement may change, as plain values."""
    return {
        "nodes": {name: dict(node.free) for name, node in session.nodes.by_name.items()},
        "groups": {
            uid: (group.status, dict(group.pods), dict(group.held), dict(group.placed))
            for uid, group in session.groups.items()
        },
        "ledger": {
            scope: {name: units for name, units in sums.items() if units}
            for scope, sums in session.ledger.sums.items()
            if any(sums.values())
        },
        "intents": list(session.intents),
    }
