"""backfill: what delays nobody goes ahead.

For each Backfill queue whose head is blocked: the head has a reservation, at the earliest time at
which everything that is known to end has left it enough. Those behind it, in the queue's order or
shortest walltime first, are admitted and placed at once if they fit now, and either end before that
time or leave enough beside the head: EASY (Lifka 1995). Time and room are those of all limits and
of single nodes: the head has the room of its gang on certain nodes then, and what would still be
there leaves it. With `reservations: all` every waiting
group has a reservation, each beside those before it: conservative backfilling (Mu'alem and
Feitelson 2001). What has no walltime may only use what is left beside the head for ever.

Nothing of a plan is kept: the next session makes a new one, by what is known then. Ends may come
earlier than walltimes say, never later; so a reservation moves forward only as long as nobody else
takes the room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from itertools import dropwhile, islice
from operator import itemgetter

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import Pod, Strategy
from batchq.api.quantity import PODS
from batchq.api.resources import Amounts, describe
from batchq.framework.crowds import Crowd, Line
from batchq.framework.extras import waiting_extras, waits_behind
from batchq.framework.gangs import bind_until_ready
from batchq.framework.growth import growth_with, over_limit_with
from batchq.framework.line import blockers, is_kept_out, waits_in_line
from batchq.framework.moves import admit, bind, create_pods, reserve
from batchq.framework.nodetimes import Room
from batchq.framework.placement import find_node
from batchq.framework.pledges import gives_way_to, room_of
from batchq.framework.pods import shape_at
from batchq.framework.queue_shares import note_admission
from batchq.framework.session import Key, Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState, is_admitted
from batchq.framework.statement import Statement
from batchq.framework.timetable import Timetable
from batchq.framework.tree import ROOT
from batchq.framework.turns import Turns
from batchq.framework.wanted import wanted_ordinals


class Backfill:
    """Pending -> InQueue, past a head that waits, for every group that delays nobody."""

    name = "backfill"

    def execute(self, session: Session) -> None:
        lines = _blocked_lines(session)
        if lines:
            _fill(session, lines)
        _place_what_asks_for_nothing(session)


@dataclass(frozen=True, slots=True)
class _Line:
    """A blocked head and when it starts, those who wait behind it in the order in which they are
    tried, and what is booked for whom; with `for_all` not for the head alone.
    """

    head: GroupState
    start: int
    behind: list[GroupState]
    plan: Timetable
    for_all: bool


def _blocked_lines(session: Session) -> dict[str, GroupState]:
    """Queue -> its head, of Backfill queues; where all groups stand in one line, the root's."""
    if session.binding_refused is not None:
        return {}
    heads = {
        name: head
        for name, head in session.strict_heads.items()
        if _strategy(session, head).type == "Backfill" and _still_waits(head)
    }
    if heads and not session.points["queueOrder"]:
        return {ROOT: next(iter(heads.values()))}
    return heads


def _still_waits(group: GroupState) -> bool:
    """Whether nobody has made room for it meanwhile."""
    return group.phase == PodGroupPhase.PENDING and not group.reserved


def _strategy(session: Session, group: GroupState) -> Strategy:
    return session.queues[group.queue].record.spec.strategy


def _fill(session: Session, heads: dict[str, GroupState]) -> None:
    """The queue with the lowest share first, looked at anew after each admission."""
    tried = {name: head for name, head in heads.items() if _anybody_may_start(session, name, head)}
    if not tried:
        return
    known = Timetable(session)
    lines = {
        name: line
        for name, head in tried.items()
        if (line := _line_of(session, name, head, known)) is not None
    }
    admissions = {name: _go_ahead(session, line, known) for name, line in lines.items()}
    turns = Turns(session, lines)
    while (name := turns.next()) is not None:
        started = next(admissions[name], None)
        if started is None:
            turns.drop(name)
            continue
        group, length, growth = started.group, started.length, started.growth
        for table in (known, *(line.plan for line in lines.values())):
            if growth is None:
                table.started(group, length, started.room)
            else:
                table.grown(group, growth, length, started.room)
        if growth is None:
            note_admission(session, group)
        if group is lines[name].head:
            following = _after_head(session, name, group, known)
            if following is None:
                turns.drop(name)
                continue
            lines[name] = following
            admissions[name] = _go_ahead(session, following, known)


