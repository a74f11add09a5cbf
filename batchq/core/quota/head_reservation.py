"""Head reservations: capacity kept for the first group in line, as if it were charged already.

Without it, small groups of other queues, admitted one by one, could take every piece of capacity
that becomes free, and a large head would never start. Either the whole request of the head is
reserved or nothing: a partial reservation would be idle without starting the head. The condition is
that the head's queue does not exceed its deserved share when the head starts; groups of the queue
that will have ended by then do not count. The reservation lasts for the rest of the session and
applies where queues share capacity: in the cluster and in the queues above.

If heads fail this condition, one of them at a time gets a reservation all the same: its queue must
have used less than its due over time (batchq.core.quota.fair_shares).

For backfill, the reservation begins only at the expected start of the head: backfill starts a group
of another queue that ends before this instant or leaves enough capacity for the head
(`OtherHeads`). If the expected start is unknown, the whole request is kept from now on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from itertools import islice, takewhile
from typing import Any, NamedTuple

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.api.resources import LARGEST, Amounts, larger, plus
from batchq.api.transaction import POD_GROUPS, queue_scope
from batchq.core.node_timeline import AmountsByNode, is_one_machine, nodes_decide
from batchq.core.preemption.protection import every_class_may_evict, is_protected, may_evict
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import comparable, deserved_of_queues, used_share
from batchq.core.quota.ledger import title_of
from batchq.core.session.session import Session, StateKey
from batchq.core.session.state import GroupState, Victim, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.timeline import LedgerTimeline, timeline_of

#: Reasons with which nodes refuse a group, or the next pod of a running group.
_OF_NODES = frozenset({Waiting.WAITING_FOR_RESOURCES, Waiting.UNSCHEDULABLE})


def reserve_for_head(session: Session, head: GroupState) -> None:
    """Reserve capacity for the head of a strict queue against all other groups."""
    if not _lacks_shared_capacity(head, session.refusals[head.uid]):
        return
    if keeps_all(session, head):
        session.ledger.add_head_reservation(head, head.reservation, lambda group, asked: True)
    else:
        session.heads.exceeding.append(head)


def keeps_all(session: Session, head: GroupState) -> bool:
    """Return whether a strict head gets its whole request reserved while it lacks capacity."""
    return head.status.set_aside_at is not None or _stays_within_deserved(session, head)


def has_waited(head: GroupState) -> bool:
    """Return whether a group stood in line and lacked capacity shared with other queues, according
    to its record.
    """
    reasons = head.status.reasons
    return _lacks_shared_capacity(head, reasons) and Blockers(reasons).wait_in_line


def let_one_exceed(session: Session) -> None:
    """Let one of the heads whose requests exceed what their queues deserve have a reservation from
    the next session on: the head of the queue that has used the smallest part of its due, if that
    is below 1. The reservation lasts until the head starts or is no longer first in line.
    """
    heads = {head.uid for head in session.heads.strict.values()}
    begun = [one for one in session.unsettled() if one.status.set_aside_at is not None]
    for group in begun:
        if group.uid not in heads:
            _set_status(session, group, set_aside_at=None)
    if not session.heads.exceeding or any(group.uid in heads for group in begun):
        return
    below = [
        (part, head.queue, head)
        for head in session.heads.exceeding
        if (part := _used(session, head)) < 1
    ]
    if below:
        *_, head = min(below, key=lambda one: one[:2])
        _set_status(session, head, set_aside_at=session.now_ms)


def _used(session: Session, head: GroupState) -> Fraction:
    """Return which fraction of its due a head's queue has used; 1 if it has no due or usage does
    not count.

    Its due is the fraction of the root's deserved amounts that the queue deserves, in the dimension
    in which this fraction is smallest.
    """
    deserved = deserved_of_queues(session)
    root = {name: deserved[ROOT][name] for name in comparable(session, deserved[ROOT])}
    root = {name: units for name, units in root.items() if units}
    mine = deserved.get(head.queue, {})
    due = min((Fraction(mine.get(name, 0), units) for name, units in root.items()), default=None)
    if not due or session.settings.half_life_ms is None:
        return Fraction(1)
    return used_share(session, queue_scope(head.queue), root) / due


def reserve_from_borrowers(session: Session, head: GroupState) -> None:
    """Reserve capacity for a head that others may overtake, if its queue states what it deserves.
    It applies to groups that would borrow capacity that the queue's policy could not reclaim; to
    all groups that would borrow, if only a protection keeps the head from its victims.
    """
    spares = _spares_some(session, head)
    if not spares and _gets_all_back(session, head):
        return
    if not session.queues[head.queue].record.spec.deserved:
        return
    refusals = session.refusals[head.uid]
    if not _lacks_shared_capacity(head, refusals) or not _stays_within_deserved(session, head):
        return
    amounts = head.reservation
    session.ledger.add_head_reservation(
        head,
        amounts,
        lambda group, asked: (
            _would_borrow(session, group, asked, amounts)
            and (spares or not _gets_back(session, head, group))
        ),
    )


def _lacks_shared_capacity(head: GroupState, refusals: Iterable[Verdict]) -> bool:
    """Return whether the cluster or a queue above refuses the head."""
    above = {title_of(queue_scope(name)) for name in head.chain[:-1]}
    return any(_is_shared(verdict, above) for verdict in refusals)


def _is_shared(verdict: Verdict, above: set[str]) -> bool:
    return (verdict.in_line and verdict.resource != POD_GROUPS) and (
        verdict.reason in _OF_NODES or verdict.subject in above
    )


def _stays_within_deserved(session: Session, head: GroupState) -> bool:
    """Return whether the head's queue stays within what it deserves once it starts."""
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
    # Groups of its own queue may end before it starts: at their walltimes, or because the head
    # cannot start before they end.
    table = _timeline_without_waiting_holds(session)
    start = table.slot(head, None)
    return all(
        min(table.sum_then(scope, name, start), _left_beside(session, head, name)) <= units
        for name, units in bounds.items()
    )


