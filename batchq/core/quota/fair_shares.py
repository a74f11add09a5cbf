"""Fair shares: what each queue deserves by its weight, and how much of that it holds.

Deserved: water-filling in one dimension among siblings. Each queue gets its weight times a common
water level, at least its floor and at most its cap, rounded down.

Share: the largest ratio of ledger to deserved over the dimensions in which the queue deserves or
holds anything (x/0 is infinite; 1 if there is no such dimension), compared exactly by
cross-multiplication.

The method is max-min fairness as in Volcano's proportion plugin and in Ghodsi et al., "Dominant
Resource Fairness", NSDI 2011, section 4, applied to each dimension separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from functools import partial, total_ordering
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.notation import HOUR, MINUTE, SECOND
from batchq.api.reasons import Leaving, Verdict, Waiting
from batchq.api.resources import (
    LARGEST,
    PODS,
    UNLIMITED_PODS,
    Amounts,
    add_to,
    minus,
    of_pod,
    plus,
    smaller,
    total,
)
from batchq.api.transaction import POD_GROUPS, queue_scope
from batchq.core.equivalence import QueueState
from batchq.core.kept_capacity import (
    standing_pledges,
    victims_left,
)
from batchq.core.pending_queue import (
    blockers,
    count_classes,
    let_in_of_classes,
    waits_in_line,
)
from batchq.core.quota import ROOT
from batchq.core.session.session import Session, StateKey
from batchq.core.session.state import GroupState, is_admitted

#: Dimensions left out of shares: the number of pods (unless the queue states it) and of groups.
APART = frozenset({PODS, POD_GROUPS})
#: Two different shares differ by more than 2^-160: what a queue deserves is at most what 2^27 nodes
#: have, each at most 2^53.
_RANK_BITS = 160
#: Higher than that of every finite share.
_INFINITE_RANK = 1 << 4 * _RANK_BITS


@total_ordering
class Share:
    """The exact ratio held / deserved; infinite if something is held and nothing is deserved."""

    __slots__ = ("deserved", "held")

    def __init__(self, held: int, deserved: int) -> None:
        self.held = held
        self.deserved = deserved

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Share):
            return NotImplemented
        if self.deserved == 0 or other.deserved == 0:
            return self.deserved == other.deserved
        return self.held * other.deserved == other.held * self.deserved

    def __lt__(self, other: Share) -> bool:
        if self.deserved == 0:
            return False
        if other.deserved == 0:
            return True
        return self.held * other.deserved < other.held * self.deserved

    def __hash__(self) -> int:
        raise TypeError("shares are compared, not looked up")

    def rank(self) -> int:
        """Return a number in the same order as the shares: the ratio in units of 2^-160, rounded
        down. Sorting compares numbers much faster than shares.
        """
        return (self.held << _RANK_BITS) // self.deserved if self.deserved else _INFINITE_RANK

    def rounded(self) -> float | str:
        """Return a decimal with six places for reports, or 'inf'."""
        return "inf" if self.deserved == 0 else round(self.held / self.deserved, 6)


def share_of(
    held: Mapping[str, int], deserved: Mapping[str, int], *, apart: Container[str] = APART
) -> Share:
    """Return the dominant share of a queue over all dimensions except those in `apart`."""
    largest: tuple[int, int] | None = None
    for resource, right in deserved.items():
        if resource in apart:
            continue
        amount = held.get(resource, 0)
        if right == 0:
            if amount:
                return Share(amount, 0)
        elif largest is None or amount * largest[1] > largest[0] * right:
            largest = (amount, right)
    for resource, amount in held.items():
        if amount and resource not in deserved and resource not in apart:
            return Share(amount, 0)
    return Share(*largest) if largest is not None else Share(1, 1)


class QueuePart(NamedTuple):
    """A participant in water-filling, which gets max(floor, min(cap, weight x level))."""

    weight: int
    floor: int
    cap: int


def water_fill(amount: int, parts: Sequence[QueuePart]) -> tuple[list[int], int | None]:
    """Return what each part gets of an amount, rounded down, and the rest that no part wants; the
    rest is None if all of the amount is wanted.

    The level is the highest one, as an exact fraction, at which the parts together stay within the
    amount. A part of weight 0 gets its floor. Floors hold even if their sum exceeds the amount,
    which may be negative. Takes O(n log n), because the sum is linear between two levels at which a
    part starts or stops to rise.
    """
    flat = sum(part.floor for part in parts)
    if flat > amount:
        return [part.floor for part in parts], None
    slope = 0
    for level, weight, becomes_flat in _bends(parts):
        # At this level, the sum is flat + slope x level.
        if flat * weight + slope * level > amount * weight:
            break
        flat += becomes_flat
        slope += weight if becomes_flat <= 0 else -weight
    else:
        return [max(floor, cap) if weight else floor for weight, floor, cap in parts], amount - flat
    rest = amount - flat
    return [max(floor, min(cap, weight * rest // slope)) for weight, floor, cap in parts], None


def _bends(parts: Sequence[QueuePart]) -> list[tuple[int, int, int]]:
    """Return the levels n / w at which parts start or stop to rise, lowest first, as (n, w, change
    of the flat sum).

    Two different fractions with denominators up to W differ by at least 1 / W², so floor(n x (W² +
    1) / w) orders them exactly, and sorting compares only integers.
    """
    thirsty = [part for part in parts if part.weight > 0 and part.cap > part.floor]
    scale = max((weight for weight, _, _ in thirsty), default=0) ** 2 + 1
    bends = [
        (units * scale // weight, units, weight, change)
        for weight, floor, cap in thirsty
        for units, change in ((floor, -floor), (cap, cap))
    ]
    bends.sort()
    return [(units, weight, change) for _, units, weight, change in bends]


_WITH_PODS = APART - {PODS}


def fair_shares(session: Session) -> FairShares:
    """Return what queues demand and deserve, computed on first use in a session."""
    return session.get(FAIR_SHARES)


def _fair_shares_now(session: Session) -> FairShares:
    """Return what queues demand and deserve now, by the last session's object if possible."""
    known: FairShares | None = session.carried.fair_shares
    if known is None or not known.follow(session):
        known = session.carried.fair_shares = FairShares(session)
    return known


