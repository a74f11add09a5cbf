"""`client.plan` on a real server: with the leader's configuration, and without writing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from batchq.api.views import Plan
from batchq.client import Client, Request
from batchq.errors import InvalidInput, NotFound, Rejected, StoreUnavailable
from batchq.store.redis import RedisStore
from batchq.store.schedulers import publish_config
from tests.builders import a_node, a_priority, a_queue
from tests.client.stage import Stage, a_cluster
from tests.harness.guarded import ADMIN, GuardedServer
from tests.harness.server import Server


def plan_of(client: Client, **request: Any) -> Plan:
    return client.plan([client.group_of(Request(command=["true"], name="x", **request))])


def everything(raw: redis.Redis) -> dict[bytes, bytes | None]:
    """Return every key with its content."""
    found: Any = raw.keys("*")
    return {key: raw.dump(key) for key in sorted(found)}  # type: ignore[misc]


def occupied(stage: Stage) -> None:
    """`low`, which has the lowest priority, holds six of the eight cpus."""
    stage.client.apply([a_priority("high", 10), a_queue("team")])
    stage.client.submit(command=["true"], name="low", cpus=6)
    stage.turn()
    stage.start("low")


def test_a_plan_leaves_no_trace(stage: Stage, raw: redis.Redis) -> None:
    occupied(stage)
    before = everything(raw)
    events = stage.client.events()
    for request in (
        {"cpus": 2},
        {"cpus": 4, "priority_class": "high"},
        {"cpus": 4},
        {"cpus": 9},
    ):
        plan_of(stage.client, **request)
    assert everything(raw) == before
    assert stage.client.events() == events
    with pytest.raises(NotFound):
        stage.client.get("PodGroup", "x")


def test_a_plan_comes_true_when_its_request_is_submitted(stage: Stage) -> None:
    occupied(stage)
    plan = plan_of(stage.client, cpus=4, priority_class="high")
    assert ([one.key for one in plan.evicted], plan.exit_code) == (["default/low"], 3)
    stage.client.submit(command=["true"], name="x", cpus=4, priority_class="high")
    stage.turn()
    assert [pod.status.reason for pod in stage.pods("low")] == ["Preempted"]
    stage.end("low")
    assert [pod.status.node for pod in stage.pods("x")] == ["n1"]


def test_the_published_configuration_decides(stage: Stage) -> None:
    occupied(stage)
    assert plan_of(stage.client, cpus=4, priority_class="high").outcome == "Evicts"
    publish_config(stage.store, "actions: [enqueue, allocate]\n")
    assert plan_of(stage.client, cpus=4, priority_class="high").outcome == "Waits"


def test_a_plan_says_that_a_namespace_may_have_no_more_groups(stage: Stage) -> None:
    publish_config(stage.store, "maxPodGroupsPerNamespace: 1\n")
    stage.client.submit(command=["true"], name="first")
    with pytest.raises(Rejected, match="allows at most 1 unfinished pod group, and has 1"):
        plan_of(stage.client)
    stage.client.set_quota("default", {"podgroups": 2})
    assert plan_of(stage.client).outcome == "Now"


def test_a_plugin_that_is_not_here_is_named_in_a_sentence(stage: Stage) -> None:
    publish_config(stage.store, "plugins: [gates, theirs]\n")
    with pytest.raises(InvalidInput) as caught:
        plan_of(stage.client, cpus=4)
    assert caught.value.message.startswith(
        "the configuration of the scheduler that leads cannot be used on this machine:"
        " there is no plugin 'theirs'"
    )
    assert caught.value.hint == (
        "install what the scheduler's machine has, in the same version, or run the command there"
    )


def test_a_node_that_is_silent_takes_nothing_though_we_have_only_just_connected(
    server: Server, stage: Stage, raw: redis.Redis
) -> None:
    stage.client.apply([a_node("n2", cpu=8)])
    stage.store.beat("n2", stage.store.run_id())
    stage.client.submit(command=["true"], name="fills-n1", cpus=8)
    stage.turn()
    assert plan_of(stage.client, cpus=8).outcome == "Now"
    publish_config(stage.store, "nodeTimeout: 1s\n")
    silent_until = stage.store.beats()["n2"] + 1_000
    while stage.store.now_ms() < silent_until:
        stage.store.wait_for_change(50)
    with Client(server.url) as another:
        [group] = plan_of(another, cpus=8).groups
    # Not admitted because of a node that this client might only have failed to reach.
    assert (group.outcome, group.phase) == ("Waits", "Pending")


@pytest.fixture
def guarded() -> Iterator[GuardedServer]:
    with GuardedServer() as server:
        yield server


def test_no_right_to_write_is_needed(guarded: GuardedServer) -> None:
    with Client(guarded.url_of("scheduler")) as client:
        store = RedisStore(guarded.url_of("scheduler"), heartbeats_every_ms=0)
        Stage(store, client).furnish(*a_cluster())
        store.close()
    with Client(guarded.url_of("readonly")) as client:
        assert plan_of(client, cpus=4).outcome == "Now"
        assert plan_of(client, cpus=9).outcome == "Never"
        with pytest.raises(StoreUnavailable, match="does not permit"):
            client.submit(command=["true"], name="x")
    with guarded.as_user(ADMIN) as raw:
        assert raw.hlen("{bq}:PodGroup") == 0
