"""Alibaba's GPU trace as a load: its nodes, and a group of one pod for each of its pods.

GPUs are counted in thousandths, on nodes and in requests alike: a pod with `num_gpu` 8 asks for
8000, one that shares a GPU for its `gpu_milli`. A node has its cpu, memory and GPUs, and labels for
their model. A pod may name several models that will do, and a node selector is an exact match, so
each node also has a label for every set of models asked for that its own is in: `V100M16|V100M32`
selects nodes with `gpu-model-in/V100M16.V100M32: "true"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Node,
    NodeSpec,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
)
from batchq.api.quantity import CPU, MEMORY
from batchq.api.times import SECOND
from batchq.config.model import PluginEntry, PluginSet, SchedulerConfig
from batchq.errors import InvalidInput
from batchq.sim.workload.fragmentation import GPU, Place, Shape
from batchq.sim.workload.load import Arrival, Load
from batchq.traces.openb import WHOLE_GPU, OpenbNode, OpenbPod

#: What a pod says that it takes at most: nothing, or what it took.
Walltimes: TypeAlias = Literal["none", "runtime"]

_MIB = 2**20
_MODEL = "gpu-model"
_MODEL_IN = "gpu-model-in"
_YES = "true"

#: Which node of those that fit, each by one score plugin in the box with its own defaults: fill up
#: the GPUs of a node, or keep as much of everything free on it; all else is the default.
PLACEMENTS: Mapping[str, SchedulerConfig] = {
    "binpack": SchedulerConfig(
        points={"score": PluginSet(enabled=(PluginEntry(name="binpack"),), disabled=("*",))}
    ),
    "spread": SchedulerConfig(
        points={"score": PluginSet(enabled=(PluginEntry(name="leastAllocated"),), disabled=("*",))}
    ),
}


def openb_load(
    nodes: Sequence[OpenbNode],
    pods: Sequence[OpenbPod],
    *,
    title: str = "",
    walltimes: Walltimes = "none",
    strategy: Strategy | None = None,
) -> Load:
    """Every pod that ran at all arrives at its creation and runs as long as it did.

    Sizes and the capacity are thousandths of a GPU. Raises InvalidInput for a cluster without GPUs.
    """
    arrivals = [_arrival(pod, walltimes) for pod in pods if pod.run_s > 0]
    return Load(
        title=title,
        capacity=gpu_capacity(nodes, title),
        nodes=tuple(cluster_nodes(nodes, pods)),
        queues=(the_queue(strategy),),
        arrivals=tuple(sorted(arrivals, key=lambda one: (one.at_s, one.number))),
    )


def gpu_capacity(nodes: Sequence[OpenbNode], title: str) -> int:
    """All GPUs of a cluster, in thousandths. Raises InvalidInput if there are none."""
    capacity = sum(node.gpus for node in nodes) * WHOLE_GPU
    if not capacity:
        raise InvalidInput(f"{title}: expected at least one node with a GPU, found none")
    return capacity


def the_queue(strategy: Strategy | None = None) -> Queue:
    """The one queue of a trace that knows no queues."""
    return Queue(metadata=Metadata(name=DEFAULT), spec=QueueSpec(strategy=strategy or Strategy()))


def cluster_nodes(nodes: Sequence[OpenbNode], pods: Sequence[OpenbPod]) -> list[Node]:
    """The nodes, with a label for each set of models that any of the pods asks for."""
    sets = sorted({pod.models for pod in pods if len(pod.models) > 1})
    return [
        Node(
            metadata=Metadata(name=node.name, labels=_labels(node, sets)),
            spec=NodeSpec(
                resources={
                    CPU: node.cpu_milli,
                    MEMORY: node.memory_mib * _MIB,
                    GPU: node.gpus * WHOLE_GPU,
                }
            ),
        )
        for node in nodes
    ]


def group_of(pod: OpenbPod, *, name: str = "", walltimes: Walltimes = "none") -> PodGroup:
    """A group of one pod that asks for what this one did; called as it is, unless named."""
    shape = shape_of(pod)
    template = PodTemplate(
        requests={CPU: shape.cpu, MEMORY: shape.memory, GPU: shape.gpu},
        node_selector=dict(shape.selector),
    )
    return PodGroup(
        metadata=Metadata(name=name or pod.name, namespace=DEFAULT),
        spec=PodGroupSpec(
            walltime=pod.run_s * SECOND if walltimes == "runtime" else None,
            tasks=(Task(name="pod", template=template),),
        ),
    )


def shape_of(pod: OpenbPod) -> Shape:
    """What a pod asks for, as the scheduler sees it."""
    return Shape(
        cpu=pod.cpu_milli,
        memory=pod.memory_mib * _MIB,
        gpu=pod.gpu_milli,
        selector=_selector(pod.models),
    )


def places_of(nodes: Sequence[Node]) -> list[Place]:
    """The same nodes, for the measure of fragmentation."""
    return [
        Place(
            name=node.metadata.name,
            cpu=node.spec.resources.get(CPU, 0),
            memory=node.spec.resources.get(MEMORY, 0),
            gpu=node.spec.resources.get(GPU, 0),
            labels=node.metadata.labels,
        )
        for node in nodes
    ]


def _arrival(pod: OpenbPod, walltimes: Walltimes) -> Arrival:
    return Arrival(
        at_s=pod.created_s,
        group=group_of(pod, walltimes=walltimes),
        run_s=pod.run_s,
        number=pod.number,
        tenant=DEFAULT,
        size=pod.gpu_milli,
    )


def _labels(node: OpenbNode, sets: Sequence[tuple[str, ...]]) -> dict[str, str]:
    if not node.model:
        return {}
    within = {_name_of(models): _YES for models in sets if node.model in models}
    return {_MODEL: node.model, **within}


def _selector(models: Sequence[str]) -> tuple[tuple[str, str], ...]:
    match len(models):
        case 0:
            return ()
        case 1:
            return ((_MODEL, models[0]),)
        case _:
            return ((_name_of(models), _YES),)


def _name_of(models: Sequence[str]) -> str:
    return f"{_MODEL_IN}/{'.'.join(models)}"