def _timeline_without_waiting_holds(session: Session) -> LedgerTimeline:
    """Return the timeline as if no waiting group without a reservation held capacity on nodes.

    A group that a head reservation refuses holds nothing in the next session. So a reservation that
    depended on its hold would come and go with every session.
    """
    nodes, groups = session.nodes, session.groups
    waiting = [
        uid
        for uid in nodes.held
        if uid in groups and not groups[uid].reserved and not groups[uid].status.pledge.stands
    ]
    if not waiting:
        return timeline_of(session)
    holds = {uid: nodes.put_back_hold(uid) for uid in waiting}
    try:
        return LedgerTimeline(session)
    finally:
        for uid, by_node in holds.items():
            nodes.hold(uid, by_node)


def _left_beside(session: Session, head: GroupState, name: str) -> int:
    """Return the most that the limits let other groups hold once the head has started."""
    limits = [session.ledger.limit(scope, name) for scope in head.scopes]
    return (
        min((limit for limit in limits if limit is not None), default=LARGEST)
        - (head.reservation[name])
    )


def _would_borrow(
    session: Session, group: GroupState, asked: Amounts | None, amounts: Amounts
) -> bool:
    """Return whether one more charge raises a queue above its deserved amount there."""
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
    """Return whether the head needs no reservation: its queue states nothing that it deserves, or
    can reclaim it from every borrower.

    This is the usual case, and it must be cheap with a thousand queues whose heads wait.
    """
    spec = session.queues[head.queue].record.spec
    takes = "reclaim" in session.actions and may_evict(session, head)
    takes_all = takes and session.tree.all_reclaimable and spec.preemption.reclaim == "Any"
    return takes_all or not spec.deserved


def may_need_reservations(session: Session) -> Callable[[str], bool]:
    """Return a test whether the head of a queue may need a reservation in this session."""
    may_take_all = (
        "reclaim" in session.actions
        and session.tree.all_reclaimable
        and every_class_may_evict(session)
    )

    def test(name: str) -> bool:
        spec = session.queues[name].record.spec
        if not spec.deserved:
            return False
        return not may_take_all or spec.preemption.reclaim != "Any" or bool(_protected(session))

    return test


