"""Pledges: what victims owe to claimants, read from the records at the start of a session.

A pledge is stored with its claimant. While one of its victims has not ended, the claimant waits,
counts in the ledger for what its victims leave (batchq.core.quota.ledger), and the room that it is
to take is kept for it, node by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from batchq.api import intents
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import Pledge, Pod, PodGroupStatus
from batchq.api.resources import Amounts, minus, named, of_pod, plus, smaller, total
from batchq.core.quota.ledger import ByScope, charge_with_count, counted, falls_by
from batchq.core.session.session import StateKey
from batchq.core.session.state import GroupState

if TYPE_CHECKING:
    from batchq.core.session.session import Session
    from batchq.core.session.statement import Statement


_by_key = attrgetter("key")


def counts_on_others(status: PodGroupStatus) -> bool:
    """Whether others are pledged to a group, and nobody has been told to stop for it yet."""
    return status.pledge.stands and status.pledge.expires is None


def standing_pledges(session: Session) -> Iterator[tuple[GroupState, Pledge]]:
    """Every claimant to which something is pledged, and its pledge."""
    claimants = {**session.carried.claimants, **session.effects.touched}.values()
    for group in sorted(
        [one for one in claimants if one.status.pledge.stands and one.phase not in TERMINAL],
        key=_by_key,
    ):
        yield group, group.status.pledge


def keep_owing(session: Session) -> None:
    """Let victims know to whom they are owed, before anything is charged."""
    for claimant, pledge in standing_pledges(session):
        note_pledge(session, claimant, pledge)


def note_pledge(session: Session, claimant: GroupState, pledge: Pledge) -> None:
    """Each victim is pledged once, and its claimant's charge follows its own."""
    for uid in pledge.groups:
        session.ledger.claimants.setdefault(uid, {})[claimant.uid] = claimant
    for uid in pledge.holds:
        session.victims.pledged[uid] = claimant.uid
    session.get(PLEDGED_ROOM).note(claimant, pledge)
    session.ledger.stirred.append(claimant)


def forget_pledge(session: Session, claimant: GroupState, pledge: Pledge) -> None:
    """The victims of a pledge that has ended owe nothing any more."""
    for uid in pledge.groups:
        session.ledger.claimants.get(uid, {}).pop(claimant.uid, None)
    for uid in pledge.holds:
        if session.victims.pledged.get(uid) == claimant.uid:
            del session.victims.pledged[uid]
    session.get(PLEDGED_ROOM).forget(claimant, pledge)
    session.ledger.stirred.append(claimant)


def victims_left(session: Session, pledge: Pledge) -> list[tuple[GroupState, tuple[Pod, ...]]]:
    """The victims that have not ended: each group with its pledged pods; none, of an external
    group whose claim still counts.
    """
    found: list[tuple[GroupState, tuple[Pod, ...]]] = []
    for uid in pledge.groups:
        group = session.groups.get(uid)
        if group is None:
            continue
        if group.is_external:
            is_held = pledge.holds.get(uid) == group.status.admission
            if (group.status.claim.is_open and is_held) or leaves_whole(pledge, group):
                found.append((group, ()))
            continue
        pods = tuple(pod for pod in group.pods.values() if _still_there(pledge, pod))
        if pods or leaves_whole(pledge, group):
            found.append((group, pods))
    return found


def leaves_whole(pledge: Pledge, group: GroupState) -> bool:
    """Whether all of a victim is to go, and it has not left yet: admitted anew, it has."""
    return group.uid in pledge.whole and group.reserved and _same_admission(pledge, group)


def _still_there(pledge: Pledge, pod: Pod) -> bool:
    attempt = pledge.holds.get(pod.metadata.uid)
    return attempt == pod.status.attempt and pod.status.phase in ON_NODE


def _same_admission(pledge: Pledge, group: GroupState) -> bool:
    """Whether the group has not left since it was pledged: any of its pods is one of then. A group
    that was pledged before it had any is held by its admission.
    """
    if pledge.holds.get(group.uid) == group.status.admission:
        return True
    return any(pod.metadata.uid in pledge.holds for pod in group.current())


