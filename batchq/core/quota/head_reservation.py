"""What is set aside for a head that waits: others are tested as if it were charged.

Otherwise small groups of other queues, admitted one by one, keep a large head from ever finding
enough room at once. All that the head asks for is set aside, or nothing: a part of it would be idle
and let nobody start, the head included. It is all where the head, beside what its queue will still
hold when it starts by the ends that are known, leaves its queue within what it deserves. Kept for
the rest of a session, where queues meet: in the cluster and in the queues above.

Of the heads that ask for more, one at a time has all of it set aside, if its queue has used less
than its due over time (batchq.core.quota.fair_shares).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import LARGEST, Amounts, plus
from batchq.api.transaction import POD_GROUPS, queue_scope
from batchq.core.forecast.node_timeline import Room, is_one_machine, nodes_decide
from batchq.core.forecast.timeline import LedgerTimeline, timeline_of
from batchq.core.preemption.protection import everybody_may_evict, is_protected, may_evict
from batchq.core.quota.fair_shares import comparable, deserved_of_queues, used_share
from batchq.core.quota.ledger import title_of
from batchq.core.quota.queue_tree import ROOT
from batchq.core.session.session import Session, StateKey
from batchq.core.session.state import GroupState, Victim, is_admitted
from batchq.core.session.statement import Statement

#: What machines refuse a group for, and the next pod of one that runs.
_OF_MACHINES = frozenset({Waiting.WAITING_FOR_RESOURCES, Waiting.UNSCHEDULABLE})


def set_aside(session: Session, head: GroupState) -> None:
    """For a strict head, against everybody else."""
    if not _lacks_what_is_shared(head, session.refusals[head.uid]):
        return
    if keeps_all(session, head):
        session.ledger.put_aside(head, head.reservation, lambda group, asked: True)
    else:
        session.heads.exceeding.append(head)


def keeps_all(session: Session, head: GroupState) -> bool:
    """Return whether all that a strict head asks for is set aside while it lacks it."""
    return head.status.set_aside_at is not None or _stays_within_deserved(session, head)


def has_waited(head: GroupState) -> bool:
    """Return whether a group has lacked what it shares with other queues, by its record."""
    return _lacks_what_is_shared(head, head.status.reasons)


def let_one_exceed(session: Session) -> None:
    """Of the heads that ask for more than their queues deserve, let one have all of it set aside
    from the next session on: that of the queue which has used least of its due, if that is less
    than its due. Once begun it lasts until the head starts or leaves its place.
    """
    if not session.heads.strict:
        return
    heads = {head.uid for head in session.heads.strict.values()}
    begun = [one for one in session.busy() if one.status.set_aside_at is not None]
    for group in begun:
        if group.uid not in heads:
            _note_aside(session, group, None)
    if not session.heads.exceeding or any(group.uid in heads for group in begun):
        return
    below = [
        (part, head.queue, head)
        for head in session.heads.exceeding
        if (part := _used(session, head)) < 1
    ]
    if below:
        *_, head = min(below, key=lambda one: one[:2])
        _note_aside(session, head, session.now_ms)


def _note_aside(session: Session, group: GroupState, since: int | None) -> None:
    with Statement(session) as statement:
        statement.set_status(group, set_aside_at=since)
        statement.commit()


def _used(session: Session, head: GroupState) -> Fraction:
    """How much of its due a head's queue has used; 1, if nothing is due to it, or what was used is
    no matter.

    Due is what it deserves of what the root does, in the dimension in which that is least.
    """
    deserved = deserved_of_queues(session)
    root = {name: deserved[ROOT][name] for name in comparable(session, deserved[ROOT])}
    root = {name: units for name, units in root.items() if units}
    mine = deserved.get(head.queue, {})
    due = min((Fraction(mine.get(name, 0), units) for name, units in root.items()), default=None)
    if not due or session.settings.half_life_ms is None:
        return Fraction(1)
    return used_share(session, queue_scope(head.queue), root) / due


def set_aside_from_borrowers(session: Session, head: GroupState) -> None:
    """For a head that others may overtake: only where its queue states what it deserves, against
    groups that would borrow what it could not, by policy, take back from them; or against all that
    would borrow, while nothing but a protection keeps it from its victims.
    """
    spares = _spares_some(session, head)
    if not spares and _gets_all_back(session, head):
        return
    if not session.queues[head.queue].record.spec.deserved:
        return
    refusals = session.refusals[head.uid]
    if not _lacks_what_is_shared(head, refusals) or not _stays_within_deserved(session, head):
        return
    amounts = head.reservation
    session.ledger.put_aside(
        head,
        amounts,
        lambda group, asked: (
            _would_borrow(session, group, asked, amounts)
            and (spares or not _gets_back(session, head, group))
        ),
    )


def _lacks_what_is_shared(head: GroupState, refusals: Iterable[Verdict]) -> bool:
    """Whether it is refused for what it shares with other queues: the cluster, or queues above."""
    above = {title_of(queue_scope(name)) for name in head.chain[:-1]}
    return any(_is_shared(verdict, above) for verdict in refusals)


def _is_shared(verdict: Verdict, above: set[str]) -> bool:
    return (verdict.in_line and verdict.resource != POD_GROUPS) and (
        verdict.reason in _OF_MACHINES or verdict.subject in above
    )


def _stays_within_deserved(session: Session, head: GroupState) -> bool:
    """Whether the head's queue, once it starts, holds no more than it deserves of anything that it
    asks for.
    """
    asked, scope = head.reservation, queue_scope(head.queue)
    deserved = deserved_of_queues(session).get(head.queue, {})
    bounds = {
        name: deserved[name] - asked[name]
        for name in comparable(session, asked)
        if name in deserved
    }
    if any(units < 0 for units in bounds.values()):
        return False
    if all(session.ledger.used(scope, name) <= units for name, units in bounds.items()):
        return True
    # Its own groups may end before it starts: by their walltimes, or as it does not start before.
    table = timeline_of(session)
    start = table.slot(head, None)
    return all(
        min(table.sum_then(scope, name, start), _left_beside(session, head, name)) <= units
        for name, units in bounds.items()
    )


def _left_beside(session: Session, head: GroupState, name: str) -> int:
    """The most that anybody could hold beside a head that has started."""
    limits = [session.ledger.limit(scope, name) for scope in head.scopes]
    return (
        min((limit for limit in limits if limit is not None), default=LARGEST)
        - (head.reservation[name])
    )


def _would_borrow(
    session: Session, group: GroupState, asked: Amounts | None, amounts: Amounts
) -> bool:
    """Whether one more charge takes its queue above what it deserves, where that is set aside."""
    deserved = deserved_of_queues(session).get(group.queue, {})
    scope = queue_scope(group.queue)
    if asked is None or group.phase == PodGroupPhase.PENDING:
        asked = group.reservation
    return any(
        session.ledger.used(scope, name) + asked.get(name, 1) > deserved[name]
        for name in comparable(session, amounts)
        if name in deserved
    )


def _gets_all_back(session: Session, head: GroupState) -> bool:
    """Whether nothing has to be kept for the head: its queue states nothing that it deserves, or
    can reclaim that from every borrower.

    That is the usual case, and has to be cheap where a thousand queues have heads that wait.
    """
    spec = session.queues[head.queue].record.spec
    takes = "reclaim" in session.actions and may_evict(session, head)
    takes_all = takes and session.tree.all_reclaimable and spec.preemption.reclaim == "Any"
    return takes_all or not spec.deserved


def everybody_gets_all_back(session: Session) -> bool:
    """Whether that is so of every head that any queue of this session could have, now."""
    specs = [queue.record.spec for queue in session.queues.values() if queue.record.spec.deserved]
    return not specs or (
        "reclaim" in session.actions
        and session.tree.all_reclaimable
        and all(spec.preemption.reclaim == "Any" for spec in specs)
        and everybody_may_evict(session)
        and not _protected(session)
    )


def _protected(session: Session) -> Iterable[GroupState]:
    """Of each queue with groups that reclaim may not take yet, for how short they have run, the one
    of the lowest priority.

    Found once a session, for any number of heads: what a session starts itself is not protected.
    """
    return session.get(PROTECTED).values()


def _lowest_protected(session: Session) -> dict[str, GroupState]:
    found: dict[str, GroupState] = {}
    for group in session.busy():
        lowest = found.get(group.queue)
        if (lowest is None or group.priority < lowest.priority) and _is_protected(session, group):
            found[group.queue] = group
    return found


def _is_protected(session: Session, group: GroupState) -> bool:
    if group.is_external or not is_admitted(group):
        return False
    pods = tuple(pod for pod in group.current() if pod.status.phase in ON_NODE)
    return bool(pods) and is_protected(session, Victim(group, pods, whole=True), "reclaimable")


def _spares_some(session: Session, head: GroupState) -> bool:
    """Whether a protection alone keeps the head from a group that its queue could reclaim from."""
    spec = session.queues[head.queue].record.spec
    if not spec.deserved or spec.preemption.reclaim == "Never":
        return False
    return any(
        group.queue != head.queue
        and _gets_back(session, head, group)
        and _is_above_deserved(session, group.queue, head.reservation)
        for group in _protected(session)
    )


def _is_above_deserved(session: Session, queue: str, amounts: Amounts) -> bool:
    """Whether a queue holds more than it deserves of anything that is asked for."""
    deserved = deserved_of_queues(session).get(queue, {})
    return any(
        session.ledger.used(queue_scope(queue), name) > deserved[name]
        for name in comparable(session, amounts)
        if name in deserved
    )


def _gets_back(session: Session, head: GroupState, borrower: GroupState) -> bool:
    """Whether the head could reclaim from the borrower's queue what that takes now."""
    if "reclaim" not in session.actions or not may_evict(session, head):
        return False
    _, theirs = session.tree.divide(head.queue, borrower.queue)
    if not all(session.queues[name].record.spec.reclaimable for name in theirs):
        return False
    match session.queues[head.queue].record.spec.preemption.reclaim:
        case "Any":
            return True
        case "LowerPriority":
            return borrower.priority < head.priority
        case _:
            return False


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


