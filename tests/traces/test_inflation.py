"""Pods arrive until the cluster is more than full: the allocation, computed by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from batchq.errors import InvalidInput
from batchq.lab.gpu_usage import PLACEMENTS, Inflation, inflate
from batchq.lab.traces import OpenbNode, OpenbPod
from tests.traces.openb import a_node, a_pod

#: Two pods that fill half a node, and one that needs a whole one; with seed 4, it comes last.
NODES = (a_node("n-0", gpus=4, cpus=8), a_node("n-1", gpus=4, cpus=8))
PODS = (a_pod(1), a_pod(2), a_pod(3, gpu_milli=4000))
SEED = 4


def inflated(
    placement: str,
    percent: int,
    *,
    seed: int = SEED,
    nodes: tuple[OpenbNode, ...] = NODES,
    pods: tuple[OpenbPod, ...] = PODS,
) -> Inflation:
    return inflate(nodes, pods, PLACEMENTS[placement], percent=percent, seed=seed, name=placement)


def curve(run: Inflation) -> list[tuple[int, int, int, Fraction]]:
    return [
        (one.arrived, one.placed, one.reading.allocated, one.reading.fragmented)
        for one in run.points
    ]


def test_binpack_leaves_a_whole_node_for_a_pod_that_needs_one() -> None:
    run = inflated("binpack", 75)
    assert curve(run) == [
        (0, 0, 0, 0),
        (1000, 1, 1000, 1000),
        (2000, 2, 2000, Fraction(2000, 3)),
        (6000, 3, 6000, Fraction(2000, 3)),
    ]
    assert (run.capacity, run.last.pods, run.first_failed) == (8000, 3, None)


def test_spread_does_not_and_an_unplaced_pod_is_withdrawn() -> None:
    run = inflated("spread", 75)
    assert curve(run) == [
        (0, 0, 0, 0),
        (1000, 1, 1000, 1000),
        (2000, 2, 2000, 2000),
        (6000, 2, 2000, 2000),
    ]
    assert (run.last.pods, run.first_failed) == (3, 6000)


def test_a_withdrawn_pod_leaves_no_reservation() -> None:
    # Small, small, large; large, small, small; small, large: if the large pods' GPUs stayed
    # reserved, the fifth small pod would find none.
    run = inflated("spread", 200)
    assert curve(run)[-1] == (17_000, 5, 5000, 1000)
    assert run.last.pods == 8


def test_the_trace_is_gone_through_again_when_it_is_not_enough() -> None:
    run = inflated("binpack", 300)
    # Three rounds of all three pods are 18 GPUs; the fourth adds two small ones and the large one.
    assert (run.last.arrived, run.last.pods) == (24_000, 12)
    assert run.last.reading.allocation == 1.0


def test_pods_without_gpus_come_along_and_count_for_no_demand() -> None:
    pods = (*PODS, *(a_pod(number, gpu_milli=0) for number in range(4, 8)))
    # Seed 2: 7, 1, 6, 5, 2, 4 and then 3, which needs a whole node.
    run = inflated("binpack", 75, pods=pods, seed=2)
    assert [(one.arrived, one.pods, one.placed) for one in run.points] == [
        (0, 0, 0),
        (1000, 2, 2),
        (2000, 5, 5),
        (6000, 7, 7),
    ]


def test_pods_come_in_steps_of_two_percent() -> None:
    nodes = tuple(a_node(f"n-{place}", gpus=4, cpus=64) for place in range(4))
    pods = tuple(a_pod(number, gpu_milli=100) for number in range(1, 201))
    run = inflated("binpack", 100, nodes=nodes, pods=pods)
    # Two percent of 16 GPUs are 320 thousandths: four pods, which reach 2.5 %; the next step ends
    # beyond 4 %, at 640.
    assert [one.arrived for one in run.points[:4]] == [0, 400, 700, 1000]
    assert (run.last.arrived, run.last.pods, run.last.placed) == (16_000, 160, 160)


def test_the_seed_decides_the_order_and_the_same_one_gives_the_same_run() -> None:
    assert inflated("spread", 130, seed=7) == inflated("spread", 130, seed=7)
    orders = {
        tuple(one.arrived for one in inflated("spread", 75, seed=seed).points) for seed in range(8)
    }
    assert len(orders) > 1


def test_an_inflation_tells_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    inflate(
        NODES,
        PODS,
        PLACEMENTS["binpack"],
        percent=70,
        seed=SEED,
        tell=lambda arrived, most: seen.append((arrived, most)),
    )
    assert seen == [(1000, 5600), (2000, 5600), (5600, 5600)]


def test_a_cluster_or_workload_without_gpus_is_refused() -> None:
    with pytest.raises(InvalidInput, match="spread: expected at least one pod that asks for a GPU"):
        inflated("spread", 130, pods=(a_pod(1, gpu_milli=0),))
    with pytest.raises(InvalidInput, match="spread: expected at least one node with a GPU"):
        inflated("spread", 130, nodes=(a_node("n-0", gpus=0),))
