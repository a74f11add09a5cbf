"""What is free on each node over the time ahead, as ends are known and starts planned.

The node-by-node half of a timetable (`batchq.framework.timetable`), which has the sums of the
ledger. Every open node has a *profile*: what is free on it from which instant on. Ends give back
what their pods ask for; what is kept for anyone (`Session.rooms`) counts as taken until its group
ends; a booking takes room on chosen nodes for a while. A gang fits in an interval when each of its
pods finds a node that has room for it during all of the interval, by the same predicates and
scores as at a bind. The rules are those of EASY (Lifka 1995) and of conservative backfilling
(Mu'alem and Feitelson 2001), asked of every node.

Instants are milliseconds. A profile changes only where one of its own pods ends or a booking
begins or ends, so a search costs these changes, and not nodes times instants.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod
from batchq.api.quantity import PODS
from batchq.api.resources import Amounts, covers, minus, of_pod, plus, times, total
from batchq.framework.forecast import End
from batchq.framework.pledges import kept_room, standing_pledges, victims_left
from batchq.framework.ranking import Judge
from batchq.framework.session import Session
from batchq.framework.settings import Settings
from batchq.framework.shapes import TaskShape
from batchq.framework.state import NodeState

#: Shapes and how many pods of each, in the order in which they are placed.
Gang: TypeAlias = Sequence[tuple[TaskShape, int]]
#: Node -> what pods ask for there.
Room: TypeAlias = Mapping[str, Amounts]


def nodes_decide(session: Session) -> bool:
    """Whether single nodes have a say in who is admitted, beside the sums of the ledger: where
    this scheduler places pods, and promises no more than machines have.
    """
    return "allocate" in session.actions and session.settings.overcommit <= Settings().overcommit


def is_one_machine(session: Session) -> bool:
    """Whether all that counts in the ledger of the cluster is one open node."""
    ready = [node for node in session.nodes.values() if node.ready]
    return len(ready) == 1 and ready[0].open


class _Profile:
    """What is free on one node: `free[i]` from the instant `at[i]` until the next."""

    __slots__ = ("at", "falls", "free")

    def __init__(self, now_ms: int, free: Amounts) -> None:
        self.at = [now_ms]
        self.free = [free]
        #: Whether it has less free at any instant than at one before.
        self.falls = False

    def copy(self) -> _Profile:
        other = object.__new__(_Profile)
        other.at, other.free, other.falls = list(self.at), list(self.free), self.falls
        return other

    def step_at(self, instant: int) -> int:
        """The step that begins at an instant, which is made if there is none."""
        step = bisect_left(self.at, instant)
        if step == len(self.at) or self.at[step] != instant:
            self.at.insert(step, instant)
            self.free.insert(step, self.free[step - 1])
        return step

    def steps(self, start: int, end: int | None) -> tuple[int, int]:
        """The steps of an interval: the first, and the one behind the last."""
        first = bisect_right(self.at, start) - 1
        if not self.falls:
            return first, first + 1
        return first, len(self.at) if end is None else max(first + 1, bisect_left(self.at, end))

    def least(self, start: int, end: int | None) -> Amounts:
        """What is free during all of an interval; with `end` None from `start` on for ever."""
        first, last = self.steps(start, end)
        least = self.free[first]
        if last == first + 1:
            return least
        least = dict(least)
        for free in self.free[first + 1 : last]:
            for name, units in free.items():
                if units < least.get(name, 0):
                    least[name] = units
        return least

    def slots(self, requests: Amounts, start: int, end: int | None) -> int:
        """How many pods that ask for this have room during all of an interval."""
        first, last = self.steps(start, end)
        found = _slots(self.free[first], requests)
        for step in range(first + 1, last):
            if not found:
                break
            found = min(found, _slots(self.free[step], requests))
        return found


def _slots(free: Amounts, requests: Amounts) -> int:
    found = -1
    for name, units in requests.items():
        fits = free.get(name, 0) // units
        if fits <= 0:
            return 0
        if found < 0 or fits < found:
            found = fits
    return found


class NodeTimetable:
    """The profiles of all open nodes; owned by the Timetable that made it."""

    def __init__(self, session: Session, known: Sequence[End]) -> None:
        self._session = session
        self._now = session.now_ms
        owed = _Owed(session)
        self._profiles = {
            name: _Profile(self._now, _less(node.free, owed.not_yet_taken(name)))
            for name, node in sorted(session.nodes.items())
            if node.open
        }
        changes: dict[str, dict[int, Amounts]] = {}
        for at, name, amounts in _changes(owed, known):
            if name in self._profiles:
                mine = changes.setdefault(name, {})
                mine[at] = _sum(mine[at], amounts) if at in mine else amounts
        #: Every instant at which a profile changes, and whose it is, in order.
        self._events: list[tuple[int, str]] = []
        for name, of_node in changes.items():
            profile = self._profiles[name]
            for at in sorted(of_node):
                profile.at.append(at)
                profile.free.append(_sum(profile.free[-1], of_node[at]))
                self._events.append((at, name))
        self._events.sort()
        #: The instants at which bookings begin, in order; windows that begin now differ by these.
        self._falls: list[int] = []
        #: Profiles that no other table shares.
        self._own: set[str] = set(self._profiles)
        #: Nodes on which anything was booked.
        self._booked: dict[str, None] = {}
        #: Shape and number of falls -> how many of its pods have room from now on until there.
        self._room_now: dict[tuple[object, int], int] = {}
        #: Of this session, for all tables that share it: see `_Trials`.
        self._trials = _Trials(session)
        self._suits: dict[object, tuple[str, ...]] = {}

    def beside(self) -> NodeTimetable:
        """Another one that starts out like this: what is booked there is not booked here."""
        other = object.__new__(NodeTimetable)
        other._session, other._now = self._session, self._now
        other._profiles, other._events = dict(self._profiles), list(self._events)
        other._falls, other._booked = list(self._falls), dict(self._booked)
        other._room_now, other._suits = dict(self._room_now), self._suits
        other._trials = self._trials
        other._own, self._own = set(), set()
        return other

    # Asking -----------------------------------------------------------------------------------

    def slot(self, gang: Gang, length: int | None, not_before: int) -> int | None:
        """The earliest instant, not before a given one, from which on nodes take a gang for so
        long (None: for ever); None if there is none.
        """
        start = max(self._now, not_before)
        tallies = [_Tally(self, shape, count, start, length) for shape, count in gang]
        while True:
            end = None if length is None else start + length
            if all(tally.is_enough() for tally in tallies) and self._takes(gang, start, end):
                return start
            place = bisect_right(self._events, (start, _LAST))
            if place == len(self._events):
                return None
            after = self._events[place][0]
            changed = self._changed(start, after)
            if length is not None:
                changed |= self._changed(start + length - 1, after + length - 1)
            start = after
            for tally in tallies:
                tally.follow(changed, start)

    def fits_now(self, gang: Gang, end: int | None) -> bool:
        """Whether nodes take a gang from now until `end` (None: for ever)."""
        return all(count <= self._slots_now(shape, end) for shape, count in gang) and self._takes(
            gang, self._now, end
        )

    def booked_until(self, end: int | None) -> dict[str, Amounts]:
        """Node -> what is free there at this moment, and booked for others before `end`."""
        found = {}
        for name in self._booked:
            free = self._session.nodes[name].free
            if room := minus(free, self._profiles[name].least(self._now, end)):
                found[name] = room
        return found

    def room_for(self, gang: Gang, start: int, end: int | None) -> dict[str, Amounts] | None:
        """The nodes that a gang takes in an interval, and how much of each; None if it does not
        fit. By the order of the gang and the scores; if that fails, the largest pods first, each
        on the fullest node that takes it.
        """
        return self._trials.find(gang, self._within(gang, start, end))

    def where_most_is_free(self, gang: Gang) -> dict[str, Amounts]:
        """The room of a gang on nodes that would take its pods if they were empty: each pod where
        most of what it asks for is free now, by name among equals.
        """
        nodes = {name: self._session.nodes[name] for name in self._profiles}
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
                free[most] = _less(free[most], shape.requests)
                empty[most] = _less(empty[most], shape.requests)
        return room

    def fits_there(self, gang: Gang, room: Room, start: int, end: int | None) -> bool:
        """Whether certain room is that of a gang, and free during all of an interval."""
        return self.could_stand(gang, room) and all(
            covers(self._profiles[name].least(start, end), amounts)
            for name, amounts in room.items()
        )

    def could_stand(self, gang: Gang, room: Room) -> bool:
        """Whether certain room is that of a gang, on nodes that take it while they are empty."""
        asked = total(times(shape.requests, count) for shape, count in gang)
        return (
            total(room.values()) == asked
            and room.keys() <= self._profiles.keys()
            and self._trials.find(gang, room) is not None
        )

    def suiting(self, shape: TaskShape) -> tuple[str, ...]:
        """The nodes that take a pod of a shape while they are empty, in order."""
        found = self._suits.get(shape.shape)
        if found is None:
            sizes = {name: self._session.nodes[name].total for name in self._profiles}
            ranks = self._trials.judge(shape).ranks(list(self._trials.nodes(sizes).values()))
            found = self._suits[shape.shape] = tuple(sorted(name for _, name in ranks))
        return found

    def slots(self, name: str, shape: TaskShape, start: int, end: int | None) -> int:
        """How many pods of a shape have room on a node during all of an interval."""
        return self._profiles[name].slots(shape.requests, start, end)

    # Planning ---------------------------------------------------------------------------------

    def book(self, room: Room, start: int, end: int | None) -> None:
        """Let a group that waits have room on nodes in an interval."""
        self._booked.update(dict.fromkeys(name for name in room if name in self._profiles))
        self.hold(room, start, end)

    def hold(self, room: Room, start: int, end: int | None) -> None:
        """Take room on nodes in an interval."""
        for name, amounts in room.items():
            if name not in self._profiles:
                continue
            profile = self._profiles[name]
            if name not in self._own:
                profile = self._profiles[name] = profile.copy()
                self._own.add(name)
            first = profile.step_at(start)
            last = len(profile.at) if end is None else profile.step_at(end)
            for step in range(first, last):
                profile.free[step] = _less(profile.free[step], amounts)
            if first:
                profile.falls = True
        instants = [at for at in (start, end) if at is not None and at > self._now]
        self._events += [(at, name) for at in instants for name in room if name in self._profiles]
        self._events.sort()
        if room and start > self._now:
            place = bisect_left(self._falls, start)
            if place == len(self._falls) or self._falls[place] != start:
                self._falls.insert(place, start)
        self._room_now.clear()

    # ------------------------------------------------------------------------------------------

    def _changed(self, after: int, until: int) -> set[str]:
        """Whose profiles change behind an instant, up to and with another one."""
        first = bisect_right(self._events, (after, _LAST))
        last = bisect_right(self._events, (until, _LAST))
        return {name for _, name in self._events[first:last]}

    def _slots_now(self, shape: TaskShape, end: int | None) -> int:
        falls = len(self._falls) if end is None else bisect_left(self._falls, end)
        key = (shape.shape, falls)
        found = self._room_now.get(key)
        if found is None:
            found = sum(self.slots(name, shape, self._now, end) for name in self.suiting(shape))
            self._room_now[key] = found
        return found

    def _takes(self, gang: Gang, start: int, end: int | None) -> bool:
        """Whether pods of several shapes fit together; of one shape, their number says it all."""
        return len(gang) < 2 or self.room_for(gang, start, end) is not None

    def _within(self, gang: Gang, start: int, end: int | None) -> dict[str, Amounts]:
        """What is free during all of an interval on the nodes that have room for any pod of a gang
        then.
        """
        return {
            name: profile.least(start, end)
            for name, profile in self._profiles.items()
            if any(profile.slots(shape.requests, start, end) for shape, _ in gang)
        }


#: After every name of a node.
_LAST = "\U0010ffff"


class _Tally:
    """How many pods of one shape have room in a window that moves; owned by one search."""

    def __init__(
        self, table: NodeTimetable, shape: TaskShape, count: int, start: int, length: int | None
    ) -> None:
        self._table, self._shape, self._count, self._length = table, shape, count, length
        end = None if length is None else start + length
        self._slots = {name: table.slots(name, shape, start, end) for name in table.suiting(shape)}
        self._total = sum(self._slots.values())

    def is_enough(self) -> bool:
        return self._total >= self._count

    def follow(self, changed: set[str], start: int) -> None:
        """The window begins at `start` now; between, these nodes have changed."""
        end = None if self._length is None else start + self._length
        slots = self._slots
        for name in changed:
            if (before := slots.get(name)) is not None:
                slots[name] = now = self._table.slots(name, self._shape, start, end)
                self._total += now - before


# --- What changes when ----------------------------------------------------------------------------


def _changes(owed: _Owed, known: Sequence[End]) -> Iterator[tuple[int, str, Amounts]]:
    """When how much more is free on which node, by the ends that are known, less what a victim
    leaves to its claimant.
    """
    gone: set[str] = set()
    for end in known:
        for pod in _pods_of(end):
            if pod.metadata.uid in gone:
                continue
            gone.add(pod.metadata.uid)
            asked, name = of_pod(pod.spec.requests), pod.status.node
            left = minus(asked, owed.keeps(pod))
            if left:
                yield end.at, name, left
        if end.whole:
            for name, kept in owed.kept_by(end.group.uid).items():
                yield end.at, name, kept


def _pods_of(end: End) -> Iterator[Pod]:
    """The pods that are gone with an end."""
    yield from end.pods
    if end.whole:
        for pod in end.group.pods.values():
            if pod.status.phase in ON_NODE and not pod.status.terminating:
                yield pod


class _Owed:
    """What is kept on nodes, and grows as victims leave; owned by one look at the ends."""

    def __init__(self, session: Session) -> None:
        #: Group's uid -> node -> what is kept for it there.
        self._kept = {uid: dict(rooms) for uid, rooms in session.rooms.items()}
        for uid, places in session.kept.items():
            self._kept[uid] = places.room()
        #: Victim's pod -> its claimant, the room that this is to have, and who else is there.
        self._owed: dict[str, tuple[str, Amounts]] = {}
        #: Claimant's uid and node -> what its victims hold there still.
        self._there: dict[tuple[str, str], Amounts] = {}
        #: What a session that has closed no longer takes off its nodes.
        self._not_taken: dict[str, Amounts] = {}
        for claimant, pledge in standing_pledges(session):
            if claimant.uid not in session.rooms:
                self._kept[claimant.uid] = kept_room(session, pledge)
                for name, room in self._kept[claimant.uid].items():
                    self._not_taken[name] = plus(self._not_taken.get(name, {}), room)
            for _, pods in victims_left(session, pledge):
                for pod in pods:
                    where = (claimant.uid, pod.status.node)
                    requests = of_pod(pod.spec.requests)
                    self._there[where] = plus(self._there.get(where, {}), requests)
                    room = pledge.room.get(pod.status.node, {})
                    self._owed[pod.metadata.uid] = (claimant.uid, room)

    def not_yet_taken(self, name: str) -> Amounts:
        """What is kept on a node, and counts as free there."""
        return self._not_taken.get(name, {})

    def keeps(self, pod: Pod) -> Amounts:
        """A pod has ended: what of its room its claimant keeps."""
        if pod.metadata.uid not in self._owed:
            return {}
        uid, room = self._owed[pod.metadata.uid]
        name = pod.status.node
        there = self._there[uid, name]
        left = self._there[uid, name] = minus(there, of_pod(pod.spec.requests))
        more = minus(minus(room, left), minus(room, there))
        if more:
            mine = self._kept.setdefault(uid, {})
            mine[name] = plus(mine.get(name, {}), more)
        return more

    def kept_by(self, uid: str) -> Room:
        """A group has ended: what was kept for it."""
        return self._kept.pop(uid, {})


# --- Placing --------------------------------------------------------------------------------------


class _Trials:
    """Trial placements of one session, which leave no trace in it. Judges and nodes are made once:
    they are asked often.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._judges: dict[object, Judge] = {}
        self._nodes: dict[str, NodeState] = {}

    def judge(self, shape: TaskShape) -> Judge:
        """What all plugins say of nodes for a shape."""
        judge = self._judges.get(shape.shape)
        if judge is None:
            judge = self._judges[shape.shape] = Judge(self._session, shape)
        return judge

    def nodes(self, free: Mapping[str, Amounts]) -> dict[str, NodeState]:
        """Nodes with so much free on them; good until others are asked for."""
        return {name: self._with_free(name, amounts) for name, amounts in free.items()}

    def _with_free(self, name: str, free: Amounts) -> NodeState:
        node = self._nodes.get(name)
        if node is None:
            real = self._session.nodes[name]
            node = self._nodes[name] = NodeState(real.record, ready=real.ready, heard=real.heard)
        node.free = dict(free)
        return node

    def find(self, gang: Gang, free: Room) -> dict[str, Amounts] | None:
        """Room for a gang on nodes with so much free; None if there is none. By the order of the
        gang and the scores; if that fails, the largest pods first, each on the fullest node that
        takes it.
        """
        in_order = self.place(gang, self.nodes(free))
        if in_order is not None or len(gang) < 2:
            return in_order
        return self.place_largest_first(gang, self.nodes(free))

    def place(self, gang: Gang, nodes: Mapping[str, NodeState]) -> dict[str, Amounts] | None:
        """Each pod on the best of these nodes as it is then; None if one finds none."""
        room: dict[str, Amounts] = {}
        for shape, count in gang:
            judge = self.judge(shape)
            heap = judge.ranks(list(nodes.values()))
            heapq.heapify(heap)
            for _ in range(count):
                if not heap:
                    return None
                node = nodes[heap[0][1]]
                _take(node, shape, room)
                rank = judge.rank(node)
                if rank is None:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, rank)
        return room

    def place_largest_first(
        self, gang: Gang, nodes: Mapping[str, NodeState]
    ) -> dict[str, Amounts] | None:
        """The largest pods first, each on the fullest node that takes it; None likewise."""
        sizes = [(_size(shape, nodes), -place) for place, (shape, _) in enumerate(gang)]
        room: dict[str, Amounts] = {}
        for (_, by), place in sorted(sizes, reverse=True):
            shape, count = gang[-place]
            judge = self.judge(shape)
            for _ in range(count):
                taking = [node for node in nodes.values() if judge.rank(node) is not None]
                if not taking:
                    return None
                _take(min(taking, key=lambda node: (node.free.get(by, 0), node.name)), shape, room)
        return room


def _part_of(free: Amounts, requests: Amounts) -> Fraction:
    """How much of a request is free, at most 1: of that dimension of which least is."""
    return min(
        (Fraction(min(free.get(name, 0), units), units) for name, units in requests.items()),
        default=Fraction(1),
    )


def _size(shape: TaskShape, nodes: Mapping[str, NodeState]) -> tuple[Fraction, str]:
    """What a pod asks for at most, as a part of the largest node, and of which resource."""
    largest = {
        name: max((node.total.get(name, 0) for node in nodes.values()), default=0)
        for name in shape.requests
        if name != PODS
    }
    parts = [
        (Fraction(shape.requests[name], units), name) for name, units in largest.items() if units
    ]
    return max(parts, default=(Fraction(0), PODS))


def _take(node: NodeState, shape: TaskShape, room: dict[str, Amounts]) -> None:
    node.take(shape.requests)
    room[node.name] = _sum(room.get(node.name, {}), shape.requests)


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _less(free: Amounts, amounts: Amounts) -> Amounts:
    less = dict(free)
    for name, units in amounts.items():
        less[name] = less.get(name, 0) - units
    return less
