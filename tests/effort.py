"""The share of the long tests that a run plays: a sample, or with BATCHQ_EFFORT=swarm all.

`make test` plays the sample on every change; `make swarm` plays all of each file that imports this
module, or with BATCHQ_SCALE=0.1 a tenth, but no less than the sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

T = TypeVar("T")

THOROUGH = os.environ.get("BATCHQ_EFFORT") == "swarm"
_SCALE = float(os.environ.get("BATCHQ_SCALE", "1"))


def usually(few: int, all_of_them: int) -> int:
    """Return how many seeds to play: `few`, or all of them in a thorough run."""
    return max(few, round(all_of_them * _SCALE)) if THOROUGH else few


def sample(items: Iterable[T], most: int) -> Sequence[T]:
    """Return at most `most` items at even distances, the first and the last among them.

    A thorough run gets all items.
    """
    every = list(items)
    most = usually(most, len(every))
    if len(every) <= most:
        return every
    return [every[place * (len(every) - 1) // max(1, most - 1)] for place in range(most)]


def grid(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of the axes' values in which each value is met.

    A thorough run gets all combinations.
    """
    values = [list(axis) for axis in axes]
    if THOROUGH:
        return list(product(*values))
    longest = max(map(len, values))
    return [tuple(axis[place % len(axis)] for axis in values) for place in range(longest)]
