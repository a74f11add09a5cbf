"""The action allocate binds pods to nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroupStatus, Taint, Task, Toleration
from batchq.core.placement import elastic
from batchq_actions import allocate
from tests.builders import (
    Decided,
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_running_group,
    a_task,
    amounts,
    decide,
)


def _crowded(gang_since: int, now_ms: int) -> Decided:
    """Ten cpus, two of them in use: of the gang's two pods of three cpus, only one fits, on n2."""
    return decide(
        a_node("n1", cpu=4),
        a_node("n2", cpu=4, labels={"only": "n2"}),
        a_node("n3", cpu=2),
        *a_running_group("runner", node="n1", cpu=2),
        a_group("gang", tasks=(_of(2, 3),), status=_in_queue(amounts(cpu=6, pods=2), gang_since)),
        a_group("small", tasks=(a_task(requests={"cpu": 2}, node_selector={"only": "n2"}),)),
        now_ms=now_ms,
    )


def test_a_gang_that_does_not_fit_whole_holds_no_nodes_and_blocks_no_other_group() -> None:
    decided = _crowded(gang_since=0, now_ms=60_000)
    assert decided.bound == {"default/small-w-0": "n2"}
    assert decided.message("gang") == "task w: 0/3 nodes fit: 3 insufficient cpu"


def test_a_gang_that_has_waited_for_half_its_timeout_keeps_the_nodes_that_it_finds() -> None:
    decided = _crowded(gang_since=0, now_ms=151_000)
    assert decided.admitted == []
    assert decided.bound == {}


def test_every_task_gets_its_min_available_before_others_get_more() -> None:
    tasks = (a_task("a", 3, 1), a_task("b", 2, 1))
    decided = decide(a_node(cpu=2), a_group("g", tasks=tasks, min_member=2))
    assert list(decided.bound) == ["default/g-a-0", "default/g-b-0"]


def test_pods_beyond_min_member_are_created_when_they_are_bound() -> None:
    decided = decide(a_node(cpu=10), a_group("array", 100, min_member=1))
    assert len(decided.bound) == 10
    assert len(decided.session.by_key["default/array"].pods) == 10


def test_a_session_binds_a_bounded_number_of_extra_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocate, "MOST_EXTRAS", 3)
    monkeypatch.setattr(elastic, "MOST_EXTRAS", 2)
    decided = decide(
        a_node(cpu=10),
        a_group("array", 1_000_000, min_member=1, cpu=0, created=1),
        a_group("single", created=2),
    )
    assert len([name for name in decided.bound if name.startswith("default/array")]) == 6
    assert "default/single-w-0" in decided.bound


def test_extra_pods_are_bound_after_all_gangs_and_by_turns() -> None:
    decided = decide(
        a_node(cpu=6),
        a_group("one", 9, min_member=1, created=1),
        a_group("two", 9, min_member=1, created=2),
    )
    owners = Counter(name.split("/")[1].split("-")[0] for name in decided.bound)
    assert owners == {"one": 3, "two": 3}


def test_each_extra_pod_goes_to_the_queue_with_the_lowest_share() -> None:
    decided = decide(
        a_node(cpu=9),
        a_queue("a", weight=2),
        a_queue("b"),
        a_group("x", 9, min_member=1, queue="a"),
        a_group("y", 9, min_member=1, queue="b"),
    )
    owners = Counter(name.split("/")[1].split("-")[0] for name in decided.bound)
    assert owners == {"x": 6, "y": 3}


def test_extra_pods_stop_at_the_capability_of_their_queue() -> None:
    decided = decide(
        a_node(cpu=9),
        a_queue("a", capability={"cpu": 4}),
        a_group("x", 9, min_member=1, queue="a"),
    )
    assert len(decided.bound) == 4


