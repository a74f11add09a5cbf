"""Nodes for pods: `predicates` says which fit, and the score plugins rank these, each with integers
from 0 to 1000.

In the formulas, `after` is what the node has in use with the pod, and `total` is what it has.

leastAllocated: mean of (total - after) / total over the dimensions that the pod requests: spreads.
mostAllocated: mean of after / total over the same dimensions: fills nodes up.
balancedAllocation: 1 - |after(cpu) / total(cpu) - after(memory) / total(memory)|: no node should
run out of one while much of the other is left; a node without both scores 0.
binpack: weighted mean of after / total over the requested dimensions with a weight, by default only
gpu, so that nodes with gpus are filled up and whole ones stay free for gangs.

The first three are Kubernetes' NodeResourcesFit and NodeResourcesBalancedAllocation, and
kube-batch's nodeorder. There, cpu and memory always count, and missing requests count as 100m and
200Mi; here, only stated requests count. binpack is Volcano's. A plugin's `weight` multiplies its
score; by default, leastAllocated and binpack are configured. They refuse no node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from batchq.api.node_features import untolerated
from batchq.api.node_report import FIRST_WITH_MPI, PROTOCOL, PROTOCOL_ANNOTATION
from batchq.api.notation import Malformed
from batchq.api.objects import Value
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS
from batchq.core.placement.node_order import Scores, Takes
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.specs import TaskShape

if TYPE_CHECKING:
    from batchq.core.placement.node_matrix import Column, Mask, NodeRows, RowScores, RowTakes


class Predicates:
    """predicates (predicate): ready, not cordoned, node selector, tolerated taints, resources.

    A refused group is unparked when a node is added or changed, or resources on it become free.
    """

    name = "predicates"

    def predicate(self, session: Session, shape: TaskShape, node: NodeState) -> Verdict | None:
        refusal = suitability(shape, node)
        if not refusal and not node.heard:
            detail = "not heard of since the server was away"
            return Verdict(plugin=self.name, reason=Waiting.WAITING_FOR_RESOURCES, detail=detail)
        if not refusal and (sharing := node.why_not_shared(shape)):
            return Verdict(plugin=self.name, reason=Waiting.WAITING_FOR_RESOURCES, detail=sharing)
        if not refusal and (lacking := node.lacks(shape)):
            return Verdict(
                plugin=self.name,
                reason=Waiting.WAITING_FOR_RESOURCES,
                subject=f"node {node.name}",
                resource=lacking,
                need=shape.requests[lacking],
                limit=node.total.get(lacking, 0),
                seen=node.total.get(lacking, 0) - node.free.get(lacking, 0),
                detail=_why_lacking(lacking, node),
            )
        if refusal:
            return Verdict(plugin=self.name, reason=Waiting.UNSCHEDULABLE, detail=refusal)
        return None

    def predicate_for(self, session: Session, shape: TaskShape) -> Takes:
        if shape.sharing is not None:
            return lambda nodes: [_takes_beside_others(shape, node) for node in nodes]
        requests = tuple(shape.requests.items())
        #: Node -> whether it suits the shape, regardless of free resources; valid as long as its
        #: record.
        suits: dict[str, bool] = {}
        # Most nodes that do not suit, as those of other racks, have another value of a label.
        key, value = next(iter(shape.task.template.node_selector.items()), ("", ""))

        def takes(nodes: Sequence[NodeState]) -> list[bool]:
            answers = []
            for node in nodes:
                if key and node.record.metadata.labels.get(key) != value:
                    answers.append(False)
                    continue
                suited = suits.get(node.name)
                if suited is None:
                    suited = suits[node.name] = _suits(shape, node)
                if suited:
                    free = node.free
                    for name, units in requests:
                        if units > free.get(name, 0):
                            suited = False
                            break
                answers.append(suited)
            return answers

        return takes

    def predicate_rows(self, session: Session, shape: TaskShape) -> RowTakes:
        def takes(rows: NodeRows) -> Mask:
            taken = rows.suits(shape, _suits)
            for name, units in shape.requests.items():
                taken = taken & (rows.free(name) >= units)
            return taken

        return takes


def _takes_beside_others(shape: TaskShape, node: NodeState) -> bool:
    return _suits(shape, node) and not node.why_not_shared(shape) and not node.lacks(shape)


def _why_lacking(resource: str, node: NodeState) -> str:
    if any(sharing.exclusive for sharing in node.owners):
        return "held exclusively by another group"
    return f"insufficient {resource}"


def _suits(shape: TaskShape, node: NodeState) -> bool:
    return node.heard and not suitability(shape, node)


def suitability(shape: TaskShape, node: NodeState) -> str:
    """Return why the node cannot take this shape, even if empty; '' if it can."""
    if not node.ready:
        return "not ready"
    if node.record.spec.unschedulable:
        return "cordoned"
    if strange := _strange_protocol(node):
        return strange
    if shape.is_new and (unable := _is_too_old(node)):
        return unable
    template = shape.task.template
    labels = node.record.metadata.labels
    selector = template.node_selector
    if selector and any(labels.get(key) != value for key, value in selector.items()):
        return "does not match the node selector"
    if template.nodes and node.name not in template.nodes:
        return "not among the nodes that it names"
    if node.name in template.exclude_nodes:
        return "excluded by the pod"
    taints = node.record.spec.taints
    if taints and (taint := untolerated(taints, template)):
        return f"taint {taint} not tolerated"
    return ""


def _strange_protocol(node: NodeState) -> str:
    """Return why the agent of a node and this scheduler are incompatible, or ''.

    Adjacent protocol versions are compatible, so that a cluster can be upgraded one machine at a
    time, in any order.
    """
    spoken = node.record.metadata.annotations.get(PROTOCOL_ANNOTATION)
    if spoken is None or (spoken.isascii() and spoken.isdigit() and _is_near(int(spoken[:9]))):
        return ""
    return f"with an agent of protocol {spoken[:9]!r}, too far from the scheduler's {PROTOCOL}"


def _is_too_old(node: NodeState) -> str:
    """Return why the agent of a node cannot start the newest kinds of gangs, or ''."""
    spoken = node.record.metadata.annotations.get(PROTOCOL_ANNOTATION)
    if spoken is None or int(spoken) >= FIRST_WITH_MPI:
        return ""
    return f"with an agent of protocol {spoken}, which cannot start such gangs"


def _is_near(protocol: int) -> bool:
    return abs(protocol - PROTOCOL) <= 1


BEST = 1000
_LARGEST_WEIGHT = 1000


def _asked_of(shape: TaskShape, node: NodeState) -> list[str]:
    """Return the requested dimensions that the node has, without the slot that every pod takes."""
    return [name for name in shape.requests if name != PODS and node.total.get(name)]


def _part_after(shape: TaskShape, node: NodeState, name: str) -> int:
    """Return the used part of a node's resource with the pod, 0 to BEST if the pod fits."""
    total = node.total[name]
    return (total - node.free[name] + shape.requests.get(name, 0)) * BEST // total


