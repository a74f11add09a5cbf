"""Placing one gang of n pods on m nodes: ranked once a shape, or every node asked for every pod."""

from __future__ import annotations

from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.framework.placement import rank_of
from benchmarks.table import median_s, report
from tests.builders import a_group, a_node, a_snapshot

_SCHEDULER = assemble(SchedulerConfig())


def main() -> None:
    rows: list[list[object]] = []
    for nodes, pods in ((10, 500), (100, 2_000), (1_000, 2_000)):
        world = a_snapshot(
            *(a_node(f"n{place:04}", cpu=64, memory="256Gi") for place in range(nodes)),
            a_group("gang", pods),
        )
        ranked = median_s(lambda world=world: _SCHEDULER.decide(world, 0))  # type: ignore[misc]
        plain = median_s(lambda world=world, pods=pods: _plainly(world, pods), times=1)  # type: ignore[misc]
        rows.append([nodes, pods, ranked, round(pods / ranked), plain, plain / ranked])
    report("placement", ["nodes", "pods", "session s", "pods/s", "plain s", "plain/session"], rows)


def _plainly(world: object, pods: int) -> None:
    session = _SCHEDULER.open(world, 0)  # type: ignore[arg-type]
    group = session.by_key["default/gang"]
    shape = group.tasks[0]
    for _ in range(pods):
        ranks = [rank_of(session, shape, node) for node in session.nodes.values()]
        best = min(rank for rank in ranks if rank is not None)
        session.nodes[best[1]].take(shape.requests)


if __name__ == "__main__":
    main()