def _anybody_may_start(session: Session, name: str, head: GroupState) -> bool:
    """Whether it takes a plan to know that nobody of a line starts now: somebody behind the head
    is not kept out by a limit that is full, or the head by nothing but what is set aside.
    """
    waits_for_limits = not session.ledger.aside and bool(blockers(session, head))
    return (
        not waits_for_limits
        or next(_behind(session, name, head, awake=True), None) is not None
        or any(group.is_elastic and is_admitted(group) for group in session.busy())
    )


def reservations_of(session: Session) -> dict[str, int]:
    """Group's uid -> from when on room is kept for it, in milliseconds; of a session that has
    decided. Of heads behind which nobody could have started, this is worked out here.
    """
    left = {
        name: head
        for name, head in _blocked_lines(session).items()
        if head.uid not in session.reservations
    }
    if left:
        known = Timetable(session)
        for name, head in left.items():
            if (line := _line_of(session, name, head, known)) is not None and line.for_all:
                _reserve_all(session, line)
    return session.reservations


def _reserve_all(session: Session, line: _Line) -> None:
    """Each in its turn beside those before it, where nobody starts now."""
    for group in line.behind:
        length = length_of(session, group)
        start = line.plan.slot(group, length)
        if start is None:
            return
        session.reservations[group.uid] = start
        line.plan.book(group, start, length)


def _line_of(session: Session, name: str, head: GroupState, known: Timetable) -> _Line | None:
    """None if nobody knows when the head can start: then it is strict."""
    length = length_of(session, head)
    start = known.slot(head, length)
    if start is None:
        return None
    session.reservations[head.uid] = start
    plan = known.beside()
    plan.book(head, start, length)
    strategy = _strategy(session, head)
    behind = list(_behind(session, name, head, awake=strategy.reservations != "all"))
    if strategy.order == "shortest":
        # Sorting is stable: equal lengths stay in the order of the line.
        behind.sort(key=lambda group: _shortest_first(group.record.spec.walltime))
    return _Line(head, start, behind, plan, for_all=strategy.reservations == "all")


def _after_head(session: Session, name: str, head: GroupState, known: Timetable) -> _Line | None:
    """The line behind a head that has just been admitted: the next of them is the head."""
    session.reservations.pop(head.uid, None)
    session.ledger.drop_aside(head)
    following = next(_behind(session, name, head), None)
    if following is None:
        return None
    for queue, former in session.strict_heads.items():
        if former is head:
            session.strict_heads[queue] = following
    return _line_of(session, name, following, known)


def _behind(
    session: Session, name: str, head: GroupState, *, awake: bool = False
) -> Iterator[GroupState]:
    """Those behind a head who keep their place in line, in its order; with `awake` without those
    that cannot be admitted now, as the limit on which they sleep is full.

    In one line of all queues a group of a StrictFIFO queue goes past nobody, and nobody past it.
    """
    if name == ROOT:
        from_head = dropwhile(lambda group: group is not head, _one_line(session))
        behind: Iterator[GroupState] = islice(from_head, 1, None)
    else:
        line = session.queues[name].line
        crowds = line.crowds.values()
        tried = [one for one in crowds if not (awake and is_kept_out(session, one))]
        behind = _after(session, session.group_key(head), line, tried)
    for group in behind:
        if name == ROOT and _strategy(session, group).type == "StrictFIFO":
            return
        if _still_waits(group) and waits_in_line(session.refusals.get(group.uid, ())):
            yield group


def _after(session: Session, key: Key, line: Line, crowds: Sequence[Crowd]) -> Iterator[GroupState]:
    """Who comes after a place in line: of these crowds, and of those that stand alone."""
    alone = [(session.group_key(group), group) for group in line.in_order()]
    lines = [crowd.members.pairs_after(key) for crowd in crowds]
    lines.append(pair for pair in alone if pair[0] > key)
    return (group for _, group in merge(*lines, key=itemgetter(0)))


