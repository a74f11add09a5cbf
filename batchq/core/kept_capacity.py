"""Capacity that is kept for groups from one session to the next: the pledges of preemptors, and the
places of admitted gangs.

A **pledge** keeps the capacity of victims for their preemptor. It is stored with the preemptor and
read at the start of each session. Until its last victim has ended, the preemptor waits. The ledger
charges it for what its victims leave (batchq.core.quota.ledger), and its future capacity is kept
for it on each node.

**Kept places** are the nodes found for a gang at admission, kept until its pods are bound. Their
capacity is taken off the nodes, so no other pod is placed there. They are kept until the gang is
bound or its group leaves, across sessions if necessary (`status.places`), for example while the
group waits for its admission checks. If one of the nodes is lost, new places are sought
(batchq.core.placement.trial).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from batchq.api import intents
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import GroupClaim, Pledge, Pod, PodGroupStatus
from batchq.api.resources import Amounts, add_to, covers, minus, named, of_pod, plus, smaller, total
from batchq.core.quota.ledger import ByScope, charge_with_count, counted, falls_by
from batchq.core.session.session import StateKey
from batchq.core.session.session_nodes import KeptPlaces, NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement

if TYPE_CHECKING:
    from batchq.core.session.session import Session

_by_key = attrgetter("key")


def counts_on_others(status: PodGroupStatus) -> bool:
    """Return whether the group has a pledge and no victim of it is being stopped yet."""
    return status.pledge.stands and status.pledge.expires is None


def standing_pledges(session: Session) -> Sequence[tuple[GroupState, Pledge]]:
    """Return every preemptor with a pledge, and its pledge."""
    known, touched = session.carried.preemptors, session.effects.touched
    if not known and session.peek(PLEDGED_CAPACITY) is None:
        # The usual case: none was stored, and this session has made none.
        return ()
    preemptors = [
        one
        for one in ({**known, **touched} if known else touched).values()
        if one.status.pledge.victims and one.status.phase not in TERMINAL
    ]
    if not preemptors:
        return ()
    return [(group, group.status.pledge) for group in sorted(preemptors, key=_by_key)]


def note_pledge(session: Session, preemptor: GroupState, pledge: Pledge) -> None:
    """Record a pledge: each victim is pledged once, and its preemptor's charge depends on it."""
    for uid in pledge.groups:
        session.ledger.preemptors.setdefault(uid, {})[preemptor.uid] = preemptor
    for uid in pledge.holds:
        session.victims.pledged[uid] = preemptor.uid
    session.get(PLEDGED_CAPACITY).note(preemptor, pledge)
    session.get(_LEFT).pop(preemptor.uid, None)
    session.ledger.changed_groups.append(preemptor)


def forget_pledge(session: Session, preemptor: GroupState, pledge: Pledge) -> None:
    """Remove the records of a pledge that has ended."""
    for uid in pledge.groups:
        session.ledger.preemptors.get(uid, {}).pop(preemptor.uid, None)
    for uid in pledge.holds:
        if session.victims.pledged.get(uid) == preemptor.uid:
            del session.victims.pledged[uid]
    session.get(PLEDGED_CAPACITY).forget(preemptor, pledge)
    session.get(_LEFT).pop(preemptor.uid, None)
    session.ledger.changed_groups.append(preemptor)


class VictimLeft(NamedTuple):
    """A victim that has not ended: a group with its pledged pods. An external group whose lease is
    still open has no pods. `whole`: it must leave completely and has not left yet; a victim
    admitted again has left.
    """

    group: GroupState
    pods: tuple[Pod, ...]
    whole: bool

    def charged(self) -> Amounts:
        """Return how much its charge falls when everything pledged has ended."""
        if self.group.is_external or self.whole:
            return charge_with_count(self.group)
        return falls_by(self.group, total(of_pod(pod.spec.requests) for pod in self.pods))


def victims_left(session: Session, pledge: Pledge) -> list[VictimLeft]:
    """Return the victims that have not ended."""
    whole = frozenset(pledge.whole)
    found = [_victim_left(session, pledge, uid, whole) for uid in pledge.groups]
    return [left for left in found if left is not None]