def deserved_of_queues(session: Session) -> dict[str, Amounts]:
    """Return what each queue deserves, in every dimension that a node or a queue names."""
    return session.get(FAIR_SHARES).deserved


def are_pods_bounded(session: Session) -> bool:
    """Return whether the nodes bound the number of pods, or any queue states how many it
    deserves."""
    return session.tree.deserves_pods or session.nodes.ready.get(PODS, 0) < UNLIMITED_PODS


def comparable(session: Session, names: Iterable[str]) -> list[str]:
    """Return the dimensions in which a queue's holding is compared with what it deserves.

    The number of groups is never compared, and the number of pods only if something bounds it:
    otherwise a queue of weight 0 would deserve no pods, although pods are not scarce.
    """
    apart = (POD_GROUPS,) if are_pods_bounded(session) else (POD_GROUPS, PODS)
    return [name for name in names if name not in apart]


def share_of_queue(session: Session, queue: str) -> Share:
    """Return a queue's dominant share now; `pods` counts only if the queue states it."""
    held = session.ledger.sums.get(queue_scope(queue), {})
    deserved = deserved_of_queues(session).get(queue, {})
    return share_of(held, deserved, apart=_apart_for(session, queue))


def reported_share(session: Session, queue: str) -> float | str | None:
    """Return a queue's share for people, rounded; None if it holds and deserves nothing.

    The order of queues needs a value then, too: 1.
    """
    held = session.ledger.sums.get(queue_scope(queue), {})
    deserved = deserved_of_queues(session).get(queue, {})
    apart = _apart_for(session, queue)
    is_idle = all(
        units == 0 or name in apart
        for amounts in (held, deserved)
        for name, units in amounts.items()
    )
    return None if is_idle else share_of(held, deserved, apart=apart).rounded()


def _apart_for(session: Session, queue: str) -> frozenset[str]:
    """Return the dimensions that are left out of a queue's share."""
    if session.tree.deserves_pods:
        record = session.tree.records.get(queue)
        return _WITH_PODS if record is not None and PODS in record.spec.deserved else APART
    return APART


def note_admission(session: Session, group: GroupState) -> None:
    """Update the demand after an admission: the group now also requests pods beyond minMember.

    Its reservation only moves from the waiting demand to the ledger, so a full gang changes
    nothing.
    """
    shares = session.peek(FAIR_SHARES)
    if shares is not None and group.is_elastic:
        shares.grow(group.queue, _requests_beyond_charge(group))


