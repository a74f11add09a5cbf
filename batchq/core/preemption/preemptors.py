"""Claimants: who may have others evicted, and what it would take for them to fit.

Two sorts. A *gang*: a Pending group that only limits refuse, or an InQueue one that no node takes;
it claims minMember pods, or nothing. *Extras*: pods beyond minMember of a group that runs already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.api.resources import Amounts, of_pod, total
from batchq.core.pending.eligibility import stops_of
from batchq.core.pending.equivalence import ClassSelection, PendingIterator
from batchq.core.pending.queue import select, standing_aside
from batchq.core.placement.elastic import (
    lacking_on_nodes,
    start_extras,
    waiting_extras,
    waits_behind,
)
from batchq.core.placement.gangs import bind_until_ready
from batchq.core.placement.placement import gang_of, slots_for
from batchq.core.placement.trial import waits_for_its_own
from batchq.core.preemption.pledges import enter_room
from batchq.core.preemption.protection import may_evict
from batchq.core.preemption.search import Fit, fit_of
from batchq.core.quota.head_reservation import keeping_off, room_against_gang
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.quota.queue_tree import ROOT
from batchq.core.session.pods import wanted_ordinals
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods

#: Whose refusals say that evictions for a group have to wait, since the budget of them is spent.
EVICTION_BUDGET = "hygiene"
#: A Pending group claims only if nothing else than a lack of room keeps it waiting.
_LACK = frozenset({Waiting.WAITING_FOR_QUOTA, Waiting.WAITING_FOR_RESOURCES})


@dataclass(frozen=True, slots=True)
class Claimants:
    """Groups that may have others evicted: some one by one, and some that wait alike."""

    groups: list[GroupState]
    alike: ClassSelection = field(default_factory=ClassSelection)

    def may_any(self, test: Callable[[GroupState], bool]) -> bool:
        """Return whether any of them may pass a test, which those that wait alike have passed."""
        return bool(self.alike) or any(map(test, self.groups))

    def by_queue(self, session: Session) -> dict[str, PendingIterator]:
        """Return the claimants of each queue, or of all where no queue comes before another."""
        in_queues = bool(session.plugins.points["queueOrder"])
        return self.alike.with_groups(
            self.groups,
            line_of=lambda queue: queue if in_queues else ROOT,
            key=session.group_key,
        )


class PodRequest(NamedTuple):
    """What all claimants of one kind (`kind_of`) have in common."""

    priority: int
    asks: Amounts
    #: Whether their priority class lets them take anything from others.
    may_evict: bool


#: Queue -> whether what is wished for in it could be had as things stand, as far as a glance tells;
#: None: nothing at all.
Hopes: TypeAlias = Callable[[str], Callable[[PodRequest], bool] | None]


def gang_claimants(session: Session, hopes: Hopes) -> Claimants:
    """Groups that wait for nothing but room; not those that are promised any.

    A group that is refused as not the first of its line, or for what no room helps, claims nothing.
    """
    if session.nodes.binding_refused is not None:
        return Claimants([])
    alone = {group.uid: group for group in session.busy()}
    for line in session.lines():
        alone |= line.singles
    alone |= {uid: session.groups[uid] for uid in session.refusals.told}
    groups = [
        group
        for group in alone.values()
        if not group.status.pledge.stands
        and group.queue in session.queues
        and _waits_for_room(session, group)
        and may_claim(session, group)
    ]
    alike = select(
        session,
        lambda name: _hope_in(session, hopes, name),
        may=lambda group: may_evict(session, group),
        lacks=_lacks_room,
    )
    return Claimants(groups, alike)


def may_claim(session: Session, group: GroupState) -> bool:
    """Whether it may take anything from others: by its priority class, and since neither its queue
    nor one above is stopped, which lets nothing more start in it.
    """
    return may_evict(session, group) and not stops_of(session, group)


def _hope_in(session: Session, hopes: Hopes, name: str) -> Callable[[GroupState], bool] | None:
    could_have = hopes(name)
    if could_have is None:
        return None
    return lambda group: could_have(
        PodRequest(group.priority, group.reservation, may_evict(session, group))
    )


def _lacks_room(told: Blockers) -> bool:
    return told.reasons <= _LACK


def _waits_for_room(session: Session, group: GroupState) -> bool:
    match group.phase:
        case PodGroupPhase.PENDING:
            verdicts = session.refusals.get(group.uid)
            if verdicts is not None:
                return _lack_room(verdicts)
            # An action that comes before enqueue goes by what was said in the session before, but
            # not for one that has been held, say, or told to try again later.
            return _lack_room(group.status.reasons) and not standing_aside(session, group)
        case PodGroupPhase.IN_QUEUE:
            return not group.is_external and not session.group_ready(group)
        case _:
            return False


def _lack_room(verdicts: tuple[Verdict, ...]) -> bool:
    if isinstance(verdicts, Blockers):
        return bool(verdicts) and verdicts.reasons <= _LACK
    return bool(verdicts) and all(verdict.reason in _LACK for verdict in verdicts)


def waits_for_more_than_room(session: Session, group: GroupState) -> list[Verdict]:
    """What keeps a Pending group waiting that no eviction would help; a spent budget is no such
    thing.
    """
    verdicts = session.refusals.get(group.uid, ()) if group.phase == PodGroupPhase.PENDING else ()
    return [one for one in verdicts if one.reason not in _LACK and one.plugin != EVICTION_BUDGET]


@dataclass(frozen=True, slots=True)
class GangClaim:
    """minMember pods of a group, admitted and placed."""

    claimant: GroupState

    def fit(self, session: Session) -> Fit:
        """Try it; see `batchq.core.preemption.search`."""
        group = self.claimant
        # What is reserved already is asked about, too: a described world may hold more than fits.
        asked = [] if _has_its_own(group) else session.refusals_at("admissible", group)
        verdicts = asked or over_any_limit(session, group)
        if verdicts:
            lacking = (verdict.resource for verdict in verdicts if verdict.resource)
            return Fit(fits=False, lacking=frozenset(lacking))
        return self._fit_on_nodes(session)

    def needs_nobody(self, session: Session) -> bool:
        """What is reserved and finds nodes is in nobody's way, whatever a described world holds."""
        return _has_its_own(self.claimant) and self._fit_on_nodes(session).fits

    def lacks_own_victims(self, session: Session) -> bool:
        """Never: only victims of two actions together depend on it."""
        return False

    def _fit_on_nodes(self, session: Session) -> Fit:
        group = self.claimant
        if group.is_external:
            return Fit(fits=True)
        gang = gang_of(session, group)
        with (
            keeping_off(session, room_against_gang(session, group)),
            Statement(session) as statement,
        ):
            # What is kept for it already is its own.
            enter_room(statement, group)
            if group.phase == PodGroupPhase.PENDING and waits_for_its_own(group, gang):
                return Fit(fits=False, lacking=lacking_on_nodes(session, gang))
            nothing_placed = not any(group.placed.values())
            if nothing_placed and any(slots_for(session, *part) < part[1] for part in gang):
                return Fit(fits=False, lacking=lacking_on_nodes(session, gang))
            start_gang(statement, group)
            if session.group_ready(group):
                return fit_of(group, _new_pods(session, group))
        return Fit(fits=False, lacking=lacking_on_nodes(session, gang))


