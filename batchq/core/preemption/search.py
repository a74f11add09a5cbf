"""The search for victims: a trial on the session's own state, which is always undone.

The invariant: no victim is evicted unless the preemptor then reaches its minMember.

Victims leave the state one by one, as if their processes had ended; after each, the preemptor is
tried against the limits and the nodes. Victims that prove unnecessary are filled back, the last
chosen first. The idea, including the fill-back, is Kueue's (preemption.go, `minimalPreemptions`).

Before new victims, the preemptor may take over the pledges of preemptors that rank behind it
(batchq.core.preemption.candidates): victims that are being stopped end anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple, Protocol

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.resources import Amounts, of_pod, plus, total
from batchq.api.transaction import POD_GROUPS
from batchq.core.kept_capacity import (
    PLEDGED_CAPACITY,
    amounts_by_node,
    drop_group,
    end_pledge,
    keep_places_again,
    release_places,
    resume_pledge,
    update_hold,
    victims_left,
    withdraw_pledge,
)
from batchq.core.placement.placement import slots_for, usable_nodes
from batchq.core.preemption.candidates import (
    FIRST_SEARCH,
    UPPER_BOUND,
    Needs,
    Pool,
    SearchTerms,
    ending,
    is_there,
    outranked_by,
    start_of,
    stopping_and_running,
    undoable,
)
from batchq.core.quota.ledger import counted
from batchq.core.quota.limit_checks import keeps_guarantees_later
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import Gang, KeptPlaces, NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, Shortage, Victim
from batchq.core.session.statement import Statement

Kind = Literal["undo", "ending", "pledge", "pod", "group"]
#: How a victim leaves in a trial.
Leave = Callable[[Statement, Victim], None]


@dataclass(frozen=True, slots=True)
class Taken:
    """A victim of a trial, with the former state of its group and the places kept for it."""

    kind: Kind
    victim: Victim
    former: tuple[PodGroupStatus, dict[str, Pod]]
    kept: KeptPlaces | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The state of a trial: whether the request fits, and then the amounts that it takes by node
    and the node of each pod; otherwise the dimensions that it lacks.
    """

    fits: bool
    by_node: dict[str, Amounts] = field(default_factory=dict)
    plan: dict[str, str] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()
    #: For a request for single pods, the requests of those pods that fit.
    fitting: Amounts = field(default_factory=dict)
    #: The gang for which there are not enough places on nodes, if nothing else refuses it.
    unplaced: Gang = ()

    def shortage(self, leaving: Mapping[str, Amounts] | None = None) -> Shortage:
        """Return what the preemptor lacks; for `leaving` see `Shortage`."""
        return Shortage(self.lacking, self.fitting, {} if leaving is None else leaving)


class Takeover(NamedTuple):
    """What the victims of another preemptor leave: victims that are being stopped, or that have
    left already if all `have_ended`.
    """

    preemptor: GroupState
    stopping: Sequence[Victim]
    shortage: Shortage
    have_ended: bool


