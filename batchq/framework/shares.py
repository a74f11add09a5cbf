"""Fair shares of queues: what each deserves by its weight, and how much of that it holds.

Deserved: water-filling by weight, per dimension, each queue capped by its demand and capability;
fractions round down. Share: the largest ratio of ledger to deserved over the dimensions in which
the queue deserves or holds something (x/0 is infinite, 1 if there is none), compared exactly by
cross-multiplication. The method is max-min fairness as in Volcano's proportion plugin and in
Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, section 4, applied per dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import total_ordering

from batchq.api.quantity import PODS
from batchq.api.resources import Amounts
from batchq.api.transaction import POD_GROUPS


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


def deserved_by_weight(
    available: Mapping[str, int], demands: Sequence[tuple[int, Mapping[str, int]]]
) -> list[Amounts]:
    """Water-fill `available` over queues given as (weight, cap per dimension), in their order.

    A queue of weight 0 deserves nothing.
    """
    result: list[Amounts] = [{} for _ in demands]
    for resource, amount in available.items():
        for place, units in enumerate(
            _fill(amount, [(w, caps.get(resource, 0)) for w, caps in demands])
        ):
            result[place][resource] = units
    return result


def share_of(held: Mapping[str, int], deserved: Mapping[str, int]) -> Share:
    """The dominant share of a queue; `pods` and the count of groups are left apart."""
    largest: Share | None = None
    for resource in {**held, **deserved}:
        if resource in (PODS, POD_GROUPS):
            continue
        amount, right = held.get(resource, 0), deserved.get(resource, 0)
        if amount == 0 and right == 0:
            continue
        share = Share(amount, right)
        if largest is None or largest < share:
            largest = share
    return largest if largest is not None else Share(1, 1)


def _fill(amount: int, queues: list[tuple[int, int]]) -> list[int]:
    """Raise the water until every queue has its cap or nothing is left; round down."""
    given = [0] * len(queues)
    thirsty = [place for place, (weight, cap) in enumerate(queues) if weight > 0 and cap > 0]
    left = amount
    while thirsty:
        weights = sum(queues[place][0] for place in thirsty)
        full = [place for place in thirsty if queues[place][1] * weights <= left * queues[place][0]]
        if not full:
            for place in thirsty:
                given[place] = left * queues[place][0] // weights
            break
        for place in full:
            given[place] = queues[place][1]
        left -= sum(given[place] for place in full)
        thirsty = [place for place in thirsty if place not in set(full)]
    return given