def _one_line(session: Session) -> list[GroupState]:
    groups = [group for queue in session.queues.values() for group in queue.line]
    return sorted(groups, key=session.group_key)


def _shortest_first(walltime: int | None) -> tuple[bool, int]:
    return (walltime is None, walltime or 0)


def length_of(session: Session, group: GroupState) -> int | None:
    """How long a group holds what it reserves, if it is admitted now; None: nobody knows.

    The pods of an array end one by one, and others take their place. Who has leave to wait for
    will start later than now.
    """
    if group.is_array or (_still_waits(group) and session.refusals_at("permit", group)):
        return None
    return group.record.spec.walltime


@dataclass(frozen=True, slots=True)
class _Started:
    """A group that has just been admitted, or has grown by so much: for how long, and the room of
    the pods that were bound for that, by node.
    """

    group: GroupState
    length: int | None
    room: Room
    growth: Amounts | None = None


def _go_ahead(session: Session, line: _Line, known: Timetable) -> Iterator[_Started]:
    """Each group of a line that starts now; then more pods of groups that run, one by one.

    The head itself is the last one, if all that keeps it is what is set aside for another queue's
    head, and it ends before that starts: who is behind it stands behind another head then.
    """
    plan, now_ms = line.plan, session.now_ms
    length = length_of(session, line.head)
    if line.start == now_ms and _admit(session, line, line.head, length, known):
        yield _Started(line.head, length, _room_of(line.head))
        return
    for group in line.behind:
        length = length_of(session, group)
        if not line.for_all:
            if plan.fits_now(group, length) and _admit(session, line, group, length, known):
                yield _Started(group, length, _room_of(group))
            continue
        start = plan.slot(group, length)
        if start is None:
            # Like a head without a start: whatever goes past it may delay it.
            return
        if start == now_ms and _admit(session, line, group, length, known):
            yield _Started(group, length, _room_of(group))
            continue
        session.reservations[group.uid] = start
        plan.book(group, start, length)
    for group in _growing(session, line):
        yield from _grow(session, line, group, known)


def _room_of(group: GroupState) -> Room:
    """What the pods of a group that was just admitted have on nodes."""
    return room_of(
        pod
        for pod in group.pods.values()
        if pod.status.phase in ON_NODE and not pod.status.terminating
    )


@contextmanager
def _withheld(session: Session, room: Room) -> Iterator[None]:
    """For a while, nodes have so much less free: it is booked for others."""
    for name, amounts in room.items():
        session.nodes[name].take(amounts)
        session.node_changes.append(name)
    try:
        yield
    finally:
        for name, amounts in room.items():
            session.nodes[name].give(amounts)
            session.node_changes.append(name)


def _admit(
    session: Session, line: _Line, group: GroupState, length: int | None, known: Timetable
) -> bool:
    """Admit and place a group, or let it reserve and wait for leave; False if it cannot be now."""
    end = None if length is None else session.now_ms + length
    with session.ledger.regarding(_heads_in_the_way(session, line, end, known)):
        if blockers(session, group):
            return False
    waits_for = session.refusals_at("permit", group)
    with Statement(session) as statement:
        if waits_for:
            reserve(statement, group, f"reserved {describe(group.reservation)}")
        else:
            admit(statement, group, reservation=group.reservation)
            create_pods(statement, group, wanted_ordinals(group))
            if not group.is_external:
                with _withheld(session, _booked_beside(line, group, length)):
                    bind_until_ready(session, statement, group)
                if not session.group_ready(group):
                    return False
        statement.commit()
    session.refusals.pop(group.uid, None)
    if waits_for:
        session.asides.pop(group.uid, None)
        session.refuse(group, waits_for)
    return True


def _booked_beside(line: _Line, group: GroupState, length: int | None) -> Room:
    """What is booked for others on nodes while a group would be there: for the head, nothing."""
    return {} if group is line.head else line.plan.booked_until(length)


# --- More pods of groups that run -----------------------------------------------------------------