def place_heads(session: Session, known: LedgerTimeline) -> dict[str, HeadPlace]:
    """Return the places of all heads by uid, each beside those before it, as things are known."""
    return _place_others(session, known, {})


def _place_others(
    session: Session, known: LedgerTimeline, placed: Mapping[str, HeadPlace]
) -> dict[str, HeadPlace]:
    """The places of all heads, where those of some stand."""
    found: dict[str, HeadPlace] = {}
    table = known.beside()
    for one in session.ledger.aside.values():
        head = session.groups[one.head]
        found[one.head] = _booked(session, head, table, placed.get(one.head))
    return found


def _booked(
    session: Session, head: GroupState, table: LedgerTimeline, place: HeadPlace | None = None
) -> HeadPlace:
    """Where a head stands, which is booked there."""
    place = place or place_of(session, head, table)
    if place.start is not None:
        table.book_there(head, place.start, length_of(session, head), place.room)
    return place


def place_of(session: Session, head: GroupState, table: LedgerTimeline) -> HeadPlace:
    """Return where a head stands beside what is known and planned: where it has stood, unless it
    could start sooner elsewhere. One for which nodes are held stays there.
    """
    length = length_of(session, head)
    known = session.get(HEAD_PLACES).get(head.uid)
    former: Room = head.status.set_aside_on if known is None else known.room
    if former and head.uid in session.nodes.held and table.could_stand(head, former):
        return HeadPlace(None, former)
    start = table.slot(head, length)
    if start is not None:
        return HeadPlace(start, table.room_for(head, start, length, former))
    if former and table.could_stand(head, former):
        return HeadPlace(None, former)
    return HeadPlace(None, table.where_most_is_free(head))


