"""backfill: start groups ahead of a blocked head where they do not delay it.

The blocked head of a Backfill queue has a reservation: the earliest time by which, according to the
known ends of running groups, it can start. The groups behind it, in the queue's order or shortest
walltime first, are admitted and placed at once if they fit now, and either end before that time or
leave enough capacity for the head: EASY (Lifka 1995). The reservation covers all limits and certain
nodes: groups that would still run at that time leave the capacity for the head's gang free there.
With `reservations: all` every waiting group has a reservation, each beside those before it:
conservative backfilling (Mu'alem and Feitelson 2001). A group without a walltime may use only
capacity that the head never needs.

Head reservations bind the groups of other queues, too. A group that no head of its own queue holds
back starts if it delays no head of another queue.

No plan is kept: each session makes a new one. Groups end no later than their walltimes, and often
earlier, so the head may start before its reservation if no other group takes the capacity.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import dropwhile, islice

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod, Strategy
from batchq.api.resources import Amounts, describe, larger
from batchq.core.equivalence import PendingIterator
from batchq.core.kept_capacity import amounts_by_node, gives_way_to
from batchq.core.node_timeline import AmountsByNode
from batchq.core.pending_queue import blockers, groups_after, is_kept_out, waits_in_line
from batchq.core.placement.elastic import place_what_asks_for_nothing, waiting_extras, waits_behind
from batchq.core.placement.placement import find_node, start_gang
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import note_admission
from batchq.core.quota.head_reservation import (
    OtherHeads,
    keeping_off,
    length_of,
    length_of_pods,
    place_of,
    still_waits,
)
from batchq.core.quota.limit_checks import growth_with, over_limit_with
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import (
    admit,
    bind,
    create_pods,
    reserve,
    shape_of_extra,
)
from batchq.core.timeline import LedgerTimeline, is_within

#: The most groups of a queue without a head that are tried past head reservations in a session.
MOST_TRIED = 1_000


class Backfill:
    """Pending -> InQueue, ahead of a blocked head, for every group that does not delay it."""

    name = "backfill"

    def execute(self, session: Session) -> None:
        # 1. Groups behind a blocked head start where they do not delay it.
        if session.nodes.binding_refused is None:
            _fill(session, _blocked_lines(session))
        # 2. Pods without requests delay no head: they need a place on a node and nothing else.
        place_what_asks_for_nothing(session)


class _BackfillLine(Struct, frozen=True):
    """A blocked head with its start, the groups behind it in the order in which they are tried, and
    the plan in which the head is booked; with `for_all` the groups behind it are booked, too.
    """

    queue: str
    head: GroupState
    start: int
    behind: Iterable[GroupState]
    plan: LedgerTimeline
    for_all: bool


def _blocked_lines(session: Session) -> dict[str, GroupState]:
    """Return the head of each Backfill queue; where all groups stand in one line, the root's."""
    heads = {
        name: head
        for name, head in session.heads.strict.items()
        if _strategy(session, head).type == "Backfill" and still_waits(head)
    }
    if heads and not session.plugins.points["queueOrder"]:
        return {ROOT: next(iter(heads.values()))}
    return heads


def _strategy(session: Session, group: GroupState) -> Strategy:
    return session.queues[group.queue].record.spec.strategy


def _fill(session: Session, heads: dict[str, GroupState]) -> None:
    """Serve the queue with the lowest share first; shares follow each admission."""
    # 1. Queues in which no group can start now cost no plan.
    tried = {name: head for name, head in heads.items() if _may_start_any(session, name, head)}
    unheaded = [name for name in _unheaded(session) if name not in heads]
    if not tried and not unheaded:
        return
    # 2. Each head is booked at the earliest time at which it fits.
    turn = _Turn(session, LedgerTimeline(session))
    lines = {
        name: line
        for name, head in tried.items()
        if (line := _line_of(session, name, head, turn.others)) is not None
    }
    admissions = {name: _go_ahead(turn, line) for name, line in lines.items()}
    admissions |= {name: _go_between(turn, name) for name in unheaded}
    # 3. One group of the fairest queue starts at a time, and all plans follow it.
    first_of = {name: next(iter(session.queues[name].line), None) for name in unheaded}
    turns = FairShareSelector(
        session,
        admissions,
        lambda name: lines[name].head if name in lines else first_of.get(name),
    )
    while (name := turns.next()) is not None:
        started = next(admissions[name], None)
        if started is None:
            turns.drop(name)
            continue
        turn.note(started, [line.plan for line in lines.values()])
        # 4. When the head itself starts, the next group of its queue is the head.
        if name in lines and started.group is lines[name].head:
            following = _after_head(session, name, started.group, turn.others)
            if following is None:
                turns.drop(name)
                continue
            lines[name] = following
            admissions[name] = _go_ahead(turn, following)