def _growing(session: Session, line: _Line) -> list[GroupState]:
    """Elastic groups that run, and would go past the head with more pods."""
    groups = [
        group
        for group in session.busy()
        if is_admitted(group)
        and group.is_elastic
        and not group.is_external
        and session.strict_heads.get(group.queue) is line.head
        and session.group_ready(group)
        and waits_behind(session, group)
        and gives_way_to(session, group) is None
    ]
    return sorted(groups, key=session.group_key)


def _grow(session: Session, line: _Line, group: GroupState, known: Timetable) -> Iterator[_Started]:
    """Bind more pods of a group, as long as they delay nobody. A task of which one pod does not fit
    is left.
    """
    refused: set[str] = set()
    length = _pods_length(session, group)
    for extra in waiting_extras(session, group):
        shape = shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)
        if shape.task.name in refused:
            continue
        growth = growth_with(session, group, shape)
        fits = line.plan.has_room_now(group, shape, growth, length)
        if fits and (room := _bind_extra(session, line, group, extra, length, known)):
            yield _Started(group, length, room, growth)
            continue
        refused.add(shape.task.name)
        if all(one.task.name in refused for one in group.tasks if not one.gated):
            return


def _pods_length(session: Session, group: GroupState) -> int | None:
    """How long more pods would run: an array's have their own walltime, others the group's."""
    walltime, started_at = group.record.spec.walltime, group.status.started_at
    if walltime is None or group.is_array or started_at is None:
        return walltime
    return max(0, started_at + walltime - session.now_ms)


def _bind_extra(
    session: Session,
    line: _Line,
    group: GroupState,
    extra: Pod | int,
    length: int | None,
    known: Timetable,
) -> Room:
    """The room of the pod that was bound; none, if none was."""
    shape = shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)
    end = None if length is None else session.now_ms + length
    with _withheld(session, line.plan.booked_until(length)):
        node = find_node(session, shape)
    with session.ledger.regarding(_heads_in_the_way(session, line, end, known)):
        if node is None or over_limit_with(session, group, shape):
            return {}
    with Statement(session) as statement:
        pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
        pod = bind(statement, group, pod, node.name)
        statement.commit()
    return room_of([pod])


# --- What others' heads have set aside ------------------------------------------------------------


def _heads_in_the_way(
    session: Session, line: _Line, end: int | None, known: Timetable
) -> frozenset[str]:
    """The heads of other queues that would not have started by then: what is set aside for them
    binds. What is kept for one's own head is in the plan.
    """
    others = [one.head for one in session.ledger.aside.values() if one.head != line.head.uid]
    return frozenset(
        uid for uid in others if end is None or not _ends_before(session, uid, end, known)
    )


def _ends_before(session: Session, uid: str, end: int, known: Timetable) -> bool:
    head = session.groups[uid]
    start = known.slot(head, length_of(session, head))
    return start is not None and end <= start


# --- Pods that ask for nothing ------------------------------------------------------------------


def _place_what_asks_for_nothing(session: Session) -> None:
    """Pods that take nothing but a place on a node, behind a strict head too; a gang of such pods
    whole or not at all.
    """
    for group in session.busy():
        if not is_admitted(group) or group.is_external or group.has_all_placed:
            continue
        if not _has_free_pods(group) or gives_way_to(session, group) is not None:
            continue
        if not session.group_ready(group) and all(map(_asks_for_nothing, group.tasks)):
            with Statement(session) as statement:
                bind_until_ready(session, statement, group)
                if session.group_ready(group):
                    statement.commit()
        if session.group_ready(group):
            _place_free_pods(session, group)


def _place_free_pods(session: Session, group: GroupState) -> None:
    for extra in list(waiting_extras(session, group)) if _has_free_pods(group) else ():
        shape = shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)
        if not _asks_for_nothing(shape):
            continue
        node = find_node(session, shape)
        if node is None or over_limit_with(session, group, shape):
            return
        with Statement(session) as statement:
            pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
            bind(statement, group, pod, node.name)
            statement.commit()


def _has_free_pods(group: GroupState) -> bool:
    return any(_asks_for_nothing(shape) for shape in group.tasks)


def _asks_for_nothing(shape: TaskShape) -> bool:
    return not shape.requests.keys() - {PODS}
