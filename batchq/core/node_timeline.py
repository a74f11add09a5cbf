"""Free resources of each node over the time ahead.

Nodes with equal resources and equal changes share one profile. A gang takes many nodes at once, so
profiles stay few, and whatever is computed for one holds for all its nodes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import NamedTuple, TypeAlias

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod
from batchq.api.resources import Amounts, covers, minus, of_pod, plus, times, total
from batchq.core.expected_ends import ExpectedEnd
from batchq.core.kept_capacity import (
    amounts_by_node,
    kept_capacity,
    standing_pledges,
    victims_left,
)
from batchq.core.placement.node_order import Judge
from batchq.core.placement.placement import place_largest_first, usable_nodes
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState, with_pod
from batchq.core.session.snapshot import Settings
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState


class PodKind(NamedTuple):
    """Shapes with equal requests: their number within a session, and the requests of one pod."""

    number: int
    requests: Amounts


class Profile:
    """Free resources over time: `free[i]` from `at[i]` (ms) until `at[i + 1]`."""

    __slots__ = ("_counts", "at", "falls", "free")

    def __init__(self, at: list[int], free: list[Amounts], *, falls: bool) -> None:
        self.at = at
        self.free = free
        #: Whether less is free at some instant than at an earlier one.
        self.falls = falls
        #: Number of a kind -> how many of its pods fit at each step; filled on demand.
        self._counts: dict[int, list[int]] = {}

    def less(self, amounts: Amounts, start: int, end: int | None) -> Profile:
        """Return the profile less amounts in an interval; `end` None means for ever."""
        at, free = list(self.at), list(self.free)
        first = _step_at(at, free, start)
        last = len(at) if end is None else _step_at(at, free, end)
        free[first:last] = [less(one, amounts) for one in free[first:last]]
        return Profile(at, free, falls=self.falls or first > 0)

    def least(self, start: int, end: int | None) -> Amounts:
        """Return what is free during the whole interval; callers must not change it."""
        first, last = self._steps(start, end)
        least = self.free[first]
        if last == first + 1:
            return least
        least = dict(least)
        for free in self.free[first + 1 : last]:
            for name, units in free.items():
                if units < least.get(name, 0):
                    least[name] = units
        return least

    def slots(self, kind: PodKind, start: int, end: int | None) -> int:
        """Return how many pods of a kind fit during the whole interval."""
        counts = self._counts.get(kind.number)
        if counts is None:
            counts = [_slots(free, kind.requests) for free in self.free]
            self._counts[kind.number] = counts
        first, last = self._steps(start, end)
        return counts[first] if last == first + 1 else min(counts[first:last])

    def _steps(self, start: int, end: int | None) -> tuple[int, int]:
        """Return the range of steps with the minimum of an interval, its end excluded."""
        first = bisect_right(self.at, start) - 1
        if not self.falls:
            return first, first + 1
        return first, len(self.at) if end is None else max(first + 1, bisect_left(self.at, end))


def less(free: Amounts, amounts: Amounts) -> Amounts:
    """Return the difference, which may be negative."""
    rest = dict(free)
    for name, units in amounts.items():
        rest[name] = rest.get(name, 0) - units
    return rest


def _step_at(at: list[int], free: list[Amounts], instant: int) -> int:
    """Return the index of the step that begins at an instant, after inserting it if necessary."""
    step = bisect_left(at, instant)
    if step == len(at) or at[step] != instant:
        at.insert(step, instant)
        free.insert(step, free[step - 1])
    return step


def _slots(free: Amounts, requests: Amounts) -> int:
    found = -1
    for name, units in requests.items():
        fits = free.get(name, 0) // units
        if fits <= 0:
            return 0
        if found < 0 or fits < found:
            found = fits
    return found


#: The overcommit factor, in thousandths, at which no more is admitted than ready nodes have.
_NO_OVERCOMMIT = Settings().overcommit
#: Shapes with their number of pods, in placement order.
Gang: TypeAlias = Sequence[tuple[TaskShape, int]]
#: Node -> what pods request there.
AmountsByNode: TypeAlias = Mapping[str, Amounts]


def nodes_decide(session: Session) -> bool:
    """Return whether an admission checks nodes and not only sums: this is so if batchq binds the
    pods and admits no more than ready nodes have.
    """
    return (
        "allocate" in session.actions
        and session.settings.overcommit <= _NO_OVERCOMMIT
        and bool(session.nodes.by_name)
    )


def is_one_machine(session: Session) -> bool:
    """Return whether the cluster's capacity in the ledger is that of a single open node, and sums
    decide which pods fit there.
    """
    if session.carried.sharing:
        return False
    ready = list(islice((node for node in session.nodes.by_name.values() if node.ready), 2))
    return len(ready) == 1 and ready[0].open


class NodeTimeline:
    """The profiles of all open nodes; owned by the LedgerTimeline that created it."""

    def __init__(self, session: Session, known: Sequence[ExpectedEnd]) -> None:
        self._session = session
        self._now = session.now_ms
        owed = _Owed(session)
        changes: dict[str, dict[int, Amounts]] = {}
        for at, name, amounts in _changes(owed, known):
            if name in session.nodes.by_name:
                mine = changes.setdefault(name, {})
                mine[at] = plus(mine[at], amounts) if at in mine else amounts
        #: Name of a node, in order -> its profile; equal nodes share one.
        self._profiles: dict[str, Profile] = {}
        #: The instants at which profiles change, in order; and the names of the nodes concerned.
        self._instants: list[int] = []
        self._changed_at: dict[int, frozenset[str]] = {}
        made: dict[object, Profile] = {}
        for name, node in sorted(session.nodes.by_name.items()):
            if node.open:
                free, mine = less(node.free, owed.not_yet_taken(name)), changes.get(name, {})
                alike = (*free.items(), *((at, *mine[at].items()) for at in sorted(mine)))
                if alike not in made:
                    made[alike] = self._profile_of(free, mine)
                self._profiles[name] = made[alike]
        self._note_changes((at, name) for name in self._profiles for at in changes.get(name, ()))
        #: The instants at which bookings begin, in order; only these distinguish windows that begin
        #: now.
        self._falls: list[int] = []
        #: The nodes that have bookings.
        self._booked: dict[str, None] = {}
        #: Shape, and the last booking start before the end of a window that begins now -> how many
        #: pods of the shape fit in that window.
        self._known_slots: dict[tuple[object, int], int] = {}
        #: Shared by all copies of the timeline in this session; see `_Trials`.
        self._trials = _Trials(session)
        self._suits: dict[object, tuple[str, ...]] = {}
        self._kinds: dict[object, PodKind] = {}
        #: The last search for a gang of one shape: the gang, the window that was found, and how
        #: many pods each node takes in it.
        self._found: tuple[Gang, int, int | None, dict[str, int]] | None = None

    def beside(self) -> NodeTimeline:
        """Return an independent copy: bookings in one do not appear in the other."""
        other = object.__new__(NodeTimeline)
        other._session, other._now = self._session, self._now
        other._profiles, other._instants = dict(self._profiles), list(self._instants)
        other._changed_at = dict(self._changed_at)
        other._falls, other._booked = list(self._falls), dict(self._booked)
        other._known_slots, other._suits = dict(self._known_slots), self._suits
        other._trials, other._kinds, other._found = self._trials, self._kinds, None
        return other

    def slot(self, gang: Gang, length: int | None, not_before: int) -> int | None:
        """Return the earliest instant, not before a given one, from which nodes take a gang for
        `length` ms (None: for ever); None if there is none.
        """
        start = max(self._now, not_before)
        tallies = [_Tally(self, shape, count, start, length) for shape, count in gang]
        while True:
            end = None if length is None else start + length
            if all(tally.is_enough() for tally in tallies) and self._takes(gang, start, end):
                if len(gang) == 1:
                    self._found = (gang, start, end, tallies[0].slots)
                return start
            place = bisect_right(self._instants, start)
            if place == len(self._instants):
                return None
            after = self._instants[place]
            changed = self._changed(start, after)
            if length is not None:
                changed |= self._changed(start + length - 1, after + length - 1)
            start = after
            for tally in tallies:
                tally.follow(changed, start)

    def fits_now(self, gang: Gang, end: int | None) -> bool:
        """Return whether nodes take a gang from now until `end` (None: for ever)."""
        return self.may_fit_now(gang, end) and self._takes(gang, self._now, end)

    def may_fit_now(self, gang: Gang, end: int | None) -> bool:
        """Return the same as `fits_now`, with each shape considered alone."""
        return all(count <= self._slots_now(shape, end) for shape, count in gang)

    def booked_until(self, end: int | None) -> dict[str, Amounts]:
        """Return, by node, what is free now and booked for other groups before `end`."""
        found = {}
        for name in self._booked:
            free = self._session.nodes.by_name[name].free
            if room := minus(free, self._profiles[name].least(self._now, end)):
                found[name] = room
        return found

    def places_for(self, gang: Gang, start: int, end: int | None) -> dict[str, Amounts] | None:
        """Return the nodes that a gang takes in an interval, with the amounts on each; None if it
        does not fit. Pods are placed in the gang's order by score; if that fails, the largest pods
        first, each on the fullest node that takes it.
        """
        return self._trials.find(gang, self._within(gang, start, end))

    def where_most_is_free(self, gang: Gang) -> dict[str, Amounts]:
        """Return the places of a gang on nodes that would take its pods if they were empty: each
        pod where most of its request is free now, by name among equals.
        """
        nodes = {name: self._session.nodes.by_name[name] for name in self._profiles}
        if any(shape.sharing is not None for shape, _ in gang):
            return self._where_most_is_free_together(gang, nodes)
        free = {name: dict(node.free) for name, node in nodes.items()}
        empty = {name: dict(node.total) for name, node in nodes.items()}
        room: dict[str, Amounts] = {}
        for shape, count in gang:
            for _ in range(count):
                takers = [
                    name for name in self.suiting(shape) if covers(empty[name], shape.requests)
                ]
                if not takers:
                    break
                most = min(takers, key=lambda name: (-_part_of(free[name], shape.requests), name))
                room[most] = plus(room.get(most, {}), shape.requests)
                free[most] = less(free[most], shape.requests)
                empty[most] = less(empty[most], shape.requests)
        return room

    def _where_most_is_free_together(
        self, gang: Gang, nodes: Mapping[str, NodeState]
    ) -> dict[str, Amounts]:
        """Return the same for a group with a sharing of its own: each pod beside others of the
        group if the group is exclusive, or else where most of its request is free.
        """
        free = {name: dict(node.free) for name, node in nodes.items()}
        empty = {name: NodeState(node.record, ready=True) for name, node in nodes.items()}
        room: dict[str, Amounts] = {}

        def rank(shape: TaskShape, name: str) -> tuple[bool, Fraction, str]:
            asked = with_pod({}, shape, empty[name])
            beside = name in room and asked is empty[name].total
            return (not beside, -_part_of(free[name], asked), name)

        for shape, count in gang:
            for _ in range(count):
                takers = [
                    name
                    for name in self.suiting(shape)
                    if not empty[name].why_not_shared(shape) and not empty[name].lacks(shape)
                ]
                if not takers:
                    break
                most = min(takers, key=lambda name: rank(shape, name))
                empty[most].take_pod(shape)
                room[most] = with_pod(room.get(most, {}), shape, empty[most])
                free[most] = less(free[most], shape.requests)
        return room

    def fits_there(self, gang: Gang, room: AmountsByNode, start: int, end: int | None) -> bool:
        """Return whether these amounts belong to a gang and are free during the whole interval."""
        return self.could_stand(gang, room) and all(
            covers(self._profiles[name].least(start, end), amounts)
            for name, amounts in room.items()
        )

    def could_stand(self, gang: Gang, room: AmountsByNode) -> bool:
        """Return whether these amounts are a gang's, on nodes that would take it if empty."""
        asked = total(times(shape.requests, count) for shape, count in gang)
        return (
            (total(room.values()) == asked or self._are_whole(gang, room))
            and room.keys() <= self._profiles.keys()
            and self._trials.find(gang, room) is not None
        )

    def _are_whole(self, gang: Gang, room: AmountsByNode) -> bool:
        """Return whether a gang is of an exclusive group, and these amounts are whole nodes."""
        nodes = self._session.nodes.by_name
        return all(shape.sharing is not None and shape.sharing.exclusive for shape, _ in gang) and (
            all(name in nodes and nodes[name].total == amounts for name, amounts in room.items())
        )

    def suiting(self, shape: TaskShape) -> tuple[str, ...]:
        """Return the nodes that take a pod of a shape when they are empty, in order."""
        found = self._suits.get(shape.shape)
        if found is None:
            sizes = {name: self._session.nodes.by_name[name].total for name in self._profiles}
            ranks = self._trials.judge(shape).ranks(list(self._trials.nodes(sizes).values()))
            found = self._suits[shape.shape] = tuple(sorted(name for _, name in ranks))
        return found

    def slots(
        self, shape: TaskShape, start: int, end: int | None, names: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Return, by node, how many pods of a shape fit during the whole interval; for the named
        nodes, or for all that take one when they are empty.
        """
        profiles, kind = self._profiles, self._kind(shape)
        if shape.sharing is not None:
            some = self.suiting(shape) if names is None else names
            return {name: self._slots_sharing(shape, name, start, end) for name in some}
        known: dict[Profile, int] = {}
        found = {}
        for name in self.suiting(shape) if names is None else names:
            profile = profiles[name]
            count = known.get(profile)
            if count is None:
                count = known[profile] = profile.slots(kind, start, end)
            found[name] = count
        return found

    def _slots_sharing(self, shape: TaskShape, name: str, start: int, end: int | None) -> int:
        """Return the same on one node, for a group with a sharing of its own."""
        least = self._profiles[name].least(start, end)
        (node,) = self._trials.nodes({name: least}).values()
        return node.slots(shape) if self._trials.judge(shape).rank(node) is not None else 0

    def book(self, room: AmountsByNode, start: int, end: int | None) -> None:
        """Book capacity on nodes in an interval for a waiting group."""
        self._booked.update(dict.fromkeys(name for name in room if name in self._profiles))
        self.hold(room, start, end)

    def hold(self, room: AmountsByNode, start: int, end: int | None) -> None:
        """Take capacity on nodes in an interval."""
        profiles = self._profiles
        made: dict[object, Profile] = {}
        names = [name for name in room if name in profiles]
        for name in names:
            amounts, profile = room[name], profiles[name]
            alike = (profile, *amounts.items())
            left = made.get(alike)
            if left is None:
                left = made[alike] = profile.less(amounts, start, end)
            profiles[name] = left
        instants = [at for at in (start, end) if at is not None and at > self._now]
        self._note_changes((at, name) for at in instants for name in names)
        if room and start > self._now:
            place = bisect_left(self._falls, start)
            if place == len(self._falls) or self._falls[place] != start:
                self._falls.insert(place, start)
        # Cached windows that end before `start` are still valid.
        self._known_slots = {
            key: found for key, found in self._known_slots.items() if key[1] < start
        }
        self._found = None

    def _profile_of(self, free: Amounts, rises: Mapping[int, Amounts]) -> Profile:
        """Return a profile with this much free now, and more from each of the given instants on."""
        at, each = [self._now, *sorted(rises)], [free]
        for instant in at[1:]:
            each.append(plus(each[-1], rises[instant]))
        return Profile(at, each, falls=False)

    def _note_changes(self, changes: Iterable[tuple[int, str]]) -> None:
        """Record the instants at which the profiles of nodes change."""
        noted: dict[int, list[str]] = {}
        for at, name in changes:
            noted.setdefault(at, []).append(name)
        for at, names in noted.items():
            known = self._changed_at.get(at)
            if known is None:
                insort(self._instants, at)
            self._changed_at[at] = frozenset(names) if known is None else known.union(names)

    def _changed(self, after: int, until: int) -> set[str]:
        """Return the nodes whose profiles change after one instant and not after another."""
        first = bisect_right(self._instants, after)
        last = bisect_right(self._instants, until)
        return set().union(*(self._changed_at[at] for at in self._instants[first:last]))

    def _slots_now(self, shape: TaskShape, end: int | None) -> int:
        falls = len(self._falls) if end is None else bisect_left(self._falls, end)
        key = (shape.shape, self._falls[falls - 1] if falls else self._now)
        found = self._known_slots.get(key)
        if found is None:
            found = self._known_slots[key] = sum(self.slots(shape, self._now, end).values())
        return found

    def _takes(self, gang: Gang, start: int, end: int | None) -> bool:
        """Return whether pods of several shapes fit together; one shape is counted."""
        return len(gang) < 2 or self.places_for(gang, start, end) is not None

    def _within(self, gang: Gang, start: int, end: int | None) -> dict[str, Amounts]:
        """Return what is free during the interval on nodes with room for any pod of a gang."""
        known = self._found
        if known is not None and known[0] is gang and known[1:3] == (start, end):
            each = [known[3]]
        else:
            each = [self.slots(shape, start, end) for shape, _ in gang]
        taking = {name: None for slots in each for name, count in slots.items() if count}
        names = taking if len(each) == 1 else sorted(taking)
        known_least: dict[Profile, Amounts] = {}
        found = {}
        for name in names:
            profile = self._profiles[name]
            least = known_least.get(profile)
            if least is None:
                least = known_least[profile] = profile.least(start, end)
            found[name] = least
        return found

    def _kind(self, shape: TaskShape) -> PodKind:
        kind = self._kinds.get(shape.shape)
        if kind is None:
            kind = self._kinds[shape.shape] = PodKind(len(self._kinds), shape.requests)
        return kind


class _Tally:
    """How many pods of one shape fit in a moving window; owned by one search."""

    def __init__(
        self, table: NodeTimeline, shape: TaskShape, count: int, start: int, length: int | None
    ) -> None:
        self._table, self._shape, self._count, self._length = table, shape, count, length
        end = None if length is None else start + length
        self.slots = table.slots(shape, start, end)
        self._total = sum(self.slots.values())

    def is_enough(self) -> bool:
        return self._total >= self._count

    def follow(self, changed: set[str], start: int) -> None:
        """Move the window to begin at `start`; `changed` names the nodes that may differ."""
        end = None if self._length is None else start + self._length
        slots = self.slots
        changed = changed & slots.keys()
        for name, now in self._table.slots(self._shape, start, end, changed).items():
            self._total += now - slots[name]
            slots[name] = now


def _changes(owed: _Owed, known: Sequence[ExpectedEnd]) -> Iterator[tuple[int, str, Amounts]]:
    """Yield each instant, node and amount that becomes free by an expected end, without what a
    victim leaves to its preemptor.
    """
    gone: set[str] = set()
    for end in known:
        for pod in _pods_of(end):
            if pod.metadata.uid in gone:
                continue
            gone.add(pod.metadata.uid)
            asked, name = owed.leaves(end.group, pod), pod.status.node
            left = minus(asked, owed.keeps(pod, asked))
            if left:
                yield end.at, name, left
        if end.whole:
            for name, kept in owed.kept_by(end.group.uid).items():
                yield end.at, name, kept


def _pods_of(end: ExpectedEnd) -> Iterator[Pod]:
    """Yield the pods that are gone with an end."""
    yield from end.pods
    if end.whole:
        for pod in end.group.live_pods.values():
            if pod.status.phase in ON_NODE and not pod.status.terminating:
                yield pod


class _Owed:
    """Pledged capacity on nodes, which grows as victims leave; owned by one pass over the ends."""

    def __init__(self, session: Session) -> None:
        self._nodes = session.nodes.by_name
        #: Uid of a group -> node -> what is kept for it there.
        self._kept = {uid: dict(rooms) for uid, rooms in session.nodes.held.items()}
        for uid, places in session.nodes.kept.items():
            self._kept[uid] = places.by_node()
        #: Uid of a victim's pod -> the uid of its preemptor, and the capacity pledged to it on that
        #: node.
        self._owed: dict[str, tuple[str, Amounts]] = {}
        #: Uid of a preemptor and node -> what its victims still hold there.
        self._there: dict[tuple[str, str], Amounts] = {}
        #: The pods of exclusive groups that are still there, by the uid of the group and the node.
        self._beside: dict[tuple[str, str], int] = {}
        #: Uids of the groups that have ended: what their victims hold is free for all groups.
        self._ended: set[str] = set()
        #: Node -> kept capacity that a closed session no longer takes off its nodes.
        self._not_taken: dict[str, Amounts] = {}
        for preemptor, pledge in standing_pledges(session):
            if preemptor.uid not in session.nodes.held:
                self._kept[preemptor.uid] = kept_capacity(session, pledge)
                for name, room in self._kept[preemptor.uid].items():
                    self._not_taken[name] = plus(self._not_taken.get(name, {}), room)
            for group, pods, _ in victims_left(session, pledge):
                for name, amounts in amounts_by_node(session, group, pods).items():
                    where = (preemptor.uid, name)
                    self._there[where] = plus(self._there.get(where, {}), amounts)
                for pod in pods:
                    room = pledge.room.get(pod.status.node, {})
                    self._owed[pod.metadata.uid] = (preemptor.uid, room)

    def not_yet_taken(self, name: str) -> Amounts:
        """Return what is kept on a node and still counts as free there."""
        return self._not_taken.get(name, {})

    def leaves(self, group: GroupState, pod: Pod) -> Amounts:
        """Return what a pod frees when it ends: of an exclusive group, the last one on a node frees
        all of it.
        """
        if group.sharing is None or not group.sharing.exclusive:
            return of_pod(pod.spec.requests)
        name, nodes = pod.status.node, self._nodes
        where = (group.uid, name)
        there = self._beside.get(where)
        if there is None:
            pods = group.live_pods.values()
            there = sum(one.status.phase in ON_NODE and one.status.node == name for one in pods)
        self._beside[where] = there - 1
        is_last = there == 1 and name in nodes and name not in self._kept.get(group.uid, {})
        return nodes[name].total if is_last else {}

    def keeps(self, pod: Pod, leaves: Amounts) -> Amounts:
        """Return how much of an ended pod's capacity its preemptor keeps."""
        uid, room = self._owed.get(pod.metadata.uid, ("", {}))
        if not uid or uid in self._ended:
            return {}
        name = pod.status.node
        there = self._there[uid, name]
        left = self._there[uid, name] = minus(there, leaves)
        more = minus(minus(room, left), minus(room, there))
        if more:
            mine = self._kept.setdefault(uid, {})
            mine[name] = plus(mine.get(name, {}), more)
        return more

    def kept_by(self, uid: str) -> AmountsByNode:
        """Return what was kept for a group that has ended, by node."""
        self._ended.add(uid)
        return self._kept.pop(uid, {})


class _Trials:
    """Trial placements of one session, which leave no trace in it, with their caches."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._judges: dict[object, Judge] = {}
        self._nodes: dict[str, NodeState] = {}

    def judge(self, shape: TaskShape) -> Judge:
        """Return the combined answers of all plugins for a shape."""
        judge = self._judges.get(shape.shape)
        if judge is None:
            judge = self._judges[shape.shape] = Judge(self._session, shape)
        return judge

    def nodes(self, free: Mapping[str, Amounts]) -> dict[str, NodeState]:
        """Return nodes with these free amounts; valid until the next call."""
        return {name: self._with_free(name, amounts) for name, amounts in free.items()}

    def _with_free(self, name: str, free: Amounts) -> NodeState:
        node = self._nodes.get(name)
        if node is None:
            real = self._session.nodes.by_name[name]
            node = self._nodes[name] = NodeState(real.record, ready=real.ready, heard=real.heard)
        # The dict belongs to the profile and is copied before anything is taken.
        node.free = free
        node.owners = self._session.nodes.by_name[name].owners
        return node

    def find(self, gang: Gang, free: AmountsByNode) -> dict[str, Amounts] | None:
        """Return places for a gang on nodes with these free amounts; None if there are none. Pods
        are placed in the gang's order by score; if that fails, the largest pods first, each on the
        fullest node that takes it.
        """
        in_order = self.place(gang, self.nodes(free))
        if in_order is not None or len(gang) < 2:
            return in_order
        return self._place_largest_first(gang, self.nodes(free))

    def place(self, gang: Gang, nodes: Mapping[str, NodeState]) -> dict[str, Amounts] | None:
        """Place each pod on the best node; return amounts by node, None if one finds no node."""
        room: dict[str, Amounts] = {}
        for shape, count in gang:
            judge = self.judge(shape)
            # Nodes with equal free amounts share one dict of them, before and after.
            after: dict[tuple[tuple[str, int], ...], Amounts] = {}
            heap = judge.ranks(list(nodes.values()))
            heapq.heapify(heap)
            for _ in range(count):
                if not heap:
                    return None
                node = nodes[heap[0][1]]
                name = node.name
                if shape.sharing is None:
                    before = tuple(node.free.items())
                    left = after.get(before)
                    if left is None:
                        left = after[before] = less(node.free, shape.requests)
                    node.free = left
                    asked = shape.requests
                    room[name] = plus(room[name], asked) if name in room else asked
                else:
                    _take_copied(shape, node)
                    room[name] = with_pod(room.get(name, {}), shape, node)
                rank = judge.rank(node)
                if rank is None:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, rank)
        return room

    def _place_largest_first(
        self, gang: Gang, nodes: Mapping[str, NodeState]
    ) -> dict[str, Amounts] | None:
        def give_back(shape: TaskShape, node: NodeState) -> None:
            node.free = dict(node.free)
            node.put_back_pod(shape)

        placed = place_largest_first(
            gang,
            nodes.values(),
            self._session.nodes.ready,
            choices=lambda shape: len(usable_nodes(self._session, shape)),
            takes=lambda shape, node: self.judge(shape).rank(node) is not None,
            take=_take_copied,
            give_back=give_back,
        )
        if placed is None:
            return None
        room: dict[str, Amounts] = {}
        for (shape, _), found in zip(gang, placed, strict=True):
            for node in found:
                room[node.name] = with_pod(room.get(node.name, {}), shape, node)
        return room


def _take_copied(shape: TaskShape, node: NodeState) -> None:
    """Subtract a pod's requests from a node, after copying the dict of free amounts, which is
    shared.
    """
    node.free = dict(node.free)
    node.take_pod(shape)


def _part_of(free: Amounts, requests: Amounts) -> Fraction:
    """Return which fraction of a request is free in the scarcest dimension, at most 1."""
    return min(
        (Fraction(min(free.get(name, 0), units), units) for name, units in requests.items()),
        default=Fraction(1),
    )
