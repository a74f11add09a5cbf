"""Alibaba's GPU trace as a load: the nodes' resources and labels, and the pods' requests."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from batchq.errors import InvalidInput
from batchq.lab.gpu_usage import PLACEMENTS, openb_load
from batchq.lab.load_player import play_load
from batchq.lab.traces import strategy_of
from tests.traces.openb import a_node, a_pod

CLUSTER = (
    a_node("n-0", model="T4"),
    a_node("n-1", model="V100M16"),
    a_node("n-2", model="V100M32"),
    a_node("n-3", gpus=0),
)
V100 = ("V100M16", "V100M32")


def test_gpus_are_counted_in_thousandths_and_memory_in_bytes() -> None:
    load = openb_load(CLUSTER, [a_pod(1, gpu_milli=460, cpus=6)], title="a trace")
    assert (load.title, load.capacity) == ("a trace", 6000)
    assert load.nodes[0].spec.resources == {"cpu": 4000, "memory": 2**36, "gpu": 2000}
    (arrival,) = load.arrivals
    (task,) = arrival.group.spec.tasks
    assert task.template.requests == {"cpu": 6000, "memory": 2**30, "gpu": 460}
    assert (arrival.number, arrival.size, arrival.run_s) == (1, 460, 100)


def test_nodes_are_labelled_with_their_model_and_with_each_set_asked_for_that_it_is_in() -> None:
    pods = [a_pod(1, models=("T4",)), a_pod(2, models=V100), a_pod(3, models=("T4", "V100M32"))]
    load = openb_load(CLUSTER, pods)
    assert [node.metadata.labels for node in load.nodes] == [
        {"gpu-model": "T4", "gpu-model-in/T4.V100M32": "true"},
        {"gpu-model": "V100M16", "gpu-model-in/V100M16.V100M32": "true"},
        {
            "gpu-model": "V100M32",
            "gpu-model-in/T4.V100M32": "true",
            "gpu-model-in/V100M16.V100M32": "true",
        },
        {},
    ]
    assert [one.group.spec.tasks[0].template.node_selector for one in load.arrivals] == [
        {"gpu-model": "T4"},
        {"gpu-model-in/V100M16.V100M32": "true"},
        {"gpu-model-in/T4.V100M32": "true"},
    ]


def test_pods_run_only_where_a_model_will_do() -> None:
    pods = [
        a_pod(1, models=V100, gpu_milli=2000),
        a_pod(2, models=V100, gpu_milli=2000),
        a_pod(3, models=V100, at_s=10),
        a_pod(4, models=("A10",)),
        a_pod(5),
    ]
    where: dict[str, str] = {}
    schedule = play_load(
        openb_load(CLUSTER, pods),
        PLACEMENTS["binpack"],
        look=lambda pod, _sign, _at_s: where.update({pod.spec.pod_group: pod.status.node}),
    )
    assert where == {"pod-1": "n-1", "pod-2": "n-2", "pod-3": "n-1", "pod-5": "n-0"}
    starts = {one.number: one.start_s for one in schedule.jobs}
    assert starts == {1: 0, 2: 0, 3: 100, 4: None, 5: 0}


def test_pods_come_in_order_of_time_and_those_that_never_ran_do_not_come() -> None:
    pods = [a_pod(1, at_s=20), a_pod(2, at_s=5), a_pod(3, at_s=20), a_pod(4, run_s=0)]
    load = openb_load(CLUSTER, pods)
    assert [(one.number, one.at_s) for one in load.arrivals] == [(2, 5), (1, 20), (3, 20)]


def test_a_pod_without_a_placement_runs_from_its_creation() -> None:
    pod = replace(a_pod(1, at_s=7, run_s=30), scheduled_s=None)
    assert openb_load(CLUSTER, [pod]).arrivals[0].run_s == 30


def test_walltimes_are_none_or_what_the_pod_took() -> None:
    pods = [a_pod(1, run_s=30)]
    (without,) = openb_load(CLUSTER, pods).arrivals
    (stated,) = openb_load(CLUSTER, pods, walltimes="runtime").arrivals
    assert (without.group.spec.walltime, stated.group.spec.walltime) == (None, 30_000)


def test_the_queue_has_the_strategy_asked_for() -> None:
    (queue,) = openb_load(CLUSTER, [a_pod(1)], strategy=strategy_of("fcfs")).queues
    assert (queue.metadata.name, queue.spec.strategy.type) == ("default", "StrictFIFO")


def test_a_cluster_without_gpus_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a trace: expected at least one node with a GPU"):
        openb_load([a_node("n-0", gpus=0)], [a_pod(1)], title="a trace")