class _Turn:
    """One turn of the action: the timeline of what runs, and the heads of other queues."""

    def __init__(self, session: Session, known: LedgerTimeline) -> None:
        self.session, self.known = session, known
        self.others = OtherHeads(session, known)

    @cached_property
    def growing(self) -> dict[str, list[GroupState]]:
        """Return the groups of `_growing_by_queue` as they were when a queue first asked."""
        return _growing_by_queue(self.session)

    def note(self, started: _Started, plans: Sequence[LedgerTimeline]) -> None:
        """Let all plans follow a start."""
        group, length, growth = started.group, started.length, started.growth
        for table in (self.known, *plans):
            if growth is None:
                table.started(group, length, started.by_node)
            else:
                table.grown(group, growth, length, started.by_node)
        if growth is None:
            note_admission(self.session, group)
        self.others.note_start()


def _may_start_any(session: Session, name: str, head: GroupState) -> bool:
    """Return whether a group of a queue might start now, as far as a glance tells: a group behind
    the head is not kept out by a full limit, or only head reservations keep the head out.
    """
    waits_for_limits = not session.ledger.head_reservations and bool(blockers(session, head))
    return (
        not waits_for_limits
        or _has_any_behind(session, name, head)
        or any(group.is_elastic and is_admitted(group) for group in session.unsettled())
    )


def _has_any_behind(session: Session, name: str, head: GroupState) -> bool:
    """Return whether `_behind` yields any group without the classes that are kept out."""
    key = session.group_key(head)
    # Usually the first group of some class shows it, and no iterator is needed.
    for peers in session.queues[name].line.classes.values() if name != ROOT else ():
        following = None if is_kept_out(session, peers) else peers.members.after(key)
        if following is not None and _is_in_line(session, following[1]):
            return True
    return next(_behind(session, name, head, unparked=True), None) is not None


def _is_in_line(session: Session, group: GroupState) -> bool:
    return still_waits(group) and waits_in_line(session.refusals.get(group.uid, ()))


def _unheaded(session: Session) -> list[str]:
    """Return the queues whose groups may wait for nothing but the head reservations of others."""
    if not session.plugins.points["queueOrder"]:
        return []
    reservations = session.ledger.head_reservations
    if not reservations:
        return []
    return [name for name in session.queues if any(other != name for other in reservations)]


def reservations_of(session: Session) -> dict[str, int]:
    """Return from when on capacity is kept for groups, by uid, in milliseconds, after a session has
    decided; those of a line in the order in which they are tried. Reservations that could not have
    let a group start were left out, and are added here.
    """
    left = {
        name: head
        for name, head in _blocked_lines(session).items()
        if head.uid not in session.heads.starts or head.uid in session.heads.unplanned
    }
    session.heads.unplanned.clear()
    if left:
        others = OtherHeads(session, LedgerTimeline(session))
        for name, head in left.items():
            if (line := _line_of(session, name, head, others)) is not None and line.for_all:
                _reserve_all(session, line, line.behind)
    return session.heads.starts


def _reserve_all(session: Session, line: _BackfillLine, groups: Iterable[GroupState]) -> bool:
    """Reserve for each group, as none starts now; return False if one has no start."""
    for group in groups:
        start = line.plan.slot(group, length_of(session, group))
        if start is None:
            return False
        _reserve(session, line, group, start)
    return True


def _reserve(session: Session, line: _BackfillLine, group: GroupState, start: int) -> None:
    session.heads.starts[group.uid] = start
    line.plan.book(group, start, length_of(session, group))


