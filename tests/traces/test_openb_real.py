"""Alibaba's own tables, if they are available: read as a whole, and played in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.lab.gpu_usage import (
    PLACEMENTS,
    GpuMeter,
    GpuWatch,
    inflate,
    openb_load,
    places_of,
    shape_of,
    typical_shapes,
)
from batchq.lab.load_player import play_load
from batchq.lab.schedule import figures_of
from batchq.lab.traces import read_nodes, read_pods
from tests.harness.traces import trace_folder


@pytest.fixture
def folder() -> Path:
    """The folder of the published tables; skips if it is missing."""
    there = trace_folder() / "alibaba-openb-2023"
    if not there.is_dir():
        pytest.skip(f"there is no {there}; BATCHQ_TRACES may name another folder")
    return there


def test_the_tables_are_read_whole(folder: Path) -> None:
    nodes = read_nodes(folder / "openb_node_list_all_node.csv")
    pods = read_pods(folder / "openb_pod_list_default.csv")
    assert (len(nodes), sum(node.gpus for node in nodes)) == (1523, 6212)
    assert len(read_nodes(folder / "openb_node_list_gpu_node.csv")) == 1213
    assert (len(pods), sum(pod.gpu_milli for pod in pods)) == (8152, 6_086_800)
    assert sum(pod.scheduled_s is None for pod in pods) == 897
    assert sum(pod.gpu_milli == 0 for pod in pods) == 1088


def test_the_empty_cluster_is_as_fragmented_as_the_authors_of_the_measure_have_it(
    folder: Path,
) -> None:
    # Their artifact shows a rate of 14.0 to 14.2 % when the first percent arrives.
    nodes = read_nodes(folder / "openb_node_list_all_node.csv")
    pods = read_pods(folder / "openb_pod_list_default.csv")
    workload = [shape_of(pod) for pod in pods]
    assert len(typical_shapes(workload)) == 53
    load = openb_load(nodes, pods)
    reading = GpuMeter(places_of(load.nodes), workload).reading()
    assert reading.fragmentation_of_free == pytest.approx(0.1365, abs=0.0001)


def test_the_first_percents_of_an_inflation_are_placed_whole(folder: Path) -> None:
    nodes = read_nodes(folder / "openb_node_list_all_node.csv")
    pods = read_pods(folder / "openb_pod_list_default.csv")
    run = inflate(nodes, pods, PLACEMENTS["binpack"], percent=4)
    assert run.first_failed is None
    assert [point.reading.allocated for point in run.points] == [
        point.arrived for point in run.points
    ]
    assert len(run.points) == 3


def test_the_first_pods_are_placed_at_once_on_a_few_of_the_nodes(folder: Path) -> None:
    nodes = read_nodes(folder / "openb_node_list_gpu_node.csv")[::60]
    pods = read_pods(folder / "openb_pod_list_default.csv", most=60)
    load = openb_load(nodes, pods)
    watch = GpuWatch(load, [shape_of(pod) for pod in pods])
    schedule = play_load(load, PLACEMENTS["binpack"], look=watch, watch=True)
    figures = figures_of(schedule)
    assert (figures.finished, figures.max_wait_s, figures.evictions) == (60, 0.0, 0)
    use = watch.use("binpack")
    assert use.allocation.mean == pytest.approx(figures.utilization)
