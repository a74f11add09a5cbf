"""predicates (predicate): ready, not cordoned, node selector, tolerated taints, resources.

A refused group is unparked when a node is added or changed, or resources on it become free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchq.api.node_report import FIRST_WITH_MPI, PROTOCOL, PROTOCOL_ANNOTATION
from batchq.api.objects import Taint, Toleration
from batchq.api.reasons import Verdict, Waiting
from batchq.core.placement.node_order import Takes
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.specs import TaskShape

if TYPE_CHECKING:
    from batchq.core.placement.node_matrix import Mask, NodeRows, RowTakes


class Predicates:
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

        def takes(nodes: Sequence[NodeState]) -> list[bool]:
            answers = []
            for node in nodes:
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
    for taint in node.record.spec.taints:
        if taint.effect != "PreferNoSchedule" and not _tolerated(taint, template.tolerations):
            return f"taint {taint.key} not tolerated"
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


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Apply Kubernetes' rule: an empty key with Exists, or an empty effect, matches all."""
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (
            (toleration.operator == "Exists" and toleration.key in ("", taint.key))
            or (
                toleration.operator == "Equal"
                and (toleration.key, toleration.value) == (taint.key, taint.value)
            )
        )
        for toleration in tolerations
    )
