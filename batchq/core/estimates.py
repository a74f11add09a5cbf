"""The expected starts of waiting groups, taking into account all groups ahead in line; and of a
single group, as if no other were admitted (`earliest_start`).

This is what Slurm's `squeue --start` shows. Waiting groups are planned one after another, in the
order in which queues and their groups are served, each at the earliest instant at which the limits
admit it beside everything that runs or was planned before. Running groups end at their walltime;
planned groups last for their walltime, and for ever without one.

The strategy of a queue decides which groups may overtake others:

- StrictFIFO: no group starts before those ahead of it.
- BestEffortFIFO: every group starts as soon as it fits beside those ahead. This is an estimate:
  nothing is reserved for the groups ahead, so small groups may start earlier and delay large ones.
- Backfill: every group starts where it delays no group ahead. With `reservations: all`, the
  estimate is the schedule itself and holds for all groups of the queue. With one reservation
  (EASY), it is the latest start of the head and an estimate for the others: they may be delayed by
  groups that do not delay the head.

Estimates hold for what is known now. Walltimes are upper bounds, so most groups start earlier;
later arrivals that are served first, and evictions, delay a start. Limits are checked, and so are
nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import Pod
from batchq.api.reasons import NEVER_FITS, Verdict, Waiting
from batchq.api.resources import Amounts, minus
from batchq.api.transaction import queue_scope
from batchq.core.eligibility import holds_off
from batchq.core.expected_ends import ends, is_stopping, not_before_of
from batchq.core.kept_capacity import awaits_victims, victims_left
from batchq.core.pending_queue import blockers, out_of_line_refusals, waits_in_line
from batchq.core.placement.feasibility import fits_when_empty, nodes_away, why_no_known_node
from batchq.core.placement.placement import gang_of
from batchq.core.placement.trial import PLUGIN as NODES
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import fair_shares
from batchq.core.quota.ledger import LedgerView, title_of
from batchq.core.quota.limit_checks import claim_of, over_any_limit
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.timeline import LedgerTimeline, timeline_of

#: How many groups are planned, unless the caller passes another number.
MOST_PLANNED = 1_000

#: Reasons for ineligibility that end with time.
_PASS = frozenset({Waiting.BACKING_OFF, Waiting.WAITING_FOR_PREEMPTION})
#: The same, and one that does not depend on capacity: checks may pass before or after it is free.
_PASS_FOR_CAPACITY = _PASS | {Waiting.WAITING_FOR_CHECKS}
_UNKNOWN_VICTIMS = "it waits for victims whose ends are unknown"

#: Whose refusals the plan itself accounts for: groups ahead in line, preemptors, and nodes.
_PLANNED_FOR = ("enqueue", "pledge", NODES)

#: A scope of the ledger or a node, and a resource.
_Part: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected start of a group in milliseconds; None if it is unknown, with the reason in
    `why`.

    `ended` has the keys of the groups whose end at that instant makes the start possible. `behind`
    is the key of the group ahead that it may not overtake. `why` is the group's own reason to wait
    until then, if the other two do not explain the start. `is_planned` is False for groups beyond
    the maximum number of planned groups.
    """

    at: int | None
    why: str = ""
    ended: tuple[str, ...] = ()
    behind: str = ""
    is_planned: bool = True