def _victim_left(session: Session, pledge: Pledge, uid: str, whole: Set[str]) -> VictimLeft | None:
    """Return a victim of a pledge if it has not ended; `whole` are those that leave completely."""
    group = session.groups.get(uid)
    if group is None:
        return None
    leaves = uid in whole and group.reserved and _same_admission(pledge, group)
    if group.is_external:
        is_held = pledge.holds.get(uid) == group.status.admission
        there = leaves or (group.status.claim.is_open and is_held)
        return VictimLeft(group, (), leaves) if there else None
    pods = tuple([pod for pod in group.live_pods.values() if _still_there(pledge, pod)])
    return VictimLeft(group, pods, leaves) if pods or leaves else None


def _still_there(pledge: Pledge, pod: Pod) -> bool:
    attempt = pledge.holds.get(pod.metadata.uid)
    return attempt == pod.status.attempt and pod.status.phase in ON_NODE


def _same_admission(pledge: Pledge, group: GroupState) -> bool:
    """Return whether the group has not left since it was pledged: one of its pods dates from then.
    A group pledged without pods is identified by its admission.
    """
    if pledge.holds.get(group.uid) == group.status.admission:
        return True
    return any(pod.metadata.uid in pledge.holds for pod in group.current())


class _LeftByScopes:
    """What the victims of one pledge are still charged, by their scopes, which the victims of one
    preemptor mostly share; updated victim by victim.
    """

    def __init__(self, session: Session, pledge: Pledge) -> None:
        self.pledge = pledge
        self._victims, self._whole = frozenset(pledge.groups), frozenset(pledge.whole)
        self._parts: dict[str, tuple[tuple[str, ...], Amounts]] = {}
        self.sums: dict[tuple[str, ...], dict[str, int]] = {}
        for uid in pledge.groups:
            self.update(session, uid)

    def update(self, session: Session, uid: str) -> None:
        """Follow a change of a group, which may be a victim."""
        if uid not in self._victims:
            return
        if (former := self._parts.pop(uid, None)) is not None:
            self._add(*former, -1)
        if (left := _victim_left(session, self.pledge, uid, self._whole)) is not None:
            part = self._parts[uid] = (left.group.scopes, left.charged())
            self._add(*part, 1)

    def _add(self, scopes: tuple[str, ...], amounts: Amounts, sign: int) -> None:
        add_to(self.sums.setdefault(scopes, {}), amounts, sign)


#: Uid of a preemptor -> what its victims are still charged.
_LEFT: StateKey[dict[str, _LeftByScopes]] = StateKey("left by scopes", lambda _: {})


def owed_to(session: Session, preemptor: GroupState, changed: GroupState) -> dict[str, Amounts]:
    """Return what the preemptor's victims are still charged, by scope, in the scopes that both
    share, after a change of one of them or of the preemptor.

    This is never more than the preemptor's own promise, because what its own pods hold counts in
    full.
    """
    known, pledge = session.get(_LEFT), preemptor.status.pledge
    left = known.get(preemptor.uid)
    if left is None or left.pledge is not pledge:
        left = known[preemptor.uid] = _LeftByScopes(session, pledge)
    else:
        # A preemptor may wait for its own former pods.
        left.update(session, changed.uid)
    promised = pledge.extra or promised_to(preemptor)
    mine = set(preemptor.scopes)
    if len(left.sums) == 1:
        ((scopes, amounts),) = left.sums.items()
        less = named(smaller(amounts, promised))
        return {scope: less for scope in scopes if scope in mine} if less else {}
    owed: dict[str, Amounts] = {}
    for scopes, amounts in left.sums.items():
        for scope in scopes:
            if scope in mine:
                owed[scope] = plus(owed.get(scope, {}), amounts)
    lesser = {scope: named(smaller(amounts, promised)) for scope, amounts in owed.items()}
    return {scope: amounts for scope, amounts in lesser.items() if amounts}


def promised_to(preemptor: GroupState) -> Amounts:
    """Return what the preemptor is charged beyond what it holds."""
    held = preemptor.held
    return minus(charge_with_count(preemptor), counted(held) if held else {})


