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
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from batchq.core.cache.chunks import Ordered
from batchq.core.session.state import EquivalenceClass, GroupState, Key

_Shown: TypeAlias = tuple[Key, int, GroupState, EquivalenceClass | None, int]


class PendingIterator:
    """One pass along a line, from the front. A crowd can be passed over from where it has come to,
    and taken up again there. Nobody joins or leaves a crowd meanwhile.
    """

    def __init__(
        self,
        crowds: Iterable[EquivalenceClass],
        singles: Iterable[GroupState],
        key: Callable[[GroupState], Key],
        passed: Iterable[EquivalenceClass] = (),
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
        self._passed: dict[Key, EquivalenceClass] = {
            (crowd.queue, crowd.asks): crowd for crowd in passed
        }
        #: The group that was shown last: its key, and its place in its crowd.
        self._last: Key = ()
        self._place = 0
        self._shown: GroupState | None = None
        #: Its crowd, if it was shown as one of that, and more of it is to come.
        self.crowd: EquivalenceClass | None = None

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
                    self._last, self._place, self._shown = key, place, group
                    return group
                heapq.heappush(heap, (key, 1, group, crowd, place))
        if not heap:
            self.crowd = None
            return None
        self._last, _, group, self.crowd, self._place = heapq.heappop(heap)
        self._shown = group
        return group

    def pass_over(self) -> None:
        """Show no more of the class of the last group; nothing happens if it was refused alone."""
        if self.crowd is not None and self._shown is not None and not self._shown.is_refused_alone:
            self._passed[self.crowd.queue, self.crowd.asks] = self.crowd
            self.crowd = None

    def take_up(self) -> None:
        """Show the rest of those that were passed over."""
        for crowd in self._passed.values():
            place = crowd.members.place_after(self._last)
            if (following := crowd.members.at(place)) is not None:
                heapq.heappush(self._heap, (following[0], 1, following[1], crowd, place))
        self._passed = {}


class WakeUpIndex:
    """Which crowds sleep on which number: (scope, resource) -> those that watch it, the one that
    asks for least last.
    """

    def __init__(self) -> None:
        self._watching: dict[tuple[str, str], Ordered[EquivalenceClass]] = {}
        #: Their places are found by how much they leave, and among equals by when they came.
        self._places: dict[EquivalenceClass, tuple[tuple[str, str], tuple[int, int]]] = {}
        #: Those that are not in their places yet: many at once are sorted before that.
        self._unplaced: list[EquivalenceClass] = []
        self._count = 0

    def clear(self) -> None:
        """Nobody watches anything."""
        self._watching.clear()
        self._places.clear()
        self._unplaced.clear()

    def add(self, crowd: EquivalenceClass, watches: tuple[str, str], most: int) -> None:
        """It sleeps as long as that sum is above `most`."""
        self._count += 1
        self._places[crowd] = (watches, (most, self._count))
        self._unplaced.append(crowd)

    def remove(self, crowd: EquivalenceClass) -> None:
        """It does not any more; nothing happens if it did not."""
        if crowd in self._places:
            self._put_in_place()
            watches, place = self._places.pop(crowd)
            self._watching[watches].remove(place)

    def freed(self, sums: Mapping[str, Mapping[str, int]]) -> list[EquivalenceClass]:
        """Those whose sum has come down far enough, in the order in which they began to watch."""
        self._put_in_place()
        found: list[tuple[int, EquivalenceClass]] = []
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
