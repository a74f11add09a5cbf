"""The order in line, and the victims that preemptors may take: `proportion` for queues; `priority`,
`drf` and `sla` for groups of a queue; `gang` and `conformance` for victims alone.

Each plugin of the order also says which victims may leave for which preemptor, so that no two
groups evict each other in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import Malformed, label_problem, parse_duration
from batchq.api.objects import Duration, Pod, Value
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS, Amounts, larger, minus
from batchq.api.transaction import queue_scope
from batchq.core.equivalence import QueueState
from batchq.core.extension import PluginTraits
from batchq.core.quota.fair_shares import (
    Share,
    are_pods_bounded,
    comparable,
    deserved_of_queues,
    share_of,
    share_of_queue,
    usage_interval_ms,
    usage_of_queue,
)
from batchq.core.quota.ledger import given_back
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim


class Proportion:
    """proportion (queueOrder, reclaimable): queues are served, and reclaim, by what they deserve.

    queueOrder: share = max over dimensions of ledger / deserved (batchq.core.quota.fair_shares).
    What a queue deserves is what it states, or else follows from its weight by water-filling, level
    by level. The lowest share comes first, including what this pass has admitted; the session
    compares queues level by level from the root. Of queues with equal shares, the one with the
    lowest share of `pods` comes first if the nodes bound their number: otherwise a queue of groups
    that request nothing could take every slot. With `fairness.order: usage`, the queue that has
    used the smallest part of its share over time comes first, as with Slurm's fair-share factor,
    and the share now decides between equals; through `due_at`, a session runs when usage has
    changed. The method is max-min fairness, as in kube-batch's plugin of this name, but for each
    dimension separately and without rounding.

    reclaimable agrees if the victim's queue, and each of its ancestors below the lowest one in
    common with the preemptor's queue,

        is above deserved in a dimension that the preemptor lacks, before this victim leaves and
        without what it is giving back to other preemptors already,
        has ledger - victim >= guarantee in every dimension that the victim gives back,
        and is not `reclaimable: false`;

    otherwise it refuses. `pods` counts as a dimension of deserved only if the queue's own
    `deserved` names it. kube-batch compares all dimensions at once, after the victim has left:
    there, a queue that requests only cpu is never above what it deserves of memory, and can keep
    the whole cluster. The action, not this plugin, ensures that the preemptor's queue ends at or
    below deserved, so that it does not become a victim in turn.

    The plugin votes on a refused victim again in the next session with a preemptor. The vote
    changes when a charge, a queue or the ready nodes change, and as victims are chosen.
    """

    name = "proportion"
    traits = PluginTraits(
        spares="of queues that hold no more than they deserve of what it lacks,"
        " would fall below their guarantee, or give nothing back"
    )

    def queue_order(self, session: Session, queue: QueueState) -> tuple[int, ...]:
        name = queue.name
        order = share_of_queue(session, name).rank(), _rank_by_pods(session, name)
        if session.settings.orders_by_usage:
            return (usage_of_queue(session, name).rank(), *order)
        return order

    def due_at(self, session: Session) -> Iterator[int]:
        waiting = (queue for queue in session.queues.values() if queue.line)
        if session.settings.orders_by_usage and len(list(islice(waiting, 2))) > 1:
            every_ms = usage_interval_ms(session)
            yield session.now_ms - session.now_ms % every_ms + every_ms

    def reclaimable(
        self, session: Session, preemptor: GroupState, victim: Victim, shortage: Shortage
    ) -> bool:
        _, giving = session.tree.divide(preemptor.queue, victim.group.queue)
        gives = given_back(victim)
        return bool(giving) and all(
            _may_be_taken_from(session, queue)
            and _has_too_much(session, queue, shortage)
            and _keeps_its_guarantee(session, queue, gives, shortage.leaving)
            for queue in giving
        )


def _rank_by_pods(session: Session, queue: str) -> int:
    """Return the rank of the share of pods if their number is bounded; it is zero otherwise."""
    if not are_pods_bounded(session):
        return 0
    deserved = deserved_of_queues(session).get(queue, {}).get(PODS, 0)
    return Share(session.ledger.used(queue_scope(queue), PODS), deserved).rank()


def _may_be_taken_from(session: Session, queue: str) -> bool:
    state = session.queues.get(queue)
    return state is None or state.record.spec.reclaimable


def _has_too_much(session: Session, queue: str, shortage: Shortage) -> bool:
    """Return whether the queue is above deserved in a dimension that the preemptor lacks.

    A dimension that no node and no queue names does not count.
    """
    deserved = deserved_of_queues(session).get(queue, {})
    return any(
        _keeps(session, queue, resource, shortage.leaving) > deserved[resource]
        for resource in comparable(session, shortage.resources)
        if resource in deserved
    )


def _keeps_its_guarantee(
    session: Session, queue: str, gives: Amounts, leaving: Mapping[str, Amounts]
) -> bool:
    guarantee = session.tree.guarantee(queue)
    return all(
        _keeps(session, queue, resource, leaving) - units >= guarantee.get(resource, 0)
        for resource, units in gives.items()
    )


def _keeps(session: Session, queue: str, resource: str, leaving: Mapping[str, Amounts]) -> int:
    """Return what the queue holds, without what it is giving back to other preemptors already."""
    scope = queue_scope(queue)
    return session.ledger.used(scope, resource) - leaving.get(scope, {}).get(resource, 0)


class Priority:
    """priority (groupOrder, podOrder, preemptable, reclaimable): the more important first.

    groupOrder uses the value of the group's PriorityClass, podOrder the pod's own priority, or else
    the group's. Both orders are fixed for a session; an edit of the group or of a class changes
    them.

    preemptable agrees that a preemptor of strictly higher priority takes a whole group or a pod of
    an array, whose pods are independent work, and that a preemptor of at least equal priority takes
    other pods beyond minMember. In kube-batch, the first rule (victim's < preemptor's) applies to
    both, and there is none between queues.

    reclaimable follows `preemption.reclaim` of the preemptor's queue: Any agrees, Never refuses,
    and LowerPriority uses the rule of preemptable. Never is the default; with Any, only shares
    decide.

    The plugin votes on a refused victim again in the next session with a preemptor. The vote
    changes with the class of either group, and with the preemptor's queue.
    """

    name = "priority"
    traits = PluginTraits(
        order_lasts=True,
        orders_by_priority=True,
        refusals_last=True,
        spares="not of lower priority",
    )

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


#: The annotation with a group's waiting time; overrides the plugin's `waitingTime`.
WAITING_TIME_ANNOTATION = "batchq/sla-waiting-time"

_WAITS = frozenset({PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE})


class SlaArguments(Value, frozen=True):
    waiting_time: Duration | None = None


class Sla:
    """sla (preEnqueue, groupOrder, preemptable): groups that have waited too long come first.

    due = queueTime + waiting time, which is the group's annotation `batchq/sla-waiting-time`, or
    else the argument `waitingTime` (a duration; without it, only annotated groups become due). A
    group is overdue if it waits (Pending or InQueue) and due <= now, or runs and due <= startedAt.

    groupOrder: (0, due) if overdue, else (1, 0): overdue groups come before all others, the longest
    overdue first. Plugins compare in the order of `plugins`: named before `priority`, this one
    overrides priority; named after it, it orders groups of equal priority. preemptable: a veto on
    overdue groups, taken as a whole, that come before the preemptor in that order; otherwise such a
    group, admitted first, would be evicted again at once.

    Volcano's plugin of this name (#1303, #1416, #1901, #2235) also lets overdue groups past every
    limit if it is in an earlier tier, orders by deadline long before any group is overdue, and
    ignores an unreadable waiting time. This plugin changes only the order: limits hold, no group is
    evicted for an overdue one, other queues reclaim what they deserve, and a group with an
    unreadable annotation is out of line as Misconfigured until an edit unparks it. Through
    `due_at`, a session runs when a group becomes overdue.
    """

    name = "sla"
    traits = PluginTraits(
        lifted_by={Waiting.MISCONFIGURED: frozenset()}, only_vetoes=True, spares="overdue"
    )
    arguments = SlaArguments

    def __init__(self, arguments: SlaArguments) -> None:
        self._waiting_time_ms = arguments.waiting_time

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        written = group.record.metadata.annotations.get(WAITING_TIME_ANNOTATION)
        problem = "" if written is None else _waiting_time(written)[1]
        if not problem:
            return []
        detail = f"annotation {WAITING_TIME_ANNOTATION}: {problem}"
        return [Verdict(plugin=self.name, reason=Waiting.MISCONFIGURED, detail=detail)]

    def group_order(self, session: Session, group: GroupState) -> tuple[int, int]:
        since = self._overdue_since(session, group)
        return (1, 0) if since is None else (0, since)

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        group = victim.group
        if not victim.whole or self._overdue_since(session, group) is None:
            return None
        return False if session.group_key(group) < session.group_key(preemptor) else None

    def due_at(self, session: Session) -> Iterator[int]:
        for group in session.groups.values():
            if group.phase in _WAITS and (due := self._due(group)) is not None:
                yield due

    def _overdue_since(self, session: Session, group: GroupState) -> int | None:
        """Return since when (ms) it waits, or waited until its start, too long; or None."""
        waited_until = session.now_ms if group.phase in _WAITS else group.status.started_at
        due = self._due(group)
        return None if due is None or waited_until is None or waited_until < due else due

    def _due(self, group: GroupState) -> int | None:
        """Return until when (ms) it may wait; None if for ever."""
        written = group.record.metadata.annotations.get(WAITING_TIME_ANNOTATION)
        waiting_time = self._waiting_time_ms if written is None else _waiting_time(written)[0]
        return None if waiting_time is None else group.queue_time + waiting_time


@lru_cache(maxsize=1000)
def _waiting_time(written: str) -> tuple[int | None, str]:
    """Return a duration in ms, or None with a description of the problem."""
    try:
        return parse_duration(written), ""
    except ValueError as error:
        return None, str(error)


class Drf:
    """drf (groupOrder, preemptable): within a queue, the group that holds least of the cluster is
    first.

    share(group) = max over the dimensions of the ready nodes, except `pods`, of its charge / the
    total of these nodes. This is the dominant share of Ghodsi et al., "Dominant Resource Fairness",
    NSDI 2011, for groups instead of users, compared exactly by cross-multiplication. The charge of
    a Pending group is zero, so groups without any charge are ordered by the plugins that follow and
    by queue time.

    preemptable agrees if share(preemptor with its request) <= share(victim's group without the
    victim), and refuses otherwise. This is kube-batch's rule without its tolerance of 1e-6. Two
    groups never preempt each other in turn, because the victim's group keeps at least as much as
    the preemptor ends with. Without all of its pods, the victim's group would keep nothing, so the
    plugin refuses every victim that is a whole group, whatever its priority: groups only balance
    their pods beyond minMember. The plugin has no opinion between queues.

    The plugin votes on a refused victim again in the next session with a preemptor. The vote
    changes when either group's charge or the ready nodes change.
    """

    name = "drf"

    def group_order(self, session: Session, group: GroupState) -> Share:
        return dominant_share(session, session.ledger.charged(group))

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool:
        charged = session.ledger.charged
        asked = larger(charged(preemptor), preemptor.reservation)
        rest = minus(charged(victim.group), given_back(victim))
        return dominant_share(session, asked) <= dominant_share(session, rest)


def dominant_share(session: Session, held: Mapping[str, int]) -> Share:
    """Return the largest fraction of the ready nodes' resources that is held, over their
    dimensions.

    A dimension that no node has, which an external group may request, does not count.
    """
    cluster = session.nodes.ready
    return share_of({name: units for name, units in held.items() if name in cluster}, cluster)


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
    traits = PluginTraits(
        only_vetoes=True, keeps_min_member=True, spares="too small to give single pods"
    )

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
    traits = PluginTraits(only_vetoes=True, refusals_last=True, spares="in a protected namespace")
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