def is_asked_for(session: Session, group: GroupState) -> bool:
    """Return whether the demand of a group's queue includes what the group requests: it holds or
    has reserved that, or waits for it in line.
    """
    return group.phase != PodGroupPhase.PENDING or group.reserved or _is_in_line(session, group)


def ask_for(session: Session, group: GroupState) -> None:
    """Add the reservation of an ineligible group to the demand of its queue.

    The session then has a new FairShares object; putting back the former one undoes the change.
    """
    shares = fair_shares(session).copy()
    shares.grow(group.queue, group.reservation)
    session.put(FAIR_SHARES, shares)


def resources_named(session: Session) -> list[str]:
    """Return every dimension that a node or a queue names, sorted."""
    named = set(session.tree.resources)
    for node in session.nodes.by_name.values():
        named.update(node.record.spec.resources)
    return sorted(named)


class FairShares:
    """Demand and deserved of every queue, updated as demand grows.

    The scheduler cache keeps the object, and each session works out again only what may have
    changed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._of = (session.tree, session.ledger.limits)
        self._resources = _resources(session)
        self._children = _children(session)
        #: The queues with children, the root first.
        self._parents = [ROOT]
        for parent in self._parents:
            self._parents += [one for one in self._children[parent] if one in self._children]
        #: What groups hold and request in each queue itself, and the versions of its sums and of
        #: its line for which that was computed; None if it may change without them.
        self._asked: dict[str, Amounts] = {}
        self._versions: dict[str, tuple[int, int] | None] = {}
        self.demands: dict[str, Amounts] = {}
        #: Queue -> min(demand, capability): the most that it could use.
        self._wanted: dict[str, Amounts] = {}
        #: (queue, resource) -> the part of it that no child of the queue wants; None if all is
        #: wanted.
        self._unwanted: dict[tuple[str, str], int | None] = {}
        self.deserved: dict[str, Amounts] = {name: {} for name in session.queues}
        self.deserved[ROOT] = {}
        self._entitled: dict[str, Amounts] | None = None
        #: Queues whose deserved has changed in this session since it was first computed, in the
        #: order of the changes.
        self.moved: list[str] = []
        self._work_out()

    def copy(self) -> FairShares:
        """Return a copy that can grow independently."""
        found = copy(self)
        found.demands, found._wanted = dict(self.demands), dict(self._wanted)
        found._unwanted = dict(self._unwanted)
        found.deserved = {name: dict(units) for name, units in self.deserved.items()}
        found.moved = []
        return found

    def follow(self, session: Session) -> bool:
        """Update everything for another session; return False if that takes a new object."""
        self._session = session
        is_of_it = self._of[0] is session.tree and self._of[1] is session.ledger.limits
        if not is_of_it or self._resources != _resources(session):
            return False
        self._work_out()
        return True

    def _work_out(self) -> None:
        dirty = self._count()
        outdated: set[tuple[str, str]] = set()
        for parent in reversed(self._parents):
            changed = [child for child in self._children[parent] if child in dirty]
            for child in changed:
                before, after = self._wanted.get(child), self._bounded(child)
                if before != after:
                    self._wanted[child] = after
                    names = self._resources if before is None else {**before, **after}
                    outdated.update((parent, name) for name in names)
            if changed or parent in dirty:
                below = total(self._wanted[child] for child in self._children[parent])
                self.demands[parent] = plus(self._of_its_own(parent), below)
                dirty.add(parent)
        available = _of_root(self._session, self._resources)
        if self.deserved[ROOT] != available:
            self.deserved[ROOT], self._entitled = available, None
            outdated.update((ROOT, name) for name in self._resources)
        for parent in self._parents:
            for resource in self._resources:
                if (parent, resource) in outdated:
                    changed = self._fill(parent, resource)
                    outdated.update((one, resource) for one in changed if one in self._children)
        self.moved.clear()

    def _count(self) -> set[str]:
        """Count what groups hold and request in the queues in which that may have changed; return
        these queues.
        """
        session = self._session
        could_be_let_in = partial(_could_be_let_in, session)
        for queue in session.queues.values():
            count_classes(session, queue.line, could_be_let_in)
        # A member admitted before its class is counted has to be left out of the class, too.
        asked, let_in = _asked_of_groups(session), let_in_of_classes(session)
        versions_of, passing = session.ledger.versions, {*session.ledger.moved, *asked, *let_in}
        dirty: set[str] = set()
        for name, queue in session.queues.items():
            line = queue.line
            is_passing = line.singles or line.unparked or name in passing
            versions = None if is_passing else (versions_of.get(name, 0), line.version)
            if versions is not None and versions == self._versions.get(name):
                continue
            self._versions[name] = versions
            self._asked[name] = self.demands[name] = _demand_of(
                session, queue, asked.get(name, ()), let_in.get(name, ())
            )
            dirty.add(name)
        return dirty

    def _of_its_own(self, parent: str) -> Amounts:
        """Return what groups hold in a queue that was given children later."""
        if parent == ROOT:
            return {}
        sums = self._session.ledger.sums
        below = (sums.get(queue_scope(child), {}) for child in self._children[parent])
        return minus(self._asked.get(parent, {}), total(below))

    def _bounded(self, queue: str) -> Amounts:
        limits = self._session.ledger.limits.get(queue_scope(queue), {})
        demand = self.demands[queue]
        return {name: min(units, limits.get(name, LARGEST)) for name, units in demand.items()}

    def _part(self, queue: str, resource: str) -> QueuePart:
        return self._part_of(queue, resource, self._wanted[queue].get(resource, 0))

    def _part_of(self, queue: str, resource: str, most: int) -> QueuePart:
        weight = self._session.queues[queue].record.spec.weight
        return QueuePart(weight, self._session.tree.guarantee(queue).get(resource, 0), most)

    def _fill(self, parent: str, resource: str) -> list[str]:
        """Distribute a queue's deserved amount to its children; return the changed ones."""
        amount = self.deserved[parent].get(resource, 0)
        new, self._unwanted[parent, resource] = self._divide(parent, resource, amount, self._part)
        changed = [child for child, units in new.items() if self._gives(child, resource) != units]
        for child in changed:
            self._set(child, resource, new[child])
        return changed

    def _divide(
        self, parent: str, resource: str, amount: int, part: Callable[[str, str], QueuePart]
    ) -> tuple[dict[str, int], int | None]:
        """Return what each child gets of an amount: what it states, or its part of the rest. Return
        also the rest that no child wants, as `water_fill` does.
        """
        parts: dict[str, QueuePart] = {}
        gets: dict[str, int] = {}
        for child in self._children[parent]:
            stated = self._session.queues[child].record.spec.deserved.get(resource)
            if stated is None:
                parts[child] = part(child, resource)
            else:
                gets[child] = stated
                amount -= stated
        filled, unwanted = water_fill(amount, list(parts.values()))
        gets.update(zip(parts, filled, strict=True))
        return gets, unwanted

    def entitled(self) -> dict[str, Amounts]:
        """Return what each queue would deserve if all requested as much as they may. Unlike what it
        deserves, that does not fall while a queue is idle.
        """
        if self._entitled is None:
            found = {ROOT: dict(self.deserved[ROOT])}
            for parent in self._parents:
                found.update((child, {}) for child in self._children[parent])
                for resource in self._resources:
                    amount = found[parent].get(resource, 0)
                    gets, _ = self._divide(parent, resource, amount, self._largest_part)
                    for child, units in gets.items():
                        found[child][resource] = units
            self._entitled = found
        return self._entitled

    def _largest_part(self, queue: str, resource: str) -> QueuePart:
        limits = self._session.ledger.limits.get(queue_scope(queue), {})
        return self._part_of(queue, resource, limits.get(resource, LARGEST))

    def _gives(self, queue: str, resource: str) -> int | None:
        return self.deserved[queue].get(resource)

    def _set(self, queue: str, resource: str, units: int) -> None:
        self.deserved[queue][resource] = units
        self.moved.append(queue)

    def grow(self, queue: str, more: Amounts) -> None:
        """Raise a leaf's demand, at the cost of its path and of the queues that change."""
        steps = []
        for parent, child in reversed(list(pairwise(self._session.tree.chain(queue)))):
            self.demands[child] = plus(self.demands[child], more)
            before, after = self._wanted[child], self._bounded(child)
            self._wanted[child] = after
            more = minus(after, before)
            steps.append((parent, child, before, more))
        for parent, child, before, more in reversed(steps):
            for resource in more:
                if resource in self.deserved[ROOT]:
                    self._follow(parent, child, resource, before.get(resource, 0))

    def _follow(self, parent: str, child: str, resource: str, before: int) -> None:
        """Update the level after a child wants more of a resource than `before`."""
        weight, floor, wanted = self._part(child, resource)
        stated = resource in self._session.queues[child].record.spec.deserved
        has = self.deserved[child][resource]
        # A child that had less than it wanted is limited by its weight; wanting more changes
        # nothing.
        if stated or not weight or wanted <= floor or has < before or has == wanted:
            return
        unwanted, more = self._unwanted[parent, resource], wanted - max(floor, before)
        if unwanted is None or unwanted < more:
            self._fill_below([parent], resource)
            return
        # The resource is in surplus, so no sibling's part changes.
        self._unwanted[parent, resource] = unwanted - more
        self._set(child, resource, wanted)
        below = self._unwanted.get((child, resource))
        if below is not None:
            self._unwanted[child, resource] = below + more
        else:
            self._fill_below([child], resource)

    def _fill_below(self, queues: list[str], resource: str) -> None:
        for queue in queues:
            if queue in self._children:
                queues += self._fill(queue, resource)


