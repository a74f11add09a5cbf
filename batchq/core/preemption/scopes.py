"""From whom a gang may take: its own queue (preempt), others that borrow (reclaim), or both.

preempt takes from the claimant's own queue, wherever that ends. reclaim takes from queues above
what they deserve, while the claimant's ends within what it deserves. Where the victims of one do
not suffice, those of the other may complete them, if the claimant's queue ends within what it
deserves: of the two actions, the one that comes first in the configuration tries that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from batchq.api.resources import Amounts, minus, of_pod, total
from batchq.api.transaction import queue_scope
from batchq.core.pending.eligibility import holds_off
from batchq.core.preemption.candidates import FIRST_SEARCH, SearchTerms, pledged_below
from batchq.core.preemption.preemptors import ExtraClaim, GangClaim
from batchq.core.preemption.protection import vote
from batchq.core.preemption.search import Decision, PreemptionRequest, find_victims
from batchq.core.quota.fair_shares import (
    FAIR_SHARES,
    ask_for,
    comparable,
    deserved_of_queues,
    is_asked_for,
)
from batchq.core.quota.selector import BORROWERS, Borrowers, borrowers_of
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim

PREEMPT, RECLAIM = "preempt", "reclaim"
#: Action -> the extension point at which plugins vote on its victims.
POINTS = {PREEMPT: "preemptable", RECLAIM: "reclaimable"}


def propose(
    session: Session, group: GroupState, action: str, terms: SearchTerms = FIRST_SEARCH
) -> tuple[PreemptionRequest, Decision] | None:
    """What an action would do for a gang; None if nothing.

    A group's request is part of the demand once it has reserved. One that is out of line is tried
    with its request counted, too; else it could reserve and give up again and again.
    """
    if group.queue not in session.queues:
        return None
    found = _proposed(session, group, action, terms)
    if found is None or isinstance(found[0], WithinQueue):
        return found
    if terms.again or is_asked_for(session, group):
        return found
    former = session.peek(FAIR_SHARES), session.peek(BORROWERS)
    found = None
    ask_for(session, group)
    try:
        found = _proposed(session, group, action, terms)
    finally:
        if found is None:
            session.put(FAIR_SHARES, former[0])
            session.put(BORROWERS, former[1])
    return found


def _proposed(
    session: Session, group: GroupState, action: str, terms: SearchTerms
) -> tuple[PreemptionRequest, Decision] | None:
    claim: PreemptionRequest | None = (
        within_queue(session, group) if action == PREEMPT else from_others(session, group, terms)
    )
    if claim is not None:
        queues = _victims_queues(session, group, action)
        if (decision := find_victims(session, claim, queues, terms=terms)) is not None:
            return claim, decision
    return _by_both(session, group, action, terms)


def within_queue(session: Session, group: GroupState) -> WithinQueue | None:
    """The claim on its own queue; None where that has no victims for it."""
    policy = session.queues[group.queue].record.spec.preemption
    if policy.within_queue == "Never" or not has_victims(session, group):
        return None
    return WithinQueue(group)


def from_others(session: Session, group: GroupState, terms: SearchTerms) -> GangFromOthers | None:
    """The claim on queues that borrow; None where its own may take nothing back for it."""
    need = minus(group.reservation, session.ledger.charged(group))
    if not may_reclaim(session, group, need, group.reservation, terms):
        return None
    if not _borrowers(session).are_there(group.queue):
        return None
    if fits_in_what_is_set_aside(session, GangClaim(group)):
        return None
    return GangFromOthers(claimant=group, need=need, asked=group.reservation)


def fits_in_what_is_set_aside(session: Session, claim: GangClaim | ExtraClaim) -> bool:
    """Whether what is claimed would start now but for what is set aside for heads of other queues:
    that is idle until they start, and the work of others is not thrown away for as much again.
    """
    if not session.ledger.aside:
        return False
    with session.ledger.regarding(()):
        return claim.fit(session).fits


def _by_both(
    session: Session, group: GroupState, action: str, terms: SearchTerms
) -> tuple[PreemptionRequest, Decision] | None:
    """Its own victims completed by those of the other action."""
    order = [name for name in session.actions if name in POINTS]
    if set(order) != set(POINTS) or order[0] != action:
        return None
    policy = session.queues[group.queue].record.spec.preemption
    if "Never" in (policy.within_queue, policy.reclaim) or not has_victims(session, group):
        return None
    if not _borrowers(session).are_there(group.queue) or not _could_end_within(session, group):
        return None
    if fits_in_what_is_set_aside(session, GangClaim(group)):
        return None
    claim = FromBoth(group)
    first, then = (_victims_queues(session, group, name) for name in order)
    decision = find_victims(session, claim, first, then, terms=terms)
    return None if decision is None else (claim, decision)


def _victims_queues(session: Session, group: GroupState, action: str) -> list[str]:
    return [group.queue] if action == PREEMPT else _borrowers(session).givers(group.queue)


def _borrowers(session: Session) -> Borrowers:
    return borrowers_of(session, POINTS[RECLAIM])


def has_victims(session: Session, claimant: GroupState) -> bool:
    """Whether anything of its own queue could be taken: most of the time, nothing can."""
    return any(
        _is_lower(other, claimant)
        for other in session.ledger.holding.get(claimant.queue, {}).values()
    )


def _is_lower(other: GroupState, claimant: GroupState) -> bool:
    if other.priority == claimant.priority:
        return other.is_elastic and not other.is_array
    return other.priority < claimant.priority


def _could_end_within(session: Session, group: GroupState) -> bool:
    """Whether its queue could end within what it deserves if all of its own victims went."""
    ledger, scope = session.ledger, queue_scope(group.queue)
    deserved = deserved_of_queues(session).get(group.queue, {})
    own = ledger.counts_for(group, scope)
    lower = [
        ledger.counts_for(other, scope)
        for other in ledger.holding.get(group.queue, {}).values()
        if other is not group and _is_lower(other, group)
    ]
    return all(
        ledger.used(scope, name) - own.get(name, 0) - sum(one.get(name, 0) for one in lower)
        <= deserved[name] - group.reservation[name]
        for name in comparable(session, group.reservation)
        if name in deserved
    )


def may_reclaim(
    session: Session,
    group: GroupState,
    need: Amounts,
    asked: Amounts,
    terms: SearchTerms = FIRST_SEARCH,
) -> bool:
    """Whether its queue takes anything back at all, and could end as it has to."""
    queue = session.queues.get(group.queue)
    if queue is None or queue.record.spec.preemption.reclaim == "Never":
        return False
    if borrows(session, group) or not ends_above(session, group.queue, need, asked):
        return True
    # What others count on that come after it in the same queue may be its own.
    given = pledged_below(session, group, terms)
    return bool(given) and not ends_above(session, group.queue, need, asked, given)


def borrows(session: Session, group: GroupState) -> bool:
    """Whether its queue may take from others while it holds more than it deserves."""
    return session.queues[group.queue].record.spec.preemption.borrowing != "Never"


def ends_above(
    session: Session,
    queue: str,
    need: Amounts,
    asked: Iterable[str],
    given: Amounts | None = None,
) -> bool:
    """Whether a queue would hold more than it deserves in a dimension that is asked for, if it
    grew by `need`, and `given` was given back.
    """
    deserved = deserved_of_queues(session).get(queue, {})
    scope, given = queue_scope(queue), given or {}
    return any(
        name in deserved
        and session.ledger.used(scope, name) + need.get(name, 0) - given.get(name, 0)
        > deserved[name]
        for name in comparable(session, asked)
    )


def ends_within(
    session: Session, group: GroupState, queues: Iterable[str], leaving: Iterable[Victim] = ()
) -> bool:
    """Whether these queues, its own or above it, hold no more than they deserve with all that a
    group asks for and without the pods that leave.
    """
    own = session.ledger.charged(group)
    for queue in queues:
        counts = session.ledger.counts_for(group, queue_scope(queue))
        need = {
            name: max(0, max(own.get(name, 0), units) - counts.get(name, 0))
            for name, units in group.reservation.items()
        }
        given = total(
            of_pod(pod.spec.requests)
            for victim in leaving
            if queue in victim.group.chain
            for pod in victim.pods
        )
        if ends_above(session, queue, need, group.reservation, given):
            return False
    return True


def _below(session: Session, group: GroupState, others: Iterable[str]) -> list[str]:
    """Its queue and those above it that are below the one in common with any of the others."""
    return list(
        dict.fromkeys(
            name
            for other in dict.fromkeys(others)
            if other != group.queue
            for name in session.tree.divide(group.queue, other)[0]
        )
    )


def _agrees(session: Session, claimant: GroupState, victim: Victim, shortage: Shortage) -> bool:
    """Whether the policies let it be taken: of its own queue by preempt, else by reclaim."""
    action = PREEMPT if victim.group.queue == claimant.queue else RECLAIM
    return vote(session, POINTS[action], claimant, victim, shortage)


def _may_take_over(
    session: Session,
    claim: PreemptionRequest,
    other: GroupState,
    told: list[Victim],
    shortage: Shortage,
    *,
    have_ended: bool,
) -> bool:
    """What victims leave to a claimant of another queue counts as lent, not as idle: then the
    claimant's own queue has to end within what it deserves, or it would have to give it back.
    """
    queues = _below(session, claim.claimant, [other.queue])
    if (told or have_ended) and not ends_within(session, claim.claimant, queues, told):
        return False
    return _may_take_what_ends(session, claim, told, shortage)


def _may_take_what_ends(
    session: Session, claim: PreemptionRequest, told: list[Victim], shortage: Shortage
) -> bool:
    """One that may not have others evicted yet leaves these to the claimant that has."""
    if told and holds_off(session, claim.claimant):
        return False
    return all(claim.may_take(session, victim, shortage) for victim in told)


@dataclass(frozen=True, slots=True)
class WithinQueue(GangClaim):
    """A gang's claim on its own queue. What the queue borrows beside that is idle, and may be."""

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Of the same queue, and agreed by the policies."""
        return victim.group.queue == self.claimant.queue and vote(
            session, POINTS[PREEMPT], self.claimant, victim, shortage
        )

    def may_take_over(
        self,
        session: Session,
        other: GroupState,
        told: list[Victim],
        shortage: Shortage,
        *,
        have_ended: bool,
    ) -> bool:
        """See `_may_take_over`."""
        return _may_take_over(session, self, other, told, shortage, have_ended=have_ended)

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Wherever its queue ends: no other queue has given anything for it."""
        return True


