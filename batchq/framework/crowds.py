"""Crowds: groups of one queue that are nothing but records that wait, and ask for the same.

The limits answer all of them alike, so a session asks about one of them, and looks at the next
only if that one got in. A crowd that is refused because a limit is full *sleeps* for as long as
that one limit is: it watches a single number, as a solver watches a literal of each clause
(Moskewicz et al., "Chaff", DAC 2001), and costs a session nothing.

What a crowd was told may be older than what its members would be told now: there may be other
reasons by then beside the one that it watches. Who asks for a group's reasons gets fresh ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from batchq.api.reasons import Blockers, Verdict, causes_of, turn_of
from batchq.api.resources import Amounts, times
from batchq.framework.ordered import Ordered
from batchq.framework.state import GroupState

Key: TypeAlias = tuple[Any, ...]
#: What groups say in their records: causes, and whose turn they wait for.
Said: TypeAlias = tuple[tuple[Any, ...], str]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where there is room for one more of a crowd: as long as none of these sums is above what
    stands beside its resource. `are_all`: nothing else bounds them; if not, there never is.

    Good for as long as the ledger goes by the same `limits`; the sums are the ledger's own.
    """

    limits: Mapping[str, Amounts]
    most: Sequence[tuple[Mapping[str, int], str, int]]
    are_all: bool


class Crowd:
    """Members in their order, and how they fare. Changed by its owner, the Backlog, and by
    sessions, who note what they have found.
    """

    __slots__ = (
        "aside",
        "asides_in",
        "asks",
        "behind",
        "bounds",
        "could_in",
        "counted",
        "heard",
        "members",
        "most",
        "queue",
        "said",
        "sleeps",
        "told",
        "verdicts",
        "watches",
    )

    def __init__(self, asks: Key, queue: str) -> None:
        self.asks = asks
        self.queue = queue
        self.members: Ordered[GroupState] = Ordered()
        #: What members' records say -> who says so, by uid.
        self.said: dict[Said, dict[str, GroupState]] = {}
        #: What the last one says who joined, as it stands there and as causes; and who says so.
        self.heard: tuple[tuple[Verdict, ...] | None, Said, dict[str, GroupState]]
        self.heard = (None, _NOTHING, {})
        #: What stood against it when it was last asked; None: nobody has asked.
        self.verdicts: Blockers | None = None
        #: What its members are told: that, and behind what kind of head they wait.
        self.told: Blockers | None = None
        self.behind = ""
        #: Why all of them stand out of line, and the state of the world in which that was so.
        self.aside: tuple[Verdict, ...] = ()
        self.asides_in: object = None
        #: The state of the world in which it was found that it could fit some time.
        self.could_in: object = None
        #: What the limits ask of each member, once worked out.
        self.bounds: Bounds | None = None
        #: While it sleeps, the limit that keeps it out is full as long as the sum of this scope and
        #: resource is above `most`; None: it is not the limits that keep it out.
        self.sleeps = False
        self.watches: tuple[str, str] | None = None
        self.most = 0
        #: Whether what it asks for counts in the demand of its queue.
        self.counted = False

    def __len__(self) -> int:
        return len(self.members)

    @property
    def reservation(self) -> Amounts:
        """What each member asks for; only of a crowd that is not empty."""
        return self.first.reservation

    @property
    def first(self) -> GroupState:
        found = self.members.first()
        assert found is not None
        return found[1]

    def tell(self, told: Blockers) -> bool:
        """What its members are to hear; whether that is news."""
        former, self.told = self.told, told
        if former is None:
            return True
        return former is not told and (former.causes, former.turn) != (told.causes, told.turn)


def said_by(group: GroupState) -> Said:
    """What a group's record says, worked out once."""
    if group.told is None:
        reasons = group.record.status.reasons
        group.told = (causes_of(reasons), turn_of(reasons)) if reasons else _NOTHING
    return group.told


_NOTHING: Said = ((), "")


