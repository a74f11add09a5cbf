"""Immutable sequences ordered by key that share all unchanged parts with their predecessors.

After one change, a sequence of a million items costs one small chunk and a list of chunks.
Differences between two sequences are found by looking only at chunks that are not the same object.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress, islice, takewhile
from operator import attrgetter, is_not
from typing import Any, Generic, TypeVar, overload

from msgspec import Struct

T = TypeVar("T")
D = TypeVar("D")

#: The maximum number of items in a chunk. A change copies one chunk and one pointer per chunk, and
#: items are compared in chunks that are not shared. The value was measured with a million items and
#: 1 to 1,000 changes.
CHUNK = 128


class Chunk(Struct, Generic[T], frozen=True, eq=False):
    """A part of a sequence with at least one item; unchanged parts are the same object.

    `first` is the first of `keys`, stored separately to make bisection faster.
    """

    first: str
    keys: tuple[str, ...]
    items: tuple[T, ...]


_FIRST = attrgetter("first")
_KEYS = attrgetter("keys")
_ITEMS = attrgetter("items")


def chunk_of(keys: Sequence[str], items: Sequence[T]) -> Chunk[T]:
    """Return a chunk of sorted keys and as many items; tuples are used as they are."""
    return Chunk(keys[0], tuple(keys), tuple(items))


def chunks_of(known: Mapping[str, T]) -> list[Chunk[T]]:
    """Return full chunks of all items, in the order of their keys."""
    keys, item = sorted(known), known.__getitem__
    batches = (tuple(keys[start : start + CHUNK]) for start in range(0, len(keys), CHUNK))
    return [Chunk(batch[0], batch, tuple(map(item, batch))) for batch in batches]


def place_of(chunks: Sequence[Chunk[T]], key: str) -> int:
    """Return the index of the last chunk that does not begin after the key, or 0."""
    return (bisect_right(chunks, key, key=_FIRST) or 1) - 1


def found(chunks: Sequence[Chunk[T]], key: str) -> T | None:
    """Return the item of a key, or None."""
    if not chunks:
        return None
    chunk = chunks[place_of(chunks, key) if len(chunks) > 1 else 0]
    place = bisect_left(chunk.keys, key)
    if place < len(chunk.keys) and chunk.keys[place] == key:
        return chunk.items[place]
    return None


_NONE_TOUCHED: Mapping[str, Any] = {}


class Rows(Sequence[T]):
    """An immutable sequence in the order of its items' keys; keys are unique.

    Equal to any sequence of equal items: keys serve only for look-ups.
    """

    __slots__ = ("_chunks", "_made_from", "_size", "_starts", "_touched")

    def __init__(
        self,
        chunks: tuple[Chunk[T], ...] = (),
        size: int | None = None,
        *,
        made_from: Rows[T] | None = None,
        touched: Mapping[str, tuple[T | None, T | None]] = _NONE_TOUCHED,
    ) -> None:
        """Create a sequence from chunks in order, with `size` items if that is known. If
        `made_from` is given, the sequence differs from it only in the keys `touched`, by their item
        there and here.
        """
        self._chunks = chunks
        #: Only its chunks are kept; the object itself would keep all its predecessors alive.
        self._made_from = None if made_from is None else made_from._chunks
        self._touched = touched
        self._size = sum(len(chunk.keys) for chunk in chunks) if size is None else size
        #: Where each chunk begins; computed on the first access by index.
        self._starts: tuple[int, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, T]]) -> Rows[T]:
        """Return a sequence from keys and items in any order; of equal keys, the last counts."""
        return cls(tuple(chunks_of(dict(pairs))))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(map(_ITEMS, self._chunks))

    def __reversed__(self) -> Iterator[T]:
        return chain.from_iterable(reversed(chunk.items) for chunk in reversed(self._chunks))

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        if isinstance(place, slice):
            start, stop, step = place.indices(self._size)
            if step == 1:
                return tuple(islice(self._from(start), max(0, stop - start)))
            return tuple(self)[place]
        index = place + self._size if place < 0 else place
        if not 0 <= index < self._size:
            raise IndexError(f"expected a place among {self._size} items, found {place}")
        return next(self._from(index))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rows) and other._chunks is self._chunks:
            return True
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(other) == self._size and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"Rows({tuple(self)!r})"

    def get(self, key: str) -> T | None:
        """Return the item of a key, or None."""
        return found(self._chunks, key)

    def keys(self) -> Iterator[str]:
        """Return every key, in order."""
        return chain.from_iterable(map(_KEYS, self._chunks))

    def items(self) -> Iterator[tuple[str, T]]:
        """Return every key with its item, in order."""
        return zip(self.keys(), self, strict=True)

    def items_from(self, key: str) -> Iterator[tuple[str, T]]:
        """Return every key from `key` on with its item, in order."""
        if not self._chunks:
            return iter(())
        place = place_of(self._chunks, key)
        chunk, behind = self._chunks[place], self._chunks[place + 1 :]
        start = bisect_left(chunk.keys, key)
        return chain(
            zip(chunk.keys[start:], chunk.items[start:], strict=True),
            chain.from_iterable(zip(one.keys, one.items, strict=True) for one in behind),
        )

    def within(self, prefix: str) -> tuple[T, ...]:
        """Return the items whose keys begin with `prefix`, in order."""
        pairs = takewhile(lambda pair: pair[0].startswith(prefix), self.items_from(prefix))
        return tuple(item for _, item in pairs)

    def differences(self, former: Rows[T]) -> Iterator[tuple[str, T | None, T | None]]:
        """Yield (key, item before, item now) for each key whose item is not the same object, in the
        order of keys; None means no item. This is fast if `former` is the sequence that this one
        was made from; for any other, more chunks are compared.
        """
        if former._chunks is self._made_from:
            for key in sorted(self._touched):
                was, item = self._touched[key]
                if was is not item:
                    yield key, was, item
            return
        before, now = _unshared(former._chunks, self._chunks)
        here = there = 0
        while here < len(before) and there < len(now):
            old, new = before[here], now[there]
            if old.keys is new.keys:
                yield from _exchanged(old, new)
                here, there = here + 1, there + 1
                continue
            behind, beyond = _window(before, now, here, there)
            yield from _merged(before[here:behind], now[there:beyond])
            here, there = behind, beyond
        for chunk in before[here:]:
            yield from (
                (key, item, None) for key, item in zip(chunk.keys, chunk.items, strict=True)
            )
        for chunk in now[there:]:
            yield from (
                (key, None, item) for key, item in zip(chunk.keys, chunk.items, strict=True)
            )

    def _from(self, index: int) -> Iterator[T]:
        if not self._starts:
            sizes = (len(chunk.keys) for chunk in self._chunks)
            self._starts = tuple(accumulate(sizes, initial=0))
        place = max(0, bisect_right(self._starts, index) - 1)
        chunk, behind = self._chunks[place : place + 1], self._chunks[place + 1 :]
        start = index - self._starts[place]
        return chain(
            chain.from_iterable(one.items[start:] for one in chunk),
            chain.from_iterable(map(_ITEMS, behind)),
        )


class ByUid(Mapping[str, T]):
    """The items of each group by its uid; `rows` has all of them, in order."""

    __slots__ = ("rows",)

    def __init__(self, rows: Rows[T]) -> None:
        self.rows = rows

    def __getitem__(self, uid: str) -> T:
        found = self.rows.get(uid)
        if found is None:
            raise KeyError(uid)
        return found

    @overload
    def get(self, uid: str, default: None = None, /) -> T | None: ...
    @overload
    def get(self, uid: str, default: T | D, /) -> T | D: ...
    def get(self, uid: str, default: D | None = None, /) -> T | D | None:
        """Return the item of a group, or `default`. Overridden because most groups have no item,
        and a KeyError for each would be slow.
        """
        item = self.rows.get(uid)
        return default if item is None else item

    def __contains__(self, uid: object) -> bool:
        return isinstance(uid, str) and self.rows.get(uid) is not None

    def __iter__(self) -> Iterator[str]:
        return self.rows.keys()

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"ByUid({dict(self)!r})"


def _unshared(
    former: tuple[Chunk[T], ...], now: tuple[Chunk[T], ...]
) -> tuple[list[Chunk[T]], list[Chunk[T]]]:
    """Return the chunks of each that the other does not have. Shared chunks hold the same keys, so
    the remaining chunks differ only in keys that were added or removed.
    """
    most = min(len(former), len(now))
    start = _first_difference(former, now, most)
    end = _first_difference(reversed(former), reversed(now), most - start)
    old, new = former[start : len(former) - end], now[start : len(now) - end]
    shared = set(old).intersection(new)
    return (
        [chunk for chunk in old if chunk not in shared],
        [chunk for chunk in new if chunk not in shared],
    )


def _first_difference(one: Iterable[Chunk[T]], other: Iterable[Chunk[T]], most: int) -> int:
    """Return the number of equal chunks at the start, at most `most`."""
    return next(compress(range(most), map(is_not, one, other)), most)


def _window(
    before: Sequence[Chunk[T]], now: Sequence[Chunk[T]], here: int, there: int
) -> tuple[int, int]:
    """Return the ends of the overlapping chunks that begin at `here` and `there`: all keys before
    the ends are smaller than all keys after them.
    """
    last = min(before[here], now[there], key=_FIRST).keys[-1]
    while True:
        if here < len(before) and before[here].first <= last:
            last, here = max(last, before[here].keys[-1]), here + 1
        elif there < len(now) and now[there].first <= last:
            last, there = max(last, now[there].keys[-1]), there + 1
        else:
            return here, there


def _exchanged(before: Chunk[T], now: Chunk[T]) -> Iterator[tuple[str, T | None, T | None]]:
    """Yield the differences between chunks with the same keys."""
    keys, old, new = now.keys, before.items, now.items
    places = compress(range(len(keys)), map(is_not, old, new))
    return ((keys[place], old[place], new[place]) for place in places)


def _merged(
    before: Sequence[Chunk[T]], now: Sequence[Chunk[T]]
) -> Iterator[tuple[str, T | None, T | None]]:
    """Yield the differences between two runs of chunks."""
    old, new = dict(Rows(tuple(before)).items()), dict(Rows(tuple(now)).items())
    changed = [key for key, item in new.items() if old.get(key) is not item]
    changed += [key for key in old if key not in new]
    return ((key, old.get(key), new.get(key)) for key in sorted(changed))


#: How many slots at the front may be unused.
_MOST_WASTE = 4_096


#: Uids that are numbers (line numbers of a file) compare as numbers, and before all others.
UidOrder = tuple[int, int, str]


def uid_order(uid: str) -> UidOrder:
    """Return the key by which uids are compared, the last criterion of every order."""
    return (0, int(uid), "") if uid.isascii() and uid.isdigit() else (1, 0, uid)


class Ordered(Generic[T]):
    """Items in the order of their keys. Only keys are compared, never items."""

    __slots__ = ("_items", "_keys", "_start")

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._items: list[T | None] = []
        #: The index of the first item; slots before it are unused.
        self._start = 0

    def __len__(self) -> int:
        return len(self._keys) - self._start

    def __iter__(self) -> Iterator[T]:
        # Slots from the start on are never None.
        return islice(self._items, self._start, None)  # type: ignore[arg-type]

    def add(self, key: Any, item: T) -> None:
        """Insert an item; items with equal keys keep their order of insertion."""
        if len(self) == 0 or key > self._keys[-1]:
            self._keys.append(key)
            self._items.append(item)
            return
        place = bisect_right(self._keys, key, self._start)
        self._keys.insert(place, key)
        self._items.insert(place, item)

    def put(self, key: Any, item: T) -> None:
        """Insert an item, or replace the item of the same key."""
        place = bisect_left(self._keys, key, self._start)
        if place < len(self._keys) and self._keys[place] == key:
            self._items[place] = item
        else:
            self._keys.insert(place, key)
            self._items.insert(place, item)

    def remove(self, key: Any) -> None:
        """Remove the item of this key. Raise KeyError if there is none."""
        if not self.discard(key):
            raise KeyError(key)

    def discard(self, key: Any) -> bool:
        """Remove the item of this key, if there is one; return whether there was."""
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
        """Return the lowest key and its item, or None."""
        return self.at(self._start)

    def after(self, key: Any) -> tuple[Any, T] | None:
        """Return the first key above this one and its item, or None."""
        return self.at(self.place_after(key))

    def place_after(self, key: Any) -> int:
        """Return the index of the first key above this one."""
        return bisect_right(self._keys, key, self._start)

    @property
    def start(self) -> int:
        """Return the index of the lowest key. Valid until an item is added or removed."""
        return self._start

    def at(self, place: int) -> tuple[Any, T] | None:
        """Return the key and the item at an index; None after the last one."""
        if place >= len(self._keys):
            return None
        return self._keys[place], self._items[place]  # type: ignore[return-value]

    def run(self, place: int, most: int, before: Any) -> list[T]:
        """Return up to `most` items from an index on, with keys below `before` (None: any key)."""
        return self._items[place : self._end_of(place, most, before)]  # type: ignore[return-value]

    def _end_of(self, place: int, most: int, before: Any) -> int:
        end = min(place + most, len(self._keys))
        return end if before is None else bisect_left(self._keys, before, min(place, end), end)

    def pairs_backwards(self) -> Iterator[tuple[Any, T]]:
        """Return every key with its item, highest first."""
        for place in range(len(self._keys) - 1, self._start - 1, -1):
            yield self._keys[place], self._items[place]  # type: ignore[misc]

    def pairs(self) -> Iterator[tuple[Any, T]]:
        """Return every key with its item, lowest first."""
        return zip(self._keys[self._start :], self, strict=True)
