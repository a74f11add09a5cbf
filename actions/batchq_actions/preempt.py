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
from batchq.framework.claiming import GangClaim, gang_claimants
from batchq.framework.queue_shares import comparable, deserved_of_queues
from batchq.framework.search import Claim, Decision, find_victims
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim
from batchq_actions.claims import let_happen, serve_claimants

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
        queues = [group.queue]
        claim: Claim = WithinQueue(group, before)
        decision = find_victims(session, claim, queues)
        most = queue.record.spec.preemption.borrowing
        if most != "Never":
            borrowing = Borrowing(group, most)
            other = find_victims(session, borrowing, queues)
            if other is not None and (decision is None or _is_part_of(other, decision)):
                claim, decision = borrowing, other
        if decision is not None:
            let_happen(session, claim, decision, action=Preempt.name)


def _is_part_of(small: Decision, large: Decision) -> bool:
    """Whether one takes nobody whom the other does not."""
    all_of_them = {pod.metadata.uid for victim in large.victims for pod in victim.pods}
    return {pod.metadata.uid for victim in small.victims for pod in victim.pods} < all_of_them


def _has_victims(session: Session, claimant: GroupState) -> bool:
    """Whether anything at all could be taken: most of the time, nothing can."""
    return any(
        other.priority < claimant.priority
        or (other.is_elastic and not other.is_array and other.priority == claimant.priority)
        for other in session.ledger.holding.get(claimant.queue, {}).values()
    )


@dataclass(frozen=True, slots=True)
class WithinQueue(GangClaim):
    """A gang's claim on its own queue, which may not end above what it deserves, or not at more
    than `held_before`, its ledger before.
    """

    held_before: dict[str, int]

    def may_take(self, session: Session, victim: Victim) -> bool:
        """Of the same queue, and agreed by the policies."""
        return victim.group.queue == self.claimant.queue and session.vote(
            POINT, self.claimant, victim
        )

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Within what the queue deserves, or at no more than before."""
        group = self.claimant
        scope, ledger = queue_scope(group.queue), session.ledger
        deserved = deserved_of_queues(session).get(group.queue, {})
        own = ledger.counts_for(group, scope)
        for name in comparable(session, group.reservation):
            need = max(own.get(name, 0), group.reservation[name])
            ends_at = ledger.used(scope, name) - own.get(name, 0) + need
            above = name in deserved and ends_at > deserved[name]
            if above and ends_at > self.held_before.get(name, 0):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Borrowing(GangClaim):
    """A gang's claim on its own queue, wherever that ends, on victims at most `most`."""

    most: int

    def may_take(self, session: Session, victim: Victim) -> bool:
        """Of the same queue, unimportant enough, and agreed by the policies."""
        priority = victim.group.priority
        if victim.group.queue != self.claimant.queue:
            return False
        if priority >= self.claimant.priority or priority > self.most:
            return False
        return session.vote(POINT, self.claimant, victim)

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """The policy of the queue allows it to borrow for this."""
        return True
