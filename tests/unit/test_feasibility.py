"""Rule 1 node by node, evaluated once for each shape and state of the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.core.placement import feasibility
from tests.builders import a_group, a_node, a_task, decide


def _gang(*cpus: int) -> Any:
    tasks = tuple(
        a_task(f"t{place}", 1, requests={"cpu": cpu}) for place, cpu in enumerate(cpus, start=1)
    )
    return a_group("g", tasks=tasks)


def test_the_largest_pods_are_tried_first_when_the_gangs_own_order_does_not_fit() -> None:
    # In the gang's own order the pod of 2 takes the emptier node, which the pod of 4 needs.
    done = decide(a_node(cpu=4), a_node("n2", cpu=3), _gang(2, 4, 1))
    assert "ExceedsCapacity" not in done.reasons("g")


def test_a_gang_of_several_shapes_that_fits_in_no_order_exceeds_the_capacity() -> None:
    done = decide(a_node(cpu=4), a_node("n2", cpu=4), _gang(3, 3, 2))
    assert done.reasons("g") == ["ExceedsCapacity"]
    assert done.message("g") == (
        "not even empty nodes take it: no way was found to place 3 pods together on empty nodes"
    )


def test_many_groups_of_one_shape_need_one_evaluation_of_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = []
    judge = feasibility._why_not

    def counted(*arguments: Any) -> str:
        looked.append(1)
        return judge(*arguments)

    monkeypatch.setattr(feasibility, "_why_not", counted)
    groups = [a_group(f"g{number}", cpu=6, namespace=f"ns{number}") for number in range(50)]
    done = decide(a_node(cpu=4), a_node("n2", cpu=4), *groups)
    assert {str(found) for one in groups for found in _reasons(done, one)} == {"ExceedsCapacity"}
    assert len(looked) == 1


def _count_looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each evaluation of a gang appends the names of the nodes."""
    looks: list[str] = []
    fit = feasibility._fit

    def counted(session: Any, gang: Any, nodes: Any) -> bool:
        looks.append(" ".join(nodes))
        return fit(session, gang, nodes)

    monkeypatch.setattr(feasibility, "_fit", counted)
    return looks


def test_many_pending_groups_need_one_evaluation_while_all_nodes_are_schedulable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = _count_looks(monkeypatch)
    groups = [a_group(f"g{number}", cpu=4, created=number) for number in range(50)]
    done = decide(a_node(cpu=4), a_node("n2", cpu=4), *groups)
    assert done.admitted == ["default/g0", "default/g1"]
    assert done.reasons("g49") == ["WaitingForResources"]
    assert looks == ["n1 n2"]


def test_a_cordoned_node_adds_an_evaluation_of_the_schedulable_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = _count_looks(monkeypatch)
    groups = [a_group(f"g{number}", cpu=4, created=number) for number in range(3)]
    done = decide(a_node(cpu=4), a_node("n2", cpu=8, cordoned=True), *groups)
    assert done.admitted == ["default/g0"]
    assert done.reasons("g2") == ["WaitingForResources"]
    assert looks == ["n1 n2", "n1"]


def test_the_cache_of_gangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feasibility, "_MOST_KNOWN", 2)
    groups = [a_group(f"g{cpu}", cpu=cpu, created=cpu) for cpu in range(1, 6)]
    done = decide(a_node(cpu=5), *groups)
    assert done.admitted == ["default/g1", "default/g2"]
    assert done.reasons("g5") == ["WaitingForResources"]
    assert len(done.session.nodes.known_when_empty().takes) == 1


def _reasons(done: Any, group: Any) -> list[str]:
    return [str(one) for one in done.reasons(group.metadata.name, group.metadata.namespace)]


def test_groups_with_equal_sums_and_different_pods_are_distinguished() -> None:
    done = decide(
        *(a_node(cpu=4), a_node("n2", cpu=4)),
        a_group("one", cpu=6),
        a_group("two", 2, cpu=3),
        a_group("picky", tasks=(a_task("w", 2, requests={"cpu": 3}, node_selector={"a": "b"}),)),
    )
    assert done.admitted == ["default/two"]
    assert done.reasons("one") == ["ExceedsCapacity"]
    assert done.reasons("picky") == ["ExceedsCapacity"]