class LeastAllocated:
    name = "leastAllocated"

    def score(self, session: Session, shape: TaskShape, node: NodeState) -> int:
        asked = _asked_of(shape, node)
        if not asked:
            return BEST
        left = sum(
            (node.free[name] - shape.requests[name]) * BEST // node.total[name] for name in asked
        )
        return left // len(asked)

    def score_for(self, session: Session, shape: TaskShape) -> Scores:
        requests = [(name, units) for name, units in shape.requests.items() if name != PODS]

        def scores(nodes: Sequence[NodeState]) -> list[int]:
            answers = []
            for node in nodes:
                free, total = node.free, node.total
                left = asked = 0
                for name, units in requests:
                    if size := total.get(name):
                        left += (free[name] - units) * BEST // size
                        asked += 1
                answers.append(left // asked if asked else BEST)
            return answers

        return scores

    def score_rows(self, session: Session, shape: TaskShape) -> RowScores:
        requests = [(name, units) for name, units in shape.requests.items() if name != PODS]

        def scores(rows: NodeRows) -> Column:
            left = asked = rows.free(PODS) * 0
            for name, units in requests:
                size, there = rows.sizes(name)
                left = left + (rows.free(name) - units) * BEST // size * there
                asked = asked + there
            nothing = asked == 0
            mean: Column = left // (asked + nothing) + BEST * nothing
            return mean

        return scores


class MostAllocated:
    name = "mostAllocated"

    def score(self, session: Session, shape: TaskShape, node: NodeState) -> int:
        asked = _asked_of(shape, node)
        if not asked:
            return 0
        return sum(_part_after(shape, node, name) for name in asked) // len(asked)

    def score_for(self, session: Session, shape: TaskShape) -> Scores | None:
        requests = {name: 1 for name in shape.requests if name != PODS}
        return _mean_after(shape, requests) if requests else None

    def score_rows(self, session: Session, shape: TaskShape) -> RowScores | None:
        requests = {name: 1 for name in shape.requests if name != PODS}
        return _mean_after_of_rows(shape, requests) if requests else None


class BalancedAllocation:
    name = "balancedAllocation"

    def score(self, session: Session, shape: TaskShape, node: NodeState) -> int:
        if not node.total.get("cpu") or not node.total.get("memory"):
            return 0
        cpu, memory = (_part_after(shape, node, name) for name in ("cpu", "memory"))
        return BEST - abs(cpu - memory)

    def score_for(self, session: Session, shape: TaskShape) -> Scores:
        cpu, memory = (shape.requests.get(name, 0) for name in ("cpu", "memory"))

        def scores(nodes: Sequence[NodeState]) -> list[int]:
            answers = []
            for node in nodes:
                free, total = node.free, node.total
                cpus, bytes_ = total.get("cpu"), total.get("memory")
                if not cpus or not bytes_:
                    answers.append(0)
                    continue
                of_cpu = (cpus - free["cpu"] + cpu) * BEST // cpus
                of_memory = (bytes_ - free["memory"] + memory) * BEST // bytes_
                answers.append(BEST - abs(of_cpu - of_memory))
            return answers

        return scores

    def score_rows(self, session: Session, shape: TaskShape) -> RowScores:
        cpu, memory = (shape.requests.get(name, 0) for name in ("cpu", "memory"))

        def scores(rows: NodeRows) -> Column:
            (cpus, has_cpu), (bytes_, has_memory) = rows.sizes("cpu"), rows.sizes("memory")
            of_cpu = (cpus - rows.free("cpu") + cpu) * BEST // cpus
            of_memory = (bytes_ - rows.free("memory") + memory) * BEST // bytes_
            balance = (BEST - abs(of_cpu - of_memory)).astype(cpus.dtype)
            return balance * has_cpu * has_memory

        return scores


class BinPackArguments(Value, frozen=True):
    """`resource` alone, or several with `weights`."""

    resource: str = ""
    weights: dict[str, int] = {}


class BinPack:
    name = "binpack"
    arguments = BinPackArguments

    def __init__(self, arguments: BinPackArguments) -> None:
        if arguments.resource and arguments.weights:
            raise Malformed(("weights",), "expected either resource or weights, found both")
        for name, weight in arguments.weights.items():
            if not 1 <= weight <= _LARGEST_WEIGHT:
                text = f"expected a weight from 1 to {_LARGEST_WEIGHT}, found {weight}"
                raise Malformed(("weights", name), text)
        self.weights: Mapping[str, int] = arguments.weights or {arguments.resource or "gpu": 1}

    def score(self, session: Session, shape: TaskShape, node: NodeState) -> int:
        asked = [name for name in self.weights if shape.requests.get(name) and node.total.get(name)]
        if not asked:
            return 0
        weights = sum(self.weights[name] for name in asked)
        parts = sum(self.weights[name] * _part_after(shape, node, name) for name in asked)
        return parts // weights

    def score_for(self, session: Session, shape: TaskShape) -> Scores | None:
        weights = {name: self.weights[name] for name in self.weights if shape.requests.get(name)}
        return _mean_after(shape, weights) if weights else None

    def score_rows(self, session: Session, shape: TaskShape) -> RowScores | None:
        weights = {name: self.weights[name] for name in self.weights if shape.requests.get(name)}
        return _mean_after_of_rows(shape, weights) if weights else None


def _mean_after(shape: TaskShape, weights: Mapping[str, int]) -> Scores:
    """Return a function from nodes to the weighted mean of what is used with the pod."""
    asked = [(name, shape.requests[name], weight) for name, weight in weights.items()]

    def scores(nodes: Sequence[NodeState]) -> list[int]:
        answers = []
        for node in nodes:
            free, total = node.free, node.total
            parts = sum_of_weights = 0
            for name, units, weight in asked:
                if size := total.get(name):
                    parts += weight * ((size - free[name] + units) * BEST // size)
                    sum_of_weights += weight
            answers.append(parts // sum_of_weights if sum_of_weights else 0)
        return answers

    return scores


def _mean_after_of_rows(shape: TaskShape, weights: Mapping[str, int]) -> RowScores:
    """Return the same function over columns."""

    def scores(rows: NodeRows) -> Column:
        parts = sum_of_weights = rows.free(PODS) * 0
        for name, weight in weights.items():
            size, there = rows.sizes(name)
            part = (size - rows.free(name) + shape.requests[name]) * BEST // size
            parts = parts + weight * part * there
            sum_of_weights = sum_of_weights + weight * there
        mean: Column = parts // (sum_of_weights + (sum_of_weights == 0))
        return mean

    return scores