class Line:
    """The groups of one queue that wait, in their order: crowds, and others one by one."""

    __slots__ = ("_key", "_sorted", "asked", "crowds", "kinds", "restless", "singles", "unread")

    def __init__(self) -> None:
        self.crowds: dict[Key, Crowd] = {}
        #: The same by what they claim and who they are to claim it: priority, class, reservation.
        self.kinds: dict[Key, dict[Key, Crowd]] = {}
        #: Those of them that do not sleep.
        self.restless: dict[Key, Crowd] = {}
        #: Those of which some members' records may not say what the crowd was told.
        self.unread: dict[Key, Crowd] = {}
        #: By uid; in no order.
        self.singles: dict[str, GroupState] = {}
        #: What the crowds that stand in line ask for.
        self.asked: dict[str, int] = {}
        self._sorted: list[GroupState] | None = None
        self._key: Callable[[GroupState], Key] = _by_key

    def __len__(self) -> int:
        return len(self.singles) + sum(map(len, self.crowds.values()))

    def __bool__(self) -> bool:
        return bool(self.singles or self.crowds)

    def __iter__(self) -> Iterator[GroupState]:
        lines = [crowd.members.pairs() for crowd in self.crowds.values()]
        alone = ((self._key(group), group) for group in self.in_order())
        return (group for _, group in heapq.merge(*lines, alone, key=_first))

    def order_by(self, key: Callable[[GroupState], Key]) -> None:
        """Go by a session's order from now on."""
        self._key, self._sorted = key, None

    def in_order(self) -> list[GroupState]:
        """Those that stand for themselves."""
        if self._sorted is None:
            self._sorted = sorted(self.singles.values(), key=self._key)
        return self._sorted

    def add(self, group: GroupState) -> None:
        """Let a group stand for itself."""
        self.singles[group.uid] = group
        self._sorted = None

    def discard(self, uid: str) -> None:
        """Take a group out that stands for itself, if it is there."""
        if self.singles.pop(uid, None) is not None:
            self._sorted = None

    def join(self, group: GroupState, line_key: Key) -> None:
        """Let a group wait with those that ask for the same."""
        key = crowd_key(group)
        crowd = self.crowds.get(key)
        if crowd is None:
            crowd = self.crowds[key] = self.restless[key] = Crowd(key, group.queue)
            self.kinds.setdefault(kind_of(group), {})[key] = crowd
        group.crowd, group.line_key = crowd, line_key
        crowd.members.add(line_key, group)
        reasons, (heard, said, members) = group.record.status.reasons, crowd.heard
        if reasons is heard:
            # Most say what the one before says, in the very same words.
            group.told = said
        else:
            said = said_by(group)
            members = crowd.said.setdefault(said, {})
            crowd.heard = (reasons, said, members)
        members[group.uid] = group
        self.unread[key] = crowd
        if crowd.counted:
            self._ask_for(group.reservation, 1)

    def leave(self, group: GroupState) -> None:
        """Take a group out of its crowd."""
        crowd = group.crowd
        assert crowd is not None
        crowd.members.remove(group.line_key)
        of_it = crowd.said[said_by(group)]
        del of_it[group.uid]
        if not of_it:
            del crowd.said[said_by(group)]
            crowd.heard = (None, _NOTHING, {})
        if crowd.counted:
            self._ask_for(group.reservation, -1)
        group.crowd = None
        if not len(crowd):
            self._forget(crowd, kind_of(group))

    def _forget(self, crowd: Crowd, kind: Key) -> None:
        """A crowd that is empty."""
        for crowds in (self.crowds, self.restless, self.unread, self.kinds[kind]):
            crowds.pop(crowd.asks, None)
        if not self.kinds[kind]:
            del self.kinds[kind]

    def count(self, crowd: Crowd, *, counts: bool) -> None:
        """Whether what a crowd asks for counts in the demand from now on."""
        if crowd.counted != counts:
            crowd.counted = counts
            self._ask_for(crowd.reservation, len(crowd) if counts else -len(crowd))

    def _ask_for(self, amounts: Amounts, count: int) -> None:
        for name, units in times(amounts, count).items():
            self.asked[name] = self.asked.get(name, 0) + units


def crowd_key(group: GroupState) -> Key:
    """Equal for groups that the limits and the policies cannot tell apart, but for their turn."""
    spec = group.record.spec
    return (group.namespace, group.priority, spec.priority_class_name, group.shape.alike)


def kind_of(group: GroupState) -> Key:
    """Equal for groups that have the same claim on others, wherever they are from."""
    return (group.priority, group.record.spec.priority_class_name, group.shape.claim)


def _by_key(group: GroupState) -> Key:
    return (group.key,)


def _first(pair: tuple[Key, GroupState]) -> Key:
    return pair[0]


_Shown: TypeAlias = tuple[Key, int, GroupState, Crowd | None, int]