def _protected(session: Session) -> Iterable[GroupState]:
    """Return, for each queue with groups that reclaim may not take yet because they have run too
    short, the one of the lowest priority.

    Computed once a session for all heads; groups started by the session itself are not protected.
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
    """Return whether only a protection keeps the head from a group to reclaim from."""
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
    """Return whether a queue holds more than it deserves in a requested dimension."""
    deserved = deserved_of_queues(session).get(queue, {})
    return any(
        session.ledger.used(queue_scope(queue), name) > deserved[name]
        for name in comparable(session, amounts)
        if name in deserved
    )


def _gets_back(session: Session, head: GroupState, borrower: GroupState) -> bool:
    """Return whether the head could reclaim from the borrower's queue what that takes now."""
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


_KEEPING_NOTHING_OFF = nullcontext()
#: How many groups of a queue are searched for its head.
_MOST_LOOKED_AT = 100


class HeadPlace(NamedTuple):
    """The expected start of a head in ms (None: unknown), and what it takes on each node."""

    start: int | None
    by_node: AmountsByNode


def nodes_matter(session: Session) -> bool:
    """Return whether head reservations need nodes as well as sums."""
    return nodes_decide(session) and not is_one_machine(session)


def still_waits(group: GroupState) -> bool:
    """Return whether a group still waits in line: no action of this session has started it or its
    next pod, or evicted victims for it.
    """
    if group.next_pod is not None:
        return not group.charge()
    return group.phase == PodGroupPhase.PENDING and not group.reserved


def length_of(session: Session, group: GroupState) -> int | None:
    """Return how long (ms) a group will hold its reservation if it is admitted now; None: unknown.

    It is unknown for a group that must wait for admission checks first and so starts later, and for
    an array with retries. For another array and for a running group that queues again, it is the
    length of the next pod: after that, the group holds nothing, and its other pods are in line
    again.
    """
    if group.next_pod is not None:
        return length_of_pods(session, group)
    if is_array_with_retries(group) or (
        still_waits(group) and session.refusals_at("permit", group)
    ):
        return None
    return group.record.spec.walltime


def is_array_with_retries(group: GroupState) -> bool:
    """Return whether a failed pod of the group may run again, for another walltime of its own."""
    return group.is_array and group.record.spec.retry.limit > 0


def length_of_pods(session: Session, group: GroupState) -> int | None:
    """Return how long (ms) more pods of a running group would run: an array's pods for their own
    walltime, others for the rest of the group's walltime. That pauses while none of its pods is on
    a node.
    """
    walltime, started_at = group.record.spec.walltime, group.status.started_at
    if walltime is None or group.is_array or started_at is None:
        return walltime
    rests_at = group.status.rests_at
    now_ms = session.now_ms if rests_at is None else rests_at
    return max(0, started_at + walltime - now_ms)


def place_heads(session: Session, known: LedgerTimeline) -> dict[str, HeadPlace]:
    """Return the places of all heads by uid, each beside the heads before it."""
    return _place_others(session, known, {})


def _place_others(
    session: Session, known: LedgerTimeline, placed: Mapping[str, HeadPlace]
) -> dict[str, HeadPlace]:
    """Return the places of all heads; those in `placed` are given."""
    found: dict[str, HeadPlace] = {}
    table = known.beside()
    for one in session.ledger.head_reservations.values():
        head = session.groups[one.head]
        found[one.head] = _booked(session, head, table, placed.get(one.head))
    return found


def _booked(
    session: Session, head: GroupState, table: LedgerTimeline, place: HeadPlace | None = None
) -> HeadPlace:
    """Book a head at its place, which is computed if it is not given, and return the place."""
    place = place or place_of(session, head, table)
    if place.start is not None:
        table.book_there(head, place.start, length_of(session, head), place.by_node)
    return place


def place_of(session: Session, head: GroupState, table: LedgerTimeline) -> HeadPlace:
    """Return the place of a head beside everything known and planned. It keeps its former place,
    unless it could start sooner elsewhere; a head for which nodes are held always keeps it.
    """
    length = length_of(session, head)
    known = session.get(HEAD_PLACES).get(head.uid)
    former: AmountsByNode = head.status.set_aside_on if known is None else known.by_node
    if former and head.uid in session.nodes.held and table.could_stand(head, former):
        return HeadPlace(None, former)
    start = table.slot(head, length)
    if start is not None:
        return HeadPlace(start, table.places_for(head, start, length, former))
    if former and table.could_stand(head, former):
        return HeadPlace(None, former)
    return HeadPlace(None, table.where_most_is_free(head))


