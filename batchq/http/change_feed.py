"""Watching objects: one reader of the change stream for all watchers of a kind.

A thread follows the server's changes and hands them to the event loop, which keeps the present
objects and the latest changes. A watcher resumes after a revision if the changes since then are
still kept; otherwise it gets `RESYNC` and lists again. The queue of each watcher is bounded: one
that reads too slowly gets `RESYNC` as well, and the stream ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import takewhile

from msgspec import Struct

from batchq.api.objects import Object
from batchq.client.access_control import Delegate
from batchq.errors import StoreUnavailable
from batchq.system import structlog

_log = structlog.get_logger()

#: The kinds whose objects can be watched.
WATCHED_KINDS = ("PodGroup", "Queue", "Node")
#: Changes kept for watchers that resume.
MOST_KEPT = 10_000
#: Changes that a watcher may be behind.
MOST_BEHIND = 2_000
#: How long a read waits for a change, and so the longest delay of a stop.
_BLOCK_MS = 500
_RETRY_S = 0.5
#: How long a watcher waits until the feed reaches the revision after which it resumes.
_CATCH_UP_S = 5.0


class ChangeType(StrEnum):
    """The types of events in a watch."""

    ADDED = "ADDED"
    CHANGED = "CHANGED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    RESYNC = "RESYNC"


class ChangeEvent(Struct, frozen=True, kw_only=True):
    """One change; `item` is the last state of a deleted object, and None for a bookmark."""

    type: ChangeType
    revision: int
    item: Object | None = None


class _Poll(Struct, frozen=True, kw_only=True):
    """What one read of the stream returned: the state of each changed object, None if deleted.

    `is_list`: all objects were listed, so that changes between two lists have no order.
    `is_whole`: there are no others.
    """

    changed: Sequence[tuple[str, int, Object | None]]
    revision: int
    is_list: bool
    is_whole: bool


class Watcher:
    """One reader of the feed, in the event loop."""

    def __init__(self, most: int) -> None:
        self._events: deque[ChangeEvent] = deque()
        self._most = most
        self._ready = asyncio.Event()
        self._is_over = False

    def push(self, events: Sequence[ChangeEvent]) -> None:
        """Add events; if there are too many, replace all by a RESYNC, which is the last."""
        if self._is_over:
            return
        self._events.extend(events)
        if len(self._events) > self._most:
            self.end(events[-1].revision)
        self._ready.set()

    def end(self, revision: int) -> None:
        """Let the watcher list again."""
        self._events.clear()
        self._events.append(ChangeEvent(type=ChangeType.RESYNC, revision=revision))
        self._is_over = True
        self._ready.set()

    async def next(self, timeout_s: float) -> Sequence[ChangeEvent]:
        """Return the events that are there; wait for one, at most so long."""
        if not self._events:
            self._ready.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), timeout_s)
        found = tuple(self._events)
        self._events.clear()
        return found


class ChangeFeed:
    """The present objects of a kind and their latest changes.

    Everything but the thread is the event loop's.

    The thread starts with the first watcher, and ends with `stop`.
    """

    def __init__(self, connect: Callable[[], Delegate], kind: str) -> None:
        self._connect = connect
        self._kind = kind
        self._items: dict[str, Object] = {}
        self._latest: deque[ChangeEvent] = deque()
        #: Changes after this revision are kept.
        self._floor = 0
        self.revision = 0
        self._polls = 0
        self._polled = asyncio.Condition()
        self._watchers: set[Watcher] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    async def watch(self, since: int | None) -> AsyncIterator[Sequence[ChangeEvent]]:
        """Yield what exists (`since` None) or what has changed after a revision; then each change.

        An empty batch comes twice a second, so that the caller can look at other things.
        """
        self._start()
        if not await self._reaches(since or 0):
            yield (ChangeEvent(type=ChangeType.RESYNC, revision=self.revision),)
            return
        watcher = Watcher(MOST_BEHIND)
        if since is None:
            first = [
                ChangeEvent(type=ChangeType.ADDED, revision=item.metadata.revision, item=item)
                for _, item in sorted(self._items.items())
            ]
            first.append(ChangeEvent(type=ChangeType.BOOKMARK, revision=self.revision))
        else:
            newest = takewhile(lambda event: event.revision > since, reversed(self._latest))
            first = list(newest)[::-1]
        self._watchers.add(watcher)
        try:
            yield first
            while True:
                yield await watcher.next(0.5)
        finally:
            self._watchers.discard(watcher)

    async def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _start(self) -> None:
        if self._thread is None and not self._stopping.is_set():
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._follow, args=(loop,), name="change-feed", daemon=False
            )
            self._thread.start()

    async def _reaches(self, since: int) -> bool:
        """Wait for the feed to reach a revision; return whether it has all changes after it."""

        def is_settled() -> bool:
            # A poll that began after this call has seen what was written before it.
            return self._polls > 0 and (self.revision >= since or self._polls >= begun + 2)

        begun = self._polls
        try:
            async with asyncio.timeout(_CATCH_UP_S), self._polled:
                await self._polled.wait_for(is_settled)
        except TimeoutError:
            return False
        return since == 0 or self._floor <= since <= self.revision

    async def _apply(self, poll: _Poll) -> None:
        if poll.is_whole:
            self._items.clear()
        events = [event for one in poll.changed for event in self._events_of(*one)]
        if poll.is_list:
            # Between two lists there is no order, and there may have been more changes.
            self._latest.clear()
            self._floor = poll.revision
            events = [event for event in events if event.revision > poll.revision]
            for watcher in self._watchers:
                watcher.end(poll.revision)
        self._latest.extend(events)
        while len(self._latest) > MOST_KEPT:
            self._floor = self._latest.popleft().revision
        if events and not poll.is_list:
            for watcher in self._watchers:
                watcher.push(events)
        self.revision = max(poll.revision, *(event.revision for event in events), 0)
        async with self._polled:
            self._polls += 1
            self._polled.notify_all()

    def _events_of(self, key: str, revision: int, item: Object | None) -> list[ChangeEvent]:
        before = self._items.get(key)
        events = []
        if before is not None and (item is None or item.metadata.uid != before.metadata.uid):
            events.append(ChangeEvent(type=ChangeType.DELETED, revision=revision, item=before))
            before = None
        if item is None:
            self._items.pop(key, None)
        else:
            self._items[key] = item
            type_ = ChangeType.ADDED if before is None else ChangeType.CHANGED
            events.append(ChangeEvent(type=type_, revision=revision, item=item))
        return events

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            try:
                with self._connect() as delegate:
                    self._read(delegate, loop)
            except StoreUnavailable as error:
                _log.warning("api.feed_interrupted", error=error.message)
                self._stopping.wait(_RETRY_S)

    def _read(self, delegate: Delegate, loop: asyncio.AbstractEventLoop) -> None:
        watch = delegate.watcher(self._kind)
        lists = 0
        while not self._stopping.is_set():
            changes = watch.poll(_BLOCK_MS if watch.lists else 0)
            changed = [(change.key, change.revision, change.value) for change in changes]
            is_list = watch.lists != lists
            lists = watch.lists
            poll = _Poll(
                changed=changed,
                revision=watch.revision,
                is_list=is_list,
                is_whole=is_list and lists == 1,
            )
            done = asyncio.run_coroutine_threadsafe(self._apply(poll), loop)
            while not self._stopping.is_set():
                try:
                    done.result(0.5)
                    break
                except TimeoutError:
                    continue