def kept_capacity(session: Session, pledge: Pledge) -> dict[str, Amounts]:
    """Return, by node, the part of the preemptor's pledged capacity that is free now; victims still
    hold the rest.
    """
    if not pledge.room:
        return {}
    there: dict[str, Amounts] = {}
    for group, pods, _ in victims_left(session, pledge):
        for node, amounts in amounts_by_node(session, group, pods).items():
            there[node] = plus(there.get(node, {}), amounts)
    free = {node: minus(amounts, there.get(node, {})) for node, amounts in pledge.room.items()}
    return {
        node: amounts for node, amounts in free.items() if amounts and node in session.nodes.by_name
    }


def has_lost_nodes(session: Session, pledge: Pledge) -> bool:
    """Return whether a node with kept or awaited capacity is gone, lost or cordoned."""
    return any(True for _ in _nodes_lost(session, pledge))


def nodes_awaited(session: Session, pledge: Pledge) -> list[str]:
    """Return the nodes that a preemptor waits for because they became lost or cordoned after its
    victims were stopped there. It waits until the pledge expires: otherwise, an agent that restarts
    within seconds would cost the preemptor what was evicted for it.
    """
    if pledge.expires is None or pledge.extra:
        return []
    return list(_nodes_lost(session, pledge))


def _nodes_lost(session: Session, pledge: Pledge) -> Iterator[str]:
    for name in pledge.room:
        node = session.nodes.by_name.get(name)
        if node is None or not node.open:
            yield name


def hold_pledged_capacity(session: Session) -> None:
    """Take what is kept for preemptors off the nodes, until the session ends."""
    for preemptor, pledge in standing_pledges(session):
        session.nodes.hold(preemptor.uid, kept_capacity(session, pledge))


def amounts_by_node(session: Session, group: GroupState, pods: Iterable[Pod]) -> dict[str, Amounts]:
    """Return what these pods of a group take off their nodes, by node: what they request; of an
    exclusive group the whole node, or nothing if it has other pods there.
    """
    if group.sharing is not None and group.sharing.exclusive:
        return _whole_nodes(session, group, list(pods))
    by_node: dict[str, Amounts] = {}
    for pod in pods:
        node = pod.status.node
        by_node[node] = plus(by_node.get(node, {}), of_pod(pod.spec.requests))
    return by_node


def _whole_nodes(session: Session, group: GroupState, pods: list[Pod]) -> dict[str, Amounts]:
    these = {pod.metadata.uid for pod in pods}
    others = {
        pod.status.node
        for uid, pod in group.live_pods.items()
        if pod.status.phase in ON_NODE and uid not in these
    }
    nodes = session.nodes.by_name
    names = [name for name in dict.fromkeys(pod.status.node for pod in pods) if name in nodes]
    return {name: {} if name in others else nodes[name].total for name in names}


def hold_capacity(session: Session, group: GroupState, by_node: dict[str, Amounts]) -> None:
    """Hold capacity for a waiting group until the end of this session."""
    if by_node:
        session.nodes.hold(group.uid, by_node)


def release_to(statement: Statement, preemptor: GroupState) -> None:
    """Release to the preemptor what was kept for it."""
    nodes, uid = statement.session.nodes, preemptor.uid
    if uid in nodes.held:
        amounts = nodes.give_hold(uid)
        statement.also_undo(lambda: nodes.hold(uid, amounts))
    if uid in nodes.kept:
        places = nodes.release(uid)
        statement.also_undo(lambda: nodes.keep(uid, places))


def make_pledge(statement: Statement, preemptor: GroupState, pledge: Pledge) -> None:
    """Store a pledge of victims to a preemptor, and keep their capacity for it from now on."""
    note_pledge(statement.session, preemptor, pledge)
    statement.set_status(preemptor, pledge=pledge)
    resume_pledge(statement, preemptor, pledge)
    statement.say(intents.Pledge(group=preemptor.key, victims=pledge.victims, action=pledge.action))


