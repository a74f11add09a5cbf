"""priority (groupOrder, podOrder, preemptable, reclaimable): the more important first.

groupOrder by the value of the group's PriorityClass, podOrder by the pod's own priority (absent:
the group's). Both orders are fixed for a session; an edit of the group or of a class changes them.

preemptable, one of those that agree: a whole group to claimants of strictly higher priority; pods
beyond minMember to claimants of at least the group's priority, but pods of an array, each of which
is work of its own, to higher ones only. kube-batch's rule (victim's < claimant's) holds for
both there, and says nothing between queues.

reclaimable: what `preemption.reclaim` of the claimant's queue says: Any agrees, Never refuses, and
LowerPriority goes by the rule of preemptable. Never is the default; Any leaves it to shares alone.

A refused victim is asked for again in the next session in which somebody claims; the answer
changes with either group's class and with the claimant's queue.
"""

from __future__ import annotations

from batchq.api.objects import Pod
from batchq.core.extension.traits import PluginTraits
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim


class Priority:
    name = "priority"
    traits = PluginTraits(order_lasts=True, spares="not of lower priority")

    def group_order(self, session: Session, group: GroupState) -> int:
        return -group.priority

    def pod_order(self, session: Session, group: GroupState, pod: Pod) -> int:
        return -(group.priority if pod.spec.priority is None else pod.spec.priority)

    def preemptable(self, session: Session, claimant: GroupState, victim: Victim) -> bool:
        group = victim.group
        if victim.whole or group.is_array:
            return group.priority < claimant.priority
        return group.priority <= claimant.priority

    def reclaimable(self, session: Session, claimant: GroupState, victim: Victim) -> bool:
        queue = session.queues.get(claimant.queue)
        match queue.record.spec.preemption.reclaim if queue is not None else "Never":
            case "Any":
                return True
            case "LowerPriority":
                return self.preemptable(session, claimant, victim)
            case _:
                return False
