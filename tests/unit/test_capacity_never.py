"""Rule 1 of capacity: what could never fit is told at once, and nobody waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.config.model import SchedulerConfig
from batchq.core.session.settings import Settings
from tests.builders import Decided, a_group, a_node, a_queue, amounts, decide

ROOT_OF_8 = a_queue("root", capability={"cpu": 8})
B_HAS_2 = a_queue("b", guarantee=amounts(cpu=2))


def said(done: Decided, name: str = "g") -> tuple[list[str], str]:
    return done.reasons(name), done.message(name)


def test_a_queue_of_the_top_is_bound_by_the_cluster_less_what_its_siblings_are_guaranteed() -> None:
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


def test_more_than_all_machines_have_is_no_matter_of_guarantees() -> None:
    done = decide(a_node(cpu=8), a_queue("a"), B_HAS_2, a_group("g", cpu=9, queue="a"))
    assert set(done.reasons("g")) == {"ExceedsCapacity"}


def test_nodes_that_may_come_back_count() -> None:
    world = (a_node(cpu=4), a_node("n2", cpu=4, ready=False), a_queue("a"), B_HAS_2)
    done = decide(*world, a_group("g", 6, queue="a"), a_group("h", 7, queue="a"))
    assert done.reasons("g") == ["WaitingForResources"]
    assert done.reasons("h") == ["ExceedsMaxQuota"]


def test_overcommit_counts() -> None:
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


def test_overcommit_multiplies_what_there_is_and_no_single_node() -> None:
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


def test_a_stated_capability_of_the_root_comes_before_the_cluster() -> None:
    world = (a_node(cpu=99), ROOT_OF_8, a_queue("a"), B_HAS_2)
    done = decide(*world, a_group("g", cpu=7, queue="a"), a_group("h", cpu=6, queue="a"))
    assert done.reasons("g") == ["ExceedsMaxQuota"]
    assert done.admitted == ["default/h"]


def test_an_external_group_is_bound_by_a_stated_capability_alone() -> None:
    def outside(cpu: int) -> Any:
        resources = amounts(cpu=cpu)
        return a_group("g", controller="external", queue="a", min_resources=resources)

    assert decide(a_node(cpu=8), a_queue("a"), B_HAS_2, outside(7)).admitted == ["default/g"]
    done = decide(a_node(cpu=8), ROOT_OF_8, a_queue("a"), B_HAS_2, outside(7))
    assert done.reasons("g") == ["ExceedsMaxQuota"]


def test_a_request_within_its_queues_own_guarantee_is_never_too_much_beside_siblings() -> None:
    """As when a machine is gone for good, and what is guaranteed does not fit any more."""
    world = (
        a_node(cpu=8),
        a_queue("a", guarantee=amounts(cpu=6)),
        a_queue("b", guarantee=amounts(cpu=6)),
    )
    done = decide(*world, a_group("g", cpu=6, queue="a"), a_group("h", cpu=7, queue="a"))
    assert done.admitted == ["default/g"]
    assert done.reasons("h") == ["ExceedsMaxQuota"]


def test_a_dimension_that_no_sibling_is_guaranteed_is_free_for_all() -> None:
    world = (a_node(cpu=8, gpu=2), a_queue("a"), B_HAS_2)
    group = a_group("g", cpu=1, queue="a", min_resources=amounts(gpu=2))
    assert decide(*world, group).admitted == ["default/g"]


@pytest.mark.parametrize(("cpu", "reasons"), [(3, []), (4, ["ExceedsMaxQuota"])])
def test_every_level_of_the_tree_counts(cpu: int, reasons: list[str]) -> None:
    world = (
        a_node(cpu=8),
        a_queue("org", capability={"cpu": 5}),
        a_queue("x", parent="org"),
        a_queue("y", parent="org", guarantee=amounts(cpu=2)),
    )
    assert decide(*world, a_group("g", cpu=cpu, queue="x")).reasons("g") == reasons


def test_with_no_nodes_at_all_nothing_is_said_to_be_too_much() -> None:
    done = decide(a_queue("a"), B_HAS_2, a_group("g", cpu=7, queue="a"))
    assert done.reasons("g") == ["WaitingForResources"]
