"""List and watch: everything there is, then every change, without a gap.

The change stream is bounded. Who was away for too long lists again, and is told what has changed
meanwhile as if it happened now. So does who meets the server over a new connection: it may have
been started again without its last writes, or be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic

from batchq.api.objects import NAMESPACED, Object, key_of
from batchq.api.transaction import Event
from batchq.store.mirror import Change, Trimmed
from batchq.store.redis import EVENTS_KEPT, RedisStore

#: So long at most somebody who follows hears nothing.
WATCH_MS = 5_000


class EventWatch:
    """One reader of events: the latest that there are, then those that happen. Owned by one thread.

    The stream of events is bounded: who was away for too long misses some.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._place = store.end_of_events()

    def latest(self, wanted: Callable[[Event], bool], most: int) -> list[Event]:
        """What there was when this began, oldest first.

        Raises StoreUnavailable.
        """
        return latest_events(self._store, wanted, most, until=self._place)

    def poll(self, wanted: Callable[[Event], bool], block_ms: int) -> list[Event]:
        """What has happened since the last call; waits up to `block_ms` for it.

        Raises StoreUnavailable.
        """
        self._place, events = self._store.events_after(self._place, block_ms)
        return [event for event in events if wanted(event)]


def latest_events(
    store: RedisStore, wanted: Callable[[Event], bool], most: int, *, until: str = "+"
) -> list[Event]:
    """The latest events that are wanted, oldest first.

    Raises StoreUnavailable.
    """
    if most <= 0:
        return []
    found = [event for event in store.events(most=EVENTS_KEPT, until=until) if wanted(event)]
    return found[-most:]


class Watch:
    """One reader of changes. Owned by one thread."""

    def __init__(
        self,
        store: RedisStore,
        kinds: Collection[str],
        *,
        namespace: str = "",
        listing: bool = True,
    ) -> None:
        """`listing` False begins with what happens from now on."""
        self._store = store
        self._kinds = tuple(kinds)
        self._namespace = namespace
        self._cursor: str | None = None
        self._known: dict[tuple[str, str], int] = {}
        self._connections = 0
        if not listing:
            self._list()

    def poll(self, block_ms: int) -> Sequence[Change]:
        """What there is at the first call, then what has changed; waits up to `block_ms` for it.

        Raises StoreUnavailable.
        """
        if self._cursor is None:
            return self._list()
        try:
            self._cursor, changes = self._store.watch(self._cursor, block_ms)
        except Trimmed:
            return self._list()
        if self._store.link.connections != self._connections:
            return self._list()
        return [change for change in changes if self._is_news(change)]

    def _list(self) -> list[Change]:
        self._connections = self._store.link.connections
        # The place in the stream first: what happens during the list comes again, and is known.
        cursor, _ = self._store.watch(None, 0)
        before, self._known, news = self._known, {}, []
        for kind in self._kinds:
            for item in self._store.list(kind, namespace=self._namespace):
                place, revision = (kind, key_of(item)), item.metadata.revision
                self._known[place] = revision
                if before.pop(place, 0) != revision:
                    news.append(_change(*place, revision, item))
        news += [_change(kind, key, revision, None) for (kind, key), revision in before.items()]
        self._cursor = cursor
        return news

    def _is_news(self, change: Change) -> bool:
        place = change.kind, change.key
        if change.kind not in self._kinds or change.revision <= self._known.get(place, 0):
            return False
        if change.value is None:
            return self._known.pop(place, None) is not None
        if not self._is_here(change.kind, change.value):
            return False
        self._known[place] = change.revision
        return True

    def _is_here(self, kind: str, item: Object) -> bool:
        return kind not in NAMESPACED or self._namespace in ("", item.metadata.namespace)


def changes_of(
    watch: Watch,
    timeout_s: float | None,
    patiently: Callable[[float | None], AbstractContextManager[None]],
) -> Iterator[Change]:
    """What there is, then every change, for `timeout_s` seconds or for ever; waited for with
    patience, and whoever gets a change is outside of it.
    """
    deadline = None if timeout_s is None else monotonic() + timeout_s
    left_s: float | None = timeout_s
    block_ms = 0
    while True:
        with patiently(left_s):
            changes = watch.poll(block_ms)
        yield from changes
        block_ms = WATCH_MS
        if deadline is not None:
            left_s = deadline - monotonic()
            block_ms = min(WATCH_MS, round(left_s * 1000))
        if block_ms <= 0:
            return


def _change(kind: str, key: str, revision: int, value: Object | None) -> Change:
    return Change(kind=kind, key=key, revision=revision, value=value, id="")