class FromOthers:
    """The rule of gangs and single pods; `need` is the growth of the claimant's queue."""

    claimant: GroupState
    need: Amounts
    asked: Amounts

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Of another queue, agreed by the policies, and not while borrowing but as allowed."""
        group = victim.group
        if group.queue == self.claimant.queue:
            return False
        if not self._is_within(session, victim) and not self._may_borrow(session, victim):
            return False
        return vote(session, POINTS[RECLAIM], self.claimant, victim, shortage)

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Looked at with each victim: what others hold does not change where this one ends."""
        return True

    def _is_within(self, session: Session, victim: Victim) -> bool:
        mine, _ = session.tree.divide(self.claimant.queue, victim.group.queue)
        return not any(ends_above(session, name, self.need, self.asked) for name in mine)

    def _may_borrow(self, session: Session, victim: Victim) -> bool:
        most = session.queues[self.claimant.queue].record.spec.preemption.borrowing
        priority = victim.group.priority
        return most != "Never" and priority < self.claimant.priority and priority <= most


@dataclass(frozen=True)
class GangFromOthers(FromOthers, GangClaim):
    """A gang's claim on queues that hold more than they deserve."""

    need: Amounts
    asked: Amounts

    def may_take_over(
        self,
        session: Session,
        other: GroupState,
        told: list[Victim],
        shortage: Shortage,
        *,
        have_ended: bool,
    ) -> bool:
        """See `_may_take_over`."""
        return _may_take_over(session, self, other, told, shortage, have_ended=have_ended)


@dataclass(frozen=True, slots=True)
class FromBoth(GangClaim):
    """A gang's claim on its own queue and on others together."""

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """By the rule of whichever action it belongs to; where it ends is looked at last."""
        return _agrees(session, self.claimant, victim, shortage)

    def may_take_over(
        self,
        session: Session,
        other: GroupState,
        told: list[Victim],
        shortage: Shortage,
        *,
        have_ended: bool,
    ) -> bool:
        """Where it ends is looked at last, for all of it."""
        return _may_take_what_ends(session, self, told, shortage)

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Its queue, and those above it below the one in common with a victim's, end within what
        they deserve.
        """
        others = [victim.group.queue for victim in victims]
        queues = [self.claimant.queue, *_below(session, self.claimant, others)]
        return ends_within(session, self.claimant, dict.fromkeys(queues))

    def lacks_own_victims(self, session: Session) -> bool:
        """While its queue would hold more than it deserves, whatever others hold."""
        return not ends_within(session, self.claimant, [self.claimant.queue])
