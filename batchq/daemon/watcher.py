"""Tells the loop that the store has changed, by waiting for its change stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from batchq.daemon.service import ThreadService
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff

#: How long one wait lasts, and so how long a stop may have to wait for it.
WAIT_MS = 500


class Changes(Protocol):
    """The part of a store that tells of changes."""

    def wait_for_change(self, timeout_ms: int) -> bool:
        """Wait; whether anything was written since the last call. Raises StoreUnavailable."""


def watcher(
    changes: Changes,
    *,
    changed: Callable[[], None],
    unchanged: Callable[[], None],
    apart_s: Callable[[], float],
) -> ThreadService:
    """A service that calls `changed` after changes, `apart_s()` seconds apart at least, and
    `unchanged` after a while without any.
    """

    def watch(stopping: threading.Event) -> None:
        backoff = Backoff()
        while not stopping.is_set():
            try:
                any_change = changes.wait_for_change(WAIT_MS)
            except StoreUnavailable:
                # The deciding thread meets the same outage and says so.
                stopping.wait(backoff.next_ms() / 1000)
                continue
            backoff.reset()
            if any_change:
                changed()
                stopping.wait(apart_s())
            else:
                unchanged()

    return ThreadService("watcher", watch)
