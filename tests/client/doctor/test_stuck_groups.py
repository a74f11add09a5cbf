"""Groups that return to Pending repeatedly because no node takes their pods."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.objects import Condition, PodGroup, Taint
from batchq.client.doctor import Level
from batchq.client.doctor.cluster import groups
from batchq.client.doctor.system_state import Finding, State
from tests.builders import a_node, a_queue, a_task
from tests.client.doctor.made import a_state, node, waiting


def waiting_for(*, controller: str = "batchq", **requests: str | int) -> PodGroup:
    """Return a new group with one pod of this size."""
    group = waiting("wide", age_ms=0, spec={"tasks": (a_task(requests=requests),)})
    spec = structs.replace(group.spec, controller=controller)  # type: ignore[arg-type]
    return structs.replace(group, spec=spec)


def rolled_back(times: int, reason: str = "Unschedulable") -> State:
    left = Condition(
        type="Evicted", status="True", reason=reason, message="0/1 nodes fit: 1 cordoned"
    )
    group = waiting("back", backoff_count=times, conditions=(left,))
    return a_state(a_queue(), node(), group)


def on_nodes(group: PodGroup, **cpus: int) -> State:
    return a_state(a_queue(), *(a_node(name, cpu=cpu) for name, cpu in cpus.items()), group)


def finding_of(state: State) -> Finding:
    (found,) = groups(state)
    return found


def test_a_pod_that_fits_no_single_node_is_reported_even_if_the_sum_suffices() -> None:
    found = finding_of(on_nodes(waiting_for(cpu=10), a=4, b=4, c=2, d=1))
    assert (found.level, found.subject) == (Level.WARNING, "PodGroup default/wide")
    assert found.found == "a pod asks for cpu 10, and the largest node has 4"
    assert "`batchq cancel default/wide`" in found.remedy


def test_a_resource_that_no_node_has_is_reported() -> None:
    found = finding_of(on_nodes(waiting_for(gpu=1), a=4))
    assert found.found == "a pod asks for gpu 1, and the largest node has 0"


@pytest.mark.parametrize(
    ("template", "topology", "expected", "remedy"),
    [
        (
            {"node_selector": {"batchq/runtime-podman": "yes"}},
            {},
            "a node with podman",
            "install podman on a node and restart its worker",
        ),
        (
            {"node_selector": {"disk": "ssd"}},
            {},
            "nodes with the names and labels that its pods ask for",
            "start workers that have them",
        ),
        (
            {},
            {"rack": "required"},
            "nodes with the names and labels that its pods ask for",
            "start workers that have them",
        ),
        ({"requests": {"cpu": 10}}, {}, "nodes that are large enough for its pods", "ask for less"),
    ],
)
def test_nodes_are_expected_to_have_a_runtime_or_labels_or_a_size(
    template: dict[str, Any], topology: dict[str, str], expected: str, remedy: str
) -> None:
    spec = {"tasks": (a_task(**template),), "topology": topology}
    found = finding_of(on_nodes(waiting("wide", age_ms=0, spec=spec), a=4))
    assert found.expected == expected
    assert remedy in found.remedy
    assert "`batchq cancel default/wide`" in found.remedy


def test_a_pod_that_tolerates_no_node_is_reported() -> None:
    tainted = a_node("n1", cpu=4, taints=(Taint(key="dedicated"),))
    found = finding_of(a_state(a_queue(), tainted, waiting_for(cpu=1)))
    assert (
        found.found == "node n1 has the taint dedicated:NoSchedule, which its pod does not tolerate"
    )
    assert found.expected == "nodes whose taints its pods tolerate"
    assert "start workers without these taints" in found.remedy


def test_a_pod_whose_request_only_two_nodes_together_could_meet_is_reported() -> None:
    nodes = (a_node("n1", cpu=4), a_node("n2", memory="8Gi"))
    found = finding_of(a_state(a_queue(), *nodes, waiting_for(cpu=3, memory="1Gi")))
    assert found.found == ("a pod asks for cpu 3, memory 1Gi, and no node has all of it")


def test_a_gang_that_all_nodes_together_could_not_hold_is_reported() -> None:
    wide = waiting("wide", age_ms=0, spec={"tasks": (a_task("w", 5, requests={"cpu": 2}),)})
    assert finding_of(on_nodes(wide, a=4, b=4)).found == (
        "its 5 pods ask for cpu 10, and all nodes together have 8"
    )


def test_groups_with_the_same_finding_are_reported_together() -> None:
    wide = waiting_for(cpu=10)
    many = [
        structs.replace(wide, metadata=structs.replace(wide.metadata, name=name, uid=name))
        for name in ("a", "b", "c", "d", "e")
    ]
    found = finding_of(a_state(a_queue(), a_node("n", cpu=4), *many))
    assert found.subject == "PodGroup default/a, default/b, default/c and 2 more"


def test_a_group_rolled_back_repeatedly_is_reported() -> None:
    found = finding_of(rolled_back(3))
    assert (found.level, found.subject) == (Level.WARNING, "PodGroup default/back")
    assert found.found == (
        "was admitted and rolled back as Unschedulable 3 times in a row: 0/1 nodes fit: 1 cordoned"
    )


@pytest.mark.parametrize(
    "state",
    [
        on_nodes(waiting_for(cpu=10), a=4, b=10),
        on_nodes(waiting_for(controller="external", cpu=10), a=4),
        a_state(a_queue(), waiting_for(cpu=10)),
        rolled_back(2),
        rolled_back(3, "InQueueTimeout"),
    ],
    ids=[
        "one node takes it",
        "a consumer runs it elsewhere",
        "there are no nodes, which has a finding of its own",
        "it was rolled back twice",
        "it backs off for another reason",
    ],
)
def test_nothing_is_wrong_where(state: State) -> None:
    assert finding_of(state).level is Level.OK