def update_hold(statement: Statement, preemptor: GroupState) -> None:
    """Update the kept capacity after victims have ended."""
    session = statement.session
    release_to(statement, preemptor)
    session.nodes.hold(preemptor.uid, kept_capacity(session, preemptor.status.pledge))
    statement.also_undo(lambda: _drop_hold(session, preemptor))


def resume_pledge(statement: Statement, preemptor: GroupState, pledge: Pledge) -> None:
    """Restore the effects of the pledge in the preemptor's status."""
    session = statement.session
    note_pledge(session, preemptor, pledge)
    statement.also_undo(lambda: forget_pledge(session, preemptor, pledge))
    # What it held on nodes before is part of its pledged capacity.
    release_to(statement, preemptor)
    session.nodes.hold(preemptor.uid, kept_capacity(session, pledge))
    statement.also_undo(lambda: _drop_hold(session, preemptor))
    # The ledger needs to see the victims recorded above.
    session.ledger.recharge(preemptor)


def _drop_hold(session: Session, preemptor: GroupState) -> None:
    session.nodes.give_hold(preemptor.uid)


def end_pledge(statement: Statement, preemptor: GroupState) -> None:
    """End the preemptor's pledge; does nothing if there is none."""
    pledge = preemptor.status.pledge
    if not pledge.victims:
        return
    session = statement.session
    release_to(statement, preemptor)
    forget_pledge(session, preemptor, pledge)
    statement.also_undo(lambda: note_pledge(session, preemptor, pledge))
    statement.set_status(preemptor, pledge=Pledge())
    statement.say(intents.EndPledge(group=preemptor.key))


def withdraw_pledge(statement: Statement, preemptor: GroupState) -> None:
    """Remove the preemptor's pledge and reservation as if it never had them, without an event."""
    session, pledge = statement.session, preemptor.status.pledge
    release_to(statement, preemptor)
    forget_pledge(session, preemptor, pledge)
    statement.also_undo(lambda: note_pledge(session, preemptor, pledge))
    is_pending = preemptor.phase == PodGroupPhase.PENDING
    domain = {} if is_pending else preemptor.status.domain
    statement.set_status(
        preemptor, pledge=Pledge(), reserved_at=None, reservation={}, domain=domain
    )


def drop_group(statement: Statement, group: GroupState, phase: PodGroupPhase) -> None:
    """Remove everything that a group is charged for, except pods that are being stopped, which have
    ends of their own.
    """
    end_pledge(statement, group)
    statement.set_status(
        group,
        phase=phase,
        reserved_at=None,
        reservation={},
        pledge=Pledge(),
        claim=GroupClaim(),
    )
    for uid, pod in list(group.live_pods.items()):
        if pod.status.phase in ON_NODE and not pod.status.terminating:
            statement.drop_pod(group, uid)


def awaits_victims(session: Session, group: GroupState) -> bool:
    """Return whether a victim pledged to the group has not ended yet."""
    pledge = group.status.pledge
    return pledge.stands and bool(victims_left(session, pledge))


def clock_stands(session: Session, group: GroupState) -> bool:
    """Return whether the time InQueue does not count now: the group waits for victims, or the time
    that it waited for them has not been deducted yet.
    """
    pledge = group.status.pledge
    return pledge.stands and (pledge.made_at is not None or awaits_victims(session, group))


def gives_way_to(session: Session, group: GroupState) -> GroupState | None:
    """Return the preemptor before which this victim is not admitted again; None if there is none.

    This includes a preemptor that is admitted already and waits for the victim's pods to end: their
    capacity would count as the victim's reservation and be promised twice. A preemptor that counts
    on the end of its own former pods does not wait for itself.
    """
    for preemptor in session.ledger.preemptors.get(group.uid, {}).values():
        if preemptor is group:
            continue
        is_pending = PodGroupPhase.PENDING in (preemptor.phase, group.phase)
        if is_pending and preemptor.status.pledge.stands:
            return preemptor
    return None


def owed_by_scope(owed: ByScope) -> dict[str, Amounts]:
    """Return what is stored with the pledge: scopes in order, without zeros."""
    return {scope: dict(owed[scope]) for scope in sorted(owed) if owed[scope]}