def expected_starts(
    session: Session, *, wanted: Collection[str] | None = None, most: int | None = None
) -> dict[str, Expected]:
    """Return the expected start of every waiting group by uid: groups that are Pending, were
    admitted by this session, or are InQueue without a node.

    The session must have made its decisions: a group that it has not admitted does not start now.
    With `wanted` (uids), planning stops as soon as these are known; the results are the same. At
    most `most` groups in line are planned (default: MOST_PLANNED); the others have `is_planned`
    False. Leaves no trace in the session.
    """
    found = {
        group.uid: expected
        for group in session.groups.values()
        if (expected := _of_admitted(session, group)) is not None
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
    """Return the estimate for an InQueue group; None for other groups."""
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
    """The group ahead with this `key` prevents starts from `since` until `until` (ms; None: for
    ever).

    With `to_strict`, this applies only to groups that may not overtake.
    """

    since: int
    until: int | None
    key: str
    to_strict: bool = False


@dataclass(slots=True)
class _WaitingLine:
    """The planned groups of one queue, or of all queues: the intervals that they close to later
    groups, and the latest planned start (ms).
    """

    last: int
    closed: list[_Closed] = field(default_factory=list)

    def closed_at(self, instant: int, *, is_strict: bool) -> _Closed | None:
        """Return what prevents a start at that instant for longest; None if nothing does."""
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
        """Return the key of the first group ahead whose start is unknown."""
        for one in self.closed:
            if one.until is None and (is_strict or not one.to_strict):
                return one.key
        return None

    def opened_at(self, instant: int, *, is_strict: bool) -> str:
        """Return the group ahead that prevents starts until exactly that instant, or ''."""
        closed = self.closed_at(instant - 1, is_strict=is_strict)
        return closed.key if closed is not None and closed.until == instant else ""


class _Plan:
    """All groups planned so far; owns the timeline, and the ledger sums used for fair shares."""

    def __init__(self, session: Session, most: int) -> None:
        known = ends(session)
        self._session = session
        self._most = most
        self._table = LedgerTimeline(session, known)
        #: Instant (ms) -> the groups whose end is known or planned then.
        self._ending: dict[int, list[GroupState]] = {}
        for end in known:
            self._ending.setdefault(end.at, []).append(end.group)
        self._sums = _sums_of(session)
        self._no_node: dict[tuple[object, ...], str] = {}

    def in_turn(self) -> Iterator[tuple[_WaitingLine, GroupState]]:
        """Yield every Pending group with its line: the queue with the lowest share first, counting
        both what it holds and what is planned for it. Groups whose queue does not exist come last.
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
        comes = {name: deque(waiting[name]) for name in sorted(waiting) if name in session.queues}
        turns = FairShareSelector(
            session.with_ledger(self._sums), comes, lambda name: next(iter(comes[name]), None)
        )
        while (name := turns.next()) is not None:
            if comes[name]:
                yield lines[name], comes[name].popleft()
            else:
                turns.drop(name)
        for lost in sorted(waiting.keys() - session.queues.keys()):
            yield from ((lines[lost], group) for group in waiting[lost])

    def expect(self, line: _WaitingLine, group: GroupState) -> Expected:
        """Plan a group beside all groups planned before and return its expected start."""
        not_before = _eligible_from(self._session, group, passes=_PASS)
        if isinstance(not_before, Expected):
            return not_before
        if awaits_victims(self._session, group):
            # The capacity of its victims is pledged to it already.
            return Expected(not_before, why=_own_reason(self._session, group))
        if self._most <= 0:
            return Expected(None, why="it is too far behind to be planned", is_planned=False)
        self._most -= 1
        return self._planned(line, group, not_before)

    def _planned(self, line: _WaitingLine, group: GroupState, not_before: int) -> Expected:
        session, now_ms = self._session, self._session.now_ms
        checks = [] if group.reserved else session.refusals_at("permit", group)
        length = None if checks or group.is_array else group.record.spec.walltime
        earliest: int | None = not_before
        if not_before <= now_ms and session.refusals.get(group.uid):
            # The session has refused it although the sums allow it, so only a later change can
            # help.
            earliest = min((at for at in self._ending if at > now_ms), default=None)
        at = self._slot(line, group, length, earliest)
        if never := self._no_node_for(group):
            self._close(line, group, not_before, at)
            return Expected(None, why=f"no node takes it: {never}")
        expected = (
            self._unknown(line, group)
            if at is None
            else self._estimate(line, group, not_before, at)
        )
        self._close(line, group, not_before, at)
        if at is None:
            return expected
        line.last = max(line.last, at)
        if not group.reserved:
            self._book(group, at, length)
        if checks:
            why = f"it reserves its quota first, and then: {checks[0].message()}"
            return Expected(None, why=why)
        return expected

    def _estimate(
        self, line: _WaitingLine, group: GroupState, not_before: int, at: int
    ) -> Expected:
        """Return the estimate for a planned start, with what the group waits for."""
        session = self._session
        own_reason = _own_reason(session, group) if at == not_before > session.now_ms else ""
        held = line.opened_at(at, is_strict=_strategy(session, group) == "StrictFIFO")
        return Expected(at, why=own_reason, ended=self._ended_at(group, at), behind=held)

    def _slot(
        self, line: _WaitingLine, group: GroupState, length: int | None, earliest: int | None
    ) -> int | None:
        """Return the first instant at which the group fits and no group ahead prevents it."""
        is_strict = _strategy(self._session, group) == "StrictFIFO"
        further = _over_further_limits(self._session, group)
        # Each iteration moves past a closed interval or finds the instant.
        while earliest is not None:
            closed = line.closed_at(earliest, is_strict=is_strict)
            if closed is not None:
                earliest = closed.until
                continue
            at = _slot_within(self._table, group, length, earliest, further)
            if at is None or at == earliest:
                return at
            earliest = at
        return None

    def _unknown(self, line: _WaitingLine, group: GroupState) -> Expected:
        """Return the estimate for a group whose start is unknown, and why."""
        strict = _strategy(self._session, group) == "StrictFIFO"
        if (key := line.closed_for_ever_by(is_strict=strict)) is not None:
            return Expected(None, why="the start of the group ahead of it is unknown", behind=key)
        if away := self._nodes_to_return(group):
            # No end of a group brings them back.
            return Expected(None, why=f"{away}, and the others do not suffice even when empty")
        return Expected(None, why="no walltime says when there will be room for it")

    def _close(
        self, line: _WaitingLine, group: GroupState, not_before: int, at: int | None
    ) -> None:
        """Note the interval that this group closes to the groups behind it."""
        refused = blockers(self._session, group)
        since = self._session.now_ms
        if any(verdict.reason == Waiting.BACKING_OFF for verdict in refused):
            since = not_before
        elif refused and not waits_in_line(refused):
            # A group held back only by its own namespace does not hold back others.
            return
        match _strategy(self._session, group):
            case "StrictFIFO":
                line.closed.append(_Closed(since, at, group.key))
            case "Backfill" if at is None:
                # As head of the queue it would have no reservation, and so it holds back all
                # others.
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
        """Return the groups that end at that instant and free what the group requests."""
        wants, where = group.reservation.keys(), set(group.scopes)
        keys = (
            one.key
            for one in self._ending.get(at, ())
            if one is not group and where & set(one.scopes) and wants & one.reservation.keys()
        )
        return tuple(dict.fromkeys(keys)) if at > self._session.now_ms else ()

    def _nodes_to_return(self, group: GroupState) -> str:
        """Return which nodes are away without which it cannot start; '' for none."""
        gang = () if group.is_external else gang_of(self._session, group)
        if not gang or fits_when_empty(self._session, gang):
            return ""
        return nodes_away(self._session, gang).text(named=True)

    def _no_node_for(self, group: GroupState) -> str:
        """Return why even empty nodes do not take its gang; '' if they do. Cached by request."""
        if group.is_external:
            return ""
        gang = gang_of(self._session, group)
        asked = tuple((shape.task.name, shape.shape, count) for shape, count in gang)
        if asked not in self._no_node:
            self._no_node[asked] = why_no_known_node(self._session, gang)
        return self._no_node[asked]


def _eligible_from(
    session: Session, group: GroupState, *, passes: frozenset[Waiting]
) -> int | Expected:
    """Return the instant (ms) until which a group is ineligible; an estimate without a start if
    that is unknown, or if it is refused for a reason that neither time nor the end of other groups
    removes, except those in `passes`.
    """
    refused = [one for one in out_of_line_refusals(session, group) if one.reason not in passes]
    if not refused and not awaits_victims(session, group):
        refused = [
            one
            for one in blockers(session, group)
            if one.reason in NEVER_FITS or _is_unexplained(one)
        ]
    if refused:
        return Expected(None, why=f"{refused[0].reason}: {refused[0].message()}")
    not_before = not_before_of(session, group)
    return Expected(None, why=_UNKNOWN_VICTIMS) if not_before is None else not_before


def _pending(session: Session) -> Iterator[GroupState]:
    return (group for group in session.groups.values() if group.phase == PodGroupPhase.PENDING)


def _strategy(session: Session, group: GroupState) -> str:
    """Return the strategy of the group's queue; StrictFIFO if nothing backfills."""
    strategy: str = session.queues[group.queue].record.spec.strategy.type
    fills = "backfill" in session.actions
    return "StrictFIFO" if strategy == "Backfill" and not fills else strategy


def _is_unexplained(verdict: Verdict) -> bool:
    """Return whether a group is refused for what neither limits nor the nodes explain: by a
    third-party plugin, or because no node is ready.
    """
    return verdict.in_line and verdict.limit is None and verdict.plugin not in _PLANNED_FOR


def _own_reason(session: Session, group: GroupState) -> str:
    """Return why a group is ineligible for the moment, or ''."""
    said = out_of_line_refusals(session, group)
    return f"{said[0].reason}: {said[0].message()}" if said else ""


def _sums_of(session: Session) -> LedgerView:
    """Return a copy of the ledger's sums to which charges can be added."""
    view = LedgerView(session.ledger.limits, session.ledger.tree)
    for scope, amounts in session.ledger.sums.items():
        view.add(scope, dict(amounts))
    return view


def earliest_start(session: Session, group: GroupState) -> Expected:
    """Return the earliest start of a group if no other group is admitted before. `ended` are groups
    whose ends until then free what it lacks, and none whose end it could do without. Leaves no
    trace in the session.
    """
    if group.phase != PodGroupPhase.PENDING:
        return Expected(session.now_ms)
    not_before = _eligible_from(session, group, passes=_PASS_FOR_CAPACITY)
    if isinstance(not_before, Expected):
        return not_before
    if not awaits_victims(session, group):
        return _first_fit(session, group, not_before)
    # The capacity of its victims is pledged to it already. They may not be evicted before its
    # checks have passed.
    if holds_off(session, group):
        return Expected(None, why=_UNKNOWN_VICTIMS)
    victims = victims_left(session, group.status.pledge)
    return Expected(not_before, ended=tuple(victim.group.key for victim in victims))


def _first_fit(session: Session, group: GroupState, not_before: int) -> Expected:
    stopping = [pod for pod in group.live_pods.values() if is_stopping(group, pod)]
    with Statement(session) as trial:
        # Its own stopping pods are pledged to its preemptor, which will be charged for them then.
        for pod in stopping:
            trial.drop_pod(group, pod.metadata.uid)
        table = LedgerTimeline(session) if stopping else timeline_of(session)
        lacking, left = (
            over_any_limit(session.with_ledger(table.ledger_at(step, group)), group)
            for step in (0, -1)
        )
        further = _over_further_limits(session, group)
        at = _slot_within(table, group, None, not_before, further)
        if at is not None:
            lacking += further
            return Expected(at, ended=_ended_until(session, table, group, at, lacking))
        left = left or further
    lacks = left[0].message() if left else "finds no nodes with capacity for all its pods"
    if len(table.instants()) == 1 and not stopping:
        return Expected(None, why=f"no end of a running group is known: it {lacks}")
    if lacking and lacking[0].message() == lacks:
        return Expected(None, why=f"no walltime says when what it lacks will be free: it {lacks}")
    # These numbers are for a later instant than now.
    known = "only groups with a walltime have a known end"
    return Expected(None, why=f"{known}, and after all of those it still {lacks}")


def _over_further_limits(session: Session, group: GroupState) -> list[Verdict]:
    """Return the refusals by limits that plugins such as overcommit add to those of the ledger."""
    by_title = {title_of(scope): scope for scope in group.scopes}
    return [
        one
        for one in blockers(session, group)
        if one.limit is not None
        and one.subject in by_title
        and session.ledger.limit(by_title[one.subject], one.resource) != one.limit
    ]


def _slot_within(
    table: LedgerTimeline,
    group: GroupState,
    length: int | None,
    not_before: int,
    further: Sequence[Verdict],
) -> int | None:
    """Return the earliest instant (ms) from which a group fits, also within `further` limits that
    refuse it now; None if there is none.
    """
    by_title = {title_of(scope): scope for scope in group.scopes}
    at = table.slot(group, length, not_before)
    while at is not None and further:
        step = bisect_right(table.instants(), at)
        then = table.ledger_at(step - 1, group)
        if all(
            then.without(group, by_title[one.subject], one.resource) + (one.need or 0)
            <= (one.limit or 0)
            for one in further
        ):
            break
        is_last = step == len(table.instants())
        at = None if is_last else table.slot(group, length, table.instants()[step])
    return at


def _ended_until(
    session: Session, table: LedgerTimeline, group: GroupState, at: int, lacking: list[Verdict]
) -> tuple[str, ...]:
    """Return the keys of the groups whose ends until an instant free what a group lacks now, by the
    limits or on the nodes that it finds then. Groups are left out if the others free enough.
    """
    if not lacking and table.fits_now(group, None):
        return ()
    on_nodes = _lacking_on_nodes(session, table, group, at)
    spare = _spare_of_limits(session, table, group, at, lacking)
    freed: dict[str, Counter[_Part]] = {}
    for uid, scopes, amounts in table.freed_until(at):
        mine = freed.setdefault(uid, Counter())
        mine.update({part: amounts.get(part[1], 0) for part in spare if part[0] in scopes})
    for gone, pod in _pods_ended_until(session, at) if on_nodes else ():
        for name, units in gone.requests_of(pod).items():
            if (part := (_on_node(pod.status.node), name)) in on_nodes:
                freed.setdefault(gone.uid, Counter())[part] += units
    freed.pop(group.uid, None)
    # A pledge or a shared node may keep others out of what an end frees there.
    are_exact = not session.carried.sharing and not any(session.ledger.preemptors.values())
    for part, units in on_nodes.items():
        spare[part] = sum(mine[part] for mine in freed.values()) - units if are_exact else 0
    needed = []
    for uid, mine in freed.items():
        if all(units <= spare[part] for part, units in mine.items() if units):
            for part, units in mine.items():
                spare[part] -= units
        else:
            needed.append(session.groups[uid].key)
    return tuple(needed)


def _spare_of_limits(
    session: Session, table: LedgerTimeline, group: GroupState, at: int, lacking: list[Verdict]
) -> dict[_Part, int]:
    """Return how much more is free at an instant than a group asks for, where a limit refuses it
    now. Nothing counts as spare beside guarantees: what their queue frees is left to it again.
    """
    by_title = {title_of(scope): scope for scope in group.scopes}
    then = table.ledger_at(bisect_right(table.instants(), at) - 1, group)
    spare: dict[_Part, int] = {}
    for verdict in lacking:
        scope, name = by_title[verdict.subject], verdict.resource
        most = (verdict.limit or 0) - (verdict.need or 0)
        is_exact = not session.ledger.unused
        spare[scope, name] = most - then.without(group, scope, name) if is_exact else 0
    return spare


def _lacking_on_nodes(
    session: Session, table: LedgerTimeline, group: GroupState, at: int
) -> dict[_Part, int]:
    """Return how much must still become free on the nodes that a group finds at an instant."""
    lacking: dict[_Part, int] = {}
    for name, amounts in table.places_for(group, at, None).items():
        free = session.nodes.by_name[name].free
        missing = amounts if session.carried.sharing else minus(amounts, free)
        lacking.update({(_on_node(name), resource): units for resource, units in missing.items()})
    return lacking


def _pods_ended_until(session: Session, at: int) -> Iterator[tuple[GroupState, Pod]]:
    """Yield the pods that leave their nodes until an instant, each once, with their groups."""
    seen: set[str] = set()
    for end in ends(session):
        if end.at > at:
            return
        live = end.group.live_pods.values() if end.whole else ()
        # Pods that are being stopped have ends of their own.
        for pod in (*end.pods, *(pod for pod in live if not is_stopping(end.group, pod))):
            if pod.status.phase in ON_NODE and pod.metadata.uid not in seen:
                seen.add(pod.metadata.uid)
                yield end.group, pod


def _on_node(name: str) -> str:
    return f"node:{name}"