@pytest.mark.parametrize(
    ("sentence", "node"),
    [
        ("it is not ready", a_node(cpu=4, ready=False)),
        ("it is cordoned", a_node(cpu=4, cordoned=True)),
        ("its labels do not match", a_node(cpu=4, labels={"zone": "b"})),
        ("its taint is not tolerated", a_node(cpu=4, taints=(Taint(key="gpu"),))),
        ("it takes no more pods", a_node(cpu=4, pods=0)),
    ],
)
def test_a_node_is_passed_over_when(sentence: str, node: object) -> None:
    selector = {"zone": "a"} if "labels" in sentence else {}
    other = a_node("other", cpu=4, labels={"zone": "a"})
    decided = decide(node, other, a_group("g", tasks=(a_task(node_selector=selector),)))
    assert decided.bound == {"default/g-w-0": "other"}


@pytest.mark.parametrize(
    ("names", "bound"),
    [
        ({"nodes": ("n2", "n3")}, ["n2", "n3"]),
        ({"exclude_nodes": ("n2",)}, ["n1", "n3"]),
        ({"nodes": ("n2", "n3"), "exclude_nodes": ("n2",)}, ["n3"]),
    ],
)
def test_pods_go_only_to_the_nodes_that_they_name(
    names: dict[str, tuple[str, ...]], bound: list[str]
) -> None:
    nodes = [a_node(name, cpu=1) for name in ("n1", "n2", "n3")]
    task = a_task("w", 3, **names)
    decided = decide(*nodes, a_group("g", tasks=(task,), min_member=1))
    assert sorted(decided.bound.values()) == bound


def test_a_gang_that_may_use_too_few_nodes_waits_and_says_why() -> None:
    nodes = [a_node(name, cpu=1) for name in ("n1", "n2", "n3")]
    names = {"nodes": ("n1", "n2"), "exclude_nodes": ("n2",)}
    decided = decide(*nodes, a_group("g", tasks=(a_task("w", 2, **names),)))
    assert decided.bound == {}
    assert decided.message("g") == (
        "not even empty nodes take it: 2 pods do not fit together on empty nodes"
    )


@pytest.mark.parametrize(
    "toleration",
    [
        Toleration(key="gpu", operator="Exists"),
        Toleration(operator="Exists"),
        Toleration(key="gpu", operator="Equal", value="yes", effect="NoSchedule"),
    ],
)
def test_a_pod_is_bound_to_a_node_whose_taint_it_tolerates(toleration: Toleration) -> None:
    node = a_node(cpu=4, taints=(Taint(key="gpu", value="yes"),))
    decided = decide(node, a_group("g", tasks=(a_task(tolerations=(toleration,)),)))
    assert decided.bound == {"default/g-w-0": "n1"}


def test_pods_spread_over_nodes_and_ties_go_by_name() -> None:
    decided = decide(a_node("n2", cpu=4), a_node("n1", cpu=4), a_group("g", 4))
    assert list(decided.bound.values()) == ["n1", "n2", "n1", "n2"]


def test_gpus_are_packed_so_that_whole_nodes_stay_free() -> None:
    task = a_task("w", 2, requests={"gpu": 1})
    decided = decide(a_node("n1", gpu=4), a_node("n2", gpu=4), a_group("g", tasks=(task,)))
    assert list(decided.bound.values()) == ["n1", "n1"]


def test_the_pods_of_one_group_are_bound_by_their_own_priority() -> None:
    tasks = (a_task("low", 1), a_task("high", 1, priority=9))
    decided = decide(a_node(cpu=4), a_group("g", tasks=tasks))
    assert list(decided.bound) == ["default/g-high-0", "default/g-low-0"]


def test_the_gang_of_higher_priority_takes_the_last_slot() -> None:
    in_queue = _in_queue(amounts(cpu=4, pods=1))
    decided = decide(
        a_node(cpu=4),
        a_priority("high", 1),
        a_group("first", cpu=4, created=1, status=in_queue),
        a_group("urgent", cpu=4, created=2, status=in_queue, priority_class_name="high"),
    )
    # Only one fits in the cluster: the last group is rolled back before allocate runs.
    assert decided.bound == {"default/urgent-w-0": "n1"}


def _of(replicas: int, cpu: int) -> Task:
    return a_task("w", replicas, requests={"cpu": cpu})


def _in_queue(reservation: dict[str, int], since: int = 0) -> PodGroupStatus:
    return PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=0,
        in_queue_at=since,
        reservation=reservation,
    )