class _Part(NamedTuple):
    """The contribution of one preemptor: what its victims are still charged, by scopes, and how
    much less it counts meanwhile.
    """

    falls: list[tuple[tuple[str, ...], Amounts]]
    owed: ByScope


class PledgedCapacity:
    """The sums of all pledges; owned by a session. Sums are updated by each query, and stay
    unchanged between queries even during a trial.
    """

    def __init__(self) -> None:
        #: Uid of a victim -> the order in which it was first pledged in this session, from 0.
        self._places: dict[str, int] = {}
        #: Uid of a preemptor -> the uids of its victims.
        self._victims: dict[str, dict[str, None]] = {}
        self._parts: dict[str, _Part] = {}
        self._sums: dict[str, dict[str, int]] = {}
        self._leaving: dict[str, Amounts] = {}
        #: By the uid of a preemptor: what its victims leave beyond what was pledged to it, if any.
        self._spare: dict[str, Amounts] = {}
        #: Those of them for which a trial end of the victims changes anything.
        self._moving: dict[str, GroupState] = {}
        self._seen = 0

    def note(self, preemptor: GroupState, pledge: Pledge) -> None:
        """Add the victims of a pledge."""
        victims = self._victims.setdefault(preemptor.uid, {})
        for uid in pledge.groups:
            self._places.setdefault(uid, len(self._places))
            victims[uid] = None

    def forget(self, preemptor: GroupState, pledge: Pledge) -> None:
        """Remove the victims of a pledge."""
        victims = self._victims.get(preemptor.uid, {})
        for uid in pledge.groups:
            victims.pop(uid, None)

    def leaving(self, session: Session) -> Mapping[str, Amounts]:
        """Return, by scope, how much its sum falls when all victims have ended and their preemptors
        count in full.

        Without this, a queue that gives back to one preemptor would still seem to hold too much,
        and would give the same to the next.
        """
        self._follow(session)
        return self._leaving

    def is_more_than_needed(self, session: Session, names: Collection[str] = ()) -> bool:
        """Return whether the victims of any preemptor leave more than was pledged to it, in one of
        these dimensions if any are named.
        """
        self._follow(session)
        if not names:
            return bool(self._spare)
        return any(name in spare for spare in self._spare.values() for name in names)

    def with_more_than_they_need(self, session: Session) -> list[GroupState]:
        """Return the preemptors whose victims leave more than was pledged, by when their victims
        were first pledged.

        Preemptors that wait only for consumer leases are left out: these consumers are being
        stopped already and hold nothing on nodes, and batchq cannot predict when they end.
        """
        self._follow(session)
        if len(self._moving) < 2:
            return list(self._moving.values())
        return sorted(self._moving.values(), key=lambda preemptor: self._place(session, preemptor))

    def _place(self, session: Session, preemptor: GroupState) -> tuple[int, int]:
        owners = session.ledger.preemptors
        first = min(self._victims[preemptor.uid], key=lambda uid: self._places[uid])
        return (self._places[first], list(owners[first]).index(preemptor.uid))

    def _follow(self, session: Session) -> None:
        changed_groups = session.ledger.changed_groups
        if len(changed_groups) == self._seen:
            return
        groups = {group.uid: group for group in changed_groups[self._seen :]}
        self._seen = len(changed_groups)
        scopes: set[str] = set()
        for uid, group in groups.items():
            if uid in self._victims:
                scopes.update(self._look_again(session, group))
        for scope in scopes:
            sums = self._sums[scope]
            self._leaving[scope] = {name: units for name, units in sums.items() if units > 0}

    def _look_again(self, session: Session, preemptor: GroupState) -> Iterable[str]:
        """Recompute the contribution of a preemptor; return the scopes concerned."""
        uid = preemptor.uid
        former, part = self._parts.pop(uid, None), None
        self._spare.pop(uid, None)
        self._moving.pop(uid, None)
        if self._victims[uid]:
            part = self._parts[uid] = self._part_of(session, preemptor)
        scopes: set[str] = set()
        for one, sign in ((former, -1), (part, 1)):
            if one is None:
                continue
            for where, amounts in one.falls:
                for scope in where:
                    self._add(scope, amounts, sign)
                scopes.update(where)
            for scope, amounts in one.owed.items():
                self._add(scope, amounts, -sign)
            scopes.update(one.owed)
        return scopes

    def _part_of(self, session: Session, preemptor: GroupState) -> _Part:
        pledge = preemptor.status.pledge
        victims = victims_left(session, pledge)
        falls = [(left.group.scopes, left.charged()) for left in victims]
        left = total(amounts for _, amounts in falls)
        if spare := minus(left, counted(pledge.extra or promised_to(preemptor))):
            self._spare[preemptor.uid] = spare
            if pledge.room or any(left.pods or left.whole for left in victims):
                self._moving[preemptor.uid] = preemptor
        return _Part(falls, session.ledger.owed(preemptor))

    def _add(self, scope: str, amounts: Mapping[str, int], sign: int) -> None:
        add_to(self._sums.setdefault(scope, {}), amounts, sign)


