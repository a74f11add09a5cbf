"""The ledger's sums over the time ahead, from expected ends and booked starts.

Backfilling schedulers have used such reservations in time since EASY (Lifka 1995) and conservative
backfilling (Mu'alem and Feitelson 2001); here they cover every limit of rules 2 to 4 at once. The
time ahead is divided into steps, at each expected end (`batchq.core.expected_ends`) and at
each booked start and end. A *column* has the sum of one scope in one dimension at every step.
Columns are created on demand, and a booking updates the existing ones. Checking a group therefore
costs its own limits times the steps, independent of the number of waiting groups.

A group fits in an interval if at each step every limit admits its claim beside the sum, and nodes
take its gang (`batchq.core.node_timeline`): a booking also takes capacity on nodes. On a
single machine the sums alone suffice. Reservations for heads of other queues are ignored, because
they apply now and not in the future.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.resources import Amounts, minus
from batchq.api.transaction import queue_scope
from batchq.core.expected_ends import ExpectedEnd, carry_out, ends, own_pods_end
from batchq.core.node_timeline import (
    AmountsByNode,
    Gang,
    NodeTimeline,
    is_one_machine,
    nodes_decide,
)
from batchq.core.placement.placement import gang_of, waits_for_its_own
from batchq.core.placement.topology import domains_for, may_choose
from batchq.core.quota.ledger import LedgerView
from batchq.core.quota.limit_checks import claim_of, keeps_guarantees
from batchq.core.session.session import Session, StateKey
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement

Key: TypeAlias = tuple[str, str]
#: Instant (ms), uid of a group, its scopes, and the change of the sums at that instant.
_Move: TypeAlias = tuple[int, str, tuple[str, ...], Amounts]
#: Columns, each with the most that may be charged beside a claim.
_Limits: TypeAlias = list[tuple[list[int], int]]
#: Stands for a length that is not known yet.
_UNKNOWN = -2


class LedgerTimeline:
    """The sums of a session's ledger over the time ahead; owned by one action.

    Instants are in milliseconds. Call `started` for every group that is admitted meanwhile.
    """

    def __init__(self, session: Session, known: Sequence[ExpectedEnd] | None = None) -> None:
        self._session = session
        self._ledger = session.ledger
        known = ends(session) if known is None else known
        self._moves = _falls(session, known)
        self._at = sorted({session.now_ms, *[move[0] for move in self._moves]})
        self._columns: dict[Key, list[int]] = {}
        self._asked: dict[tuple[object, ...], _Limits | None] = {}
        #: Request -> the result of `longest_now`, until something is booked.
        self._longest_now: dict[tuple[object, ...], int | None] = {}
        #: Parent queue and dimension -> the unused part of its children's guarantees at each step.
        self._unused: dict[Key, list[int]] = {}
        self._own = _charges_of_waiting(session, self._moves)
        #: None if the sums alone suffice. The charge of a group that still waits is left out of its
        #: own check, but its pods do occupy nodes.
        self._nodes: NodeTimeline | None = None
        if nodes_decide(session) and (self._own or not is_one_machine(session)):
            self._nodes = NodeTimeline(session, known)
        self._gangs: dict[tuple[object, ...], Gang] = {}

    @property
    def covers_nodes(self) -> bool:
        """Return whether bookings take capacity on nodes, and not only in sums."""
        return self._nodes is not None

    def beside(self) -> LedgerTimeline:
        """Return an independent copy: bookings in one do not appear in the other."""
        other = object.__new__(LedgerTimeline)
        other._session, other._ledger = self._session, self._ledger
        other._moves = list(self._moves)
        other._at = list(self._at)
        other._columns = {key: column.copy() for key, column in self._columns.items()}
        other._asked, other._unused, other._longest_now = {}, {}, {}
        other._own, other._gangs = self._own, self._gangs
        other._nodes = None if self._nodes is None else self._nodes.beside()
        return other

    def slot(
        self, group: GroupState, length: int | None, not_before: int | None = None
    ) -> int | None:
        """Return the earliest instant (ms, not before a given one) from which a group fits for
        `length` ms (None: for ever); None if there is none.

        A group that requires a domain of its topology, and may still choose one, is confined to the
        one in which it fits first.
        """
        if not group.record.spec.topology or not may_choose(group):
            return self._slot_there(group, length, not_before)
        first: int | None = None
        chosen = group.domain
        for domain in reversed(domains_for(self._session, group)):
            group.confine(domain)
            at = self._slot_there(group, length, not_before)
            if at is not None and (first is None or at < first):
                first, chosen = at, domain
        group.confine(chosen)
        return first

    def _slot_there(
        self, group: GroupState, length: int | None, not_before: int | None
    ) -> int | None:
        """Return the same on the nodes to which the group is confined."""
        if self._waits_for_its_own(group):
            not_before = max(not_before or 0, own_pods_end(self._session, group, self.gang(group)))
        at = self._slot_of_sums(group, length, not_before)
        while at is not None and self._nodes is not None and not group.is_external:
            later = self._nodes.slot(self.gang(group), length, at)
            if later is None or later == at:
                return later
            at = self._slot_of_sums(group, length, later)
        return at

    def _waits_for_its_own(self, group: GroupState) -> bool:
        """Return whether a gang has former pods, beside which it must not start."""
        if self._nodes is None or group.is_external:
            return False
        return waits_for_its_own(group, self.gang(group))

    def _slot_of_sums(
        self, group: GroupState, length: int | None, not_before: int | None
    ) -> int | None:
        first = 0 if not_before is None else self._step_at(max(not_before, self._at[0]))
        limits = self._limits_of(group)
        if limits is None:
            return None
        at, guaranteed = self._at, bool(self._ledger.unused)
        over_at = None if length is None else at[first] + length
        for step in range(first, len(at)):
            if over_at is not None and at[step] >= over_at:
                return at[first]
            for column, most in limits:
                if column[step] > most:
                    break
            else:
                if not guaranteed or self._guarantees_hold(group, step, claim_of(group)):
                    continue
            first = step + 1
            if length is not None and first < len(at):
                over_at = at[first] + length
        return at[first] if first < len(at) else None

    def fits_now(self, group: GroupState, length: int | None) -> bool:
        """Return whether a group fits from now on for `length` ms (None: for ever)."""
        if not is_within(length, self.longest_now(group)):
            return False
        if self._nodes is None or group.is_external:
            return True
        if self._waits_for_its_own(group):
            return False
        return self._nodes.fits_now(self.gang(group), self._end(length))

    def may_fit_now(self, group: GroupState, length: int | None) -> bool:
        """Return a cheap upper bound of `fits_now`: False stays False, whatever is booked."""
        if not is_within(length, self.longest_now(group)):
            return False
        if self._nodes is None or group.is_external:
            return True
        return self._nodes.may_fit_now(self.gang(group), self._end(length))

    def longest_now(self, group: GroupState) -> int | None:
        """Return for how long (ms) from now on the limits admit a group; None: for ever. Bookings
        only make it shorter. Computed once for all waiting groups with equal requests.
        """
        if group.next_pod is not None or self._ledger.charged(group):
            return self._longest(group, self._look_up(group), claim_of(group))
        asked = (group.scopes, group.shape.claim)
        longest = self._longest_now.get(asked, _UNKNOWN)
        if longest == _UNKNOWN:
            limits = self._limits_for(asked, group)
            longest = self._longest_now[asked] = self._longest(group, limits, claim_of(group))
        return longest

    def may_grow_now(
        self, group: GroupState, shape: TaskShape, growth: Amounts, length: int | None
    ) -> bool:
        """Return whether an admitted group can have one more pod of this shape from now on for
        `length` ms; `growth` is the increase of its charge.
        """
        limits = self._beside(group, growth, self._shared)
        if not is_within(length, self._longest(group, limits, growth)):
            return False
        return self._nodes is None or self._nodes.fits_now([(shape, 1)], self._end(length))

    def could_stand(self, group: GroupState, room: AmountsByNode) -> bool:
        """Return whether these amounts are a gang's, on nodes that would take it if empty."""
        return self._nodes is not None and self._nodes.could_stand(self.gang(group), room)

    def where_most_is_free(self, group: GroupState) -> AmountsByNode:
        """Return the places of a gang where most is free now, even if it does not fit."""
        if self._nodes is None or group.is_external:
            return {}
        return self._nodes.where_most_is_free(self.gang(group))

    def booked_until(self, length: int | None) -> AmountsByNode:
        """Return, by node, what is free now and booked for others within `length` ms."""
        return {} if self._nodes is None else self._nodes.booked_until(self._end(length))

    def _end(self, length: int | None) -> int | None:
        return None if length is None else self._at[0] + length

    def gang(self, group: GroupState) -> Gang:
        """Return the pods that a group must place together."""
        if group.pods or len(group.tasks) > 1:
            return gang_of(self._session, group)
        gang = self._gangs.get(group.shape.alike)
        if gang is None:
            gang = self._gangs[group.shape.alike] = gang_of(self._session, group)
        return gang

    def _longest(self, group: GroupState, limits: _Limits | None, wanted: Amounts) -> int | None:
        """Return for how long (ms) from now on the limits, and the guarantees of other queues,
        admit these amounts; None: for ever.
        """
        if limits is None:
            return -1
        full = len(self._at)
        for column, most in limits:
            for step in range(full):
                if column[step] > most:
                    full = step
                    break
        if self._ledger.unused:
            holds = (self._guarantees_hold(group, step, wanted) for step in range(full))
            full = next((step for step, held in enumerate(holds) if not held), full)
        return None if full == len(self._at) else self._at[full] - self._at[0]

    def book(self, group: GroupState, start: int, length: int | None) -> None:
        """Book a waiting group's claim from `start` on for `length` ms (None: for ever)."""
        self.book_there(group, start, length, self.places_for(group, start, length))

    def book_there(
        self, group: GroupState, start: int, length: int | None, room: AmountsByNode
    ) -> None:
        """Book a waiting group's claim, with its gang on these nodes."""
        self._book_sums(group, start, length)
        if self._nodes is not None:
            self._nodes.book(room, start, None if length is None else start + length)

    def places_for(
        self, group: GroupState, start: int, length: int | None, former: AmountsByNode | None = None
    ) -> AmountsByNode:
        """Return the places of a group's gang on nodes from `start` on for `length` ms; empty if it
        does not fit or the sums alone suffice. `former` places are kept if the gang still fits
        there.
        """
        if self._nodes is None or group.is_external:
            return {}
        end = None if length is None else start + length
        gang = self.gang(group)
        if former and self._nodes.fits_there(gang, former, start, end):
            return former
        return self._nodes.places_for(gang, start, end) or {}

    def started(self, group: GroupState, length: int | None, room: AmountsByNode) -> None:
        """Note that a group has just been admitted: the ledger already has its charge, which lasts
        until the group ends, and the nodes have its pods.
        """
        if group.uid not in self._own:
            self.grown(group, claim_of(group), length, room)
            return
        now = self._at[0]
        self._book_sums(group, now, length)
        _, _, amounts = next(self._beyond_its_own(group, now, length))
        self._moves.append((now, group.uid, group.scopes, _less(amounts)))
        self._hold(room, length)

    def grown(
        self, group: GroupState, growth: Amounts, length: int | None, room: AmountsByNode
    ) -> None:
        """Note that a group's charge has just grown: the ledger already has it, until the group
        ends, and a node has its new pod.
        """
        now, end = self._at[0], self._end(length)
        self._hold(room, length)
        if end is not None:
            self._moves.append((end, group.uid, group.scopes, _less(growth)))
        self._raise(group.scopes, growth, now, end)

    def _hold(self, room: AmountsByNode, length: int | None) -> None:
        if self._nodes is not None:
            self._nodes.hold(room, self._at[0], self._end(length))

    def _book_sums(self, group: GroupState, start: int, length: int | None) -> None:
        for first, last, amounts in self._beyond_its_own(group, start, length):
            self._moves.append((first, group.uid, group.scopes, amounts))
            if last is not None:
                self._moves.append((last, group.uid, group.scopes, _less(amounts)))
            self._raise(group.scopes, amounts, first, last)

    def _beyond_its_own(
        self, group: GroupState, start: int, length: int | None
    ) -> Iterator[tuple[int, int | None, Amounts]]:
        """Yield the intervals (start, end, amounts) in which a group's claim adds to the sums.

        Usually this is the whole claim for the whole time. If the group's previous pods have not
        ended yet, what these hold is part of its claim already.
        """
        claim, end = claim_of(group), None if length is None else start + length
        if group.uid in self._own:
            for at, _ in self._own[group.uid]:
                if at > start and (end is None or at < end):
                    yield start, at, minus(claim, self._held_at(group, start))
                    start = at
            claim = minus(claim, self._held_at(group, start))
        yield start, end, claim

    def _raise(self, scopes: tuple[str, ...], claim: Amounts, start: int, end: int | None) -> None:
        first = self._step_at(start)
        last = None if end is None else self._step_at(end)
        self._longest_now.clear()
        for key, column in self._columns.items():
            scope, resource = key
            units = claim.get(resource)
            if units and scope in scopes:
                column[first:last] = [total + units for total in column[first:last]]
                if self._unused:
                    self._follow_unused(key, first, last, units)

    def _step_at(self, instant: int) -> int:
        """Return the index of the step that begins at an instant; insert it if necessary."""
        step = bisect_left(self._at, instant)
        if step == len(self._at) or self._at[step] != instant:
            self._at.insert(step, instant)
            for column in (*self._columns.values(), *self._unused.values()):
                column.insert(step, column[step - 1])
        return step

    def _limits_of(self, group: GroupState) -> _Limits | None:
        """Return the columns that matter to a group, each with the most that may be charged beside
        it; None if the group's own request exceeds a limit.
        """
        if group.next_pod is not None or self._ledger.charged(group):
            return self._look_up(group)
        return self._limits_for((group.scopes, group.shape.claim), group)

    def _limits_for(self, asked: tuple[object, ...], group: GroupState) -> _Limits | None:
        """Return the same for all groups with equal requests (`asked`)."""
        if asked not in self._asked:
            self._asked[asked] = self._look_up(group)
        return self._asked[asked]

    def _look_up(self, group: GroupState) -> _Limits | None:
        if group.uid not in self._own:
            return self._beside(group, claim_of(group), self._shared)
        return self._beside(group, claim_of(group), lambda key: self._column(key, group))

    def _beside(
        self, group: GroupState, wanted: Amounts, column: Callable[[Key], list[int]]
    ) -> _Limits | None:
        found: _Limits = []
        for scope, resource, need, limit in self._ledger.limited(group.scopes, wanted):
            if need > limit:
                return None
            found.append((column((scope, resource)), limit - need))
        return found

    def _column(self, key: Key, group: GroupState) -> list[int]:
        """Return the sums of a scope, without the charge of a group that waits."""
        shared = self._shared(key)
        own = (self._held_at(group, at).get(key[1], 0) for at in self._at)
        return [total - mine for total, mine in zip(shared, own, strict=True)]

    def _held_at(self, group: GroupState, instant: int) -> Amounts:
        """Return the charge of a waiting group at an instant."""
        return next(held for at, held in reversed(self._own[group.uid]) if at <= instant)

    def _shared(self, key: Key) -> list[int]:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = self._sums(key, self._ledger.used(*key))
        return column

    def _sums(self, key: Key, used: int) -> list[int]:
        scope, resource = key
        changes = [0] * len(self._at)
        # Each move has a step that begins at its instant.
        step_at = dict(zip(self._at, range(len(self._at)), strict=True))
        for at, _, scopes, amounts in self._moves:
            units = amounts.get(resource)
            if units and scope in scopes:
                changes[step_at[at]] += units
        changes[0] += used
        return list(accumulate(changes))

    def _guarantees_hold(self, group: GroupState, step: int, wanted: Amounts) -> bool:
        """Check the guarantees of other queues (rule 3) with the ledger at that step."""
        return keeps_guarantees(self.ledger_at(step, group), group, wanted)

    def ledger_at(self, step: int, group: GroupState) -> LedgerView:
        """Return the ledger at a step (-1: the last), for questions about one waiting group; it has
        no head reservations.
        """
        held = self._held_at(group, self._at[step]) if group.uid in self._own else {}
        return _LedgerThen(self._ledger, self, step, group, held)

    def instants(self) -> Sequence[int]:
        """Return the instant (ms) at which each step begins: now, expected ends, and bookings."""
        return self._at

    def freed_until(self, instant: int) -> Iterator[tuple[str, tuple[str, ...], Amounts]]:
        """Yield the uid, the scopes and the freed charge of each group that ends, or has pods that
        end, until that instant, in the order of the ends.
        """
        for at, uid, scopes, amounts in self._moves:
            if at <= instant and uid:
                yield uid, scopes, _less(amounts)

    def sum_then(self, scope: str, resource: str, instant: int | None) -> int:
        """Return the sum of a scope at an instant (ms); None means after all expected ends."""
        step = len(self._at) if instant is None else bisect_right(self._at, instant)
        return self.sum_at(scope, resource, step - 1)

    def sum_at(self, scope: str, resource: str, step: int) -> int:
        """Return the sum of a scope at a step."""
        return self._shared((scope, resource))[step]

    def unused_at(self, parent: str, resource: str, step: int) -> int:
        """Return the unused part of the guarantees of a queue's children at a step."""
        key = (parent, resource)
        column = self._unused.get(key)
        if column is None:
            tree, column = self._session.tree, [0] * len(self._at)
            for child in tree.children_of.get(parent, ()):
                if stated := tree.guarantee(child).get(resource, 0):
                    sums = self._shared((queue_scope(child), resource))
                    column = [
                        unused + max(0, stated - used)
                        for unused, used in zip(column, sums, strict=True)
                    ]
            self._unused[key] = column
        return column[step]

    def _follow_unused(self, key: Key, first: int, last: int | None, units: int) -> None:
        """Update unused guarantees after a column has risen and uses more of its own."""
        scope, resource = key
        queue = scope.removeprefix("queue:") if scope.startswith("queue:") else ""
        column = self._unused.get((self._session.tree.parent_of.get(queue, ""), resource))
        stated = self._session.tree.guarantee(queue).get(resource, 0) if column is not None else 0
        if column is not None and stated:
            sums = self._columns[key]
            for step in range(first, len(column) if last is None else last):
                now = sums[step]
                column[step] += max(0, stated - now) - max(0, stated - now + units)