class PreemptionRequest(Protocol):
    """The request of a preemptor, and the victims that an action may take for it."""

    @property
    def preemptor(self) -> GroupState:
        """Return the preemptor."""

    def fit(self, session: Session) -> Fit:
        """Try the request on the current session; leaves no trace."""

    def needs(self, session: Session) -> Needs | None:
        """Return what the request needs at least; None if that is not known."""

    def needs_no_victims(self, session: Session) -> bool:
        """Return whether the request is met already and only needs placement."""

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return what the action's own rule and the policies' votes say now."""

    def may_take_over(self, session: Session, left: Takeover) -> bool:
        """Return whether the request may use the victims of another, whose pledge is suspended."""

    def ends_well(self, session: Session, victims: Iterable[Victim]) -> bool:
        """Return whether the action allows the resulting state, once the request fits."""

    def lacks_own_victims(self, session: Session) -> bool:
        """Return whether no victims of other queues could make the request end well."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Victims that suffice, none of them unnecessary.

    `undone` is what this session had done and undoes; `ending` are pods that stop anyway;
    `outranked` are preemptors ranked behind this one whose pledges it takes over.
    """

    by_node: dict[str, Amounts]
    plan: dict[str, str]
    undone: list[Taken]
    ending: list[Victim]
    victims: list[Victim]
    outranked: list[Taken] = field(default_factory=list)


def find_victims(
    session: Session,
    request: PreemptionRequest,
    queues: list[str],
    completing: list[str] | None = None,
    *,
    terms: SearchTerms = FIRST_SEARCH,
) -> Decision | None:
    """Return victims in these queues that meet the request, completed by victims of the queues
    `completing`. Return None if they would not suffice, or if the request fits without them once
    the victims of other preemptors have ended. The session is unchanged afterwards.
    """
    if request.needs_no_victims(session):
        return Decision(by_node={}, plan={}, undone=[], ending=[], victims=[])
    stages = [queues, completing or []]
    bound, tried = session.get(UPPER_BOUND), session.get(VICTIMS_TRIED)
    before, everywhere = tried.victims, [name for stage in stages for name in stage]
    needs = request.needs(session)
    if needs is not None and not bound.may_suffice(session, request.preemptor, everywhere, needs):
        return None
    with Statement(session) as trial:
        search = _SearchTrial(session, trial, request, terms)
        decision = search.run(stages)
    if decision is None and search.unplaced:
        # In their usual order, victims may leave a little free on each of many nodes.
        with Statement(session) as trial:
            decision = _SearchTrial(session, trial, request, terms).run(stages, search.unplaced)
    if decision is None:
        bound.failed_trials += tried.victims - before
    takes = decision is not None and (decision.victims or decision.outranked)
    # A preemptor that has just lost its pledge does not wait for the victims of others: it would
    # lose its reservation, too, and evict again as soon as others had taken what these leave.
    waits = takes and not terms.again and fits_when_victims_end(session, request)
    return None if waits else decision


def fits_when_victims_end(session: Session, request: PreemptionRequest) -> bool:
    """Return whether victims of others leave more than is pledged, and enough for this request.

    Otherwise several small preemptors would each take a large victim, although one is enough for
    all. If the request fits before these victims are stopped, they are spared.
    """
    pledged, tried = session.get(PLEDGED_CAPACITY), session.get(VICTIMS_TRIED)
    if not pledged.is_more_than_needed(session):
        return False
    lacking = request.fit(session).lacking
    stopping = ending(session)
    if lacking and not stopping and not pledged.is_more_than_needed(session, lacking):
        return False
    preemptors = pledged.with_more_than_they_need(session)
    with Statement(session) as trial:
        for preemptor in preemptors:
            pledge = preemptor.status.pledge
            for group, pods, leaves in victims_left(session, pledge):
                tried.victims += 1
                if leaves:
                    send_off(trial, Victim(group, pods, whole=True))
                for pod in pods:
                    if pod.metadata.uid in group.pods:
                        _drop(trial, Victim(group, (pod,), whole=False))
        for group, pod in stopping:
            _drop(trial, Victim(group, (pod,), whole=False))
        for preemptor in preemptors:
            update_hold(trial, preemptor)
        # Head reservations do not apply here, because the request is checked as if already
        # reserved.
        with session.ledger.regarding(()):
            return request.fit(session).fits and request.ends_well(session, [])


@dataclass(slots=True)
class Tries:
    """The number of victims that the searches of a session have taken on trial."""

    victims: int = 0


VICTIMS_TRIED: StateKey[Tries] = StateKey(
    "victims_tried", lambda _: Tries(), ends_with_session=True
)


class _SearchTrial:
    """Owns the victims chosen so far; the caller undoes everything that it does."""

    def __init__(
        self,
        session: Session,
        statement: Statement,
        request: PreemptionRequest,
        terms: SearchTerms,
    ) -> None:
        self._session = session
        self._terms = terms
        self._statement = statement
        self._request = request
        self._taken: list[Taken] = []
        self._tried = session.get(VICTIMS_TRIED)
        self._fit = Fit(fits=False)
        #: Guarantees, and the rule for victims of both actions, may allow more with fewer victims.
        self._may_give_back_at_once = not session.ledger.unused
        self._leaving = session.get(PLEDGED_CAPACITY).leaving(session)
        self._shortage = self._fit.shortage(self._leaving)

    @property
    def unplaced(self) -> Gang:
        """Return the gang that finds no places although it is within all limits."""
        return self._fit.unplaced if self._taken else ()

    def run(self, stages: list[list[str]], unplaced: Gang = ()) -> Decision | None:
        """Return the decision; victims are taken node by node for a gang that is `unplaced` if they
        are taken by rank.
        """
        if not self._is_enough():
            if self._has_enough_of_its_queue():
                return None
            self._may_give_back_at_once &= not stages[1]
            queues = [name for stage in stages for name in stage]
            enough = self._take_what_is_free_anyway(queues)
            if enough is None:
                enough = (
                    self._take_on_nodes(unplaced, queues)
                    if unplaced
                    else self._take_in_order(stages)
                )
            if not enough:
                return None
        self._fill_back()
        return self._decision()

    def _is_enough(self) -> bool:
        self._fit = self._request.fit(self._session)
        self._shortage = self._fit.shortage(self._leaving)
        return (
            self._fit.fits
            and self._keeps_guarantees()
            and self._request.ends_well(self._session, self._victims())
        )

    def _keeps_guarantees(self) -> bool:
        """Return whether siblings still have their guarantees when the victims of other preemptors
        have ended, too: otherwise the capacity would be refused to this one then.
        """
        group, charged = self._request.preemptor, self._session.ledger.charged
        asked = plus(group.held, self._fit.fitting) if self._fit.fitting else group.reservation
        wanted = counted(group.charge_holding(asked))
        rises = {
            name: units for name, units in wanted.items() if units > charged(group).get(name, 0)
        }
        return keeps_guarantees_later(self._session, group, rises, self._leaving)

    def _victims(self) -> Iterator[Victim]:
        return (taken.victim for taken in self._taken if taken.kind in ("undo", "pod", "group"))

    def _take_what_is_free_anyway(self, queues: list[str]) -> bool | None:
        """Count on what costs no work: what this session may undo, pods that stop anyway, and the
        pledges of others; return None to go on to victims.
        """
        for victim, whole in undoable(self._session, self._request.preemptor, queues):
            if self._request.may_take(self._session, victim, self._shortage):
                self._take("undo", victim, put_back if whole else unbind)
                if self._is_enough():
                    return True
        if self._take_ending():
            return True
        return self._take_pledges_over()

    def _take_in_order(self, stages: list[list[str]]) -> bool:
        """Take victims by rank, from the queues of one stage after the other."""
        left = deque(stages)
        while left:
            stage, seen = left.popleft(), -1
            own_to_come = any(self._request.preemptor.queue in later for later in left)
            # Each victim may make others eligible: the queues above its own hold less then, and so
            # do those above the preemptor's.
            while stage and len(self._taken) > seen:
                seen = len(self._taken)
                pool = Pool(self._session, self._request.preemptor, stage, self._terms)
                if self._take_from(pool, own_to_come=own_to_come):
                    return True
                if own_to_come and self._has_enough_of_others():
                    # If the victims of its own queue do not suffice, other queues may still give
                    # more.
                    left.append(stage)
                    break
        return False

    def _take_pledges_over(self) -> bool | None:
        """Take over the pledges of preemptors ranked behind this one until they suffice; return
        None to go on to victims.
        """
        for other in outranked_by(self._session, self._request.preemptor, self._terms):
            if not self._take_over(other):
                continue
            if self._take_ending() or self._is_enough():
                return True
            if self._has_enough_of_its_queue():
                return False
        return None

    def _has_enough_of_its_queue(self) -> bool:
        """Return whether the request fits in free capacity and pledges of its own queue. Then only
        the rule on its queue's holding refuses, which applies to what is taken from other queues.
        """
        return (
            self._fit.fits
            and self._keeps_guarantees()
            and all(
                self._session.groups[uid].queue == self._request.preemptor.queue
                for taken in self._taken
                for uid in (taken.victim.group.uid, *taken.former[0].pledge.groups)
                if taken.kind != "ending" and uid in self._session.groups
            )
        )

    def _has_enough_of_others(self) -> bool:
        """Return whether the request fits and lacks only what its own queue must give up."""
        return self._fit.fits and self._request.lacks_own_victims(self._session)

    def _take_ending(self) -> bool:
        """Count on all pods that stop anyway and are not pledged; return whether that suffices."""
        stopping = ending(self._session)
        for group, pod in stopping:
            self._take("ending", Victim(group, (pod,), whole=False), _drop)
        return bool(stopping) and self._is_enough()

    def _take_over(self, other: GroupState) -> bool:
        """End another's pledge if this request may take its victims; return whether it has."""
        session, pledge = self._session, other.status.pledge
        taken = Taken(
            "pledge", Victim(other, (), whole=True), (other.status, dict(other.live_pods))
        )
        with Statement(session) as attempt:
            lose_pledge(attempt, other)
            self._follow_pledges()
            stopping, running = stopping_and_running(session, pledge)
            have_ended = not stopping and not running
            left = Takeover(other, stopping, self._shortage, have_ended)
            if self._request.may_take_over(session, left) and all(
                self._request.may_take(session, victim, self._shortage) for victim in running
            ):
                self._taken.append(taken)
                attempt.keep_in(self._statement)
                return True
        self._follow_pledges()
        return False

    def _follow_pledges(self) -> None:
        """Update what earlier victims leave for others."""
        self._leaving = self._session.get(PLEDGED_CAPACITY).leaving(self._session)
        self._shortage = self._fit.shortage(self._leaving)

    def _take_from(self, pool: Pool, *, own_to_come: bool) -> bool:
        """Take victims one by one; return whether they suffice.

        If the preemptor's own queue is searched next, take only what it lacks beside its own
        victims.
        """
        if own_to_come and self._has_enough_of_others():
            return False
        for kind, leave, victims in self._kinds(pool):
            for victim in victims:
                if kind == "group" and victim.group.status.pledge.extra:
                    # Its running pods may stay if the capacity pledged for its next ones is enough.
                    self._take("pledge", Victim(victim.group, (), whole=True), _lose_pledge)
                    if self._is_enough():
                        return True
                self._take(kind, victim, leave)
                if self._is_enough():
                    return True
                if own_to_come and self._has_enough_of_others():
                    return False
        return False

    def _take_on_nodes(self, gang: Gang, queues: list[str]) -> bool:
        """Take victims that make places for the gang, on the nodes where that costs least; return
        whether they suffice.
        """
        session = self._session
        victims = Pool(session, self._request.preemptor, queues, self._terms).by_node()
        nodes = [_NodesToClear(session, shape, victims) for shape, _ in gang]
        wanted = [max(1, count - slots_for(session, shape, count)) for shape, count in gang]
        while True:
            has_made = [
                self._make_place(one)
                for one, count in zip(nodes, wanted, strict=True)
                for _ in range(count)
            ]
            if self._is_enough():
                return True
            if not any(has_made):
                return False
            wanted = [1] * len(gang)

    def _make_place(self, nodes: _NodesToClear) -> bool:
        """Take the victims that make one more place; return False if none can be made."""
        while (node := nodes.next()) is not None:
            before, slots = len(self._taken), node.slots(nodes.shape)
            with Statement(self._session) as attempt:
                for victim in nodes.victims_on(node):
                    if not is_there(victim) or not self._may_take(victim):
                        continue
                    if victim.whole:
                        self._take("group", victim, send_off, attempt)
                    else:
                        self._take("pod", victim, _drop, attempt)
                    if node.slots(nodes.shape) > slots:
                        attempt.keep_in(self._statement)
                        nodes.follow([taken.victim for taken in self._taken[before:]])
                        return True
            del self._taken[before:]
        return False

    def _kinds(self, pool: Pool) -> Iterator[tuple[Kind, Leave, Iterator[Victim]]]:
        """Yield single pods, then whole groups, with the way in which they leave."""
        yield "pod", _drop, pool.extras(self._may_take)
        yield "group", send_off, pool.groups(self._may_take)

    def _may_take(self, victim: Victim) -> bool:
        lacks_place = POD_GROUPS in self._shortage.resources
        if lacks_place and victim.whole and self._is_shared(victim.group):
            return False
        return self._request.may_take(self._session, victim, self._shortage)

    def _is_shared(self, group: GroupState) -> bool:
        """Return whether pods of a group are pledged to others. Then its slot is not free until
        those preemptors have their pods, and preemptors could wait for each other.
        """
        return any(uid in self._session.victims.pledged for uid in group.live_pods)

    def _take(
        self, kind: Kind, victim: Victim, leave: Leave, statement: Statement | None = None
    ) -> None:
        group = victim.group
        kept = self._session.nodes.kept.get(group.uid)
        has_pledge = group.status.pledge.stands
        self._tried.victims += 1
        self._taken.append(Taken(kind, victim, (group.status, dict(group.live_pods)), kept))
        leave(statement or self._statement, victim)
        if has_pledge and not group.status.pledge.stands:
            # Its victims that are being stopped end anyway, and count as gone for the next ones.
            self._follow_pledges()
            self._take_ending()

    def _fill_back(self) -> None:
        """Give back the victims that are not needed, the last chosen first.

        The one that was chosen last is always needed, because the request did not fit without it.
        This does not apply to pods that end anyway, because all of them are added at once.
        """
        if not self._taken:
            return
        taken, fit = list(self._taken), self._fit
        with Statement(self._session) as attempt:
            if self._give_back_elsewhere(attempt) and self._give_back(attempt, only_places=True):
                attempt.keep_in(self._statement)
                return
        self._taken, self._fit = taken, fit
        self._give_back(self._statement)

    def _give_back(self, statement: Statement, *, only_places: bool = False) -> bool:
        """Give back what is not needed, one after the other. With `only_places`, return False if
        anything is needed for another reason than a place.
        """
        fit, last = self._fit, self._taken[-1]
        for place in reversed(range(len(self._taken))):
            taken = self._taken[place]
            is_needed = taken is last and taken.kind not in ("ending", "pledge")
            if is_needed or self._is_part_of_a_group(taken) or self._is_counted_on(taken):
                continue
            del self._taken[place]
            with Statement(self._session) as attempt:
                _restore(attempt, taken)
                if self._is_enough():
                    fit = self._fit
                    attempt.keep_in(statement)
                    continue
                if only_places and min(self._spare_places()) >= 0:
                    return False
                self._taken.insert(place, taken)
        self._fit = fit
        return True

    def _give_back_elsewhere(self, statement: Statement) -> bool:
        """Give back all groups at once that are on other nodes than the request takes; return
        whether it still fits, and one by one, the same would be given back.

        A search by rank clears many nodes a little before it clears one. There must be no more
        places than the request needs, so that no other node could take the part of these.
        """
        if not self._may_give_back_at_once:
            return False
        spare = self._spare_places()
        if not spare or any(spare):
            return False
        nodes, last = set(self._fit.plan.values()), self._taken[-1]
        in_parts = {one.victim.group.uid for one in self._taken if one.kind == "pod"}
        elsewhere: list[Taken] = []
        kept: list[Taken] = []
        for taken in self._taken:
            is_elsewhere = (
                taken is not last
                and taken.kind == "group"
                and taken.victim.group.uid not in in_parts
                and not taken.former[0].pledge.stands
                and not any(pod.status.node in nodes for pod in taken.victim.pods)
            )
            (elsewhere if is_elsewhere else kept).append(taken)
        if not elsewhere:
            return False
        for taken in reversed(elsewhere):
            _restore(statement, taken)
        self._taken = kept
        return self._is_enough()

    def _spare_places(self) -> list[int]:
        """Return for each shape of the gang how many places there are beyond those that it needs,
        counted up to 1.
        """
        needs = self._request.needs(self._session)
        gang = () if needs is None else needs.gang
        return [slots_for(self._session, shape, count + 1) - count for shape, count in gang]

    def _is_part_of_a_group(self, taken: Taken) -> bool:
        """Return whether a pod belongs to a group that leaves completely, and cannot stay."""
        return not taken.victim.whole and any(
            other.kind == "group" and other.victim.group is taken.victim.group
            for other in self._taken
        )

    def _is_counted_on(self, taken: Taken) -> bool:
        """Return whether another taken victim belongs to the pledge that this one gave up."""
        status = taken.former[0]
        if taken.kind not in ("pledge", "group") or not status.pledge.stands:
            return False
        holds, groups = status.pledge.holds, status.pledge.groups
        return any(
            (other.kind == "group" and other.victim.group.uid in groups)
            or any(pod.metadata.uid in holds for pod in other.victim.pods)
            for other in self._taken
            if other is not taken
        )

    def _decision(self) -> Decision:
        whole = {t.victim.group.uid for t in self._taken if t.kind == "group"}
        return Decision(
            by_node=self._fit.by_node,
            plan=self._fit.plan,
            undone=[taken for taken in self._taken if taken.kind == "undo"],
            ending=[taken.victim for taken in self._taken if taken.kind == "ending"],
            outranked=[taken for taken in self._taken if taken.kind == "pledge"],
            victims=[
                self._with_all_its_pods(taken.victim) if taken.kind == "group" else taken.victim
                for taken in self._taken
                if taken.kind == "group"
                or (taken.kind == "pod" and taken.victim.group.uid not in whole)
            ],
        )

    def _with_all_its_pods(self, whole: Victim) -> Victim:
        """Return a group that leaves, with those of its pods that were chosen before."""
        former = [
            pod
            for taken in self._taken
            if taken.kind == "pod" and taken.victim.group is whole.group
            for pod in taken.victim.pods
        ]
        return Victim(whole.group, (*former, *whole.pods), whole=True)


