"""Fair shares as arithmetic: what each of several deserves by weight, and how much of it is held.

Deserved: water-filling in one dimension among siblings. Each gets what its weight makes of a common
water level, no more than its cap and no less than its floor; fractions round down. Share: the
largest ratio of ledger to deserved over the dimensions in which the queue deserves or holds
something (x/0 is infinite, 1 if there is none), compared exactly by cross-multiplication. The
method is max-min fairness as in Volcano's proportion plugin and in Ghodsi et al., "Dominant
Resource Fairness", NSDI 2011, section 4, applied to each dimension by itself.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import total_ordering
from typing import NamedTuple

from batchq.api.quantity import PODS
from batchq.api.transaction import POD_GROUPS

#: What no share counts: the number of pods (unless a queue says so), and that of groups.
APART = frozenset({PODS, POD_GROUPS})


@total_ordering
class Share:
    """held / deserved, exact. Infinite where something is held and nothing deserved."""

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

    def rounded(self) -> float | str:
        """A decimal of six places for reports, or 'inf'."""
        return "inf" if self.deserved == 0 else round(self.held / self.deserved, 6)


def share_of(
    held: Mapping[str, int], deserved: Mapping[str, int], *, apart: Container[str] = APART
) -> Share:
    """The dominant share of a queue, over all dimensions but those left apart."""
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


class Part(NamedTuple):
    """One of those among whom water is shared: max(floor, min(cap, weight x level)) is its own."""

    weight: int
    floor: int
    cap: int


def water_fill(amount: int, parts: Sequence[Part]) -> tuple[list[int], int | None]:
    """What each part gets of an amount, rounded down, and what nobody wants; None if all is wanted.

    The level is the highest at which all parts together are within the amount, an exact fraction.
    Who has weight 0 gets its floor. Floors hold even where they exceed the amount together, which
    may be below 0. In O(n log n): between two levels at which somebody starts or stops to rise, the
    sum is linear.
    """
    flat = sum(part.floor for part in parts)
    if flat > amount:
        return [part.floor for part in parts], None
    slope = 0
    for level, weight, becomes_flat in _bends(parts):
        # At this level the sum is flat + slope x level.
        if flat * weight + slope * level > amount * weight:
            break
        flat += becomes_flat
        slope += weight if becomes_flat <= 0 else -weight
    else:
        return [max(floor, cap) if weight else floor for weight, floor, cap in parts], amount - flat
    rest = amount - flat
    return [max(floor, min(cap, weight * rest // slope)) for weight, floor, cap in parts], None


def _bends(parts: Sequence[Part]) -> list[tuple[int, int, int]]:
    """Where a part starts or stops to rise, lowest level first: (n, w, change of the flat sum).

    The level is n / w. Two different fractions with denominators up to W are at least 1 / W² apart,
    so that floor(n x (W² + 1) / w) orders them exactly, and sorting compares integers only.
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