def _children(session: Session) -> dict[str, tuple[str, ...]]:
    """Return the children of each queue; the queue `default` needs no record."""
    tree = session.tree
    unwritten = (name for name in session.queues if name not in tree.records and name != ROOT)
    return {**tree.children_of, ROOT: (*tree.children_of.get(ROOT, ()), *unwritten)}


def _of_root(session: Session, resources: list[str]) -> Amounts:
    available = total(node.total for node in session.nodes.by_name.values() if node.open)
    root = session.tree.records.get(ROOT)
    stated = root.spec.deserved if root is not None else {}
    return {name: stated.get(name, available.get(name, 0)) for name in resources}


def _resources(session: Session) -> list[str]:
    return list(dict.fromkeys((*resources_named(session), PODS)))


def _asked_of_groups(session: Session) -> dict[str, list[Amounts]]:
    """Return, by queue, what groups request beside what the ledger and the lines say."""
    asked: dict[str, list[Amounts]] = {}
    # A group that runs with all of its pods requests no more.
    for group in session.unsettled():
        # Checked first, because there are many external groups, and they have no pods.
        if not group.is_external and is_admitted(group):
            asked.setdefault(group.queue, []).append(_requests_beyond_charge(group))
    for group, _ in standing_pledges(session):
        asked.setdefault(group.queue, []).append(_counted_with_victims(session, group))
    return asked