class _NodesToClear:
    """The nodes on which victims could make a place for a pod of one shape, the cheapest first:
    where the highest priority among the victims is lowest, then where they are fewest, then where
    the oldest of them is youngest. The order is kube-scheduler's (preemption.go,
    `pickOneNodeForPreemption`).

    A cost is found without asking any policy. One that others have changed is found again when its
    turn comes.
    """

    def __init__(
        self, session: Session, shape: TaskShape, victims: Mapping[str, Sequence[Victim]]
    ) -> None:
        self.shape = shape
        self._victims = victims
        self._nodes = {node.name: node for node in usable_nodes(session, shape)}
        costs = [self._cost(name) for name in self._nodes]
        self._heap = [cost for cost in costs if cost is not None]
        heapify(self._heap)

    def next(self) -> NodeState | None:
        """Return the cheapest node and take it from the list; None if there is none."""
        while self._heap:
            cost = heappop(self._heap)
            name = cost[-1]
            now = self._cost(name)
            if now == cost:
                return self._nodes[name]
            if now is not None:
                heappush(self._heap, now)
        return None

    def victims_on(self, node: NodeState) -> Sequence[Victim]:
        """Return the victims on a node, in the order in which they are taken."""
        return self._victims[node.name]

    def follow(self, gone: Iterable[Victim]) -> None:
        """Find the costs of the nodes again on which these victims have made room."""
        for name in {pod.status.node for victim in gone for pod in victim.pods}:
            if (cost := self._cost(name)) is not None:
                heappush(self._heap, cost)

    def _cost(self, name: str) -> tuple[int, int, int, str] | None:
        """Return the cost of one more place on a node; None if its victims cannot make one."""
        node = self._nodes.get(name)
        if node is None or name not in self._victims:
            return None
        slots = max(0, node.slots(self.shape))
        free = node.free_for(self.shape)
        lacking = {
            resource: short
            for resource, units in self.shape.requests.items()
            if (short := (slots + 1) * units - free.get(resource, 0)) > 0
        }
        priority, count, oldest = 0, 0, 0
        for victim in self._victims[name]:
            if not lacking:
                break
            if not is_there(victim):
                continue
            freed = _freed_on(node, victim)
            if not any(freed.get(resource, 0) > 0 for resource in lacking):
                continue
            lacking = {
                resource: left
                for resource, short in lacking.items()
                if (left := short - freed.get(resource, 0)) > 0
            }
            count += 1
            priority = victim.group.priority if count == 1 else max(priority, victim.group.priority)
            oldest = max(oldest, -start_of(victim.group)) if count > 1 else -start_of(victim.group)
        return None if lacking or not count else (priority, count, oldest, name)


