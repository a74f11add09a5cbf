"""Equivalence classes: groups of one queue that are only waiting records, with equal requests.

The limits answer all members alike, so a session evaluates one member, and the next only if that
one was admitted. A class that is refused because a limit is full is *parked* while that one limit
stays full: it watches a single number, as a SAT solver watches a literal of each clause (Moskewicz
et al., "Chaff", DAC 2001), and costs a session nothing.

The verdicts of a class may be older than the session: new reasons may exist besides the watched
one. A request for a group's reasons evaluates the group again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from batchq.api.objects import Queue
from batchq.api.resources import Amounts
from batchq.core.chunks import Ordered
from batchq.core.session.state import (
    NO_REASONS,
    EquivalenceClass,
    GroupState,
    Key,
    recorded_reasons,
)

#: Of how many emptied classes a queue keeps the lasting findings.
_MOST_FORMER = 256


class PendingQueue:
    """The waiting groups of one queue, in order: equivalence classes, and single groups."""

    __slots__ = (
        "_former",
        "_key",
        "_sorted",
        "classes",
        "demand",
        "kinds",
        "singles",
        "unparked",
        "unwritten",
        "version",
    )

    def __init__(self) -> None:
        self.classes: dict[Key, EquivalenceClass] = {}
        #: The classes by what they could request as preemptors: priority, priority class,
        #: reservation.
        self.kinds: dict[Key, dict[Key, EquivalenceClass]] = {}
        #: The classes that are not parked.
        self.unparked: dict[Key, EquivalenceClass] = {}
        #: The classes in which some members' records may lack the verdicts of the class.
        self.unwritten: dict[Key, EquivalenceClass] = {}
        #: Single groups by uid; in no order.
        self.singles: dict[str, GroupState] = {}
        #: The sum of the requests of the classes that count in the demand.
        self.demand: dict[str, int] = {}
        #: Classes that have become empty: groups with equal requests often follow.
        self._former: dict[Key, EquivalenceClass] = {}
        #: Rises when a class comes or goes, and when `demand` changes.
        self.version = 0
        self._sorted: list[GroupState] | None = None
        self._key: Callable[[GroupState], Key] = _by_key

    def __len__(self) -> int:
        return len(self.singles) + sum(map(len, self.classes.values()))

    def __bool__(self) -> bool:
        return bool(self.singles or self.classes)

    def __iter__(self) -> Iterator[GroupState]:
        lines = [peers.members.pairs() for peers in self.classes.values()]
        alone = ((self._key(group), group) for group in self.in_order())
        return (group for _, group in heapq.merge(*lines, alone, key=_first))

    def order_by(self, key: Callable[[GroupState], Key]) -> None:
        """Use a session's order from now on."""
        self._key, self._sorted = key, None

    def in_order(self) -> list[GroupState]:
        """Return the single groups, in order."""
        if not self.singles:
            return []
        if self._sorted is None:
            self._sorted = sorted(self.singles.values(), key=self._key)
        return self._sorted

    def firsts(self) -> Iterator[GroupState]:
        """Yield each single group, and the first member of each class."""
        yield from self.in_order()
        for peers in self.classes.values():
            yield peers.first

    def add(self, group: GroupState) -> None:
        """Add a single group."""
        self.singles[group.uid] = group
        self._sorted = None

    def discard(self, uid: str) -> None:
        """Remove a single group, if it is there."""
        if self.singles.pop(uid, None) is not None:
            self._sorted = None

    def join(self, group: GroupState, line_key: Key) -> None:
        """Add a group to the class of groups with equal requests."""
        key = equivalence_of(group)
        peers = self.classes.get(key)
        if peers is None:
            peers = self.classes[key] = self.unparked[key] = EquivalenceClass(key, group.queue)
            if (former := self._former.pop(key, None)) is not None:
                peers.take_over(former)
            self.kinds.setdefault(kind_of(group), {})[key] = peers
            self.version += 1
        if group.is_elastic and not group.is_external:
            peers.may_grow = True
        group.peers, group.line_key = peers, line_key
        peers.members.add(line_key, group)
        reasons, (last_reasons, reasons_key, members) = (
            group.record.status.reasons,
            peers.last_joined,
        )
        if reasons is last_reasons:
            # Most groups have the same stored reasons as the group before.
            group.recorded = reasons_key
        else:
            reasons_key = recorded_reasons(group)
            members = peers.by_reasons.setdefault(reasons_key, {})
            peers.last_joined = (reasons, reasons_key, members)
        members[group.uid] = None
        self.unwritten[peers.asks] = peers
        if peers.in_demand:
            self._ask_for(group.reservation)

    def leave(self, group: GroupState) -> None:
        """Remove a group from its class."""
        peers = group.peers
        assert peers is not None
        peers.members.remove(group.line_key)
        of_it = peers.by_reasons[recorded_reasons(group)]
        del of_it[group.uid]
        if not of_it:
            del peers.by_reasons[recorded_reasons(group)]
            peers.last_joined = (None, NO_REASONS, {})
        if peers.in_demand:
            self._ask_for(group.reservation, -1)
        group.peers = None
        if not len(peers):
            self._forget(peers, kind_of(group))

    def _forget(self, peers: EquivalenceClass, kind: Key) -> None:
        """Remove a class that has become empty."""
        if len(self._former) >= _MOST_FORMER:
            self._former.clear()
        self._former[peers.asks] = peers
        self.version += 1
        for classes in (self.classes, self.unparked, self.unwritten, self.kinds[kind]):
            classes.pop(peers.asks, None)
        if not self.kinds[kind]:
            del self.kinds[kind]

    def count(self, peers: EquivalenceClass, *, counts: bool) -> None:
        """Set whether a class's requests count in the demand."""
        if peers.in_demand != counts:
            peers.in_demand = counts
            self._ask_for(peers.reservation, len(peers) if counts else -len(peers))

    def _ask_for(self, amounts: Amounts, count: int = 1) -> None:
        demand = self.demand
        self.version += 1
        for name, units in amounts.items() if count else ():
            demand[name] = demand.get(name, 0) + units * count


