"""The plugin overcommit: a factor for each resource and queue; it only lowers limits."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.config import DEFAULT_PLUGINS, PluginEntry, SchedulerConfig
from batchq.core.session.snapshot import Settings
from tests.builders import Decided, a_group, a_node, a_queue, a_running_group, a_task, decide


def decided(*objects: Any, store: int = 1000, **arguments: object) -> Decided:
    """Decide with `store` as the setting `overcommit`, in thousandths."""
    config = SchedulerConfig(
        plugins=(*DEFAULT_PLUGINS, PluginEntry(name="overcommit")),
        plugin_config={"overcommit": arguments},
        settings=Settings(overcommit=store),
    )
    return decide(*objects, config=config)


def asking(name: str, **requests: Any) -> Any:
    return a_group(name, tasks=(a_task("w", requests=requests),))


def test_cpu_may_be_overcommitted_and_gpus_not() -> None:
    world = (
        a_node(cpu=2, gpu=1),
        *a_running_group("r", cpu=2),
        asking("cpu", cpu=2),
        asking("gpu", gpu=1),
        asking("gpu2", gpu=1),
    )
    done = decided(*world, store=2000, resources={"gpu": 1})
    assert done.admitted == ["default/cpu", "default/gpu"]
    assert done.message("gpu2") == (
        "needs gpu 1, and the cluster has 0 free (1 of 1 in use); overcommit is 1 here"
    )
    assert decided(*world, store=2000).admitted == ["default/cpu", "default/gpu", "default/gpu2"]


def test_the_limit_of_the_store_applies_when_it_is_lower() -> None:
    world = (a_node(cpu=2), *a_running_group("r", cpu=2), asking("g", cpu=1))
    done = decided(*world, factor=3)
    assert done.admitted == []
    assert done.message("g") == "needs cpu 1, and the cluster has 0 free (2 of 2 in use)"


def test_a_group_is_told_that_no_ready_node_has_what_it_asks_for() -> None:
    lost = a_node("gpu-1", cpu=4, gpu=3, ready=False)
    runs = a_running_group("runs", tasks=(a_task("w", requests={"gpu": 3}),), node="gpu-1")
    done = decided(a_node("n1", cpu=4), lost, *runs, asking("g", gpu=1))
    assert done.message("g") == "needs gpu 1, and no node that is ready has gpu"


def test_no_more_is_in_use_of_the_cluster_than_its_ready_nodes_have() -> None:
    lost = a_node("n2", cpu=3, ready=False)
    runs = a_running_group("runs", tasks=(a_task("w", requests={"cpu": 3}),), node="n2")
    done = decided(a_node("n1", cpu=2), lost, *runs, asking("g", cpu=1))
    assert done.message("g") == "needs cpu 1, and the cluster has 0 free (2 of 2 in use)"


def test_a_factor_below_one_keeps_capacity_free() -> None:
    world = (a_node(cpu=4), asking("a", cpu=2), asking("b", cpu=1))
    assert decided(*world, factor=0.5).admitted == ["default/a"]


def test_the_factor_of_a_resource_overrides_the_general_factor() -> None:
    world = (a_node(cpu=4, gpu=4), asking("a", cpu=3), asking("b", gpu=3))
    assert decided(*world, factor=0.5, resources={"gpu": 1}).admitted == ["default/b"]


def test_a_group_that_never_fits_exceeds_the_capacity_and_blocks_no_other_group() -> None:
    world = (
        a_queue(strict=True),
        a_node(cpu=4),
        a_node("n2", cpu=4, ready=False),
        a_group("never", 2, cpu=3),
        asking("later", cpu=4),
        asking("small", cpu=1),
    )
    done = decided(*world, factor=0.5)
    assert done.reasons("never") == ["ExceedsCapacity", "WaitingForResources"]
    assert done.message("never") == ("needs cpu 6, and overcommit of the cluster allows at most 4")
    assert done.reasons("later") == ["WaitingForResources"]
    assert done.reasons("small") == ["WaitingForTurn"]


def test_pod_slots_are_multiplied_only_if_they_are_named() -> None:
    world = (a_node(cpu=4, pods=2), asking("a", cpu=1), asking("b", cpu=1))
    assert decided(*world, factor=0.5).admitted == ["default/a", "default/b"]
    assert decided(*world, resources={"pods": 0.5}).admitted == ["default/a"]


def test_a_queue_may_hold_its_capability_times_its_factor() -> None:
    team = a_queue("team", capability={"cpu": 2}, overcommit=3000)
    world = (
        a_node(cpu=9),
        team,
        *(a_group(name, queue="team", cpu=1) for name in ("a", "b", "c", "d")),
    )
    assert len(decided(*world).admitted) == 4
    done = decided(*world, queues={"team": 1.5})
    assert done.admitted == ["default/a", "default/b", "default/c"]
    assert done.reasons("d") == ["WaitingForQuota"]
    assert done.message("d") == (
        "needs cpu 1, and queue team has 0 free (3 of 3 in use); overcommit is 1.5 here"
    )


def test_a_factor_of_a_queue_applies_to_the_sum_of_its_descendants() -> None:
    world = (
        a_node(cpu=9),
        a_queue("org", capability={"cpu": 4}),
        a_queue("x", parent="org"),
        a_queue("y", parent="org"),
        a_group("a", queue="x", cpu=1),
        a_group("b", queue="y", cpu=1),
        a_group("c", queue="y", cpu=1),
        a_group("d", queue="y", cpu=3),
    )
    done = decided(*world, queues={"org": 0.5})
    assert sorted(done.admitted) == ["default/a", "default/b"]
    assert done.reasons("c") == ["WaitingForQuota"]
    assert done.message("d") == "needs cpu 3, and overcommit of queue org allows at most 2"


@pytest.mark.parametrize("arguments", [{"queues": {"gone": 0.5}}, {"queues": {"default": 0.5}}])
def test_a_factor_for_a_missing_queue_or_one_without_capability_changes_nothing(
    arguments: Any,
) -> None:
    assert decided(a_node(cpu=4), asking("a", cpu=4), **arguments).admitted == ["default/a"]


def test_an_external_group_is_not_limited_by_nodes() -> None:
    outside = a_group("e", cpu=1, controller="external", min_resources={"cpu": 9000})
    assert decided(a_node(cpu=4), outside, factor=0.5).admitted == ["default/e"]
