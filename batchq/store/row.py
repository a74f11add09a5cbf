"""The one place where a sequence of stored objects changes: each change makes a chunk anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import islice
from typing import Generic, TypeVar

from batchq.framework.rows import CHUNK, Chunk, Rows, chunk_of, chunks_of, found, place_of

T = TypeVar("T")

#: A chunk that falls below this many items is joined to its neighbour, if both fit in one that
#: has room for more.
SMALL = CHUNK // 4
ROOMY = CHUNK * 3 // 4
#: So many keys are looked up one by one; of more, chunks are compared.
MOST_TOUCHED = 16


class Row(Generic[T]):
    """Items in the order of their keys; a change costs one chunk, a view a list of chunks."""

    def __init__(self) -> None:
        self._chunks: list[Chunk[T]] = []
        self._size = 0
        self._rows: Rows[T] | None = Rows()
        #: The rows that somebody has seen last, and the keys that were touched since; None: many.
        self._seen: Rows[T] = self._rows
        self._touched: set[str] | None = set()

    def fill(self, known: Mapping[str, T]) -> None:
        """Take these instead of all that there is."""
        self._chunks = chunks_of(known)
        self._size = len(known)
        self._rows, self._touched = None, None

    def put(self, key: str, item: T) -> T | None:
        """Add an item, or put it in the place of the one with that key, which is returned."""
        self._touch(key)
        if not self._chunks:
            self._exchange(0, 0, chunk_of((key,), (item,)))
            self._size = 1
            return None
        at = place_of(self._chunks, key)
        chunk = self._chunks[at]
        place = bisect_left(chunk.keys, key)
        if place < len(chunk.keys) and chunk.keys[place] == key:
            former = chunk.items[place]
            if former is not item:
                items = (*chunk.items[:place], item, *chunk.items[place + 1 :])
                # The very same keys: whoever compares two chunks sees that only items changed.
                self._exchange(at, 1, Chunk(chunk.first, chunk.keys, items))
            return former
        self._size += 1
        if place == CHUNK and at == len(self._chunks) - 1:
            # Whoever adds in order of key fills chunks, and halves none.
            self._exchange(at + 1, 0, chunk_of((key,), (item,)))
            return None
        keys = (*chunk.keys[:place], key, *chunk.keys[place:])
        items = (*chunk.items[:place], item, *chunk.items[place:])
        if len(keys) <= CHUNK:
            self._exchange(at, 1, chunk_of(keys, items))
            return None
        half = len(keys) // 2
        halves = chunk_of(keys[:half], items[:half]), chunk_of(keys[half:], items[half:])
        self._exchange(at, 1, *halves)
        return None

    def remove(self, key: str) -> T | None:
        """Take out the item of a key, which is returned, if there is one."""
        self._touch(key)
        if not self._chunks:
            return None
        at = place_of(self._chunks, key)
        chunk = self._chunks[at]
        place = bisect_left(chunk.keys, key)
        if place == len(chunk.keys) or chunk.keys[place] != key:
            return None
        self._size -= 1
        keys = chunk.keys[:place] + chunk.keys[place + 1 :]
        items = chunk.items[:place] + chunk.items[place + 1 :]
        if not keys:
            self._exchange(at, 1)
        elif len(keys) >= SMALL or not self._join(at, keys, items):
            self._exchange(at, 1, chunk_of(keys, items))
        return chunk.items[place]

    def get(self, key: str) -> T | None:
        """The item of a key, if there is one."""
        return found(self._chunks, key)

    def all(self) -> Rows[T]:
        """Every item; the same object until something changes."""
        if self._rows is None:
            chunks, touched = tuple(self._chunks), self._touched
            if touched is None:
                self._rows = Rows(chunks, self._size)
            else:
                self._rows = Rows(chunks, self._size, made_from=self._seen, touched=touched)
            self._seen, self._touched = self._rows, set()
        return self._rows

    def _touch(self, key: str) -> None:
        if self._touched is not None:
            self._touched.add(key)
            if len(self._touched) > MOST_TOUCHED:
                self._touched = None

    def keys_after(self, key: str, most: int) -> list[str]:
        """Up to `most` keys that follow `key`, in order."""
        return [one for one, _ in islice(self.all().items_from(key + "\0"), most)]

    def _join(self, at: int, keys: tuple[str, ...], items: tuple[T, ...]) -> bool:
        """Put what is left of a small chunk together with a neighbour, if there is room in one."""
        for start in (at - 1, at):
            if not 0 <= start < len(self._chunks) - 1:
                continue
            other = self._chunks[start if start < at else at + 1]
            if len(other.keys) + len(keys) <= ROOMY:
                both = ((other.keys, other.items), (keys, items))
                left, right = both if start < at else both[::-1]
                self._exchange(start, 2, chunk_of(left[0] + right[0], left[1] + right[1]))
                return True
        return False

    def _exchange(self, at: int, count: int, *chunks: Chunk[T]) -> None:
        self._chunks[at : at + count] = chunks
        self._rows = None
