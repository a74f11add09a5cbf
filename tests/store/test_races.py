"""Concurrent writers: what several processes admit together stays within the limits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from batchq.api.transaction import Limit, Transaction
from batchq.store.redis import RedisStore
from tests.contract.made import charge, charging, limiting, put, queue, writing


def together(*workers: Callable[[], None]) -> None:
    """Run the workers at the same time; a failure in one fails the test."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(workers))

    def run(worker: Callable[[], None]) -> None:
        barrier.wait(timeout=90)
        try:
            worker()
        except BaseException as error:  # passed on to the test's own thread, whatever it is
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []


def test_two_committers_and_a_quota_edit_never_over_admit(
    open_redis: Callable[[], RedisStore],
) -> None:
    stores = [open_redis() for _ in range(3)]
    stores[0].commit([limiting("ns:x", cpu=100)], request_id="limit")
    after_cut: list[int] = []

    def commits(name: str, store: RedisStore) -> Callable[[], None]:
        def run() -> None:
            for number in range(300):
                asked = charge(f"group:{name}{number}", "ns:x", "queue:q", checked=True, cpu=1)
                store.commit([charging(asked)], request_id=f"{name}{number}")

        return run

    def edits() -> None:
        editor = stores[2]
        while editor.ledger().get("ns:x", {}).get("cpu", 0) < 40:
            pass
        editor.commit([limiting("ns:x", cpu=60)], request_id="cut")
        after_cut.append(editor.ledger()["ns:x"]["cpu"])

    together(commits("a", stores[0]), commits("b", stores[1]), edits)
    held = stores[0].ledger()["ns:x"]["cpu"]
    assert held == max(60, after_cut[0])
    assert len(stores[0].charges()) == held
    assert stores[0].ledger()["queue:q"]["cpu"] == held


def test_two_committers_never_over_subscribe_a_node(
    open_redis: Callable[[], RedisStore],
) -> None:
    stores = [open_redis() for _ in range(2)]
    nodes = [f"node:n{number}" for number in range(5)]
    limits = Transaction(
        subject="nodes", limits=tuple(Limit(scope=node, amounts={"cpu": 10}) for node in nodes)
    )
    stores[0].commit([limits], request_id="limits")

    def binds(name: str, store: RedisStore) -> Callable[[], None]:
        def run() -> None:
            for number in range(20):
                batch = [
                    charging(charge(f"pod:{name}{number}-{node}", node, checked=True, cpu=3))
                    for node in nodes
                ]
                store.commit(batch, request_id=f"{name}{number}")

        return run

    together(binds("a", stores[0]), binds("b", stores[1]))
    assert stores[0].ledger() == {node: {"cpu": 9} for node in nodes}


def test_only_one_of_two_writers_that_saw_the_same_revision_writes(
    open_redis: Callable[[], RedisStore],
) -> None:
    stores = [open_redis() for _ in range(2)]
    stores[0].commit([writing(put(queue()))], request_id="first")
    applied: list[int] = []

    def updates(name: str, store: RedisStore) -> Callable[[], None]:
        def run() -> None:
            for number in range(100):
                stored = store.get("Queue", "q")
                assert stored is not None
                asked = writing(put(stored, expect=stored.metadata.revision))
                commit = store.commit([asked], request_id=f"{name}{number}")
                applied.extend(commit.revision for _ in commit.applied)

        return run

    together(updates("a", stores[0]), updates("b", stores[1]))
    final = stores[0].get("Queue", "q")
    assert final is not None
    assert final.metadata.revision == 1 + len(applied)
