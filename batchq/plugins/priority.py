"""priority (groupOrder, podOrder, preemptable, reclaimable): the more important first.

groupOrder uses the value of the group's PriorityClass, podOrder the pod's own priority, or else the
group's. Both orders are fixed for a session; an edit of the group or of a class changes them.

preemptable agrees that a preemptor of strictly higher priority takes a whole group or a pod of an
array, whose pods are independent work, and that a preemptor of at least equal priority takes other
pods beyond minMember. In kube-batch, the first rule (victim's < preemptor's) applies to both, and
there is none between queues.

reclaimable follows `preemption.reclaim` of the preemptor's queue: Any agrees, Never refuses, and
LowerPriority uses the rule of preemptable. Never is the default; with Any, only shares decide.

The plugin votes on a refused victim again in the next session with a preemptor. The vote changes
with the class of either group, and with the preemptor's queue.
"""

from __future__ import annotations

from batchq.api.objects import Pod
from batchq.core.extension import PluginTraits
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim


class Priority:
    name = "priority"
    traits = PluginTraits(order_lasts=True, spares="not of lower priority")

    def group_order(self, session: Session, group: GroupState) -> int:
        return -group.priority

    def pod_order(self, session: Session, group: GroupState, pod: Pod) -> int:
        return -(group.priority if pod.spec.priority is None else pod.spec.priority)

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool:
        group = victim.group
        if victim.whole or group.is_array:
            return group.priority < preemptor.priority
        return group.priority <= preemptor.priority

    def reclaimable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool:
        queue = session.queues.get(preemptor.queue)
        match queue.record.spec.preemption.reclaim if queue is not None else "Never":
            case "Any":
                return True
            case "LowerPriority":
                return self.preemptable(session, preemptor, victim)
            case _:
                return False
