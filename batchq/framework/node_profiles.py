"""What is free on one node over the time ahead. Nodes that fare alike share one profile: a gang
takes many nodes at once, so they are few, and what is found out about one holds for all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from batchq.api.resources import Amounts


class Kind(NamedTuple):
    """Shapes that ask for the same: their number in a session, and what each asks for."""

    number: int
    requests: Amounts


class Profile:
    """What is free: `free[i]` from the instant `at[i]` (milliseconds) until the next. Never changed
    once made.
    """

    __slots__ = ("_counts", "at", "falls", "free")

    def __init__(self, at: list[int], free: list[Amounts], *, falls: bool) -> None:
        self.at = at
        self.free = free
        #: Whether it has less free at any instant than at one before.
        self.falls = falls
        #: Kind of shape -> how many of its pods have room at each step, once asked.
        self._counts: dict[int, list[int]] = {}

    def less(self, amounts: Amounts, start: int, end: int | None) -> Profile:
        """Return what is left if so much is taken in an interval; with `end` None for ever."""
        at, free = list(self.at), list(self.free)
        first = _step_at(at, free, start)
        last = len(at) if end is None else _step_at(at, free, end)
        free[first:last] = [less(one, amounts) for one in free[first:last]]
        return Profile(at, free, falls=self.falls or first > 0)

    def least(self, start: int, end: int | None) -> Amounts:
        """Return what is free during all of an interval; not to be changed."""
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

    def slots(self, kind: Kind, start: int, end: int | None) -> int:
        """Return how many pods of a kind have room during all of an interval."""
        counts = self._counts.get(kind.number)
        if counts is None:
            counts = [_slots(free, kind.requests) for free in self.free]
            self._counts[kind.number] = counts
        first, last = self._steps(start, end)
        return counts[first] if last == first + 1 else min(counts[first:last])

    def _steps(self, start: int, end: int | None) -> tuple[int, int]:
        """The steps that say what is least in an interval: the first, and what follows the last."""
        first = bisect_right(self.at, start) - 1
        if not self.falls:
            return first, first + 1
        return first, len(self.at) if end is None else max(first + 1, bisect_left(self.at, end))


def less(free: Amounts, amounts: Amounts) -> Amounts:
    """Return what is left, which may be less than nothing."""
    rest = dict(free)
    for name, units in amounts.items():
        rest[name] = rest.get(name, 0) - units
    return rest


def _step_at(at: list[int], free: list[Amounts], instant: int) -> int:
    """The step that begins at an instant, which is made if there is none."""
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
