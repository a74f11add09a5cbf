"""preempt: within a queue, the more important takes the room of the less important.

Claimants are gangs that wait for nothing but room. Victims are of the same queue: pods beyond
minMember of groups of at most the claimant's priority (of an array: lower only), then whole groups
of strictly lower priority. The queue may not end above what it deserves, unless it ends at no more
than it held before or its policy for borrowing allows it. The formulation follows Kueue's
preemption within a ClusterQueue; kube-batch's faults that it avoids are listed in docs/faults.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchq.api.transaction import queue_scope
from batchq.framework.claiming import GangClaim, dimensions_of, gang_claimants
from batchq.framework.queue_shares import deserved_of_queues
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim
from batchq_actions.claims import serve_claimants, try_claim

POINT = "preemptable"


class Preempt:
    """Victims of the claimant's own queue."""

    name = "preempt"

    def execute(self, session: Session) -> None:
        serve_claimants(session, gang_claimants(session), _serve)


def _serve(session: Session, group: GroupState) -> None:
    queue = session.queues.get(group.queue)
    if queue is None or queue.record.spec.preemption.within_queue == "Never":
        return
    if _has_victims(session, group):
        before = dict(session.ledger.sums.get(queue_scope(group.queue), {}))
        claim = WithinQueue(claimant=group, held_before=before)
        try_claim(session, claim, [group.queue], action=Preempt.name)


def _has_victims(session: Session, claimant: GroupState) -> bool:
    """Whether anything at all could be taken: most of the time, nothing can."""
    return any(
        other.priority < claimant.priority
        or (other.is_elastic and not other.is_array and other.priority == claimant.priority)
        for other in session.ledger.holding.get(claimant.queue, {}).values()
    )


@dataclass(frozen=True, slots=True)
class WithinQueue(GangClaim):
    """A gang's claim on its own queue; `held_before` is the queue's ledger before it."""

    held_before: dict[str, int]

    def may_take(self, session: Session, victim: Victim) -> bool:
        """Of the same queue, and agreed by the policies."""
        return victim.group.queue == self.claimant.queue and session.vote(
            POINT, self.claimant, victim
        )

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Within what the queue deserves, or at no more than before, or borrowing as allowed."""
        group = self.claimant
        scope, ledger = queue_scope(group.queue), session.ledger
        deserved = deserved_of_queues(session).get(group.queue, {})
        own = ledger.counts_for(group, scope)
        for name in dimensions_of(session, group.queue, group.reservation):
            need = max(own.get(name, 0), group.reservation[name])
            ends_at = ledger.used(scope, name) - own.get(name, 0) + need
            above = name in deserved and ends_at > deserved[name]
            if above and ends_at > self.held_before.get(name, 0):
                return _may_borrow(session, group, victims)
        return True


def _may_borrow(session: Session, group: GroupState, victims: list[Victim]) -> bool:
    most = session.queues[group.queue].record.spec.preemption.borrowing
    return most != "Never" and all(
        victim.group.priority < group.priority and victim.group.priority <= most
        for victim in victims
    )
