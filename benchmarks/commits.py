"""Write 2,000 pods to a real server: in one call, in batches, and in one call per pod."""

from __future__ import annotations

from batchq.api.objects import Metadata, Pod, PodSpec
from batchq.api.transaction import Charge, Transaction, Write, node_scope
from batchq.store.redis import RedisStore
from benchmarks.table import median_s, report
from tests.harness.server import Server

_PODS = 2_000


def main() -> None:
    with Server("--appendonly", "yes") as server:
        store = RedisStore(server.url)
        calls = iter(range(10**9))

        def write(run: int, size: int) -> None:
            pods = [_create(f"{run}-{n}") for n in range(_PODS)]
            for start in range(0, _PODS, size):
                store.commit(pods[start : start + size], request_id=f"r{next(calls)}")

        rows: list[list[object]] = []
        for size in (_PODS, 500, 1):
            seconds = median_s(lambda size=size: write(next(calls), size), times=1)  # type: ignore[misc]
            rows.append([size, seconds, round(_PODS / seconds)])
        one_by_one = rows[-1][1]
        rows = [[*row, one_by_one / row[1]] for row in rows]  # type: ignore[operator]
        store.close()
    report("commits", ["transactions a call", "s", "writes/s", "one by one / this"], rows)


def _create(uid: str) -> Transaction:
    pod = Pod(metadata=Metadata(name=uid, uid=uid), spec=PodSpec(pod_group="g", task="w"))
    return Transaction(
        subject=uid,
        writes=(Write(kind="Pod", key=uid, expect=0, value=pod),),
        charges=(Charge(holder=f"pod:{uid}", scopes=(node_scope("n"),), amounts={"cpu": 1}),),
    )


if __name__ == "__main__":
    main()