def _freed_on(node: NodeState, victim: Victim) -> Amounts:
    """Return what a victim frees on a node."""
    sharing = victim.group.sharing
    if sharing is not None and sharing.exclusive:
        return node.total if victim.whole else {}
    return total(of_pod(pod.spec.requests) for pod in victim.pods if pod.status.node == node.name)


def put_back(statement: Statement, victim: Victim) -> None:
    """Reset a group to its state when the actions began."""
    release_places(statement, victim.group)
    _put(statement, victim.group, *_former(statement.session, victim.group))


def unbind(statement: Statement, victim: Victim) -> None:
    """Reset a pod that was bound in this session."""
    _, pods = _former(statement.session, victim.group)
    uid = victim.pods[0].metadata.uid
    if uid in pods:
        statement.put_pod(victim.group, pods[uid])
    else:
        statement.drop_pod(victim.group, uid)


def _drop(statement: Statement, victim: Victim) -> None:
    """Remove a pod as if it had ended."""
    statement.drop_pod(victim.group, victim.pods[0].metadata.uid)


def send_off(statement: Statement, victim: Victim) -> None:
    """Make a group leave, with all its processes ended."""
    release_places(statement, victim.group)
    drop_group(statement, victim.group, PodGroupPhase.PENDING)


def _lose_pledge(statement: Statement, victim: Victim) -> None:
    """End a group's pledge; its pods stay."""
    lose_pledge(statement, victim.group)