def timeline_of(session: Session) -> LedgerTimeline:
    """Return the timeline as of now, cached until the ledger changes. Book nothing in it."""
    known = session.peek(LEDGER_TIMELINE)
    if known is None or known[0] != len(session.ledger.moved):
        table = LedgerTimeline(session)
        # Computing the timeline changes the ledger and restores it.
        known = (len(session.ledger.moved), table)
        session.put(LEDGER_TIMELINE, known)
    return known[1]


class _LedgerThen(LedgerView):
    """The ledger at one step of a timeline, in which one group is charged `held`."""

    def __init__(
        self, now: LedgerView, table: LedgerTimeline, step: int, group: GroupState, held: Amounts
    ) -> None:
        self.limits, self.tree, self.unused, self.head_reservations = (
            now.limits,
            now.tree,
            now.unused,
            {},
        )
        self._table, self._step = table, step
        self._charges, self._owed = {group.uid: held}, {}

    def used(self, scope: str, resource: str) -> int:
        return self._table.sum_at(scope, resource, self._step)

    def unused_below(self, parent: str, resource: str) -> int:
        return self._table.unused_at(parent, resource, self._step)


def _falls(session: Session, known: Sequence[ExpectedEnd]) -> list[_Move]:
    """Return how much the sums fall at each end.

    The charge of a group that ends completely and is no group's victim ends with it. Other ends are
    tried on the session and undone, because part of what a victim leaves belongs to its preemptor.
    """
    ledger = session.ledger
    uids = [end.group.uid for end in known]
    ends_of = Counter(uids) if len(set(uids)) < len(uids) else dict.fromkeys(uids, 1)
    has_pledges = any(ledger.preemptors.values())
    if not has_pledges and len(ends_of) == len(known) and all([end.whole for end in known]):  # noqa: C419 - a list is faster
        # The usual case.
        return [
            (end.at, end.group.uid, end.group.scopes, end.group.fall_of(ledger.charged(end.group)))
            for end in known
        ]
    return list(_falls_one_by_one(session, known, ends_of, has_pledges=has_pledges))