def reserved_against(
    session: Session, group: GroupState, asked: Amounts | None = None
) -> AmountsByNode:
    """Return the head reservations of other queues on nodes that apply to a group's growth, in the
    same way as their reservations in sums. Nodes held for a head are left out, because their
    capacity is taken already. `asked` is what the group requests, if not its reservation.
    """
    heads = [
        one.head
        for queue, one in session.ledger.head_reservations.items()
        if queue != group.queue and one.against(group, asked) and one.head not in session.nodes.held
    ]
    return together(_places_of(session)[uid].by_node for uid in heads) if heads else {}


def reserves_on_nodes(session: Session) -> bool:
    """Return whether capacity may be reserved for any head, or for one still to be tried."""
    return bool(session.ledger.head_reservations or _strict_heads(session))


def reserved_against_gang(session: Session, group: GroupState) -> AmountsByNode:
    """Return the same for a group's gang; nothing if its quota was reserved earlier."""
    return {} if group.reserved else reserved_against(session, group)


def reserved_for_later_heads(session: Session, group: GroupState) -> AmountsByNode:
    """Return what is reserved on nodes for heads of other queues that are still to be tried: a
    group avoids it while other nodes take its gang. A group whose quota was reserved earlier avoids
    the reservations of all heads in this way.
    """
    reservations = session.ledger.head_reservations
    parts = [
        place.by_node
        for head, place in _strict_heads(session)
        if head.queue != group.queue and head.queue not in reservations and still_waits(head)
    ]
    if group.reserved:
        parts.append(reserved_against(session, group))
    return together(parts)


def _strict_heads(session: Session) -> list[tuple[GroupState, HeadPlace]]:
    """Return the waiting heads of strict queues with their places, once a session."""
    known = session.peek(STRICT_HEADS)
    if known is None:
        # The search itself asks for these heads and must find none.
        session.put(STRICT_HEADS, [])
        known = list(_find_strict_heads(session)) if nodes_matter(session) else []
        session.put(STRICT_HEADS, known)
    return known


def _find_strict_heads(session: Session) -> Iterator[tuple[GroupState, HeadPlace]]:
    table: LedgerTimeline | None = None
    for name, queue in session.queues.items():
        if (
            queue.record.spec.strategy.type == "BestEffortFIFO"
            or name in session.ledger.head_reservations
        ):
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


def together(parts: Iterable[AmountsByNode]) -> dict[str, Amounts]:
    """Return the sum of several amounts by node."""
    found: dict[str, Amounts] = {}
    for part in parts:
        for name, amounts in part.items():
            found[name] = plus(found.get(name, {}), amounts)
    return found


def _places_of(session: Session) -> Mapping[str, HeadPlace]:
    """Return the places of all heads known in this pass, as they were found first."""
    places = session.get(HEAD_PLACES)
    if not nodes_matter(session):
        return defaultdict(lambda: HeadPlace(None, {}))
    if any(one.head not in places for one in session.ledger.head_reservations.values()):
        places |= _place_others(session, timeline_of(session), places)
    return places


def keeping_off(session: Session, by_node: AmountsByNode) -> AbstractContextManager[None]:
    """While the context is open, nodes have these amounts less free."""
    return _keeping_off(session, by_node) if by_node else _KEEPING_NOTHING_OFF


