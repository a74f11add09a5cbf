"""priority (groupOrder, podOrder): the more important first, by PriorityClass and pod priority."""

from __future__ import annotations

from batchq.api.objects import Pod
from batchq.framework.session import Session
from batchq.framework.state import GroupState


class Priority:
    name = "priority"

    def group_order(self, session: Session, group: GroupState) -> int:
        return -group.priority

    def pod_order(self, session: Session, group: GroupState, pod: Pod) -> int:
        return -(group.priority if pod.spec.priority is None else pod.spec.priority)