# --- In a pass over the queues --------------------------------------------------------------------


def room_against(session: Session, group: GroupState, asked: Amounts | None = None) -> Room:
    """Return what stands on nodes for heads of other queues and is not for more pods of a group: as
    what is set aside for them is not, in sums. What is held for a head is off the nodes already.
    `asked` is what the group asks for, where that is not its reservation.
    """
    heads = [
        one.head
        for queue, one in session.ledger.aside.items()
        if queue != group.queue and one.against(group, asked) and one.head not in session.nodes.held
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
    known = session.peek(HEADS_TO_COME)
    if known is None:
        # While they are looked for, there are none.
        session.put(HEADS_TO_COME, [])
        known = list(_find_heads_to_come(session)) if nodes_matter(session) else []
        session.put(HEADS_TO_COME, known)
    return known


def _find_heads_to_come(session: Session) -> Iterator[tuple[GroupState, HeadPlace]]:
    table: LedgerTimeline | None = None
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
            table = table or timeline_of(session).beside()
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
    places = session.get(HEAD_PLACES)
    if not nodes_matter(session):
        return defaultdict(lambda: HeadPlace(None, {}))
    if any(one.head not in places for one in session.ledger.aside.values()):
        places |= _place_others(session, timeline_of(session), places)
    return places


@contextmanager
def keeping_off(session: Session, room: Room) -> Iterator[None]:
    """For a while, nodes have so much less free."""
    nodes = [
        (session.nodes.by_name[name], amounts)
        for name, amounts in room.items()
        if name in session.nodes.by_name
    ]
    for node, amounts in nodes:
        session.nodes.take(node, amounts)
    try:
        yield
    finally:
        for node, amounts in nodes:
            session.nodes.put_back(node, amounts)


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
    for uid, place in sorted(session.get(HEAD_PLACES).items()):
        if uid in heads:
            _write(session, session.groups[uid], place.room)
    for group in list(session.carried.heads_on_nodes.values()):
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


#: Queue -> the group of the lowest priority that reclaim may not take from it yet, in a session.
PROTECTED: StateKey[dict[str, GroupState]] = StateKey("protected", _lowest_protected)
#: Heads' uids -> where what is set aside for them stands on nodes, in a session.
HEAD_PLACES: StateKey[dict[str, HeadPlace]] = StateKey("head places", lambda _: {})
#: Heads of strict queues that have waited before, and where they stand.
HEADS_TO_COME: StateKey[list[tuple[GroupState, HeadPlace]]] = StateKey(
    "heads to come", lambda _: []
)
