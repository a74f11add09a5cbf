"""Requests for a resource of one type: `gpu:h100` counts as `gpu`, too."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.manifest import decode
from batchq.api.objects import Node, PodGroup
from batchq.api.resources import used_of, with_amount
from batchq.api.validation import check
from batchq.client.request import Request, group_of
from batchq.client.request_fields import read_fields
from batchq.errors import InvalidInput, UsageError


def group(requests: dict[str, Any], **spec: Any) -> PodGroup:
    template = {"command": ["true"], "requests": requests}
    data = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "x"},
        "spec": {"tasks": [{"name": "w", "template": template}], **spec},
    }
    found = decode(data)
    assert isinstance(found, PodGroup)
    return found


def requests_of(found: PodGroup) -> dict[str, int]:
    return found.spec.tasks[0].template.requests


@pytest.mark.parametrize(
    ("requests", "counted"),
    [
        ({"gpu:h100": 2}, {"gpu": 2000, "gpu:h100": 2000}),
        ({"gpu:h100": 2, "gpu:a100": 1}, {"gpu": 3000, "gpu:a100": 1000, "gpu:h100": 2000}),
        ({"gpu": 4, "gpu:h100": 2}, {"gpu": 4000, "gpu:h100": 2000}),
        ({"gpu:h100": "500m"}, {"gpu": 500, "gpu:h100": 500}),
        ({"gpu:h100": 0}, {"gpu:h100": 0}),
        ({"gpu": 2}, {"gpu": 2000}),
        ({"mig-1g.10gb": 2}, {"mig-1g.10gb": 2000}),
        ({"licence:matlab": 1}, {"licence": 1000, "licence:matlab": 1000}),
    ],
)
def test_a_type_counts_as_its_resource(requests: dict[str, Any], counted: dict[str, int]) -> None:
    found = group(requests)
    check(found)
    assert requests_of(found) == counted


@pytest.mark.parametrize(
    ("offered", "used", "types"),
    [
        ({"gpu": 4, "gpu:h100": 4}, {"gpu": 2}, {"gpu:h100": 2}),
        ({"gpu": 4, "gpu:h100": 4}, {"gpu": 3, "gpu:h100": 1}, {"gpu:h100": 3}),
        ({"gpu": 4, "gpu:h100": 2, "gpu:a100": 2}, {"gpu": 2}, {}),
        ({"gpu": 4, "gpu:h100": 2, "gpu:a100": 2}, {"gpu": 3}, {"gpu:h100": 1, "gpu:a100": 1}),
        # An agent no longer offers the model that a pod without one has taken.
        ({"gpu": 4, "gpu:h100": 1, "gpu:a100": 2}, {"gpu": 1}, {}),
        ({"gpu": 4, "gpu:h100": 3}, {"gpu": 2, "gpu:h100": 2}, {"gpu:h100": 2}),
        ({"mig:1g": 2, "mig:2g": 2}, {"mig": 2, "mig:1g": 2}, {"mig:1g": 2}),
        ({"gpu": 2, "gpu:h100": 2}, {}, {}),
    ],
)
def test_a_type_is_used_by_the_requests_that_no_other_type_can_meet(
    offered: dict[str, int], used: dict[str, int], types: dict[str, int]
) -> None:
    found = used_of(offered, used)
    assert {name: units for name, units in found.items() if ":" in name} == types
    assert all(found[name] == units for name, units in used.items() if ":" not in name)


def test_the_types_of_a_minimum_and_of_a_node_count_as_well() -> None:
    assert group({}, minResources={"gpu:h100": 4}).spec.min_resources == {
        "gpu": 4000,
        "gpu:h100": 4000,
    }
    node = {"apiVersion": "batchq/v1", "kind": "Node", "metadata": {"name": "x"}}
    found = decode({**node, "spec": {"resources": {"gpu:h100": 8}}})
    assert isinstance(found, Node)
    assert found.spec.resources == {"gpu": 8000, "gpu:h100": 8000}


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (
            {"gpu": 1, "gpu:h100": 2},
            "gpu: expected at least 2, as much as of its types together, found 1",
        ),
        (
            {"mig-1g.10gb": "500m"},
            "mig-1g.10gb: expected a whole number of MIG instances, found 0.5",
        ),
    ],
)
def test_contradictory_requests_are_refused(requests: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(group(requests))
    path = "spec.tasks[0].template.requests"
    assert refused.value.message == f"PodGroup default/x: {path}.{message}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cpu:fast", "cpu has no types; expected cpu, found 'cpu:fast'"),
        ("gpu:", "expected a name such as gpu or gpu:h100, found 'gpu:'"),
        (":h100", "expected a name such as gpu or gpu:h100, found ':h100'"),
        ("gpu:a:b", "expected a name such as gpu or gpu:h100, found 'gpu:a:b'"),
        ("gpu:a b", "expected a name such as gpu or gpu:h100, found 'gpu:a b'"),
    ],
)
def test_impossible_types_are_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        group({name: 1})
    assert refused.value.message.endswith(message)


def test_a_submission_names_the_model_as_slurm_does() -> None:
    found = group_of(Request(command=["true"], gpus="h100:2"), suffix="x")
    assert requests_of(found) == {"cpu": 1000, "gpu": 2000, "gpu:h100": 2000}
    with pytest.raises(UsageError, match="gpus: expected a name such as gpu or gpu:h100"):
        group_of(Request(command=["true"], gpus="h 100:2"), suffix="x")


def test_a_file_of_submissions_names_the_model_as_well() -> None:
    assert read_fields({"command": ["true"], "gpus": "h100:2"}, {}).gpus == "h100:2"
    with pytest.raises(InvalidInput, match="gpus: expected a quantity such as 500m, 2 or 64Gi"):
        read_fields({"command": ["true"], "gpus": "h100:two"}, {})


@pytest.mark.parametrize(
    ("resource", "units", "changed"),
    [
        ("cpu", 1000, {"cpu": 1000, "gpu": 4000, "gpu:a100": 1000, "gpu:h100": 2000}),
        ("gpu:h100", 1000, {"cpu": 2000, "gpu": 3000, "gpu:a100": 1000, "gpu:h100": 1000}),
        ("gpu", 2000, {"cpu": 2000, "gpu": 2000, "gpu:a100": 1000, "gpu:h100": 1000}),
        ("gpu", 0, {"cpu": 2000, "gpu": 0, "gpu:a100": 0, "gpu:h100": 0}),
        ("gpu", 8000, {"cpu": 2000, "gpu": 8000, "gpu:a100": 1000, "gpu:h100": 2000}),
    ],
)
def test_a_changed_amount_stays_consistent_with_its_types(
    resource: str, units: int, changed: dict[str, int]
) -> None:
    amounts = {"cpu": 2000, "gpu": 4000, "gpu:a100": 1000, "gpu:h100": 2000}
    assert with_amount(amounts, resource, units) == changed
