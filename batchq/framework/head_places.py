"""Where heads stand for which something is set aside: on which nodes, and from when on.

A head stands where it would start first by the ends that are known, beside the heads of the queues
that were tried before its own; one of which nobody knows when it starts stands where most is free.
It stays there from session to session (`status.set_aside_on`) until it could start sooner
elsewhere. Groups of queues that are tried after it keep off that room. Those of queues that are
tried before it keep off as long as other nodes take them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.resources import Amounts, plus
from batchq.framework.asides import has_waited, keeps_all
from batchq.framework.nodetimes import Room, is_one_machine, nodes_decide
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.framework.statement import Statement
from batchq.framework.timetable import Timetable, timetable_of

#: So many groups of a line are looked at for its head.
_MOST_LOOKED_AT = 100


class HeadPlace(NamedTuple):
    """When a head starts, in milliseconds (None: nobody knows), and what it takes on which node."""

    start: int | None
    room: Room


def nodes_matter(session: Session) -> bool:
    """Return whether nodes say more than sums of where heads stand."""
    return nodes_decide(session) and not is_one_machine(session)


def still_waits(group: GroupState) -> bool:
    """Whether a group stands in line still: no action has started it meanwhile, or its next pod,
    or made others leave for that.
    """
    if group.next_pod is not None:
        return not group.charge()
    return group.phase == PodGroupPhase.PENDING and not group.reserved


def length_of(session: Session, group: GroupState) -> int | None:
    """How long a group holds what it reserves, if it is admitted now; None: nobody knows.

    The pods of an array end one by one, and others take their place. Who has leave to wait for
    will start later than now. Of a group that runs and stands in line its next pod counts.
    """
    if group.next_pod is not None:
        return length_of_pods(session, group)
    if group.is_array or (still_waits(group) and session.refusals_at("permit", group)):
        return None
    return group.record.spec.walltime


def length_of_pods(session: Session, group: GroupState) -> int | None:
    """How long more pods of a group that runs would run: an array's have their own walltime, others
    what is left of the group's, which rests while none of its pods is on a node.
    """
    walltime, started_at = group.record.spec.walltime, group.status.started_at
    if walltime is None or group.is_array or started_at is None:
        return walltime
    rests_at = group.status.rests_at
    now_ms = session.now_ms if rests_at is None else rests_at
    return max(0, started_at + walltime - now_ms)


def place_heads(session: Session, known: Timetable) -> dict[str, HeadPlace]:
    """Return the places of all heads by uid, each beside those before it, as things are known."""
    return _place_others(session, known, {})


def _place_others(
    session: Session, known: Timetable, placed: Mapping[str, HeadPlace]
) -> dict[str, HeadPlace]:
    """The places of all heads, where those of some stand."""
    found: dict[str, HeadPlace] = {}
    table = known.beside()
    for one in session.ledger.aside.values():
        head = session.groups[one.head]
        found[one.head] = _booked(session, head, table, placed.get(one.head))
    return found


def _booked(
    session: Session, head: GroupState, table: Timetable, place: HeadPlace | None = None
) -> HeadPlace:
    """Where a head stands, which is booked there."""
    place = place or place_of(session, head, table)
    if place.start is not None:
        table.book_there(head, place.start, length_of(session, head), place.room)
    return place


def place_of(session: Session, head: GroupState, table: Timetable) -> HeadPlace:
    """Return where a head stands beside what is known and planned: where it has stood, unless it
    could start sooner elsewhere. One for which nodes are held stays there.
    """
    length = length_of(session, head)
    known = session.head_places.get(head.uid)
    former: Room = head.status.set_aside_on if known is None else known.room
    if former and head.uid in session.rooms and table.could_stand(head, former):
        return HeadPlace(None, former)
    start = table.slot(head, length)
    if start is not None:
        return HeadPlace(start, table.room_for(head, start, length, former))
    if former and table.could_stand(head, former):
        return HeadPlace(None, former)
    return HeadPlace(None, table.where_most_is_free(head))


# --- In a pass over the queues --------------------------------------------------------------------


def room_against(session: Session, group: GroupState) -> Room:
    """Return what stands on nodes for heads of other queues and is not for more pods of a group: as
    what is set aside for them is not, in sums. What is held for a head is off the nodes already.
    """
    heads = [
        one.head
        for queue, one in session.ledger.aside.items()
        if queue != group.queue and one.against(group) and one.head not in session.rooms
    ]
    return together(_places_of(session)[uid].room for uid in heads) if heads else {}


def room_against_gang(session: Session, group: GroupState) -> Room:
    """Return the same for the gang of a group: none, where that has been reserved before."""
    return {} if group.reserved else room_against(session, group)


def room_to_come(session: Session, group: GroupState) -> Room:
    """Return what stands on nodes for heads of other queues that are still to be tried: a group
    keeps off it while other nodes take its gang. One that has been reserved before keeps off what
    stands for all heads like this.
    """
    asides = session.ledger.aside
    rooms = [
        place.room
        for head, place in _heads_to_come(session)
        if head.queue != group.queue and head.queue not in asides and still_waits(head)
    ]
    if group.reserved:
        rooms.append(room_against(session, group))
    return together(rooms)


def _heads_to_come(session: Session) -> list[tuple[GroupState, HeadPlace]]:
    """The heads of strict queues that have waited before, and where they stand: worked out once a
    session.
    """
    if session.heads_to_come is None:
        session.heads_to_come = []
        if nodes_matter(session):
            session.heads_to_come = list(_find_heads_to_come(session))
    return session.heads_to_come


def _find_heads_to_come(session: Session) -> Iterator[tuple[GroupState, HeadPlace]]:
    table: Timetable | None = None
    for name, queue in session.queues.items():
        if queue.record.spec.strategy.type == "BestEffortFIFO" or name in session.ledger.aside:
            continue
        first = islice(queue.line, _MOST_LOOKED_AT)
        head = next((one for one in first if still_waits(one) and has_waited(one)), None)
        if head is None:
            continue
        if head.status.set_aside_on:
            yield head, HeadPlace(None, head.status.set_aside_on)
        elif keeps_all(session, head):
            table = table or timetable_of(session).beside()
            yield head, _booked(session, head, table)


def together(rooms: Iterable[Room]) -> dict[str, Amounts]:
    """Return the sum of rooms by node."""
    found: dict[str, Amounts] = {}
    for room in rooms:
        for name, amounts in room.items():
            found[name] = plus(found.get(name, {}), amounts)
    return found


def _places_of(session: Session) -> Mapping[str, HeadPlace]:
    """The places of all heads that are known by now, in a pass: each stays where it was found."""
    places = session.head_places
    if not nodes_matter(session):
        return defaultdict(lambda: HeadPlace(None, {}))
    if any(one.head not in places for one in session.ledger.aside.values()):
        places |= _place_others(session, timetable_of(session), places)
    return places


@contextmanager
def keeping_off(session: Session, room: Room) -> Iterator[None]:
    """For a while, nodes have so much less free."""
    nodes = [
        (session.nodes[name], amounts) for name, amounts in room.items() if name in session.nodes
    ]
    for node, amounts in nodes:
        node.take(amounts)
        session.node_changes.append(node.name)
    try:
        yield
    finally:
        for node, amounts in nodes:
            node.put_back(amounts)
            session.node_changes.append(node.name)


def store_head_places(session: Session) -> None:
    """Write down where heads stand, for the sessions to come. Those of a session that has put
    nothing on nodes stay where they have stood; one that stands nowhere yet is placed, unless
    nothing else is there that could be in its way.
    """
    if session.ledger.aside and any(
        not session.groups[one.head].status.set_aside_on and _is_beside_others(session, queue)
        for queue, one in session.ledger.aside.items()
    ):
        _places_of(session)
    heads = {one.head for one in session.ledger.aside.values()}
    for uid, place in sorted(session.head_places.items()):
        if uid in heads:
            _write(session, session.groups[uid], place.room)
    for group in list(session.heads_on_nodes.values()):
        if group.uid not in heads:
            _write(session, group, {})


def _is_beside_others(session: Session, queue: str) -> bool:
    """Whether any group of another queue waits or holds anything."""
    return any(other.line for name, other in session.queues.items() if name != queue) or any(
        group.queue != queue for group in session.busy()
    )


def _write(session: Session, head: GroupState, room: Room) -> None:
    if head.status.set_aside_on == room:
        return
    with Statement(session) as statement:
        statement.set_status(head, set_aside_on=dict(room))
        statement.commit()