def _line_of(
    session: Session, name: str, head: GroupState, others: OtherHeads
) -> _BackfillLine | None:
    """Return a queue with its head booked; None if no start is known, which makes it strict."""
    plan = others.before(head.queue)
    start, by_node = place_of(session, head, plan)
    if start is None:
        return None
    session.heads.starts[head.uid] = start
    plan.book_there(head, start, length_of(session, head), by_node)
    strategy = _strategy(session, head)
    for_all = strategy.reservations == "all"
    behind: Iterable[GroupState] = (
        list(_behind(session, name, head))
        if for_all
        else _behind(session, name, head, unparked=True, beside=plan)
    )
    if strategy.order == "shortest":
        # Sorting is stable: groups of equal walltime stay in the order of the queue.
        behind = sorted(behind, key=lambda group: _shortest_first(group.record.spec.walltime))
    return _BackfillLine(head.queue, head, start, behind, plan, for_all=for_all)


def _after_head(
    session: Session, name: str, head: GroupState, others: OtherHeads
) -> _BackfillLine | None:
    """Return the queue after its head has been admitted, with the next group as its head."""
    following = _next_head(session, name, head)
    return None if following is None else _line_of(session, name, following, others)


def _next_head(session: Session, name: str, head: GroupState) -> GroupState | None:
    """Make the next group the head of a queue whose head has been admitted, and return it."""
    session.heads.starts.pop(head.uid, None)
    session.ledger.drop_head_reservation(head)
    following = next(_behind(session, name, head), None)
    for queue, former in list(session.heads.strict.items()):
        if former is head and following is not None:
            session.heads.strict[queue] = following
    return following


def _behind(
    session: Session,
    name: str,
    head: GroupState,
    *,
    unparked: bool = False,
    beside: LedgerTimeline | None = None,
) -> Iterator[GroupState]:
    """Yield the groups behind a head that are in line, in order; with `unparked`, without classes
    that a full limit keeps out; with `beside`, without groups that the limits do not admit now
    beside what is booked there by then.

    In one line of all queues a group of a StrictFIFO queue ends it: no group passes that one, and
    it passes none.
    """
    groups: PendingIterator | None = None
    if name == ROOT:
        from_head = dropwhile(lambda group: group is not head, _one_line(session))
        behind: Iterable[GroupState] = islice(from_head, 1, None)
    else:
        key, also = session.group_key(head), _drained(session, name)
        behind = groups = groups_after(session, name, key, also, kept_out=not unparked)
    for group in behind:
        if name == ROOT and _strategy(session, group).type == "StrictFIFO":
            return
        if beside is not None and not group.next_pod:
            longest = beside.longest_now(group)
            never = longest is not None and longest <= 0
            if groups is not None and never and group.status is group.record.status:
                groups.pass_over()
            # A group without a walltime may run for ever, so the limits must admit it for ever.
            if not is_within(group.record.spec.walltime, longest):
                continue
        if _is_in_line(session, group):
            yield group


def _one_line(session: Session) -> list[GroupState]:
    groups = [group for queue in session.queues.values() for group in queue.line]
    groups += [group for name in session.queues for group in _drained(session, name)]
    return sorted(groups, key=session.group_key)


def _drained(session: Session, name: str) -> list[GroupState]:
    """Return the groups of a queue that run and stand in line with their next pod."""
    return [group for group in session.unsettled() if group.next_pod and group.queue == name]


def _shortest_first(walltime: int | None) -> tuple[bool, int]:
    return (walltime is None, walltime or 0)


class _Started(Struct, frozen=True):
    """A group that has just been admitted, or has grown by `growth`: for how long it runs, and what
    the pods that were bound for it take by node.
    """

    group: GroupState
    length: int | None
    by_node: AmountsByNode
    growth: Amounts | None = None


def _go_ahead(turn: _Turn, line: _BackfillLine) -> Iterator[_Started]:
    """Yield each group of a queue that starts now, then more pods of running groups, one by one.

    The head starts if only the reservation of another queue's head keeps it out, and it does not
    delay that head. Nothing else is yielded then: the groups behind it have another head.
    """
    session = turn.session
    if line.start == session.now_ms:
        length = length_of(session, line.head)
        if started := _start(turn, line.queue, line.head, length):
            yield started
            return
    for group in () if line.for_all else line.behind:
        length = length_of(session, group)
        fits = line.plan.fits_now(group, length)
        if fits and (started := _start(turn, line.queue, group, length, line.plan)):
            yield started
    if not line.for_all or (yield from _go_in_turn(turn, line)):
        for group in _growing(session, line):
            yield from _grow(turn, line.queue, group, line.plan)


