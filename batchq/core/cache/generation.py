"""Generations: how caches detect that their inputs have changed.

A cache has one Generation for each subject that it depends on. When a session begins, it passes the
values of that subject to `follow`, and is cleared if they differ from the previous ones. Entries
that last longer store the count at which they were made. `batchq/core/cache/README.md` lists the
caches.
"""

from __future__ import annotations


class Generation:
    """Counts how often the values of one subject have changed; owned by one cache."""

    __slots__ = ("_seen", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seen: tuple[object, ...] | None = None

    def follow(self, *values: object) -> bool:
        """Store the values of the subject; return whether they differ from the former ones.

        Values are compared by identity first: a store provides the same tuple until it changes.
        """
        seen = self._seen
        if seen is not None and all(
            one is other or one == other for one, other in zip(seen, values, strict=True)
        ):
            return False
        self._seen = values
        self.count += 1
        return True
