"""The scope of a gang's request: victims from its own queue (preempt), from borrowers (reclaim), or
from both.

preempt takes from the preemptor's own queue, whatever that holds afterwards. reclaim takes from
queues above what they deserve, if the preemptor's queue ends within what it deserves. If the
victims of one action do not suffice, those of the other may complete them, if the preemptor's queue
ends within what it deserves; the action that comes first in the configuration tries this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from batchq.api.resources import Amounts, minus, of_pod, total
from batchq.api.transaction import queue_scope
from batchq.core.pending.eligibility import holds_off
from batchq.core.placement.topology import choose_domain, domains_for, may_choose
from batchq.core.preemption.candidates import FIRST_SEARCH, SearchTerms, pledged_below
from batchq.core.preemption.preemptors import ExtraRequest, GangRequest
from batchq.core.preemption.protection import vote
from batchq.core.preemption.search import (
    Decision,
    PreemptionRequest,
    Takeover,
    find_victims,
)
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
    """Return what an action would do for a gang; None if nothing.

    A group's request is part of the demand once it has reserved quota. An ineligible group is
    therefore tried with its request added to the demand; otherwise it could reserve and give up
    again and again.
    """
    if group.queue not in session.queues:
        return None
    if not group.record.spec.topology or not may_choose(group):
        return _propose_there(session, group, action, terms)
    for domain in reversed(domains_for(session, group)):
        group.confine(domain)
        if (found := _propose_there(session, group, action, terms)) is not None:
            return found
    choose_domain(session, group)
    return None


def _propose_there(
    session: Session, group: GroupState, action: str, terms: SearchTerms
) -> tuple[PreemptionRequest, Decision] | None:
    """Return the same for the nodes to which the group is confined."""
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
    request: PreemptionRequest | None = (
        within_queue(session, group) if action == PREEMPT else from_others(session, group, terms)
    )
    if request is not None:
        queues = _victims_queues(session, group, action)
        if (decision := find_victims(session, request, queues, terms=terms)) is not None:
            return request, decision
    return _by_both(session, group, action, terms)


def within_queue(session: Session, group: GroupState) -> WithinQueue | None:
    """Return the request for victims in the group's own queue; None if it has no victims there."""
    policy = session.queues[group.queue].record.spec.preemption
    if policy.within_queue == "Never" or not has_victims(session, group):
        return None
    return WithinQueue(group)


def from_others(session: Session, group: GroupState, terms: SearchTerms) -> GangFromOthers | None:
    """Return the request for victims in borrowing queues; None if the group's queue may not reclaim
    for it.
    """
    need = minus(group.reservation, session.ledger.charged(group))
    if not may_reclaim(session, group, need, group.reservation, terms):
        return None
    if not _borrowers(session).exist_beside(group.queue):
        return None
    if fits_in_head_reservations(session, GangRequest(group)):
        return None
    return GangFromOthers(preemptor=group, need=need, asked=group.reservation)


def fits_in_head_reservations(session: Session, request: GangRequest | ExtraRequest) -> bool:
    """Return whether the request would start now without the head reservations of other queues.
    That capacity is idle until the heads start, and no work is thrown away to get as much again.
    """
    if not session.ledger.head_reservations:
        return False
    with session.ledger.regarding(()):
        return request.fit(session).fits


def _by_both(
    session: Session, group: GroupState, action: str, terms: SearchTerms
) -> tuple[PreemptionRequest, Decision] | None:
    """Return a decision with the action's own victims and those of the other action."""
    order = [name for name in session.actions if name in POINTS]
    if set(order) != set(POINTS) or order[0] != action:
        return None
    policy = session.queues[group.queue].record.spec.preemption
    if "Never" in (policy.within_queue, policy.reclaim) or not has_victims(session, group):
        return None
    if not _borrowers(session).exist_beside(group.queue) or not _could_end_within(session, group):
        return None
    if fits_in_head_reservations(session, GangRequest(group)):
        return None
    request = FromBoth(group)
    first, then = (_victims_queues(session, group, name) for name in order)
    decision = find_victims(session, request, first, then, terms=terms)
    return None if decision is None else (request, decision)


def _victims_queues(session: Session, group: GroupState, action: str) -> list[str]:
    return [group.queue] if action == PREEMPT else _borrowers(session).givers(group.queue)


def _borrowers(session: Session) -> Borrowers:
    return borrowers_of(session, POINTS[RECLAIM])


def has_victims(session: Session, preemptor: GroupState) -> bool:
    """Return whether its own queue has any possible victims; usually it has none."""
    return any(
        _is_lower(other, preemptor)
        for other in session.ledger.holding.get(preemptor.queue, {}).values()
    )


def _is_lower(other: GroupState, preemptor: GroupState) -> bool:
    if other.priority == preemptor.priority:
        return other.is_elastic and not other.is_array
    return other.priority < preemptor.priority


def _could_end_within(session: Session, group: GroupState) -> bool:
    """Return whether its queue could end within what it deserves if all of its own victims left."""
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
    """Return whether its queue may reclaim, and could end within what it deserves or may borrow."""
    queue = session.queues.get(group.queue)
    if queue is None or queue.record.spec.preemption.reclaim == "Never":
        return False
    if borrows(session, group) or not ends_above(session, group.queue, need, asked):
        return True
    # Pledges of lower-ranked preemptors in the same queue may be taken over.
    given = pledged_below(session, group, terms)
    return bool(given) and not ends_above(session, group.queue, need, asked, given)