#: The pledged capacity of a session.
PLEDGED_CAPACITY = StateKey("debts", lambda _: PledgedCapacity())


def drop_places(session: Session, group: GroupState) -> None:
    """Give back the places kept for a group, if any."""
    if group.uid in session.nodes.kept:
        session.nodes.release(group.uid)


def release_places(statement: Statement, group: GroupState) -> None:
    """Give back the places of a group that leaves; undoing the statement keeps them again."""
    nodes, uid = statement.session.nodes, group.uid
    if uid in nodes.kept:
        places = nodes.release(uid)
        statement.also_undo(lambda: nodes.keep(uid, places))
    if group.status.places:
        statement.set_status(group, places={})


def keep_places_again(statement: Statement, group: GroupState, places: KeptPlaces) -> None:
    """Keep released places again; undoing the statement drops them."""
    session = statement.session
    session.nodes.keep(group.uid, places)
    statement.also_undo(lambda: drop_places(session, group))


def keep_stored_places(session: Session) -> None:
    """Take the places kept in earlier sessions off the nodes."""
    for group in session.carried.placed.values():
        if group.status.places and (group.reserved or is_admitted(group)):
            places = _stored_places(session, group)
            if places is not None:
                session.nodes.keep(group.uid, places)


def _stored_places(session: Session, group: GroupState) -> KeptPlaces | None:
    """Return the places in a group's status; None if one of the nodes no longer takes its pods."""
    parts = []
    for task, names in group.status.places.items():
        shape = group.shape.by_task.get(task)
        nodes = [session.nodes.by_name[name] for name in names if name in session.nodes.by_name]
        if (
            shape is None
            or len(nodes) < len(names)
            or any(session.refused_by(shape, node) is not None for node in nodes)
        ):
            return None
        parts.append((shape, tuple(nodes)))
    places = KeptPlaces(tuple(parts))
    return places if _fit_together(session, places) else None


def _fit_together(session: Session, places: KeptPlaces) -> bool:
    """Return whether nodes take all these pods, each of which they would take alone."""
    if all(shape.sharing is None for shape, _ in places.parts):
        asked_on = places.by_node().items()
        return all(covers(session.nodes.by_name[name].free, asked) for name, asked in asked_on)
    taken: list[tuple[TaskShape, NodeState]] = []
    for shape, nodes in places.parts:
        for node in nodes:
            if session.refused_by(shape, node) is None:
                session.nodes.take_pod(node, shape)
                taken.append((shape, node))
    for shape, node in taken:
        session.nodes.put_back_pod(node, shape)
    return len(taken) == sum(len(nodes) for _, nodes in places.parts)


def store_kept_places(session: Session) -> None:
    """Store the places that are kept at the end of a session, for the next one."""
    for uid, places in session.nodes.kept.items():
        group = session.groups[uid]
        if group.reserved or is_admitted(group):
            _write_places(session, group, places.by_task())
    for group in list(session.carried.placed.values()):
        if group.uid not in session.nodes.kept:
            _write_places(session, group, {})


def _write_places(session: Session, group: GroupState, places: dict[str, tuple[str, ...]]) -> None:
    if group.status.places == places:
        return
    with Statement(session) as statement:
        statement.set_status(group, places=places)
        statement.commit()