def owed_to(session: Session, claimant: GroupState) -> dict[str, Amounts]:
    """Scope -> what the claimant's victims are still charged there; scopes of both only.

    Never more than what is promised to the claimant: what its own pods hold counts in full.
    """
    left = _left_by_scopes(session, claimant.status.pledge)
    if not left:
        return {}
    promised = claimant.status.pledge.extra or promised_to(claimant)
    mine = set(claimant.scopes)
    if len(left) == 1:
        ((scopes, amounts),) = left.items()
        less = named(smaller(amounts, promised))
        return {scope: less for scope in scopes if scope in mine} if less else {}
    owed: dict[str, Amounts] = {}
    for scopes, amounts in left.items():
        for scope in scopes:
            if scope in mine:
                owed[scope] = plus(owed.get(scope, {}), amounts)
    lesser = {scope: named(smaller(amounts, promised)) for scope, amounts in owed.items()}
    return {scope: amounts for scope, amounts in lesser.items() if amounts}


def _left_by_scopes(session: Session, pledge: Pledge) -> dict[tuple[str, ...], Amounts]:
    """What victims are still charged, by where they are; most of one claimant's are together."""
    left: dict[tuple[str, ...], Amounts] = {}
    for group, pods in victims_left(session, pledge):
        sums = left.setdefault(group.scopes, {})
        for name, units in still_charged(pledge, group, pods).items():
            sums[name] = sums.get(name, 0) + units
    return left


def promised_to(claimant: GroupState) -> Amounts:
    """What the claimant is charged beyond what it holds."""
    held = claimant.held
    return minus(charge_with_count(claimant), counted(held) if held else {})


def still_charged(pledge: Pledge, group: GroupState, pods: tuple[Pod, ...]) -> Amounts:
    """What a victim's charge falls by when it has given what is pledged."""
    if group.is_external or leaves_whole(pledge, group):
        return charge_with_count(group)
    return falls_by(group, total(of_pod(pod.spec.requests) for pod in pods))


def kept_room(session: Session, pledge: Pledge) -> dict[str, Amounts]:
    """Node -> what of the claimant's room is free there now; victims still hold the rest."""
    if not pledge.room:
        return {}
    there: dict[str, Amounts] = {}
    for _, pods in victims_left(session, pledge):
        for pod in pods:
            node = pod.status.node
            there[node] = plus(there.get(node, {}), of_pod(pod.spec.requests))
    rooms = {node: minus(room, there.get(node, {})) for node, room in pledge.room.items()}
    return {node: room for node, room in rooms.items() if room and node in session.nodes.by_name}


def has_lost_room(session: Session, pledge: Pledge) -> bool:
    """Whether a node on which room is kept or awaited is gone, lost or cordoned."""
    return any(True for _ in _nodes_lost(session, pledge))


def nodes_awaited(session: Session, pledge: Pledge) -> list[str]:
    """The nodes that a claimant waits for, since its victims were told to stop there and the nodes
    were gone, lost or cordoned afterwards. They are awaited until the pledge expires: an agent that
    is started again within seconds would otherwise cost a claimant what was evicted for it.
    """
    if pledge.expires is None or pledge.extra:
        return []
    return list(_nodes_lost(session, pledge))


def _nodes_lost(session: Session, pledge: Pledge) -> Iterator[str]:
    for name in pledge.room:
        node = session.nodes.by_name.get(name)
        if node is None or not node.open:
            yield name


# --- Rooms and moves --------------------------------------------------------------------------


def keep_rooms(session: Session) -> None:
    """Take what is kept for claimants off the nodes, until the session ends."""
    for claimant, pledge in standing_pledges(session):
        session.nodes.hold(claimant.uid, kept_room(session, pledge))


def room_of(pods: Iterable[Pod]) -> dict[str, Amounts]:
    """Node -> what these pods ask for there."""
    room: dict[str, Amounts] = {}
    for pod in pods:
        node = pod.status.node
        room[node] = plus(room.get(node, {}), of_pod(pod.spec.requests))
    return room


def hold_room(session: Session, group: GroupState, room: dict[str, Amounts]) -> None:
    """Keep room for a group that waits, for the rest of this session only."""
    if room:
        session.nodes.hold(group.uid, room)


def enter_room(statement: Statement, claimant: GroupState) -> None:
    """Let the claimant use what was kept for it."""
    nodes, uid = statement.session.nodes, claimant.uid
    if uid in nodes.held:
        amounts = nodes.give_hold(uid)
        statement.also_undo(lambda: nodes.hold(uid, amounts))
    if uid in nodes.kept:
        places = nodes.release(uid)
        statement.also_undo(lambda: nodes.keep(uid, places))