def _has_its_own(group: GroupState) -> bool:
    """InQueue with a reservation. One that is Pending with it, since it had to pass its checks, is
    held against the limits once more.
    """
    return group.reserved and is_admitted(group)


def start_gang(statement: Statement, group: GroupState) -> None:
    """Admit a claimant that is not yet, and bind what finds room."""
    session = statement.session
    enter_room(statement, group)
    if group.phase == PodGroupPhase.PENDING:
        admit(statement, group, reservation=group.reservation)
        create_pods(statement, group, wanted_ordinals(group))
    if not group.is_external:
        bind_until_ready(session, statement, group)


def _new_pods(session: Session, group: GroupState) -> list[Pod]:
    """Pods that have been bound at this instant."""
    return [
        pod
        for pod in group.current()
        if pod.status.phase == PodPhase.BOUND and pod.status.bound_at == session.now_ms
    ]


# --- Pods beyond minMember ------------------------------------------------------------------------


def elastic_claimants(session: Session) -> Claimants:
    """Groups that run with fewer pods than they would like."""
    if session.nodes.binding_refused is not None:
        return Claimants([])
    return Claimants([group for group in session.busy() if is_elastic_claimant(session, group)])


def is_elastic_claimant(session: Session, group: GroupState) -> bool:
    """Return whether a group runs with fewer pods than it would like, and may claim more."""
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
        and may_claim(session, group)
    )


@dataclass(frozen=True, slots=True)
class ExtraClaim:
    """So many more pods of a group."""

    claimant: GroupState
    count: int

    def may_take_over(
        self,
        session: Session,
        other: GroupState,
        told: list[Victim],
        shortage: Shortage,
        *,
        have_ended: bool,
    ) -> bool:
        """Single pods leave to others what these count on."""
        return False

    def needs_nobody(self, session: Session) -> bool:
        """What fits without victims was bound by allocate, or soon is."""
        return False

    def lacks_own_victims(self, session: Session) -> bool:
        """Never: see `GangClaim`."""
        return False

    def fit(self, session: Session) -> Fit:
        """Try it; see `batchq.core.preemption.search`."""
        group = self.claimant
        with Statement(session) as statement:
            bound, lacking = start_extras(statement, group, self.count)
            fitting = total(of_pod(pod.spec.requests) for pod in bound)
            if len(bound) == self.count:
                return replace(fit_of(group, bound), fitting=fitting)
        return Fit(fits=False, lacking=lacking, fitting=fitting)
