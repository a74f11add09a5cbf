"""Preemptors: which groups may evict others, what they need to fit, and whose pods they may take.

There are two kinds. A *gang* is a Pending group refused only by limits, or an InQueue group that no
nodes take; it requests minMember pods or nothing. *Extras* are pods beyond minMember of a group
that runs already.

The *scope* of a gang's request: preempt takes victims from the preemptor's own queue, whatever that
holds afterwards. reclaim takes from queues above what they deserve, if the preemptor's queue ends
within what it deserves. If the victims of one action do not suffice, those of the other may
complete them, if the preemptor's queue ends within what it deserves; the action that comes first in
the configuration tries this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.api.resources import Amounts, minus, of_pod, total
from batchq.api.transaction import queue_scope
from batchq.core.eligibility import holds_off, stops_of
from batchq.core.equivalence import ClassSelection, PendingIterator, UnmetRequests
from batchq.core.kept_capacity import release_to, standing_pledges
from batchq.core.pending_queue import is_in_class, out_of_line_refusals
from batchq.core.placement.elastic import (
    lacking_on_nodes,
    short_of_extras,
    start_extras,
    waiting_extras,
    waits_behind,
)
from batchq.core.placement.placement import bind_until_ready, gang_of, slots_for, waits_for_its_own
from batchq.core.placement.topology import choose_domain, domains_for, may_choose
from batchq.core.preemption.candidates import FIRST_SEARCH, Needs, SearchTerms, outranked_by
from batchq.core.preemption.protection import EVICTION_BUDGET, may_evict, may_lose_pods, vote
from batchq.core.preemption.search import (
    Decision,
    Fit,
    PreemptionRequest,
    Takeover,
    find_victims,
    fit_of,
)
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import (
    FAIR_SHARES,
    ask_for,
    comparable,
    deserved_of_queues,
    is_asked_for,
)
from batchq.core.quota.head_reservation import keeping_off, reserved_against_gang
from batchq.core.quota.limit_checks import claim_of, over_any_limit
from batchq.core.quota.selector import BORROWERS, Borrowers, borrowers_of
from batchq.core.session.session import Key, Session, StateKey
from batchq.core.session.session_nodes import Gang
from batchq.core.session.state import EquivalenceClass, GroupState, Shortage, Victim, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, wanted_ordinals

#: A Pending group is a preemptor only if it waits for no other reason than lack of capacity.
_LACK = frozenset({Waiting.WAITING_FOR_QUOTA, Waiting.WAITING_FOR_RESOURCES})
#: One group, and the classes whose requests to evict are equal.
_Kind: TypeAlias = tuple[GroupState, Mapping[Key, EquivalenceClass]]


@dataclass(frozen=True, slots=True)
class Preemptors:
    """The preemptors: single groups, and equivalence classes of waiting groups."""

    groups: list[GroupState]
    alike: ClassSelection = field(default_factory=ClassSelection)

    def may_any(self, test: Callable[[GroupState], bool]) -> bool:
        """Return whether any preemptor may pass a test; the classes have passed it already."""
        return bool(self.alike) or any(map(test, self.groups))

    def by_queue(self, session: Session) -> dict[str, PendingIterator]:
        """Return the preemptors of each queue, or all together if no plugin orders queues."""
        in_queues = bool(session.plugins.points["queueOrder"])
        return self.alike.with_groups(
            self.groups,
            line_of=lambda queue: queue if in_queues else ROOT,
            key=session.group_key,
        )


class PodRequest(NamedTuple):
    """What all preemptors of one kind (`kind_of`) have in common."""

    priority: int
    asks: Amounts


#: Queue -> a cheap test whether a request in it could be met; None if no request could.
VictimPrefilter: TypeAlias = Callable[[str], Callable[[PodRequest], bool] | None]


def gang_preemptors(session: Session, prefilter: VictimPrefilter, action: str) -> Preemptors:
    """Return the groups that wait only for capacity, without those that have a pledge.

    A group that is refused because it is not first in line, or for a reason that capacity does not
    resolve, is no preemptor.
    """
    if session.nodes.binding_refused is not None:
        return Preemptors([])
    # Groups that run with all of their pods wait for nothing.
    alone = {group.uid: group for group in session.unsettled()}
    for line in session.lines():
        alone |= line.singles
    alone |= {uid: session.groups[uid] for uid in session.refusals.own}
    groups = [
        group
        for group in alone.values()
        if not group.status.pledge.stands
        and group.queue in session.queues
        and _waits_for_capacity(session, group)
        and may_preempt(session, group)
    ]
    unmet = session.carried.unmet[action]
    # A test for reclaim compares sums with what queues deserve, without their pledges.
    unmet.begin(
        session.pending.generation,
        session.ledger.versions,
        deserved_of_queues(session) if action == RECLAIM else {},
        {*session.ledger.moved, *(group.queue for group, _ in standing_pledges(session))},
    )
    return Preemptors(groups, _select_classes(session, prefilter, unmet))


def _select_classes(
    session: Session, prefilter: VictimPrefilter, unmet: UnmetRequests
) -> ClassSelection:
    """Return the classes of queues in which any request could be met. One group is tested for all
    with the same request.
    """
    tried: list[EquivalenceClass] = []
    later: list[EquivalenceClass] = []
    for name, queue in session.queues.items():
        kinds = queue.line.kinds
        if not kinds or unmet.still_holds(name, queue.line):
            continue
        could_have = prefilter(name)
        if could_have is None:
            continue
        likely: list[_Kind] = []
        others: list[_Kind] = []
        for alike in kinds.values():
            first = next(iter(alike.values())).first
            request = PodRequest(first.priority, first.reservation)
            (likely if could_have(request) else others).append((first, alike))
        if likely:
            tried += _lacking_capacity(session, likely)
            later += _lacking_capacity(session, others)
        else:
            unmet.note(name, queue.line)
    return ClassSelection(tried, later)


def _lacking_capacity(session: Session, kinds: Iterable[_Kind]) -> list[EquivalenceClass]:
    """Return the classes that may evict and wait only for capacity, without those of which every
    member was changed or refused alone in this session: a queue competes by the age of groups that
    still wait.
    """
    alone = session.refusals.own
    return [
        one
        for first, alike in kinds
        if may_evict(session, first)
        for one in alike.values()
        if one.shown
        and _lack_capacity(one.shown)
        and any(is_in_class(group) and group.uid not in alone for group in one.members)
    ]


def may_preempt(session: Session, group: GroupState) -> bool:
    """Return whether the group may evict: its priority class allows it, and neither its queue nor
    one above is stopped; a stopped queue starts no more groups.
    """
    return may_evict(session, group) and not stops_of(session, group)


def _waits_for_capacity(session: Session, group: GroupState) -> bool:
    match group.phase:
        case PodGroupPhase.PENDING:
            verdicts = session.refusals.get(group.uid)
            if verdicts is not None:
                return _lack_capacity(verdicts)
            # An action configured before enqueue uses the verdicts of the previous session, unless
            # the group is ineligible now, for example held or backing off.
            return _lack_capacity(group.status.reasons) and not out_of_line_refusals(session, group)
        case PodGroupPhase.IN_QUEUE:
            return not group.is_external and not session.group_ready(group)
        case _:
            return False


def _lack_capacity(verdicts: tuple[Verdict, ...]) -> bool:
    if isinstance(verdicts, Blockers):
        return bool(verdicts) and verdicts.reasons <= _LACK
    return bool(verdicts) and all(verdict.reason in _LACK for verdict in verdicts)


def verdicts_beyond_capacity(session: Session, group: GroupState) -> list[Verdict]:
    """Return the verdicts on a Pending group that no eviction resolves, spent budgets aside."""
    verdicts = session.refusals.get(group.uid, ()) if group.phase == PodGroupPhase.PENDING else ()
    return [one for one in verdicts if one.reason not in _LACK and one.plugin != EVICTION_BUDGET]


@dataclass(frozen=True, slots=True)
class GangRequest:
    """minMember pods of a group, admitted and placed."""

    preemptor: GroupState

    def fit(self, session: Session) -> Fit:
        """Try the request; see `batchq.core.preemption.search`."""
        group = self.preemptor
        # Limits apply to existing reservations too, because a snapshot described by hand may exceed
        # them.
        asked = [] if _has_its_own(group) else session.refusals_at("admissible", group)
        verdicts = asked or over_any_limit(session, group)
        if verdicts:
            lacking = (verdict.resource for verdict in verdicts if verdict.resource)
            return Fit(fits=False, lacking=frozenset(lacking))
        return self._fit_on_nodes(session)

    def needs(self, session: Session) -> Needs:
        """Return its gang and its claim; no gang if it needs no nodes, or others of its pods may
        serve instead.
        """
        group = self.preemptor
        may_vary = group.given_shape.has_choice and any(group.placed.values())
        gang = () if group.is_external or may_vary else gang_of(session, group)
        return Needs(gang, claim_of(group))

    def needs_no_victims(self, session: Session) -> bool:
        """Return whether it has a reservation and finds nodes; limits are not checked."""
        return _has_its_own(self.preemptor) and self._fit_on_nodes(session).fits

    def lacks_own_victims(self, session: Session) -> bool:
        """Return False: only a request for victims of both actions depends on its own victims."""
        return False

    def _fit_on_nodes(self, session: Session) -> Fit:
        group = self.preemptor
        if group.is_external:
            return Fit(fits=True)
        gang = gang_of(session, group)
        with (
            keeping_off(session, reserved_against_gang(session, group)),
            Statement(session) as statement,
        ):
            # The capacity kept for this group is available to it.
            release_to(statement, group)
            if group.phase == PodGroupPhase.PENDING and waits_for_its_own(group, gang):
                return Fit(fits=False, lacking=lacking_on_nodes(session, gang))
            nothing_placed = not any(group.placed.values())
            if nothing_placed and any(slots_for(session, *part) < part[1] for part in gang):
                return _without_places(session, gang)
            start_gang(statement, group)
            if session.group_ready(group):
                return fit_of(session, group, _new_pods(session, group))
        return _without_places(session, gang)


def _without_places(session: Session, gang: Gang) -> Fit:
    return Fit(fits=False, lacking=lacking_on_nodes(session, gang), unplaced=gang)


def _has_its_own(group: GroupState) -> bool:
    """Return whether the group is InQueue with a reservation. A Pending group with a reservation,
    which had to pass its checks, is compared with the limits again.
    """
    return group.reserved and is_admitted(group)


def start_gang(statement: Statement, group: GroupState) -> None:
    """Admit a preemptor if necessary, and bind the pods that find nodes."""
    session = statement.session
    release_to(statement, group)
    if group.phase == PodGroupPhase.PENDING:
        admit(statement, group, reservation=group.reservation)
        create_pods(statement, group, wanted_ordinals(group))
    if not group.is_external:
        bind_until_ready(session, statement, group)


def _new_pods(session: Session, group: GroupState) -> list[Pod]:
    """Return the pods that were bound at this instant."""
    return [
        pod
        for pod in group.current()
        if pod.status.phase == PodPhase.BOUND and pod.status.bound_at == session.now_ms
    ]


def elastic_preemptors(session: Session) -> Preemptors:
    """Return the running groups that want more pods and may evict for them."""
    if session.nodes.binding_refused is not None:
        return Preemptors([])
    groups = [group for group in session.unsettled() if is_elastic_preemptor(session, group)]
    return Preemptors(groups)


def is_elastic_preemptor(session: Session, group: GroupState) -> bool:
    """Return whether a group runs with fewer pods than it wants and may evict for more."""
    return (
        group.is_elastic
        and group.queue in session.queues
        and is_admitted(group)
        and not group.is_external
        and not group.status.pledge.stands
        and group.queue in session.queues
        and session.group_ready(group)
        and not waits_behind(session, group)
        and next(iter(waiting_extras(session, group)), None) is not None
        and may_preempt(session, group)
    )


@dataclass(frozen=True, slots=True)
class ExtraRequest:
    """The request of a group for `count` more pods."""

    preemptor: GroupState
    count: int

    def may_take_over(self, session: Session, left: Takeover) -> bool:
        """Return False: single pods do not take over the pledges of others."""
        return False

    def needs(self, session: Session) -> None:
        """Return None: fewer pods than it asks for may do."""

    def needs_no_victims(self, session: Session) -> bool:
        """Return False: pods that fit without victims are bound by allocate."""
        return False

    def lacks_own_victims(self, session: Session) -> bool:
        """Return False; see `GangRequest`."""
        return False

    def fit(self, session: Session) -> Fit:
        """Try the request; see `batchq.core.preemption.search`."""
        group = self.preemptor
        if (shortage := short_of_extras(session, group, self.count)) is not None:
            fitting, lacking = shortage
            return Fit(fits=False, lacking=lacking, fitting=fitting)
        with Statement(session) as statement:
            bound, lacking = start_extras(statement, group, self.count)
            fitting = total(of_pod(pod.spec.requests) for pod in bound)
            if len(bound) == self.count:
                return replace(fit_of(session, group, bound), fitting=fitting)
        return Fit(fits=False, lacking=lacking, fitting=fitting)


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
    """Return the request for victims in borrowing queues; None if it may not reclaim."""
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


class HeldPriorities:
    """The priorities of the groups that hold anything, by queue, kept up to date in a session."""

    def __init__(self) -> None:
        #: Queue -> (priority, whether it may lose pods to groups of equal priority) -> groups.
        self._counts: dict[str, Counter[tuple[int, bool]]] = {}
        self._counted: dict[str, tuple[int, bool]] = {}
        self._seen = -1

    def any_below(self, session: Session, queue: str, priority: int) -> bool:
        """Return whether any group of a queue may lose something to one of this priority."""
        self._follow(session)
        return any(
            one < priority or (gives and one == priority)
            for one, gives in self._counts.get(queue, ())
        )

    def _follow(self, session: Session) -> None:
        holding, changed_groups = session.ledger.holding, session.ledger.changed_groups
        if self._seen < 0:
            news = [group for groups in holding.values() for group in groups.values()]
        else:
            news = list({group.uid: group for group in changed_groups[self._seen :]}.values())
        self._seen = len(changed_groups)
        for group in news:
            counts = self._counts.setdefault(group.queue, Counter())
            if (former := self._counted.pop(group.uid, None)) is not None:
                counts[former] -= 1
                if not counts[former]:
                    del counts[former]
            if group.uid in holding.get(group.queue, ()):
                kind = group.priority, _gives_to_equals(session, group)
                self._counted[group.uid] = kind
                counts[kind] += 1


HELD_PRIORITIES = StateKey("held priorities", lambda _: HeldPriorities())


def has_victims(session: Session, preemptor: GroupState) -> bool:
    """Return whether its own queue has any possible victims; usually it has none."""
    return session.get(HELD_PRIORITIES).any_below(session, preemptor.queue, preemptor.priority)


def _gives_to_equals(session: Session, group: GroupState) -> bool:
    """Return whether a group may lose pods to a preemptor of equal priority."""
    return not group.is_array and may_lose_pods(session, group, POINTS[PREEMPT])


def _is_lower(session: Session, other: GroupState, preemptor: GroupState) -> bool:
    if other.priority == preemptor.priority:
        return _gives_to_equals(session, other)
    return other.priority < preemptor.priority


def _could_end_within(session: Session, group: GroupState) -> bool:
    """Return whether its queue could end within what it deserves if all of its own victims left."""
    ledger, scope = session.ledger, queue_scope(group.queue)
    deserved = deserved_of_queues(session).get(group.queue, {})
    own = ledger.counts_for(group, scope)
    lower = [
        ledger.counts_for(other, scope)
        for other in ledger.holding.get(group.queue, {}).values()
        if other is not group and _is_lower(session, other, group)
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
    given = _pledged_below(session, group, terms)
    return bool(given) and not ends_above(session, group.queue, need, asked, given)


def _pledged_below(session: Session, preemptor: GroupState, terms: SearchTerms) -> Amounts:
    """Return what pledged preemptors behind this one add to the sum of its queue."""
    scope = queue_scope(preemptor.queue)
    return total(
        session.ledger.counts_for(other, scope)
        for other in outranked_by(session, preemptor, terms)
        if other.queue == preemptor.queue
    )


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
    """Return the group's queue and its ancestors below the lowest one shared with others."""
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
    """A gang's request for victims in its own queue, which may borrow what is idle."""

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return whether the victim is in the same queue and the policies agree."""
        return victim.group.queue == self.preemptor.queue and vote(
            session, POINTS[PREEMPT], self.preemptor, victim, shortage
        )

    def may_take_over(self, session: Session, left: Takeover) -> bool:
        """See `_may_take_over`."""
        return _may_take_over(session, self, left)

    def ends_well(self, session: Session, victims: Iterable[Victim]) -> bool:
        """Return True: no other queue has given anything, so the end of its own queue does not
        matter.
        """
        return True


class FromOthers:
    """The rule for requests to other queues; `need` is the growth of the preemptor's queue."""

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

    def ends_well(self, session: Session, victims: Iterable[Victim]) -> bool:
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

    def ends_well(self, session: Session, victims: Iterable[Victim]) -> bool:
        """Return whether its queue, and those above it below the common ancestor with each victim's
        queue, end within what they deserve.
        """
        others = [victim.group.queue for victim in victims]
        queues = [self.preemptor.queue, *_below(session, self.preemptor, others)]
        return ends_within(session, self.preemptor, dict.fromkeys(queues))

    def lacks_own_victims(self, session: Session) -> bool:
        """Return whether its queue holds more than it deserves, whatever other queues give."""
        return not ends_within(session, self.preemptor, [self.preemptor.queue])
