"""A list that stays sorted: items by distinct keys, lowest first.

Adding and taking out cost a search and moving pointers; taking from the front, which is what lines
are for, costs the search alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: So many places at the front may lie waste.
_MOST_WASTE = 4_096


#: Uids that are numbers (places in a file) compare as numbers, and before all others.
UidOrder = tuple[int, int, str]


def uid_order(uid: str) -> UidOrder:
    """The key by which uids are compared, where nothing else decides."""
    return (0, int(uid), "") if uid.isascii() and uid.isdigit() else (1, 0, uid)


class Ordered(Generic[T]):
    """Items by key. Keys are compared with each other, items never."""

    __slots__ = ("_items", "_keys", "_start")

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._items: list[T | None] = []
        #: Where the first item is; what lies before it is gone.
        self._start = 0

    def __len__(self) -> int:
        return len(self._keys) - self._start

    def __iter__(self) -> Iterator[T]:
        # None is empty from the start on.
        return islice(self._items, self._start, None)  # type: ignore[arg-type]

    def add(self, key: Any, item: T) -> None:
        """Put an item in its place. Two of one key stand in the order in which they came."""
        if len(self) == 0 or key > self._keys[-1]:
            self._keys.append(key)
            self._items.append(item)
            return
        place = bisect_right(self._keys, key, self._start)
        self._keys.insert(place, key)
        self._items.insert(place, item)

    def put(self, key: Any, item: T) -> None:
        """Put an item in its place, instead of the one of the same key, if there is one."""
        place = bisect_left(self._keys, key, self._start)
        if place < len(self._keys) and self._keys[place] == key:
            self._items[place] = item
        else:
            self._keys.insert(place, key)
            self._items.insert(place, item)

    def remove(self, key: Any) -> None:
        """Take the item of this key out. Raises KeyError if there is none."""
        if not self.discard(key):
            raise KeyError(key)

    def discard(self, key: Any) -> bool:
        """Take the item of this key out, if there is one; whether there was."""
        place = bisect_left(self._keys, key, self._start)
        if place >= len(self._keys) or self._keys[place] != key:
            return False
        if place > self._start:
            del self._keys[place], self._items[place]
            return True
        self._items[place] = None
        self._start += 1
        if self._start > _MOST_WASTE and 2 * self._start > len(self._keys):
            del self._keys[: self._start], self._items[: self._start]
            self._start = 0
        return True

    def first(self) -> tuple[Any, T] | None:
        """The lowest key and its item; None if there is nothing."""
        return self.at(self._start)

    def after(self, key: Any) -> tuple[Any, T] | None:
        """The first key above this one, and its item; None if there is none."""
        return self.at(self.place_after(key))

    def place_after(self, key: Any) -> int:
        """The place of the first key above this one."""
        return bisect_right(self._keys, key, self._start)

    @property
    def start(self) -> int:
        """The place of the lowest key. The others follow, until something is added or removed."""
        return self._start

    def pairs_after(self, key: Any) -> Iterator[tuple[Any, T]]:
        """Every key above this one with its item, lowest first."""
        start = bisect_right(self._keys, key, self._start)
        return zip(self._keys[start:], self._items[start:], strict=True)  # type: ignore[arg-type]

    def at(self, place: int) -> tuple[Any, T] | None:
        """The key at a place, and its item; None behind the last one."""
        if place >= len(self._keys):
            return None
        return self._keys[place], self._items[place]  # type: ignore[return-value]

    def pairs_backwards(self) -> Iterator[tuple[Any, T]]:
        """Every key with its item, highest first."""
        for place in range(len(self._keys) - 1, self._start - 1, -1):
            yield self._keys[place], self._items[place]  # type: ignore[misc]

    def pairs(self) -> Iterator[tuple[Any, T]]:
        """Every key with its item, lowest first."""
        return zip(self._keys[self._start :], self, strict=True)
