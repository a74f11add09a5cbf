"""The tree of queues on a real server: concurrent edits, and whole files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from batchq.api.objects import Queue
from batchq.client import Client
from batchq.errors import BatchqError, Conflict, Rejected
from batchq.store.redis import RedisStore
from tests.builders import a_queue
from tests.client.stage import Stage
from tests.harness.server import Server


def test_a_sibling_that_was_quicker_is_counted(stage: Stage, redis_store: RedisStore) -> None:
    class Elsewhere(RedisStore):
        """Lets another client take most of the rest just before the first commit."""

        def commit(self, *transactions, **more):  # type: ignore[no-untyped-def]
            if not self.meddled:
                self.meddled = True
                stage.client.apply([a_queue("quick", parent="org", guarantee={"cpu": 3000})])
            return super().commit(*transactions, **more)

        meddled = False

    stage.furnish(a_queue("org", guarantee={"cpu": 4000}))
    store = Elsewhere(redis_store.url)
    with Client(store=store) as client, pytest.raises(Rejected) as caught:
        client.apply([a_queue("slow", parent="org", guarantee={"cpu": 2000})])
    store.close()
    assert caught.value.message == (
        "Queue org: spec.guarantee.cpu: expected at least 5, what the queues below it are"
        " guaranteed (quick 3, slow 2), found 4"
    )
    assert [queue.metadata.name for queue in stage.client.list("Queue")] == [
        "default", "org", "quick",
    ]  # fmt: skip


def test_concurrent_applies_succeed_as_far_as_the_guarantee_allows(
    server: Server, stage: Stage
) -> None:
    stage.furnish(a_queue("org", guarantee={"cpu": 3000}))
    start = Barrier(8)

    def add(number: int) -> str:
        with Client(server.url) as client:
            start.wait(timeout=90)
            try:
                client.apply([a_queue(f"q{number}", parent="org", guarantee={"cpu": 1000})])
            except BatchqError as refused:
                return type(refused).__name__
        return "created"

    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(add, range(8)))
    assert outcomes == ["Rejected"] * 5 + ["created"] * 3
    there = stage.client.list("Queue")
    assert sum(isinstance(one, Queue) and one.spec.parent == "org" for one in there) == 3


def test_a_tree_is_applied_child_first_and_deleted_parent_first(stage: Stage) -> None:
    tree = [a_queue("lab", parent="team"), a_queue("team", parent="org"), a_queue("org")]
    assert [one.effect for one in stage.client.apply(tree)] == ["created"] * 3
    with pytest.raises(Conflict) as caught:
        stage.client.delete_all([("Queue", "org"), ("Queue", "lab")])
    assert caught.value.message == "Queue org still has 1 queue below it: team"
    gone = stage.client.delete_all([("Queue", name) for name in ("org", "team", "lab")])
    assert [one.effect for one in gone] == ["deleted"] * 3
    assert [queue.metadata.name for queue in stage.client.list("Queue")] == ["default"]