def _go_in_turn(turn: _Turn, line: _BackfillLine) -> Generator[_Started, None, bool]:
    """Yield each group of a queue that starts now, where all groups have reservations; return if
    all of them are planned, so that more pods may go ahead.
    """
    session, plan, place = turn.session, line.plan, 0
    behind = list(line.behind)
    count = _planned(session, plan, behind)
    while place < count:
        group = behind[place]
        place += 1
        length = length_of(session, group)
        start = plan.slot(group, length)
        if start is None:
            # As for a head without a start: any group that passes it may delay it.
            return False
        is_now = start == session.now_ms
        if is_now and (started := _start(turn, line.queue, group, length, plan)):
            yield started
            continue
        _reserve(session, line, group, start)
        count = _planned(session, plan, behind[:count])
    if place < len(behind) and not _growing(session, line):
        session.heads.unplanned.add(line.head.uid)
        return False
    return _reserve_all(session, line, behind[place:])


def _planned(session: Session, plan: LedgerTimeline, behind: Sequence[GroupState]) -> int:
    """Return how many of the groups behind a head need a plan: up to the last one that could start
    now beside what is booked. Later bookings do not let the others start.
    """
    count = len(behind)
    while count and not plan.may_fit_now(behind[count - 1], length_of(session, behind[count - 1])):
        count -= 1
    return count


def _go_between(turn: _Turn, name: str) -> Iterator[_Started]:
    """Yield each group of a queue that starts now beside the head reservations of other queues,
    then more pods of running groups; of a StrictFIFO queue the head, then the next head.
    """
    session, known = turn.session, turn.known
    head = session.heads.strict.get(name)
    while head is not None and still_waits(head):
        length = length_of(session, head)
        fits = known.fits_now(head, length)
        if not fits or (started := _start(turn, name, head, length)) is None:
            return
        yield started
        head = _next_head(session, name, head)
    for group in islice(_in_line(session, name), MOST_TRIED) if head is None else ():
        length = length_of(session, group)
        fits = known.fits_now(group, length)
        if fits and (started := _start(turn, name, group, length)):
            session.ledger.drop_head_reservation(group)
            yield started
    for group in turn.growing.get(name, ())[:MOST_TRIED]:
        yield from _grow(turn, name, group)


def _in_line(session: Session, name: str) -> Iterator[GroupState]:
    """Yield the groups of a queue that are in line, without classes that a full limit keeps out."""
    also = _drained(session, name)
    for group in groups_after(session, name, (), also, kept_out=False):
        if _is_in_line(session, group):
            yield group


def _amounts_by_node(session: Session, group: GroupState) -> AmountsByNode:
    """Return what the pods of a group that was just admitted take by node."""
    pods = [
        pod
        for pod in group.live_pods.values()
        if pod.status.phase in ON_NODE and not pod.status.terminating
    ]
    return amounts_by_node(session, group, pods)


def _start(
    turn: _Turn,
    queue: str,
    group: GroupState,
    length: int | None,
    plan: LedgerTimeline | None = None,
) -> _Started | None:
    """Start a group, or the next pod of a running one, for `length` ms; return None if it cannot
    start now. `plan` has the bookings of other groups of its queue.
    """
    session = turn.session
    if any(one.plugin == "pledge" for one in session.refusals.get(group.uid, ())):
        # It was evicted in this session: what it left is pledged to its preemptor.
        return None
    if group.next_pod is None:
        if not _admit(turn, queue, group, length, plan):
            return None
        by_node = _amounts_by_node(session, group) if turn.known.covers_nodes else {}
        return _Started(group, length, by_node)
    shape = group.next_pod
    growth = growth_with(session, group, shape)
    extra = next(
        one for one in waiting_extras(session, group) if shape_of_extra(group, one) is shape
    )
    by_node = _bind_extra(turn, queue, group, extra, length, plan)
    if not by_node:
        return None
    group.next_pod = None
    session.refusals.own.pop(group.uid, None)
    return _Started(group, length, by_node, growth)