def _demand_of(
    session: Session, queue: QueueState, asked: Iterable[Amounts], let_in: Iterable[Amounts]
) -> Amounts:
    """Return the demand of a queue: what its groups hold and request."""
    ledger = session.ledger.sums.get(queue_scope(queue.name), {})
    alone = (group for group in queue.line.in_order() if _is_in_line(session, group))
    in_line = (group.reservation for group in alone)
    together = minus(queue.line.demand, total(let_in))
    return total([ledger, together, *in_line, *asked])


def _counted_with_victims(session: Session, preemptor: GroupState) -> Amounts:
    """Return the part of a preemptor's request that its queue's ledger leaves out, because its
    victims are still charged there. The part belongs to the queue's demand nevertheless.

    A victim that has left and waits in line requests the same amount again. Until the victim's
    processes have ended, that request is counted instead of the preemptor's.
    """
    owed = session.ledger.owed(preemptor).get(queue_scope(preemptor.queue))
    if not owed:
        return {}
    charged = total(
        left.charged()
        for left in victims_left(session, preemptor.status.pledge)
        if left.group.queue == preemptor.queue
        and (left.whole or not _is_in_line(session, left.group))
    )
    return smaller(charged, owed)


def _is_in_line(session: Session, group: GroupState) -> bool:
    """Return whether a group requests a reservation and has none in the ledger."""
    if group.phase != PodGroupPhase.PENDING or group.reserved:
        return False
    return _could_be_let_in(session, group)


def _could_be_let_in(session: Session, group: GroupState) -> bool:
    """Return whether a group could be admitted later: the limits that refuse it keep it in line,
    and empty nodes are not known to refuse it.
    """
    verdicts: tuple[Verdict, ...] = blockers(session, group)
    if verdicts and not waits_in_line(verdicts):
        return False
    last = session.refusals.get(group.uid, group.status.reasons)
    return not any(one.reason == Waiting.WAITING_FOR_RESOURCES and not one.in_line for one in last)