def equivalence_of(group: GroupState) -> Key:
    """Return a key that is equal for groups that limits and policies treat alike."""
    spec = group.record.spec
    # Groups of queues that do not exist are in one line.
    about = group.namespace, group.priority, spec.priority_class_name, group.queue
    return (*about, group.shape.alike)


def kind_of(group: GroupState) -> Key:
    """Return a key equal for groups with the same request as preemptors in any namespace."""
    return (group.priority, group.record.spec.priority_class_name, group.shape.claim)


def _by_key(group: GroupState) -> Key:
    return (group.key,)


def _first(pair: tuple[Key, GroupState]) -> Key:
    return pair[0]


@dataclass(slots=True)
class QueueState:
    """A queue with its Pending groups in line."""

    record: Queue
    line: PendingQueue

    @property
    def name(self) -> str:
        return self.record.metadata.name


_Shown: TypeAlias = tuple[Key, int, GroupState, EquivalenceClass | None, int]


class PendingIterator:
    """One pass along a pending queue, from the front. A class can be skipped from the current
    position on and resumed there. No group joins or leaves a class during the pass.
    """

    def __init__(
        self,
        classes: Iterable[EquivalenceClass],
        singles: Iterable[GroupState],
        key: Callable[[GroupState], Key],
        passed: Iterable[EquivalenceClass] = (),
        *,
        after: Key = (),
    ) -> None:
        """Create an iterator without the classes `passed` and members up to the key `after`."""
        #: Key, 0 for a single group or 1 for a member, group, class, and its position in the class.
        self._heap: list[_Shown] = [(key(group), 0, group, None, 0) for group in singles]
        for peers in classes:
            place = peers.members.place_after(after) if after else peers.members.start
            if (first := peers.members.at(place)) is not None:
                self._heap.append((first[0], 1, first[1], peers, place))
        heapq.heapify(self._heap)
        self._passed: dict[Key, EquivalenceClass] = (
            {(peers.queue, peers.asks): peers for peers in passed} if passed else {}
        )
        #: The key of the last group, and its position in its class.
        self._last: Key = ()
        self._place = 0
        self._shown: GroupState | None = None
        #: The class of the last group, if more of its members follow.
        self.peers: EquivalenceClass | None = None

    def __iter__(self) -> Iterator[GroupState]:
        return iter(self.next, None)

    def next(self) -> GroupState | None:
        """Return the next group; None at the end."""
        heap, peers = self._heap, self.peers
        if peers is not None:
            place = self._place + 1
            following = peers.members.at(place)
            if following is not None:
                key, group = following
                if not heap or key < heap[0][0]:
                    # The usual case: many members of one class in sequence.
                    self._last, self._place, self._shown = key, place, group
                    return group
                heapq.heappush(heap, (key, 1, group, peers, place))
        if not heap:
            self.peers = None
            return None
        self._last, _, group, self.peers, self._place = heapq.heappop(heap)
        self._shown = group
        return group

    def peek(self) -> GroupState | None:
        """Return the group that `next` would return now."""
        heap = self._heap
        if self.peers is not None:
            following = self.peers.members.at(self._place + 1)
            if following is not None and (not heap or following[0] < heap[0][0]):
                return following[1]
        return heap[0][2] if heap else None

    def following(self, most: int) -> list[GroupState]:
        """Return up to `most` members of the last group's class that come next."""
        if self.peers is None:
            return []
        before = self._heap[0][0] if self._heap else None
        return self.peers.members.run(self._place + 1, most, before)

    def skip(self, count: int) -> None:
        """Go on after the first groups of `following`, as if `next` had returned each."""
        if self.peers is not None and count:
            last = self.peers.members.at(self._place + count)
            assert last is not None
            self._place += count
            self._last, self._shown = last

    def pass_over(self) -> None:
        """Skip the rest of the last group's class, unless the group was refused alone."""
        if self.peers is not None and self._shown is not None and not self._shown.is_refused_alone:
            self._passed[self.peers.queue, self.peers.asks] = self.peers
            self.peers = None

    def has_changed(self, refused: Container[str]) -> bool:
        """Return whether the last group was a member of its class and no longer shares its refusal:
        it has changed, or its uid is in `refused`, the groups with verdicts of their own.
        """
        group = self._shown
        if self.peers is None or group is None:
            return False
        is_member = group.peers is not None and group.status is group.record.status
        return not is_member or group.uid in refused

    def take_up(self) -> None:
        """Resume all skipped classes."""
        for peers in self._passed.values():
            place = peers.members.place_after(self._last)
            if (following := peers.members.at(place)) is not None:
                heapq.heappush(self._heap, (following[0], 1, following[1], peers, place))
        self._passed = {}


