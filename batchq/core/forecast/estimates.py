"""When those who wait are expected to start, with everybody counted who is before them in line.

What Slurm's `squeue --start` shows: everybody who waits is planned, one after the other, in the
order in which queues and their lines are served, each at the earliest time at which the limits
take it beside all that runs and all that was planned before it. What runs ends with its walltime,
what is planned lasts as long as its own; without one it stays for ever.

A queue's strategy decides what may go past whom:

- StrictFIFO: nobody starts before those ahead of it.
- BestEffortFIFO: everybody starts as soon as there is room beside those ahead. That is an estimate:
  nothing is kept for them, so small ones may start earlier, and wide ones later for it.
- Backfill: everybody starts where that delays nobody ahead. With `reservations: all` that is the
  schedule itself, and it holds for everybody of the queue. With one reservation (EASY) it is the
  latest time for the head, and an estimate for the rest: a follower may be delayed by others that
  delay the head by nothing.

Whatever is said holds for what is known now: walltimes are upper bounds, so most start earlier;
whoever comes and is served first and evictions make it later. Limits are asked, and single nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import NEVER_FITS, Verdict, Waiting
from batchq.api.resources import Amounts
from batchq.api.transaction import queue_scope
from batchq.core.forecast.earliest_fit import PASSES, UNKNOWN_VICTIMS, ends, not_before_of
from batchq.core.forecast.timeline import LedgerTimeline
from batchq.core.pending.queue import blockers, standing_aside, waits_in_line
from batchq.core.placement.feasibility import why_no_known_node
from batchq.core.placement.placement import gang_of
from batchq.core.preemption.pledges import awaits_victims
from batchq.core.quota.fair_shares import fair_shares
from batchq.core.quota.ledger import LedgerView
from batchq.core.quota.limit_checks import claim_of
from batchq.core.quota.queue_tree import ROOT
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState

#: So many groups are planned, unless somebody asks for another number.
MOST_PLANNED = 1_000

#: Who refuses without numbers what the plan knows about: those ahead in line, and claimants.
_ABOUT_THE_LINE = ("enqueue", "pledge")


@dataclass(frozen=True, slots=True)
class Expected:
    """When a group is expected to start, in milliseconds; None, and `why` nobody can say.

    `ended`: the keys of those that have to end just then for it; `behind`: the key of the one ahead
    that it may not go past; `why`, where neither is all: what keeps it until then by itself.
    `is_planned` is False of those that are left out for their number.
    """

    at: int | None
    why: str = ""
    ended: tuple[str, ...] = ()
    behind: str = ""
    is_planned: bool = True


def expected_starts(
    session: Session, *, wanted: Collection[str] | None = None, most: int | None = None
) -> dict[str, Expected]:
    """Uid -> when it starts, of every group that waits: Pending, admitted by this very session, or
    InQueue without a node.

    The session has decided: whom it has not admitted does not start now. With `wanted` (uids) only
    as many are planned as it takes to know about these; they hear the same. At most `most` groups
    in line are planned (MOST_PLANNED), the others are told so. Leaves no trace in the session.
    """
    found = {
        group.uid: told
        for group in session.groups.values()
        if (told := _of_admitted(session, group)) is not None
    }
    if wanted is not None and found.keys() >= set(wanted):
        return found
    plan = _Plan(session, MOST_PLANNED if most is None else most)
    for line, group in plan.in_turn():
        found[group.uid] = plan.expect(line, group)
        if wanted is not None and found.keys() >= set(wanted):
            break
    return found


def _of_admitted(session: Session, group: GroupState) -> Expected | None:
    """Of what is InQueue, and starts now or cannot; None of what waits in line or does not wait."""
    if group.phase != PodGroupPhase.IN_QUEUE:
        return None
    if not group.is_external and sum(group.placed.values()) < group.min_member:
        said = [one for one in session.refusals.get(group.uid, ()) if not one.in_line]
        why = "".join(f": {one.message()}" for one in said[:1])
        return Expected(None, why=f"it is admitted, and no node takes it{why}")
    is_new = group.record.status.phase == PodGroupPhase.PENDING
    return Expected(session.now_ms) if is_new else None


@dataclass(frozen=True, slots=True)
class _Closed:
    """Nobody behind starts from `since` on, before `until` (None: never), for one ahead: `key`.

    `to_strict`: it binds only those who go past nobody.
    """

    since: int
    until: int | None
    key: str
    to_strict: bool = False


@dataclass(slots=True)
class _WaitingLine:
    """Those of one queue (or of all) so far: what they forbid to those behind, and their last."""

    last: int
    closed: list[_Closed] = field(default_factory=list)

    def closed_at(self, instant: int, *, is_strict: bool) -> _Closed | None:
        """Who forbids a start at that instant, and for the longest."""
        found: _Closed | None = None
        for one in self.closed:
            over = one.until is not None and one.until <= instant
            if one.since > instant or over or (one.to_strict and not is_strict):
                continue
            if one.until is None:
                return one
            if found is None or one.until > (found.until or 0):
                found = one
        return found

    def closed_for_ever_by(self, *, is_strict: bool) -> str | None:
        """The key of the first one ahead of which nobody knows when it starts."""
        for one in self.closed:
            if one.until is None and (is_strict or not one.to_strict):
                return one.key
        return None

    def opened_at(self, instant: int, *, is_strict: bool) -> str:
        """The key of the one ahead that forbids any start before that instant; '' if none does."""
        closed = self.closed_at(instant - 1, is_strict=is_strict)
        return closed.key if closed is not None and closed.until == instant else ""


class _Plan:
    """Everybody who has been planned so far; owner of the timetable, and of sums for shares."""

    def __init__(self, session: Session, most: int) -> None:
        known = ends(session)
        self._session = session
        self._most = most
        self._table = LedgerTimeline(session, known)
        #: Instant -> the groups that end then, as far as is known or planned.
        self._ending: dict[int, list[GroupState]] = {}
        for end in known:
            self._ending.setdefault(end.at, []).append(end.group)
        self._sums = _sums_of(session)
        self._no_node: dict[tuple[object, ...], str] = {}

    # In which order ---------------------------------------------------------------------------

    def in_turn(self) -> Iterator[tuple[_WaitingLine, GroupState]]:
        """Every Pending group with its line: the queue with the lowest share first, by what it
        holds and what of it was planned; those of queues that there are not come last.
        """
        session, now_ms = self._session, self._session.now_ms
        waiting: dict[str, list[GroupState]] = {}
        for group in sorted(_pending(session), key=session.group_key):
            where = group.queue if session.plugins.points["queueOrder"] else ROOT
            waiting.setdefault(where, []).append(group)
        if not session.plugins.points["queueOrder"]:
            line = _WaitingLine(last=now_ms)
            yield from ((line, group) for group in waiting.get(ROOT, ()))
            return
        fair_shares(session)
        lines = {name: _WaitingLine(last=now_ms) for name in waiting}
        comes = {name: iter(waiting[name]) for name in sorted(waiting) if name in session.queues}
        with self._by_what_is_planned():
            turns = FairShareSelector(session, comes)
        while (name := self._next(turns)) is not None:
            if (one := next(comes[name], None)) is None:
                turns.drop(name)
            else:
                yield lines[name], one
        for lost in sorted(waiting.keys() - session.queues.keys()):
            yield from ((lines[lost], group) for group in waiting[lost])

    def _next(self, turns: FairShareSelector) -> str | None:
        with self._by_what_is_planned():
            return turns.next()

    @contextmanager
    def _by_what_is_planned(self) -> Iterator[None]:
        """For a while, queues hold what was planned for them beside what they have."""
        session, ledger = self._session, self._session.ledger
        session.ledger = self._sums
        try:
            yield
        finally:
            session.ledger = ledger

    # When -------------------------------------------------------------------------------------

    def expect(self, line: _WaitingLine, group: GroupState) -> Expected:
        """When a group starts, beside all that was planned before; it is planned then."""
        session = self._session
        never = self._out_of_line(group)
        if never is not None:
            return Expected(None, why=f"{never.reason}: {never.message()}")
        not_before = not_before_of(session, group)
        if not_before is None:
            return Expected(None, why=UNKNOWN_VICTIMS)
        if awaits_victims(session, group):
            # What it is to have is its own already.
            return Expected(not_before, why=_by_itself(session, group))
        if self._most <= 0:
            return Expected(None, why="it is too far behind to be planned", is_planned=False)
        self._most -= 1
        return self._planned(line, group, not_before)

    def _out_of_line(self, group: GroupState) -> Verdict | None:
        """What neither anybody's end nor the clock changes, or nobody knows when."""
        session = self._session
        for verdict in standing_aside(session, group):
            if verdict.reason not in PASSES or verdict.reason == Waiting.WAITING_FOR_CHECKS:
                return verdict
        if awaits_victims(session, group):
            return None
        for verdict in blockers(session, group):
            if verdict.reason in NEVER_FITS or _is_riddle(verdict):
                return verdict
        return None

    def _planned(self, line: _WaitingLine, group: GroupState, not_before: int) -> Expected:
        session, now_ms = self._session, self._session.now_ms
        checks = [] if group.reserved else session.refusals_at("permit", group)
        length = None if checks or group.is_array else group.record.spec.walltime
        earliest: int | None = not_before
        if not_before <= now_ms and session.refusals.get(group.uid):
            # It would have been admitted now, were there nothing against it that sums do not tell.
            earliest = min((at for at in self._ending if at > now_ms), default=None)
        at = self._slot(line, group, length, earliest)
        if never := self._no_node_for(group):
            self._close(line, group, not_before, at)
            return Expected(None, why=f"no node takes it: {never}")
        told = self._unknown(line, group) if at is None else self._told(line, group, not_before, at)
        self._close(line, group, not_before, at)
        if at is None:
            return told
        line.last = max(line.last, at)
        if not group.reserved:
            self._book(group, at, length)
        if checks:
            why = f"it reserves its quota first, and then: {checks[0].message()}"
            return Expected(None, why=why)
        return told

    def _told(self, line: _WaitingLine, group: GroupState, not_before: int, at: int) -> Expected:
        """What a start waits for."""
        session = self._session
        by_itself = _by_itself(session, group) if at == not_before > session.now_ms else ""
        held = line.opened_at(at, is_strict=_strategy(session, group) == "StrictFIFO")
        return Expected(at, why=by_itself, ended=self._ended_at(group, at), behind=held)

    def _slot(
        self, line: _WaitingLine, group: GroupState, length: int | None, earliest: int | None
    ) -> int | None:
        """The first slot that nobody ahead forbids."""
        is_strict = _strategy(self._session, group) == "StrictFIFO"
        # Each turn leaves an interval behind for good, or finds the slot.
        while earliest is not None:
            closed = line.closed_at(earliest, is_strict=is_strict)
            if closed is not None:
                earliest = closed.until
                continue
            at = self._table.slot(group, length, earliest)
            if at is None or at == earliest:
                return at
            earliest = at
        return None

    def _unknown(self, line: _WaitingLine, group: GroupState) -> Expected:
        """Why there is no slot: for one ahead, or for want of ends."""
        strict = _strategy(self._session, group) == "StrictFIFO"
        if (key := line.closed_for_ever_by(is_strict=strict)) is not None:
            return Expected(None, why="nobody knows when the one ahead of it starts", behind=key)
        return Expected(None, why="no walltime says when there will be room for it")

    def _close(
        self, line: _WaitingLine, group: GroupState, not_before: int, at: int | None
    ) -> None:
        """What those behind may not do for this one."""
        refused = blockers(self._session, group)
        since = self._session.now_ms
        if any(verdict.reason == Waiting.BACKING_OFF for verdict in refused):
            since = not_before
        elif refused and not waits_in_line(refused):
            # Nobody waits for whom only its own namespace holds back.
            return
        match _strategy(self._session, group):
            case "StrictFIFO":
                line.closed.append(_Closed(since, at, group.key))
            case "Backfill" if at is None:
                # Once it is the head it has no reservation, and is strict.
                spec = self._session.queues[group.queue].record.spec.strategy
                later = since if spec.reservations == "all" else max(since, line.last)
                line.closed.append(_Closed(later, None, group.key))
            case "Backfill":
                line.closed.append(_Closed(since, at, group.key, to_strict=True))
            case _:
                pass

    def _book(self, group: GroupState, at: int, length: int | None) -> None:
        self._table.book(group, at, length)
        if length is not None:
            self._ending.setdefault(at + length, []).append(group)
        claim: Amounts = claim_of(group)
        for name in group.chain:
            self._sums.add(queue_scope(name), claim)

    def _ended_at(self, group: GroupState, at: int) -> tuple[str, ...]:
        """Who leaves something just then that the group asks for, in a place where it counts."""
        wants, where = group.reservation.keys(), set(group.scopes)
        keys = (
            one.key
            for one in self._ending.get(at, ())
            if one is not group and where & set(one.scopes) and wants & one.reservation.keys()
        )
        return tuple(dict.fromkeys(keys)) if at > self._session.now_ms else ()

    def _no_node_for(self, group: GroupState) -> str:
        """Why not even empty nodes take its gang; '' if they do. Asked once for each request."""
        if group.is_external:
            return ""
        gang = gang_of(self._session, group)
        asked = tuple((shape.task.name, shape.shape, count) for shape, count in gang)
        if asked not in self._no_node:
            self._no_node[asked] = why_no_known_node(self._session, gang)
        return self._no_node[asked]


def _pending(session: Session) -> Iterator[GroupState]:
    return (group for group in session.groups.values() if group.phase == PodGroupPhase.PENDING)


def _strategy(session: Session, group: GroupState) -> str:
    """Without the action that fills, Backfill is strict."""
    strategy: str = session.queues[group.queue].record.spec.strategy.type
    fills = "backfill" in session.actions
    return "StrictFIFO" if strategy == "Backfill" and not fills else strategy


def _is_riddle(verdict: Verdict) -> bool:
    """Whether somebody refuses for what no limit tells: a plugin of others."""
    return verdict.in_line and verdict.limit is None and verdict.plugin not in _ABOUT_THE_LINE


def _by_itself(session: Session, group: GroupState) -> str:
    """What puts a group out of line for a time."""
    said = standing_aside(session, group)
    return f"{said[0].reason}: {said[0].message()}" if said else ""


def _sums_of(session: Session) -> LedgerView:
    """A ledger of the same sums, to which can be added."""
    view = LedgerView(session.ledger.limits, session.ledger.tree)
    for scope, amounts in session.ledger.sums.items():
        view.add(scope, dict(amounts))
    return view
