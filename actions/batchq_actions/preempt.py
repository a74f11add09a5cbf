"""preempt: within a queue, the more important takes the room of the less important.

Claimants are gangs that wait for nothing but room. Victims are of the same queue: pods beyond
minMember of groups of at most the claimant's priority (of an array: lower only), then whole groups
of strictly lower priority. What the claimant takes beside their room must be idle; so its queue may
end above what it deserves. The formulation follows Kueue's preemption within a ClusterQueue;
kube-batch's faults that it avoids are listed in docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from batchq.api.names import counted
from batchq.framework.claiming import GangClaim, Wish, gang_claimants
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim
from batchq_actions.claims import choose_anew, serve_claimants, try_claim
from batchq_actions.sparing import claims_nothing, why_spared

POINT = "preemptable"


class Preempt:
    """Victims of the claimant's own queue."""

    name = "preempt"

    def execute(self, session: Session) -> None:
        choose_anew(session, self.name, _serve)
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
        return why_spared(session, WithinQueue(group), POINT, [group.queue])


def _hopes(session: Session, name: str) -> Callable[[Wish], bool] | None:
    """See `_has_victims`: for whoever waits in a queue."""
    holding = session.ledger.holding.get(name)
    if not holding or session.queues[name].record.spec.preemption.within_queue == "Never":
        return None
    lowest = min(group.priority for group in holding.values())
    growing = {one.priority for one in holding.values() if one.is_elastic and not one.is_array}
    return lambda wish: wish.priority > lowest or wish.priority in growing


def _serve(session: Session, group: GroupState) -> None:
    queue = session.queues.get(group.queue)
    if queue is None or queue.record.spec.preemption.within_queue == "Never":
        return
    if _has_victims(session, group):
        try_claim(session, WithinQueue(group), [group.queue], action=Preempt.name)


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
    """A gang's claim on its own queue. What the queue borrows beside that is idle, and may be."""

    def may_take(self, session: Session, victim: Victim) -> bool:
        """Of the same queue, and agreed by the policies."""
        return victim.group.queue == self.claimant.queue and session.vote(
            POINT, self.claimant, victim
        )

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Wherever its queue ends: nobody else has given anything for it."""
        return True
