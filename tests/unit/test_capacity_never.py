"""Rule 1 of capacity: a group that never fits gets its reason at once and blocks no other group."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Settings
from tests.builders import Decided, a_group, a_node, a_queue, amounts, decide

ROOT_OF_8 = a_queue("root", capability={"cpu": 8})
B_HAS_2 = a_queue("b", guarantee=amounts(cpu=2))


def said(done: Decided, name: str = "g") -> tuple[list[str], str]:
    return done.reasons(name), done.message(name)


def test_a_top_queue_is_limited_to_the_cluster_less_the_guarantees_of_its_siblings() -> None:
    world = (a_node(cpu=8), a_queue("a"), B_HAS_2)
    done = decide(*world, a_group("g", cpu=7, queue="a"), a_group("h", cpu=6, queue="a"))
    assert done.admitted == ["default/h"]
    assert said(done) == (
        ["ExceedsMaxQuota"],
        (
            "needs cpu 7, and queue a, beside what its siblings are guaranteed, allows at most 6;"
            " guaranteed are b cpu 2"
        ),
    )


def test_a_request_above_all_nodes_is_refused_without_regard_to_guarantees() -> None:
    done = decide(a_node(cpu=8), a_queue("a"), B_HAS_2, a_group("g", cpu=9, queue="a"))
    assert set(done.reasons("g")) == {"ExceedsCapacity"}


def test_absent_nodes_that_may_return_count() -> None:
    world = (a_node(cpu=4), a_node("n2", cpu=4, ready=False), a_queue("a"), B_HAS_2)
    done = decide(*world, a_group("g", 6, queue="a"), a_group("h", 7, queue="a"))
    assert done.reasons("g") == ["WaitingForResources"]
    assert done.reasons("h") == ["ExceedsMaxQuota"]


def test_the_overcommit_factor_counts() -> None:
    config = SchedulerConfig(settings=Settings(overcommit=2000))
    world = (a_node(cpu=8), a_node("n2", cpu=8, ready=False), a_queue("a"), B_HAS_2)
    done = decide(
        *world,
        a_group("g", queue="a", min_resources=amounts(cpu=30)),
        a_group("h", queue="a", min_resources=amounts(cpu=31)),
        config=config,
    )
    assert done.reasons("g") == ["WaitingForResources"]
    assert done.reasons("h") == ["ExceedsMaxQuota"]


def test_overcommit_multiplies_the_cluster_and_no_single_node() -> None:
    config = SchedulerConfig(settings=Settings(overcommit=2000))
    world = (a_node(cpu=8), a_node("n2", cpu=8))
    done = decide(*world, a_group("g", cpu=9), a_group("h", 5, cpu=4), config=config)
    assert said(done) == (
        ["ExceedsCapacity"],
        (
            "not even empty nodes take it: task w: 0/2 nodes fit: 2 insufficient cpu; a pod needs"
            " cpu 9, and the largest node has 8"
        ),
    )
    assert said(done, "h") == (
        ["ExceedsCapacity"],
        "not even empty nodes take it: 5 pods do not fit together on empty nodes",
    )


def test_a_capability_of_the_root_queue_replaces_the_capacity_of_the_cluster() -> None:
    world = (a_node(cpu=99), ROOT_OF_8, a_queue("a"), B_HAS_2)
    done = decide(*world, a_group("g", cpu=7, queue="a"), a_group("h", cpu=6, queue="a"))
    assert done.reasons("g") == ["ExceedsMaxQuota"]
    assert done.admitted == ["default/h"]


def test_an_external_group_is_limited_only_by_capabilities() -> None:
    def outside(cpu: int) -> Any:
        resources = amounts(cpu=cpu)
        return a_group("g", controller="external", queue="a", min_resources=resources)

    assert decide(a_node(cpu=8), a_queue("a"), B_HAS_2, outside(7)).admitted == ["default/g"]
    done = decide(a_node(cpu=8), ROOT_OF_8, a_queue("a"), B_HAS_2, outside(7))
    assert done.reasons("g") == ["ExceedsMaxQuota"]


def test_a_request_within_its_queues_own_guarantee_is_never_refused_for_siblings() -> None:
    """This happens when a machine is removed and the guarantees exceed the remaining capacity."""
    world = (
        a_node(cpu=8),
        a_queue("a", guarantee=amounts(cpu=6)),
        a_queue("b", guarantee=amounts(cpu=6)),
    )
    done = decide(*world, a_group("g", cpu=6, queue="a"), a_group("h", cpu=7, queue="a"))
    assert done.admitted == ["default/g"]
    assert done.reasons("h") == ["ExceedsMaxQuota"]


def test_a_dimension_without_guarantees_is_not_limited_by_siblings() -> None:
    world = (a_node(cpu=8, gpu=2), a_queue("a"), B_HAS_2)
    group = a_group("g", cpu=1, queue="a", min_resources=amounts(gpu=2))
    assert decide(*world, group).admitted == ["default/g"]


@pytest.mark.parametrize(("cpu", "reasons"), [(3, []), (4, ["ExceedsMaxQuota"])])
def test_guarantees_count_on_every_level_of_the_tree(cpu: int, reasons: list[str]) -> None:
    world = (
        a_node(cpu=8),
        a_queue("org", capability={"cpu": 5}),
        a_queue("x", parent="org"),
        a_queue("y", parent="org", guarantee=amounts(cpu=2)),
    )
    assert decide(*world, a_group("g", cpu=cpu, queue="x")).reasons("g") == reasons


def test_without_nodes_no_request_exceeds_the_capacity() -> None:
    done = decide(a_queue("a"), B_HAS_2, a_group("g", cpu=7, queue="a"))
    assert done.reasons("g") == ["WaitingForResources"]
