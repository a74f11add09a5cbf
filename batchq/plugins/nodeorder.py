"""leastAllocated and binpack (score): which of the nodes that fit is best; 0 to 1000.

leastAllocated spreads: the mean, over the dimensions asked for, of what stays free
(Kubernetes' NodeResourcesFit, LeastAllocated). binpack fills up: the part of the node's gpus in
use afterwards, so that whole nodes stay free for gangs (Volcano's binpack, for `gpu` alone); a pod
without gpus is not its business. Integers throughout.
"""

from __future__ import annotations

from batchq.api.quantity import PODS
from batchq.framework.session import Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import NodeState

BEST = 1000


class LeastAllocated:
    name = "leastAllocated"

    def score(self, session: Session, shape: TaskShape, node: NodeState) -> int:
        asked = [name for name in shape.requests if name != PODS and node.total.get(name)]
        if not asked:
            return BEST
        left = sum(
            (node.free[name] - shape.requests[name]) * BEST // node.total[name] for name in asked
        )
        return left // len(asked)


class BinPack:
    """`resource` is packed; by default gpu."""

    name = "binpack"

    def __init__(self, resource: str = "gpu") -> None:
        self.resource = resource

    def score(self, session: Session, shape: TaskShape, node: NodeState) -> int:
        asked, has = shape.requests.get(self.resource, 0), node.total.get(self.resource, 0)
        if not asked or not has:
            return 0
        return (has - node.free[self.resource] + asked) * BEST // has
