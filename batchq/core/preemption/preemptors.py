"""Preemptors: which groups may evict others, and what they need to fit.

There are two kinds. A *gang* is a Pending group refused only by limits, or an InQueue group that no
nodes take; it requests minMember pods or nothing. *Extras* are pods beyond minMember of a group
that runs already.
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
from batchq.core.pending.queue import out_of_line_refusals, select
from batchq.core.placement.elastic import (
    lacking_on_nodes,
    start_extras,
    waiting_extras,
    waits_behind,
)
from batchq.core.placement.gangs import bind_until_ready
from batchq.core.placement.placement import gang_of, slots_for, waits_for_its_own
from batchq.core.preemption.pledges import release_to
from batchq.core.preemption.protection import EVICTION_BUDGET, may_evict
from batchq.core.preemption.search import Fit, Takeover, fit_of
from batchq.core.quota.head_reservation import keeping_off, reserved_against_gang
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.quota.queue_tree import ROOT
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, wanted_ordinals

#: A Pending group is a preemptor only if it waits for no other reason than lack of capacity.
_LACK = frozenset({Waiting.WAITING_FOR_QUOTA, Waiting.WAITING_FOR_RESOURCES})


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


def gang_preemptors(session: Session, prefilter: VictimPrefilter) -> Preemptors:
    """Return the groups that wait only for capacity, without those that have a pledge.

    A group that is refused because it is not first in line, or for a reason that capacity does not
    resolve, is no preemptor.
    """
    if session.nodes.binding_refused is not None:
        return Preemptors([])
    alone = {group.uid: group for group in session.busy()}
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
    alike = select(
        session,
        lambda name: _group_test(session, prefilter, name),
        may=lambda group: may_evict(session, group),
        lacks=_lack_capacity,
    )
    return Preemptors(groups, alike)


def may_preempt(session: Session, group: GroupState) -> bool:
    """Return whether the group may evict: its priority class allows it, and neither its queue nor
    one above is stopped; a stopped queue starts no more groups.
    """
    return may_evict(session, group) and not stops_of(session, group)


def _group_test(
    session: Session, prefilter: VictimPrefilter, name: str
) -> Callable[[GroupState], bool] | None:
    could_have = prefilter(name)
    if could_have is None:
        return None
    return lambda group: could_have(PodRequest(group.priority, group.reservation))


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
    """Return the verdicts on a Pending group that no eviction resolves; a spent budget is not one
    of them.
    """
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

    def needs_no_victims(self, session: Session) -> bool:
        """Return whether the group has a reservation and finds nodes, so that it needs no victims.
        Limits are not checked.
        """
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
                return Fit(fits=False, lacking=lacking_on_nodes(session, gang))
            start_gang(statement, group)
            if session.group_ready(group):
                return fit_of(group, _new_pods(session, group))
        return Fit(fits=False, lacking=lacking_on_nodes(session, gang))


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


# --- Pods beyond minMember ------------------------------------------------------------------------


def elastic_preemptors(session: Session) -> Preemptors:
    """Return the running groups that want more pods and may evict for them."""
    if session.nodes.binding_refused is not None:
        return Preemptors([])
    return Preemptors([group for group in session.busy() if is_elastic_preemptor(session, group)])


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

    def needs_no_victims(self, session: Session) -> bool:
        """Return False: pods that fit without victims are bound by allocate."""
        return False

    def lacks_own_victims(self, session: Session) -> bool:
        """Return False; see `GangRequest`."""
        return False

    def fit(self, session: Session) -> Fit:
        """Try the request; see `batchq.core.preemption.search`."""
        group = self.preemptor
        with Statement(session) as statement:
            bound, lacking = start_extras(statement, group, self.count)
            fitting = total(of_pod(pod.spec.requests) for pod in bound)
            if len(bound) == self.count:
                return replace(fit_of(group, bound), fitting=fitting)
        return Fit(fits=False, lacking=lacking, fitting=fitting)