def make_pledge(statement: Statement, claimant: GroupState, pledge: Pledge) -> None:
    """Victims owe their room to the claimant, which is kept for it from now on."""
    note_pledge(statement.session, claimant, pledge)
    statement.set_status(claimant, pledge=pledge)
    resume_pledge(statement, claimant, pledge)
    statement.say(intents.Pledge(group=claimant.key, victims=pledge.victims, action=pledge.action))


def keep_room_anew(statement: Statement, claimant: GroupState) -> None:
    """Victims have ended: keep what they have left for the claimant, too."""
    session = statement.session
    enter_room(statement, claimant)
    session.nodes.hold(claimant.uid, kept_room(session, claimant.status.pledge))
    statement.also_undo(lambda: _drop_hold(session, claimant))


def resume_pledge(statement: Statement, claimant: GroupState, pledge: Pledge) -> None:
    """Keep to a pledge that stands in the claimant's status."""
    session = statement.session
    note_pledge(session, claimant, pledge)
    statement.also_undo(lambda: forget_pledge(session, claimant, pledge))
    # What it held already on nodes is part of what it is to have.
    enter_room(statement, claimant)
    session.nodes.hold(claimant.uid, kept_room(session, pledge))
    statement.also_undo(lambda: _drop_hold(session, claimant))
    # Noted only now, its victims count for it.
    session.ledger.recharge(claimant)


def _drop_hold(session: Session, claimant: GroupState) -> None:
    session.nodes.give_hold(claimant.uid)


def end_pledge(statement: Statement, claimant: GroupState) -> None:
    """Nothing is kept for the claimant any more; nothing happens if nothing was."""
    pledge = claimant.status.pledge
    if not pledge.stands:
        return
    session = statement.session
    enter_room(statement, claimant)
    forget_pledge(session, claimant, pledge)
    statement.also_undo(lambda: note_pledge(session, claimant, pledge))
    statement.set_status(claimant, pledge=Pledge())
    statement.say(intents.EndPledge(group=claimant.key))


def withdraw_pledge(statement: Statement, claimant: GroupState) -> None:
    """As if the claimant had never come up for its reservation; nothing is told."""
    session, pledge = statement.session, claimant.status.pledge
    enter_room(statement, claimant)
    forget_pledge(session, claimant, pledge)
    statement.also_undo(lambda: note_pledge(session, claimant, pledge))
    statement.set_status(claimant, pledge=Pledge(), reserved_at=None, reservation={})


def awaits_victims(session: Session, group: GroupState) -> bool:
    """Whether a victim of what is pledged to the group has not ended yet."""
    pledge = group.status.pledge
    return pledge.stands and bool(victims_left(session, pledge))


def clock_stands(session: Session, group: GroupState) -> bool:
    """Whether the time for which the group is InQueue does not count now: victims are awaited, or
    the time for which they were has not been taken off yet.
    """
    pledge = group.status.pledge
    return pledge.stands and (pledge.made_at is not None or awaits_victims(session, group))


def gives_way_to(session: Session, group: GroupState) -> GroupState | None:
    """The claimant before which this victim is not admitted again; None if there is none.

    Nor before one that is admitted already and waits for the victim's pods to end: these would
    count as what the victim reserves, and be promised twice. A claimant that counts on the end of
    its own former pods does not wait for itself.
    """
    for claimant in session.ledger.claimants.get(group.uid, {}).values():
        if claimant is group:
            continue
        is_pending = PodGroupPhase.PENDING in (claimant.phase, group.phase)
        if is_pending and claimant.status.pledge.stands:
            return claimant
    return None


def owed_by_scope(owed: ByScope) -> dict[str, Amounts]:
    """As it is stored with the pledge: scopes in order, zeros left out."""
    return {scope: dict(owed[scope]) for scope in sorted(owed) if owed[scope]}


class _Part(NamedTuple):
    """What one claimant adds: what its victims are still charged, where; and what it counts for
    less meanwhile.
    """

    falls: list[tuple[tuple[str, ...], Amounts]]
    owed: ByScope