def _admit(
    turn: _Turn,
    queue: str,
    group: GroupState,
    length: int | None,
    plan: LedgerTimeline | None,
) -> bool:
    """Admit and place a group, or let it wait for its permit; False if it cannot start now."""
    session = turn.session
    if session.ledger.head_reservations:
        others = turn.others.in_the_way(queue, lambda beside: beside.fits_now(group, length))
        with session.ledger.regarding(others):
            if blockers(session, group):
                return False
    elif blockers(session, group):
        return False
    waits_for = session.refusals_at("permit", group)
    with Statement(session) as statement:
        if waits_for:
            reserve(statement, group, f"reserved {describe(group.reservation)}")
        else:
            admit(statement, group, reservation=group.reservation)
            if not group.is_external:
                with keeping_off(session, _booked_beside(turn, queue, length, plan)):
                    start_gang(session, statement, group)
                if not session.group_ready(group):
                    return False
        statement.commit()
    session.refusals.own.pop(group.uid, None)
    if waits_for:
        session.pending.ineligible.pop(group.uid, None)
        session.refuse(group, waits_for)
    return True


def _booked_beside(
    turn: _Turn, queue: str, length: int | None, plan: LedgerTimeline | None
) -> AmountsByNode:
    """Return what is booked on nodes for other groups while a group would run there."""
    booked = dict(turn.others.booked_until(queue, length))
    for name, amounts in (plan.booked_until(length) if plan is not None else {}).items():
        booked[name] = larger(booked.get(name, {}), amounts)
    return booked


def _growing(session: Session, line: _BackfillLine) -> list[GroupState]:
    """Return running elastic groups whose next pods would pass the head."""
    groups = [
        group
        for group in session.unsettled()
        if session.heads.strict.get(group.queue) is line.head
        and _may_grow(session, group)
        and waits_behind(session, group)
    ]
    return sorted(groups, key=session.group_key)


def _growing_by_queue(session: Session) -> dict[str, list[GroupState]]:
    """Return the running elastic groups that have pods to bind, of queues without a head."""
    found: dict[str, list[GroupState]] = {}
    for group in session.unsettled():
        if group.queue not in session.heads.strict and _may_grow(session, group):
            found.setdefault(group.queue, []).append(group)
    return {name: sorted(groups, key=session.group_key) for name, groups in found.items()}


def _may_grow(session: Session, group: GroupState) -> bool:
    return (
        group.is_elastic
        and is_admitted(group)
        and group.next_pod is None
        and not group.is_external
        and not group.has_all_placed
        and session.group_ready(group)
        and gives_way_to(session, group) is None
    )


def _grow(
    turn: _Turn, queue: str, group: GroupState, plan: LedgerTimeline | None = None
) -> Iterator[_Started]:
    """Bind more pods while they delay no head; of each task until one pod does not fit. `plan` has
    the bookings of other groups of its queue.
    """
    session, beside = turn.session, plan or turn.known
    refused: set[str] = set()
    length = length_of_pods(session, group)
    for extra in waiting_extras(session, group):
        shape = shape_of_extra(group, extra)
        if shape.task.name in refused:
            continue
        growth = growth_with(session, group, shape)
        fits = beside.may_grow_now(group, shape, growth, length)
        if fits and (by_node := _bind_extra(turn, queue, group, extra, length, plan)):
            yield _Started(group, length, by_node, growth)
            continue
        refused.add(shape.task.name)
        if all(one.task.name in refused for one in group.tasks if not one.gated):
            return


def _bind_extra(
    turn: _Turn,
    queue: str,
    group: GroupState,
    extra: Pod | int,
    length: int | None,
    plan: LedgerTimeline | None,
) -> AmountsByNode:
    """Bind one more pod of a group; return what it takes by node, empty if it cannot be bound."""
    session = turn.session
    shape = shape_of_extra(group, extra)
    growth = growth_with(session, group, shape)
    with keeping_off(session, _booked_beside(turn, queue, length, plan)):
        node = find_node(session, shape)
    others = turn.others.in_the_way(
        queue, lambda beside: beside.may_grow_now(group, shape, growth, length)
    )
    with session.ledger.regarding(others):
        if node is None or over_limit_with(session, group, shape):
            return {}
    with Statement(session) as statement:
        pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
        pod = bind(statement, group, pod, node.name)
        statement.commit()
    return amounts_by_node(session, group, [pod])
