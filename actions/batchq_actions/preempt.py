"""preempt: within a queue, the more important takes the room of the less important.

Claimants are gangs that wait for nothing but room. Victims are of the same queue: pods beyond
minMember of groups of at most the claimant's priority (of an array: lower only), then whole groups
of strictly lower priority. The queue may not end above what it deserves, unless it ends at no more
than it held before or its policy for borrowing allows it. The formulation follows Kueue's
preemption within a ClusterQueue; kube-batch's faults that it avoids are listed in docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from batchq.api.names import counted
from batchq.api.resources import Amounts
from batchq.api.transaction import queue_scope
from batchq.framework.claiming import GangClaim, Wish, gang_claimants
from batchq.framework.queue_shares import comparable, deserved_of_queues
from batchq.framework.search import Claim, Decision, find_victims
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim
from batchq_actions.claims import choose_anew, let_happen, serve_claimants
from batchq_actions.sparing import claims_nothing, why_spared

POINT = "preemptable"


class Preempt:
    """Victims of the claimant's own queue."""

    name = "preempt"

    def execute(self, session: Session) -> None:
        choose_anew(session, self.name, _serve_from)
        if _all_are_equal(session):
            return
        claimants = gang_claimants(session, partial(_hopes, session))
        # Where nobody has victims, nobody has to work out what queues deserve.
        if claimants.crowds or any(_has_victims(session, group) for group in claimants.groups):
            serve_claimants(session, claimants, _serve)

    def spares(self, session: Session, group: GroupState) -> list[str]:
        """Why nobody of its own queue makes way for a group; for people who ask."""
        queue = session.queues.get(group.queue)
        if queue is None:
            return []
        if queue.record.spec.preemption.within_queue == "Never":
            return [f"queue {queue.name} takes nothing from its own (preemption.withinQueue Never)"]
        if why := claims_nothing(session, group):
            return [why]
        if not _has_victims(session, group):
            return [_who_is_there(session, group)]
        before = dict(session.ledger.sums.get(queue_scope(group.queue), {}))
        return why_spared(session, WithinQueue(group, before), POINT, [group.queue])


def _hopes(session: Session, name: str) -> Callable[[Wish], bool] | None:
    """See `_has_victims`: for whoever waits in a queue."""
    holding = session.ledger.holding.get(name)
    if not holding or session.queues[name].record.spec.preemption.within_queue == "Never":
        return None
    lowest = min(group.priority for group in holding.values())
    growing = {one.priority for one in holding.values() if one.is_elastic and not one.is_array}
    return lambda wish: wish.priority > lowest or wish.priority in growing


def _serve(session: Session, group: GroupState) -> None:
    _serve_from(session, group, dict(session.ledger.sums.get(queue_scope(group.queue), {})))


def _serve_from(session: Session, group: GroupState, held_before: Amounts) -> None:
    queue = session.queues.get(group.queue)
    if queue is None or queue.record.spec.preemption.within_queue == "Never":
        return
    if _has_victims(session, group):
        queues = [group.queue]
        claim: Claim = WithinQueue(group, held_before)
        decision = find_victims(session, claim, queues)
        most = queue.record.spec.preemption.borrowing
        if most != "Never":
            borrowing = Borrowing(group, most)
            other = find_victims(session, borrowing, queues)
            if other is not None and (decision is None or _is_part_of(other, decision)):
                claim, decision = borrowing, other
        if decision is not None:
            let_happen(session, claim, decision, action=Preempt.name)


def _who_is_there(session: Session, group: GroupState) -> str:
    """That nobody is less important than the claimant."""
    holding = session.ledger.holding.get(group.queue, {}).values()
    others = [other.priority for other in holding if other is not group]
    if not others:
        return f"nobody else in queue {group.queue} holds anything"
    return (
        f"nobody in queue {group.queue} is of lower priority than its {group.priority}: the lowest"
        f" of {counted(len(others), 'group')} is {min(others)}"
    )


def _is_part_of(small: Decision, large: Decision) -> bool:
    """Whether one takes nobody whom the other does not."""
    all_of_them = {pod.metadata.uid for victim in large.victims for pod in victim.pods}
    return {pod.metadata.uid for victim in small.victims for pod in victim.pods} < all_of_them


def _all_are_equal(session: Session) -> bool:
    """Whether nobody has victims, whoever claims: nobody is less important than anybody else, and
    nobody holds anything beyond minMember.
    """
    return not session.snapshot.priority_classes and not any(
        one.is_elastic and not one.is_array
        for holding in session.ledger.holding.values()
        for one in holding.values()
    )


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
