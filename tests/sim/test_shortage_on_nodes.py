"""The lack of a preemptor that only nodes refuse: dimensions in which no usable node has enough."""

from __future__ import annotations

import pytest

from tests.sim.worlds import Manifest, evicted, group, manifest, node, outcome, pod, taker


def zoned(name: str, zone: str, **resources: int) -> Manifest:
    labels = {"metadata": {"labels": {"zone": zone}}}
    return manifest("Node", name, {"resources": resources}, **labels)


def task(requests: Manifest, **more: Manifest) -> list[Manifest]:
    return [{"name": "t", "replicas": 1, "template": {"requests": requests, **more}}]


def holder(requests: Manifest) -> list[Manifest]:
    status = {"phase": "Running", "reservedAt": 0}
    return [
        group("b0", queue="b", status=status, tasks=task(requests)),
        pod("b0-t-0", "b0", phase="Running", node="n1", startedAt=0),
    ]


@pytest.mark.parametrize(
    ("deserved", "goes"),
    [
        ({"cpu": 8, "gpu": 0}, []),
        ({"cpu": 0, "gpu": 2}, [(0, [("default/b0-t-0", "Reclaimed")])]),
    ],
    ids=["above in the free resources of that node", "above in the resources that are lacking"],
)
def test_a_node_that_the_pod_cannot_use_offers_it_nothing(
    deserved: Manifest, goes: list[tuple[int, list[tuple[str, str]]]]
) -> None:
    """In its zone gpus are free, and cpus are not; the other zone has only cpus."""
    came = outcome(
        zoned("n1", "a", cpu=4, gpu=2),
        zoned("n2", "b", cpu=8),
        taker("a", deserved={"cpu": 4, "gpu": 1}),
        taker("b", deserved=deserved),
        *holder({"cpu": 4, "gpu": 1}),
        group("in", queue="a", tasks=task({"cpu": 2, "gpu": 1}, nodeSelector={"zone": "a"})),
        cycles=2,
    )
    assert evicted(came) == goes


def test_a_preemptor_lacks_nothing_in_a_dimension_of_which_one_node_has_enough() -> None:
    """Memory is free where the pod could run, and only cpus have to be released."""
    came = outcome(
        node("n1", 4, memory=8),
        taker("a", deserved={"cpu": 0, "memory": 4}),
        taker("b", deserved={"cpu": 4, "memory": 2}),
        *holder({"cpu": 4, "memory": 4}),
        group("in", queue="a", tasks=task({"cpu": 1, "memory": 4})),
        cycles=2,
    )
    assert evicted(came) == []