def _requests_beyond_charge(group: GroupState) -> Amounts:
    """Return what its ungated pods without a node request beyond the group's charge."""
    if group.is_external:
        return {}
    away = Counter(pod.spec.task for pod in group.current() if pod.status.phase != PodPhase.PENDING)
    asked: Amounts = {}
    for shape, ungated in zip(group.tasks, group.ungated(), strict=True):
        waiting = max(0, ungated - away[shape.task.name])
        add_to(asked, shape.requests, waiting)
    return minus(asked, minus(group.charge(), group.held))


#: Ended runs are summed by hour.
BUCKET_MS = HOUR
#: Only the last part of a longer run counts, because stored records may contain any instants.
LONGEST_RUN_MS = 365 * 24 * HOUR
#: Usage older than this many half-lives is ignored.
HALF_LIVES = 20
_STEPS = 64
_TAKEN = frozenset({Leaving.PREEMPTED, Leaving.RECLAIMED})


def _sixty_fourth_root(number: int) -> int:
    for _ in range(6):
        number = isqrt(number)
    return number


#: 2^(-k/64) in units of 2^-30, rounded down.
_WEIGHTS = tuple(_sixty_fourth_root(2 ** (30 * _STEPS - step)) for step in range(_STEPS))


def weight(age_ms: int, half_life_ms: int) -> int:
    """Return the weight of a millisecond of that age, in units of 2^-30."""
    halves, step = divmod(max(0, age_ms) * _STEPS // half_life_ms, _STEPS)
    return 0 if halves >= HALF_LIVES else _WEIGHTS[step] >> halves


class EndedUsage:
    """Usage of ended groups by scope and hour; owned by the scheduler cache."""

    def __init__(self) -> None:
        #: Scope -> hour -> resource-milliseconds.
        self._sums: dict[str, dict[int, dict[str, int]]] = {}
        #: Uid of a group -> its scopes, and its usage by hour.
        self._of: dict[str, tuple[tuple[str, ...], dict[int, Amounts]]] = {}
        #: Scope -> the instant and the half-life (ms) of its last decayed sum, and the sum.
        self._decayed: dict[str, tuple[tuple[int, int], dict[str, int]]] = {}

    def add(self, group: GroupState) -> None:
        """Add the usage of a group that has ended."""
        self.drop(group.uid)
        used: dict[int, Amounts] = {}
        for amounts, began, end in _runs(group, None):
            start = max(began, end - LONGEST_RUN_MS)
            for bucket in range(start // BUCKET_MS, -(-end // BUCKET_MS)):
                first, last = bucket * BUCKET_MS, (bucket + 1) * BUCKET_MS
                add_to(used.setdefault(bucket, {}), amounts, min(end, last) - max(start, first))
        if used:
            self._of[group.uid] = (group.scopes, used)
            self._count_all(group.scopes, used, 1)

    def has(self, uid: str) -> bool:
        """Return whether the usage of a group is counted."""
        return uid in self._of

    def drop(self, uid: str) -> None:
        """Remove the usage of a group; does nothing if it was not counted."""
        if uid in self._of:
            scopes, used = self._of.pop(uid)
            self._count_all(scopes, used, -1)

    def _count_all(self, scopes: tuple[str, ...], used: dict[int, Amounts], sign: int) -> None:
        for scope in scopes:
            self._decayed.pop(scope, None)
            buckets = self._sums.setdefault(scope, {})
            for bucket, amounts in used.items():
                add_to(buckets.setdefault(bucket, {}), amounts, sign)

    def decayed(self, scope: str, now_ms: int, half_life_ms: int) -> dict[str, int]:
        """Return the resource-milliseconds of a scope, weighted by age; not to be changed."""
        at = now_ms, half_life_ms
        known = self._decayed.get(scope)
        if known is None or known[0] != at:
            found: dict[str, int] = {}
            for bucket, amounts in self._sums.get(scope, {}).items():
                add_to(found, amounts, weight(now_ms - (bucket + 1) * BUCKET_MS, half_life_ms))
            known = self._decayed[scope] = at, found
        return known[1]


def used_share(session: Session, scope: str, deserved: Amounts) -> Fraction:
    """Return the largest fraction of the root's current deserved amounts that a scope has used,
    over the given dimensions and weighted by age.
    """
    used, whole = session.get(_USAGE_NOW).of(scope), _whole(session)
    parts = (Fraction(used.get(name, 0), units * whole) for name, units in deserved.items())
    return max(parts, default=Fraction(0))


def usage_of_queue(session: Session, queue: str) -> Share:
    """Return the largest fraction that a queue has used of what it is entitled to, over its
    dimensions and weighted by age. It is that of the start of the current interval
    (`usage_interval_ms`), so that it changes at known instants.

    Where the queue is entitled to nothing, its use counts as a part of the whole cluster: an
    infinite share would never decay. A dimension that no ready node offers is left out.
    """
    used, whole = session.get(_USAGE).of(queue_scope(queue)), _whole(session)
    all_entitled = fair_shares(session).entitled()
    entitled, cluster = all_entitled.get(queue, {}), all_entitled[ROOT]
    rights = {name: (entitled.get(name) or units) * whole for name, units in cluster.items()}
    comparable_use = {name: units for name, units in used.items() if rights.get(name)}
    return share_of(comparable_use, rights, apart=_apart_for(session, queue))


def usage_interval_ms(session: Session) -> int:
    """Return how often the order of queues follows their usage."""
    half_life_ms = session.settings.half_life_ms or 0
    return max(SECOND, min(MINUTE, half_life_ms // _STEPS))


def _usage_of_interval(session: Session) -> Usage:
    return Usage(session, session.now_ms - session.now_ms % usage_interval_ms(session))


def _whole(session: Session) -> int:
    """Return the milliseconds of the past, weighted by age."""
    half_life_ms = session.settings.half_life_ms
    assert half_life_ms is not None
    return _decayed_ms(0, HALF_LIVES * half_life_ms, half_life_ms)


class Usage:
    """What groups have used until an instant (ms), those that run included."""

    def __init__(self, session: Session, until_ms: int) -> None:
        half_life_ms = session.settings.half_life_ms
        assert half_life_ms is not None
        self._until_ms, self._half_life_ms = until_ms, half_life_ms
        self._ended = session.get(ENDED)
        #: Scope -> resource-milliseconds of the other groups, weighted by age. A group that has
        #: ended since the session began is one of them.
        self._running: dict[str, dict[str, int]] = {}
        for group in session.busy():
            if self._ended.has(group.uid):
                continue
            for amounts, start, end in _runs(group, until_ms):
                spent = _decayed_ms(max(0, until_ms - end), until_ms - start, half_life_ms)
                for scope in group.scopes:
                    add_to(self._running.setdefault(scope, {}), amounts, spent)

    def of(self, scope: str) -> dict[str, int]:
        """Return the resource-milliseconds of a scope, weighted by age."""
        used = dict(self._ended.decayed(scope, self._until_ms, self._half_life_ms))
        add_to(used, self._running.get(scope, {}), 1)
        return used


def _decayed_ms(youngest: int, oldest: int, half_life_ms: int) -> int:
    """Return the milliseconds between two ages, weighted by age."""
    step_ms = max(1, half_life_ms // _STEPS)
    found, age = 0, youngest
    oldest = min(oldest, HALF_LIVES * half_life_ms)
    while age < oldest:
        until = min(oldest, (age // step_ms + 1) * step_ms)
        found += (until - age) * weight(age, half_life_ms)
        age = until
    return found


def _runs(group: GroupState, now_ms: int | None) -> Iterator[tuple[Amounts, int, int]]:
    """Yield the runs of a group as (amounts, start, end) in ms; current runs end at `now_ms`, and
    are left out if that is None.
    """
    status = group.status
    if group.is_external:
        end = status.finished_at or now_ms
        if status.started_at is not None and end is not None:
            # Once it has ended, it has no reservation.
            yield status.reservation or group.reservation, status.started_at, end
        return
    for pod in group.pods.values():
        start, end = pod.status.started_at, pod.status.finished_at or now_ms
        if start is not None and end is not None and pod.status.reason not in _TAKEN:
            yield of_pod(pod.spec.requests), start, end


#: What queues demand and deserve in a session.
FAIR_SHARES: StateKey[FairShares] = StateKey("fair shares", _fair_shares_now)
#: The usage of ended groups; the scheduler cache provides the object.
ENDED: StateKey[EndedUsage] = StateKey("ended", lambda _: EndedUsage())
#: The usage by which queues are ordered, and that of this instant.
_USAGE: StateKey[Usage] = StateKey("usage", _usage_of_interval, ends_with_session=True)
_USAGE_NOW: StateKey[Usage] = StateKey(
    "usage now", lambda session: Usage(session, session.now_ms), ends_with_session=True
)