@dataclass(frozen=True, slots=True)
class ClassSelection:
    """Classes whose members are tried, and other classes of the same queues whose members are tried
    only after something has changed.
    """

    tried: Sequence[EquivalenceClass] = ()
    later: Sequence[EquivalenceClass] = ()

    def __bool__(self) -> bool:
        return bool(self.tried)

    def with_groups(
        self,
        groups: Iterable[GroupState],
        *,
        line_of: Callable[[str], str],
        key: Callable[[GroupState], Key],
    ) -> dict[str, PendingIterator]:
        """Return the members of the classes and these groups, in order, by line."""
        singles: dict[str, list[GroupState]] = {}
        tried: dict[str, list[EquivalenceClass]] = {}
        later: dict[str, list[EquivalenceClass]] = {}
        for group in groups:
            singles.setdefault(line_of(group.queue), []).append(group)
        for peers in self.tried:
            tried.setdefault(line_of(peers.queue), []).append(peers)
        for peers in self.later:
            later.setdefault(line_of(peers.queue), []).append(peers)
        return {
            name: PendingIterator(
                tried.get(name, ()), singles.get(name, ()), key, later.get(name, ())
            )
            for name in dict.fromkeys((*singles, *tried))
        }


class UnmetRequests:
    """The queues in which an action found no request that could be met, with the versions of their
    sums and lines and what they deserved then. Kept across sessions.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int, Amounts | None]] = {}
        self._generation: object = None
        self._versions: Mapping[str, int] = {}
        self._deserved: Mapping[str, Amounts] = {}
        self._passing: Container[str] = ()

    def begin(
        self,
        generation: object,
        versions: Mapping[str, int],
        deserved: Mapping[str, Amounts],
        passing: Container[str],
    ) -> None:
        """Begin the action in a session, with the versions of the sums of queues. In the queues
        `passing`, more decides than that and what they deserve.
        """
        if self._generation != generation:
            self._generation = generation
            self._known.clear()
        self._versions, self._deserved, self._passing = versions, deserved, passing

    def still_holds(self, name: str, line: PendingQueue) -> bool:
        """Return whether no request in a queue could be met, because none could before."""
        known = self._known.get(name)
        return known is not None and name not in self._passing and known == self._now(name, line)

    def note(self, name: str, line: PendingQueue) -> None:
        """Store that no request in a queue could be met."""
        if name not in self._passing:
            self._known[name] = self._now(name, line)

    def _now(self, name: str, line: PendingQueue) -> tuple[int, int, Amounts | None]:
        deserved = self._deserved.get(name)
        return (self._versions.get(name, 0), line.version, deserved and dict(deserved))


class WakeUpIndex:
    """The parked classes by the number that they watch: (scope, resource) -> classes, the class
    with the smallest request last.
    """

    def __init__(self) -> None:
        self._watching: dict[tuple[str, str], Ordered[EquivalenceClass]] = {}
        #: Class -> what it watches, and its sort key: headroom, then order of arrival.
        self._places: dict[EquivalenceClass, tuple[tuple[str, str], tuple[int, int]]] = {}
        #: Classes not inserted yet; many at once are sorted first.
        self._unplaced: list[EquivalenceClass] = []
        self._count = 0

    def clear(self) -> None:
        """Remove all classes."""
        self._watching.clear()
        self._places.clear()
        self._unplaced.clear()

    def add(self, peers: EquivalenceClass, watches: tuple[str, str], most: int) -> None:
        """Park a class while that sum exceeds `most`."""
        self._count += 1
        self._places[peers] = (watches, (most, self._count))
        self._unplaced.append(peers)

    def remove(self, peers: EquivalenceClass) -> None:
        """Remove a class, if it is parked here."""
        if peers in self._places:
            self._put_in_place()
            watches, place = self._places.pop(peers)
            self._watching[watches].remove(place)

    def freed(self, sums: Mapping[str, Mapping[str, int]]) -> list[EquivalenceClass]:
        """Return the classes whose sum has fallen far enough, in the order of parking."""
        if self._unplaced:
            self._put_in_place()
        found: list[tuple[int, EquivalenceClass]] = []
        for (scope, resource), watching in self._watching.items():
            used = sums.get(scope, {}).get(resource, 0)
            for (most, count), peers in watching.pairs_backwards():
                if used > most:
                    break
                found.append((count, peers))
        found.sort(key=lambda entry: entry[0])
        return [peers for _, peers in found]

    def _put_in_place(self) -> None:
        for peers in sorted(self._unplaced, key=lambda peers: self._places[peers][1]):
            watches, place = self._places[peers]
            self._watching.setdefault(watches, Ordered()).add(place, peers)
        self._unplaced.clear()
