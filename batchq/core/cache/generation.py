"""Generations: how caches learn that what they depend on has changed.

A cache has one Generation for each subject that it depends on. When a session begins, it shows the
generation the values of that subject, and forgets what it knows if they are others than before.
Entries that last longer keep the count at which they were made. `batchq/core/cache/README.md` lists
the caches.
"""

from __future__ import annotations


class Generation:
    """Counts how often the values of one subject have changed; owned by the cache that asks."""

    __slots__ = ("_seen", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seen: tuple[object, ...] | None = None

    def follow(self, *values: object) -> bool:
        """Note the values of the subject; return whether they differ from those noted before.

        Values are compared by identity first: a store hands over the same tuple until it changes.
        """
        seen = self._seen
        if seen is not None and all(
            one is other or one == other for one, other in zip(seen, values, strict=True)
        ):
            return False
        self._seen = values
        self.count += 1
        return True
