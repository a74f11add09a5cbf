"""proportion (queueOrder, reclaimable): queues are served, and reclaim, by what they deserve.

queueOrder: share = max over dimensions of ledger / deserved (batchq.core.quota.fair_shares). What a
queue deserves is what it states, or else follows from its weight by water-filling, level by level.
The lowest share comes first, including what this pass has admitted; the session compares queues
level by level from the root. Of queues with equal shares, the one with the lowest share of `pods`
comes first if the nodes bound their number: otherwise a queue of groups that request nothing could
take every slot. The method is max-min fairness, as in kube-batch's plugin of this name, but for
each dimension separately and without rounding.

reclaimable agrees if the victim's queue, and each of its ancestors below the lowest one in common
with the preemptor's queue,

    is above deserved in a dimension that the preemptor lacks, before this victim leaves and
    without what it is giving back to other preemptors already,
    has ledger - victim >= guarantee in every dimension that the victim gives back,
    and is not `reclaimable: false`;

otherwise it refuses. `pods` counts as a dimension of deserved only if the queue's own `deserved`
names it. kube-batch compares all dimensions at once, after the victim has left: there, a queue that
requests only cpu is never above what it deserves of memory, and can keep the whole cluster. The
action, not this plugin, ensures that the preemptor's queue ends at or below deserved, so that it
does not become a victim in turn.

The plugin votes on a refused victim again in the next session with a preemptor. The vote changes
when a charge, a queue or the ready nodes change, and as victims are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.resources import PODS, Amounts
from batchq.api.transaction import queue_scope
from batchq.core.extension import PluginTraits
from batchq.core.pending.equivalence import QueueState
from batchq.core.quota.fair_shares import Share, comparable, deserved_of_queues, share_of_queue
from batchq.core.quota.ledger import given_back
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim

_NO_SHARE = Share(0, 1)


class Proportion:
    name = "proportion"
    traits = PluginTraits(
        spares="of queues that hold no more than they deserve of what it lacks,"
        " would fall below their guarantee, or give nothing back"
    )

    def queue_order(self, session: Session, queue: QueueState) -> tuple[Share, Share]:
        return share_of_queue(session, queue.name), _share_of_pods(session, queue.name)

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


def _share_of_pods(session: Session, queue: str) -> Share:
    """Return the share of pods if the nodes bound their number; it is zero otherwise."""
    if not comparable(session, (PODS,)):
        return _NO_SHARE
    deserved = deserved_of_queues(session).get(queue, {}).get(PODS, 0)
    return Share(session.ledger.used(queue_scope(queue), PODS), deserved)


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