def borrows(session: Session, group: GroupState) -> bool:
    """Return whether its queue may reclaim while it holds more than it deserves."""
    return session.queues[group.queue].record.spec.preemption.borrowing != "Never"


def ends_above(
    session: Session,
    queue: str,
    need: Amounts,
    asked: Iterable[str],
    given: Amounts | None = None,
) -> bool:
    """Return whether a queue would hold more than it deserves in a requested dimension, if it grew
    by `need` and gave back `given`.
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
    """Return whether these queues, its own or above it, hold no more than they deserve with the
    group's whole request and without the leaving pods.
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
    """Return the group's queue and its ancestors below the lowest one shared with any of the
    others.
    """
    return list(
        dict.fromkeys(
            name
            for other in dict.fromkeys(others)
            if other != group.queue
            for name in session.tree.divide(group.queue, other)[0]
        )
    )


def _agrees(session: Session, preemptor: GroupState, victim: Victim, shortage: Shortage) -> bool:
    """Return whether the policies let the victim be taken: by preempt from the same queue, else by
    reclaim.
    """
    action = PREEMPT if victim.group.queue == preemptor.queue else RECLAIM
    return vote(session, POINTS[action], preemptor, victim, shortage)


def _may_take_over(session: Session, request: PreemptionRequest, left: Takeover) -> bool:
    """Return whether a request may take over a pledge of another queue's preemptor. What the
    victims leave counts as lent and not as idle, so the preemptor's own queue must end within what
    it deserves; otherwise it would have to give it back.
    """
    preemptor, stopping = request.preemptor, left.stopping
    queues = _below(session, preemptor, [left.preemptor.queue])
    if (stopping or left.have_ended) and not ends_within(session, preemptor, queues, stopping):
        return False
    return _may_take_stopping(session, request, left)


def _may_take_stopping(session: Session, request: PreemptionRequest, left: Takeover) -> bool:
    """Return whether a request may take victims that are being stopped. A preemptor that may not
    evict yet leaves them to another that may.
    """
    if left.stopping and holds_off(session, request.preemptor):
        return False
    return all(request.may_take(session, victim, left.shortage) for victim in left.stopping)


@dataclass(frozen=True, slots=True)
class WithinQueue(GangRequest):
    """A gang's request for victims in its own queue. Whatever the queue borrows otherwise is idle,
    and may be borrowed.
    """

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return whether the victim is in the same queue and the policies agree."""
        return victim.group.queue == self.preemptor.queue and vote(
            session, POINTS[PREEMPT], self.preemptor, victim, shortage
        )

    def may_take_over(self, session: Session, left: Takeover) -> bool:
        """See `_may_take_over`."""
        return _may_take_over(session, self, left)

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Return True: no other queue has given anything, so the end of its own queue does not
        matter.
        """
        return True


class FromOthers:
    """The rule for gangs and single pods that take from other queues; `need` is the growth of the
    preemptor's queue.
    """

    preemptor: GroupState
    need: Amounts
    asked: Amounts

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return whether the victim is in another queue, the policies agree, and the preemptor's
        queue borrows only as its own policy allows.
        """
        group = victim.group
        if group.queue == self.preemptor.queue:
            return False
        if not self._is_within(session, victim) and not self._may_borrow(session, victim):
            return False
        return vote(session, POINTS[RECLAIM], self.preemptor, victim, shortage)

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Return True: this is checked with each victim, and other queues do not change the
        result.
        """
        return True

    def _is_within(self, session: Session, victim: Victim) -> bool:
        mine, _ = session.tree.divide(self.preemptor.queue, victim.group.queue)
        return not any(ends_above(session, name, self.need, self.asked) for name in mine)

    def _may_borrow(self, session: Session, victim: Victim) -> bool:
        most = session.queues[self.preemptor.queue].record.spec.preemption.borrowing
        priority = victim.group.priority
        return most != "Never" and priority < self.preemptor.priority and priority <= most


@dataclass(frozen=True)
class GangFromOthers(FromOthers, GangRequest):
    """A gang's request for victims in queues that hold more than they deserve."""

    need: Amounts
    asked: Amounts

    def may_take_over(self, session: Session, left: Takeover) -> bool:
        """See `_may_take_over`."""
        return _may_take_over(session, self, left)


@dataclass(frozen=True, slots=True)
class FromBoth(GangRequest):
    """A gang's request for victims in its own queue and on others together."""

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return whether the rule of the victim's action allows it; `ends_well` checks the queues
        at last.
        """
        return _agrees(session, self.preemptor, victim, shortage)

    def may_take_over(self, session: Session, left: Takeover) -> bool:
        """Return whether the victims may be taken; `ends_well` checks the queues at last."""
        return _may_take_stopping(session, self, left)

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Return whether its queue, and those above it below the common ancestor with each victim's
        queue, end within what they deserve.
        """
        others = [victim.group.queue for victim in victims]
        queues = [self.preemptor.queue, *_below(session, self.preemptor, others)]
        return ends_within(session, self.preemptor, dict.fromkeys(queues))

    def lacks_own_victims(self, session: Session) -> bool:
        """Return whether its queue holds more than it deserves, whatever other queues give."""
        return not ends_within(session, self.preemptor, [self.preemptor.queue])