def _falls_one_by_one(
    session: Session,
    known: Sequence[ExpectedEnd],
    ends_of: Mapping[str, int],
    *,
    has_pledges: bool,
) -> Iterator[_Move]:
    ledger = session.ledger
    with Statement(session) as trial:
        for end in known:
            group = end.group
            if end.whole and ends_of[group.uid] == 1 and not has_pledges:
                yield end.at, group.uid, group.scopes, _less(ledger.charged(group))
                continue
            before = {scope: dict(ledger.sums.get(scope, {})) for scope in _moved_by(session, end)}
            charged = ledger.charged(group)
            carry_out(trial, end)
            own = minus(charged, ledger.charged(group))
            yield end.at, group.uid, group.scopes, _less(own)
            for scope, sums in before.items():
                after = ledger.sums.get(scope, {})
                mine = own if scope in group.scopes else {}
                rise = {n: after[n] - sums.get(n, 0) + mine.get(n, 0) for n in after}
                yield end.at, "", (scope,), {name: one for name, one in rise.items() if one}


def _moved_by(session: Session, end: ExpectedEnd) -> list[str]:
    """Return the scopes whose sums may change: the group's own and those of its preemptors."""
    preemptors = session.ledger.preemptors.get(end.group.uid, {}).values()
    return list(dict.fromkeys(scope for one in (end.group, *preemptors) for scope in one.scopes))


def _charges_of_waiting(
    session: Session, falls: Sequence[_Move]
) -> dict[str, list[tuple[int, Amounts]]]:
    """Return, by uid of a waiting group that is still charged, its charge from each instant on: its
    stopped pods have not ended yet, or it has reserved quota and waits for its checks.
    """
    ledger = session.ledger
    own = {
        group.uid: [(session.now_ms, ledger.charged(group))]
        for groups in ledger.holding.values()
        for group in groups.values()
        if group.phase == PodGroupPhase.PENDING
    }
    for at, uid, _, amounts in falls:
        if uid in own:
            own[uid].append((at, minus(own[uid][-1][1], _less(amounts))))
    return own


def is_within(length: int | None, longest: int | None) -> bool:
    """Compare lengths in ms, of which None means for ever."""
    return longest is None or (length is not None and length <= longest)


def _less(amounts: Amounts) -> Amounts:
    return {name: -units for name, units in amounts.items()}


#: The number of ledger changes at creation, and the timeline.
LEDGER_TIMELINE: StateKey[tuple[int, LedgerTimeline]] = StateKey(
    "ledger timeline",
    lambda session: (len(session.ledger.moved), LedgerTimeline(session)),
    ends_with_session=True,
)