class PledgedRoom:
    """Owned by a session. It follows when it is asked: sums that were handed out stay as they are
    until then, whatever a trial does.
    """

    def __init__(self) -> None:
        #: Victim's uid -> when it was first pledged in this session, counted from 0.
        self._places: dict[str, int] = {}
        #: Claimant's uid -> the uids of its victims.
        self._victims: dict[str, dict[str, None]] = {}
        self._parts: dict[str, _Part] = {}
        self._sums: dict[str, dict[str, int]] = {}
        self._leaving: dict[str, Amounts] = {}
        #: Claimants whose victims leave more than is promised to them.
        self._spare: dict[str, GroupState] = {}
        #: Those of them for which anything changes when a trial lets their victims end.
        self._moving: dict[str, GroupState] = {}
        self._seen = 0

    def note(self, claimant: GroupState, pledge: Pledge) -> None:
        """Its victims owe it their room."""
        victims = self._victims.setdefault(claimant.uid, {})
        for uid in pledge.groups:
            self._places.setdefault(uid, len(self._places))
            victims[uid] = None

    def forget(self, claimant: GroupState, pledge: Pledge) -> None:
        """They owe it nothing any more."""
        victims = self._victims.get(claimant.uid, {})
        for uid in pledge.groups:
            victims.pop(uid, None)

    def leaving(self, session: Session) -> Mapping[str, Amounts]:
        """Scope -> what its sum falls by when all victims have ended, and their claimants count in
        full.

        Until then a queue that gives back to one claimant looks as if it still had too much, and
        would have to give the same to the next.
        """
        self._follow(session)
        return self._leaving

    def is_more_than_needed(self, session: Session) -> bool:
        """Whether the victims of any claimant leave more than is promised to it."""
        self._follow(session)
        return bool(self._spare)

    def with_more_than_they_need(self, session: Session) -> list[GroupState]:
        """Those claimants; first those whose victims were pledged first.

        Left out are those that wait for claims of consumers alone: these are told to stop already,
        have no room on nodes, and their end is not ours to foresee.
        """
        self._follow(session)
        if len(self._moving) < 2:
            return list(self._moving.values())
        return sorted(self._moving.values(), key=lambda claimant: self._place(session, claimant))

    # ------------------------------------------------------------------------------------------

    def _place(self, session: Session, claimant: GroupState) -> tuple[int, int]:
        owners = session.ledger.claimants
        first = min(self._victims[claimant.uid], key=lambda uid: self._places[uid])
        return (self._places[first], list(owners[first]).index(claimant.uid))

    def _follow(self, session: Session) -> None:
        stirred = session.ledger.stirred
        if len(stirred) == self._seen:
            return
        groups = {group.uid: group for group in stirred[self._seen :]}
        self._seen = len(stirred)
        scopes: set[str] = set()
        for uid, group in groups.items():
            if uid in self._victims:
                scopes.update(self._look_again(session, group))
        for scope in scopes:
            sums = self._sums[scope]
            self._leaving[scope] = {name: units for name, units in sums.items() if units > 0}

    def _look_again(self, session: Session, claimant: GroupState) -> Iterable[str]:
        """Take out what a claimant added, and add what it does by now; the scopes concerned."""
        uid = claimant.uid
        former, part = self._parts.pop(uid, None), None
        self._spare.pop(uid, None)
        self._moving.pop(uid, None)
        if self._victims[uid]:
            part = self._parts[uid] = self._part_of(session, claimant)
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

    def _part_of(self, session: Session, claimant: GroupState) -> _Part:
        pledge = claimant.status.pledge
        victims = victims_left(session, pledge)
        falls = [(group.scopes, still_charged(pledge, group, pods)) for group, pods in victims]
        left = total(amounts for _, amounts in falls)
        if minus(left, counted(pledge.extra or promised_to(claimant))):
            self._spare[claimant.uid] = claimant
            if pledge.room or any(pods or leaves_whole(pledge, group) for group, pods in victims):
                self._moving[claimant.uid] = claimant
        return _Part(falls, session.ledger.owed(claimant))

    def _add(self, scope: str, amounts: Mapping[str, int], sign: int) -> None:
        sums = self._sums.setdefault(scope, {})
        for name, units in amounts.items():
            sums[name] = sums.get(name, 0) + sign * units


#: What victims owe to claimants in a session.
PLEDGED_ROOM = StateKey("debts", lambda _: PledgedRoom())