@contextmanager
def _keeping_off(session: Session, by_node: AmountsByNode) -> Iterator[None]:
    nodes = [
        (session.nodes.by_name[name], amounts)
        for name, amounts in by_node.items()
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
    """Store the places of heads for later sessions. A session that has put nothing on nodes keeps
    the stored places; a head without a place gets one, unless no other queue has groups that could
    compete with it.
    """
    reservations, places = session.ledger.head_reservations, session.peek(HEAD_PLACES)
    if not reservations and not places and not session.carried.heads_on_nodes:
        return
    if reservations and any(
        not session.groups[one.head].status.set_aside_on and _is_beside_others(session, queue)
        for queue, one in reservations.items()
    ):
        _places_of(session)
    heads = {one.head for one in reservations.values()}
    for uid, place in sorted(session.get(HEAD_PLACES).items()):
        if uid in heads:
            _write(session, session.groups[uid], place.by_node)
    for group in list(session.carried.heads_on_nodes.values()):
        if group.uid not in heads:
            _write(session, group, {})


def _is_beside_others(session: Session, queue: str) -> bool:
    """Return whether any group of another queue waits or holds anything."""
    return any(other.line for name, other in session.queues.items() if name != queue) or any(
        group.queue != queue for group in session.busy()
    )


def _write(session: Session, head: GroupState, by_node: AmountsByNode) -> None:
    if head.status.set_aside_on != by_node:
        _set_status(session, head, set_aside_on=dict(by_node))


def _set_status(session: Session, head: GroupState, **changes: Any) -> None:
    """Change the status of a head, or of a former one, which keeps its place in line.

    A former head may be refused with its equivalence class, whose verdicts do not apply to a group
    that has changed: it gets them for itself.
    """
    verdicts = session.refusals.get(head.uid)
    with Statement(session) as statement:
        statement.set_status(head, **changes)
        statement.commit()
    if verdicts is not None:
        session.refuse(head, verdicts)


#: Queue -> its lowest-priority group that reclaim may not take yet, in a session.
PROTECTED: StateKey[dict[str, GroupState]] = StateKey("protected", _lowest_protected)
#: Uid of a head -> the place of its reservation on nodes, in a session.
HEAD_PLACES: StateKey[dict[str, HeadPlace]] = StateKey("head places", lambda _: {})
#: Heads of strict queues that have waited before, with their places.
STRICT_HEADS: StateKey[list[tuple[GroupState, HeadPlace]]] = StateKey("strict heads", lambda _: [])


class OtherHeads:
    """The heads with a reservation, each with a timeline of its own: everything known, plus its
    reservation. Owned by one run of an action, which reports every start.
    """

    def __init__(self, session: Session, known: LedgerTimeline) -> None:
        self._session = session
        self._known = known
        self._places: Mapping[str, HeadPlace] | None = None
        #: Uid of a head -> its timeline; None if its start is unknown.
        self._plans: dict[str, LedgerTimeline | None] = {}

    def note_start(self) -> None:
        """Clear all timelines after a group has started."""
        self._places = None
        self._plans.clear()

    def before(self, queue: str) -> LedgerTimeline:
        """Return the timeline with the reservations of heads that were tried before this queue."""
        table = self._known.beside()
        reservations = self._session.ledger.head_reservations
        for name in takewhile(lambda name: name != queue, reservations):
            self._book(reservations[name].head, table)
        return table

    def in_the_way(self, queue: str, fits: Callable[[LedgerTimeline], bool]) -> frozenset[str]:
        """Return the uids of heads of other queues that a group would delay, because it does not
        fit (`fits`) beside their reservations. These reservations apply to the group.
        """
        return frozenset(
            one.head
            for name, one in self._session.ledger.head_reservations.items()
            if name != queue and ((plan := self._plan(one.head)) is None or not fits(plan))
        )

    def booked_until(self, queue: str, length: int | None) -> AmountsByNode:
        """Return, by node, what is free now and booked for heads of other queues within `length`
        ms. If the start of a head is unknown, its whole reservation counts.
        """
        found: dict[str, dict[str, int]] = {}
        unknown: dict[str, dict[str, int]] = {}
        for name, one in self._session.ledger.head_reservations.items():
            if name == queue:
                continue
            if (plan := self._plan(one.head)) is not None:
                for node, amounts in plan.booked_until(length).items():
                    found[node] = larger(found.get(node, {}), amounts)
                continue
            for node, amounts in self._place(one.head).by_node.items():
                unknown[node] = plus(unknown.get(node, {}), amounts)
        for node, amounts in unknown.items():
            found[node] = plus(found.get(node, {}), amounts)
        return found

    def _plan(self, uid: str) -> LedgerTimeline | None:
        if uid not in self._plans:
            is_known = self._place(uid).start is not None
            plan = self._plans[uid] = self._known.beside() if is_known else None
            if plan is not None:
                self._book(uid, plan)
        return self._plans[uid]

    def _book(self, uid: str, table: LedgerTimeline) -> None:
        """Book a head's reservation, if its start is known."""
        start, by_node = self._place(uid)
        if start is not None:
            head = self._session.groups[uid]
            table.book_there(head, start, length_of(self._session, head), by_node)

    def _place(self, uid: str) -> HeadPlace:
        if self._places is None:
            self._places = place_heads(self._session, self._known)
        return self._places[uid]
