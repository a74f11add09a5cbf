"""What preemptors may not take: `gang` keeps gangs whole, `conformance` the system running."""

from __future__ import annotations

from collections import Counter

from batchq.api.notation import Malformed, label_problem
from batchq.api.objects import Value
from batchq.core.extension import PluginTraits
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim


class Gang:
    """gang (groupReady, preemptable, reclaimable): a group has minMember pods or none at all.

    groupReady: the number of placed pods, i.e. pods on nodes and succeeded pods, is at least
    minMember, and at least minAvailable for every task. An edit of the group changes the answer.

    preemptable, reclaimable: a veto. Single pods may leave a group only while placed - leaving >=
    minMember, and placed[task] - leaving[task] >= minAvailable of their tasks; a group that would
    fall below leaves as a whole or stays. The plugin has no opinion on groups that leave as a
    whole. The gang plugin of kube-batch and Volcano uses only the first of the two sums, computed
    once a session and not as victims are chosen, and lets every pod of a group with minMember 1 go,
    including the last. The plugin votes on a refused victim again in the next session with a
    preemptor. The vote changes when a pod of the group starts, ends or leaves.
    """

    name = "gang"
    traits = PluginTraits(only_vetoes=True, spares="too small to give single pods")

    def group_ready(self, session: Session, group: GroupState) -> bool:
        placed = group.placed
        if sum(placed.values()) < group.min_member:
            return False
        for shape in group.tasks:  # noqa: SIM110 - asked of every gang, often
            if placed[shape.task.name] < shape.task.min_available:
                return False
        return True

    def pods_short(self, session: Session, group: GroupState) -> int:
        placed = group.placed
        of_tasks = 0
        for shape in group.tasks:
            of_tasks += max(0, shape.task.min_available - placed[shape.task.name])
        return max(of_tasks, group.min_member - sum(placed.values()))

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        return None if victim.whole or _stays_a_gang(victim) else False

    def reclaimable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        return self.preemptable(session, preemptor, victim)


def _stays_a_gang(victim: Victim) -> bool:
    """Return whether the group still has enough pods after these have left."""
    group = victim.group
    # Pods that are being stopped no longer count as placed.
    leaving = Counter(pod.spec.task for pod in victim.pods if not pod.status.terminating)
    if sum(group.placed.values()) - leaving.total() < group.min_member:
        return False
    least = {shape.task.name: shape.task.min_available for shape in group.tasks}
    return all(
        group.placed.get(task, 0) - count >= least.get(task, 0) for task, count in leaving.items()
    )


class ConformanceArguments(Value, frozen=True):
    namespaces: tuple[str, ...] = ("system", "kube-system")


class Conformance:
    """conformance (preemptable, reclaimable): groups that keep the system running are not evicted.

    The plugin vetoes every victim in one of `namespaces`, by default `system` and `kube-system`,
    and has no opinion on others. It follows kube-batch's and Volcano's plugin of this name, which
    also exempts two priority classes. Groups submitted to such a namespace are safe from preempt
    and reclaim, so restrict access to it. No change lifts its refusals: a group never leaves its
    namespace.
    """

    name = "conformance"
    traits = PluginTraits(only_vetoes=True, spares="in a protected namespace")
    arguments = ConformanceArguments

    def __init__(self, arguments: ConformanceArguments) -> None:
        for place, name in enumerate(arguments.namespaces):
            if problem := label_problem(name):
                raise Malformed(("namespaces", place), problem)
        self._protected = frozenset(arguments.namespaces)

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        return False if victim.group.namespace in self._protected else None

    def reclaimable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        return self.preemptable(session, preemptor, victim)