class Walk:
    """One pass along a line, from the front. A crowd can be passed over from where it has come to,
    and taken up again there. Nobody joins or leaves a crowd meanwhile.
    """

    def __init__(
        self,
        crowds: Iterable[Crowd],
        singles: Iterable[GroupState],
        key: Callable[[GroupState], Key],
        passed: Iterable[Crowd] = (),
    ) -> None:
        """`passed`: crowds that are passed over from the start."""
        #: Key, 0 for a group that stands for itself and 1 for one of a crowd, group, crowd and its
        #: place in that.
        self._heap: list[_Shown] = [(key(group), 0, group, None, 0) for group in singles]
        for crowd in crowds:
            place = crowd.members.start
            if (first := crowd.members.at(place)) is not None:
                self._heap.append((first[0], 1, first[1], crowd, place))
        heapq.heapify(self._heap)
        self._passed: dict[Key, Crowd] = {(crowd.queue, crowd.asks): crowd for crowd in passed}
        #: The group that was shown last: its key, and its place in its crowd.
        self._last: Key = ()
        self._place = 0
        #: Its crowd, if it was shown as one of that, and more of it is to come.
        self.crowd: Crowd | None = None

    def next(self) -> GroupState | None:
        """The next group; None at the end."""
        heap, crowd = self._heap, self.crowd
        if crowd is not None:
            place = self._place + 1
            following = crowd.members.at(place)
            if following is not None:
                key, group = following
                if not heap or key < heap[0][0]:
                    # The usual case: many of one crowd, one after the other.
                    self._last, self._place = key, place
                    return group
                heapq.heappush(heap, (key, 1, group, crowd, place))
        if not heap:
            self.crowd = None
            return None
        self._last, _, group, self.crowd, self._place = heapq.heappop(heap)
        return group

    def pass_over(self) -> None:
        """If it was one of a crowd that was shown last, show no more of that."""
        if self.crowd is not None:
            self._passed[self.crowd.queue, self.crowd.asks] = self.crowd
            self.crowd = None

    def take_up(self) -> None:
        """Show the rest of those that were passed over."""
        for crowd in self._passed.values():
            place = crowd.members.place_after(self._last)
            if (following := crowd.members.at(place)) is not None:
                heapq.heappush(self._heap, (following[0], 1, following[1], crowd, place))
        self._passed = {}


class Watches:
    """Which crowds sleep on which number: (scope, resource) -> those that watch it, the one that
    asks for least last.
    """

    def __init__(self) -> None:
        self._watching: dict[tuple[str, str], Ordered[Crowd]] = {}
        #: Their places are found by how much they leave, and among equals by when they came.
        self._places: dict[Crowd, tuple[tuple[str, str], tuple[int, int]]] = {}
        #: Those that are not in their places yet: many at once are sorted before that.
        self._unplaced: list[Crowd] = []
        self._count = 0

    def clear(self) -> None:
        """Nobody watches anything."""
        self._watching.clear()
        self._places.clear()
        self._unplaced.clear()

    def add(self, crowd: Crowd, watches: tuple[str, str], most: int) -> None:
        """It sleeps as long as that sum is above `most`."""
        self._count += 1
        self._places[crowd] = (watches, (most, self._count))
        self._unplaced.append(crowd)

    def remove(self, crowd: Crowd) -> None:
        """It does not any more; nothing happens if it did not."""
        if crowd in self._places:
            self._put_in_place()
            watches, place = self._places.pop(crowd)
            self._watching[watches].remove(place)

    def freed(self, sums: Mapping[str, Mapping[str, int]]) -> list[Crowd]:
        """Those whose sum has come down far enough, in the order in which they began to watch."""
        self._put_in_place()
        found: list[tuple[int, Crowd]] = []
        for (scope, resource), watching in self._watching.items():
            used = sums.get(scope, {}).get(resource, 0)
            for (most, count), crowd in watching.pairs_backwards():
                if used > most:
                    break
                found.append((count, crowd))
        found.sort(key=lambda entry: entry[0])
        return [crowd for _, crowd in found]

    def _put_in_place(self) -> None:
        for crowd in sorted(self._unplaced, key=lambda crowd: self._places[crowd][1]):
            watches, place = self._places[crowd]
            self._watching.setdefault(watches, Ordered()).add(place, crowd)
        self._unplaced.clear()
