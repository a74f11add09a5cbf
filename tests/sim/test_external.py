"""External groups in a described world: admitted, never run, requeued, and described as running."""

from __future__ import annotations

from typing import Any

from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    created,
    finished,
    group,
    node,
    of,
    outcome,
    phases,
    pod,
    queue,
    reasons,
    refusal,
    requeued,
    timeline,
)


def external(name: str = "e", cpu: Any = 4, **spec: Any) -> Manifest:
    tasks = spec.pop("tasks", [])
    needs = {} if cpu is None else {"minResources": {"cpu": cpu}}
    return group(name, controller="external", tasks=tasks, **needs, **spec)


def test_an_external_group_is_admitted_without_nodes_and_gets_no_pods() -> None:
    result = outcome(external(), cycles=1)
    assert admitted(result) == [(0, ["default/e"])]
    assert (created(result), bound(result)) == ([], [])
    assert result.queues["default"].reserved["cpu"] == "4"
    assert result.queues["default"].allocated == {}


def test_an_unclaimed_external_group_times_out_and_is_admitted_again_after_its_back_off() -> None:
    result = outcome(external(), cycles=6)
    assert admitted(result)[:2] == [(0, ["default/e"]), (310, ["default/e"])]
    assert requeued(result)[0] == (300, [("default/e", "InQueueTimeout")])


def test_an_external_group_neither_uses_nodes_nor_is_limited_by_them() -> None:
    world = (node("n", 4), external("e", 40), group("g", 4, runtime="5s"))
    result = outcome(*world, cycles=2)
    assert phases(result) == {"e": "InQueue", "g": "Running"}
    assert bound(result)[0][1].keys() == {f"default/g-t-{index}" for index in range(4)}


def test_its_queue_limits_an_external_group_and_the_root_only_by_a_stated_capability() -> None:
    world = (node("n", 1), queue("q", capability={"cpu": 5}))
    result = outcome(*world, external("a", queue="q"), external("b", queue="q"), cycles=1)
    assert phases(result) == {"a": "InQueue", "b": "Pending"}
    assert reasons(result, "b") == ["WaitingForQuota"]
    rooted = (queue("root", capability={"cpu": 3}), external("c"))
    assert reasons(outcome(*world, *rooted, cycles=1), "c") == ["ExceedsMaxQuota"]


def test_a_strict_head_that_is_external_reserves_no_nodes() -> None:
    strict = queue("s", strategy={"type": "StrictFIFO"})
    root = queue("root", capability={"license": 2})
    needs = {"minResources": {"cpu": 4, "license": 2}}
    result = outcome(
        *(node("n", 4), strict, root),
        external("first", None, minResources={"license": 1}, created=0),
        external("head", None, queue="s", created=1, **needs),
        group("g", 1, cpu=3, created=2),
        cycles=1,
    )
    assert phases(result) == {"first": "InQueue", "head": "Pending", "g": "InQueue"}


def test_an_external_group_without_min_resources_is_misconfigured() -> None:
    result = outcome(external(cpu=None), cycles=1)
    assert reasons(result, "e") == ["Misconfigured"]


def test_an_external_group_described_as_running_keeps_its_whole_reservation() -> None:
    tasks = [{"name": "t", "replicas": 2, "template": {"requests": {"cpu": 1}}}]
    result = outcome(external(tasks=tasks, status={"phase": "Running"}))
    assert phases(result) == {"e": "Running"}
    assert result.queues["default"].reserved["cpu"] == "4"


def test_a_suspended_external_group_described_as_running_is_charged_for_its_grace_period() -> None:
    world = (
        queue("q", capability={"cpu": 4}),
        external("e", queue="q", status={"phase": "Running"}),
        external("next", queue="q"),
        timeline({"at": "60s", "suspend": "default/e"}),
    )
    result = outcome(*world, cycles=8)
    assert requeued(result)[0] == (60, [("default/e", "Suspended")])
    assert admitted(result)[0] == (90, ["default/next"])


def test_the_walltime_ends_an_external_group_described_as_running() -> None:
    result = outcome(external(walltime="90s", status={"phase": "Running"}))
    assert finished(result) == [(90, ["default/e"])]
    assert reasons(result, "e") == ["WalltimeExceeded"]


def test_a_resumed_external_group_is_admitted_again_once_its_consumer_is_gone() -> None:
    world = (
        external("e", status={"phase": "Running"}),
        timeline({"at": "10s", "suspend": "default/e"}, {"at": "20s", "resume": "default/e"}),
    )
    result = outcome(*world, cycles=8)
    assert admitted(result)[0] == (40, ["default/e"])


def test_a_described_consumer_lease_ends_after_its_grace_period() -> None:
    claim = {"phase": "Running", "holder": "w", "expiresAt": 45, "grace": "20s"}
    status = {"phase": "Running", "claim": claim | {"holding": {"cpu": 4}}}
    result = outcome(external(status=status), cycles=4)
    assert requeued(result)[0] == (65, [("default/e", "ClaimLapsed")])


def test_a_pod_of_an_external_group_is_bad_content() -> None:
    said = refusal(external("e"), pod("e-t-0", "e"))
    assert said.endswith("its PodGroup default/e is external: batchq makes and sees no pods of it")


def test_a_finished_external_group_says_how_it_ended() -> None:
    result = outcome(external(status={"phase": "Completed"}))
    assert of(result, "e").phase == "Completed"


def test_an_external_group_ended_by_its_walltime_is_charged_for_its_grace_period() -> None:
    world = (
        queue("q", capability={"cpu": 4}),
        external("e", queue="q", walltime="60s", status={"phase": "Running"}),
        external("next", queue="q"),
    )
    result = outcome(*world, cycles=6)
    assert finished(result)[0] == (60, ["default/e"])
    assert admitted(result)[0] == (90, ["default/next"])


def test_a_deleted_external_group_goes_when_its_consumer_has_gone() -> None:
    world = (
        external("e", status={"phase": "Running"}),
        timeline({"at": "10s", "delete": "PodGroup/default/e"}),
    )
    assert phases(outcome(*world, cycles=2)) == {"e": "Cancelled"}
    assert phases(outcome(*world)) == {}


def test_a_lack_of_nodes_does_not_refuse_an_external_group_with_the_same_requests() -> None:
    tasks = [{"name": "t", "template": {"requests": {"cpu": 4}}}]
    world = (node("n", 4), group("first", cpu=4, created=0), group("second", cpu=4, created=1))
    result = outcome(*world, external("e", tasks=tasks, created=2), cycles=1)
    assert phases(result) == {"first": "InQueue", "second": "Pending", "e": "InQueue"}


def test_pods_of_an_external_group_are_no_demand_on_nodes_beyond_its_reservation() -> None:
    tasks = [{"name": "t", "replicas": 3, "template": {"requests": {"cpu": 1}}}]
    world = (node("n", 4), queue("a"), queue("b"), group("g", 4, queue="b", minMember=1))
    result = outcome(*world, external("e", 1, queue="a", tasks=tasks, minMember=1), cycles=1)
    assert result.queues["a"].deserved["cpu"] == "1"
    assert result.queues["b"].deserved["cpu"] == "3"