def lose_pledge(statement: Statement, preemptor: GroupState) -> None:
    """End a preemptor's pledge; it keeps no reservation except for what its pods hold."""
    if preemptor.status.pledge.extra:
        end_pledge(statement, preemptor)
    else:
        withdraw_pledge(statement, preemptor)


def _former(session: Session, group: GroupState) -> tuple[PodGroupStatus, dict[str, Pod]]:
    known = session.effects.before.get(group.uid)
    return known if known is not None else (group.status, dict(group.live_pods))


def _restore(statement: Statement, taken: Taken) -> None:
    status, pods = taken.former
    group = taken.victim.group
    if taken.kind in ("ending", "pod") or (taken.kind == "undo" and not taken.victim.whole):
        for pod in taken.victim.pods:
            statement.put_pod(group, pods[pod.metadata.uid])
    else:
        _put(statement, group, status, pods)
        if taken.kept is not None and group.uid not in statement.session.nodes.kept:
            keep_places_again(statement, group, taken.kept)


def _put(
    statement: Statement, group: GroupState, status: PodGroupStatus, pods: dict[str, Pod]
) -> None:
    had_pledge = group.status.pledge.stands
    for uid in [uid for uid in group.live_pods if uid not in pods]:
        statement.drop_pod(group, uid)
    for uid, pod in pods.items():
        if group.pods.get(uid) is not pod:
            statement.put_pod(group, pod)
    if group.status is not status:
        statement.put_status(group, status)
    if status.pledge.stands and not had_pledge:
        resume_pledge(statement, group, status.pledge)


def fit_of(session: Session, group: GroupState, pods: list[Pod]) -> Fit:
    """Return that the request fits, with these pods where they are now."""
    plan = {str(group.shape_of(pod).first + pod.spec.index): pod.status.node for pod in pods}
    return Fit(fits=True, by_node=amounts_by_node(session, group, pods), plan=plan)
