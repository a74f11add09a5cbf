"""Waiting for the changes that other processes make.

A scheduler makes most changes itself. It knows them, so it is not to be woken by each of them: a
wake-up, and the question what has changed, cost about as much as the change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from batchq.api.transaction import Answer, Transaction, Word
from batchq.store import keys
from batchq.store.link import LONGEST_BLOCK_MS, Link, read_revision
from batchq.store.mirror import after_change

#: While this process writes, it looks for changes by others at this interval. If it waited for
#: them, each write of its own would end the wait.
LOOK_MS = 10
#: This process writes if it has written within this time.
_WRITES_WITHIN_S = 0.1


class ChangeWatch:
    """The changes that this process has neither read nor made.

    `wait` is for one watcher thread; any thread may note.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        #: Every change up to this one was read or made by this process.
        self._known = 0
        #: The last one that `wait` has found.
        self._seen = 0
        self._wrote_at = -_WRITES_WITHIN_S
        #: When every change was last read (monotonic clock).
        self._read_at = -_WRITES_WITHIN_S
        #: Called with what this process has written; if it is given, that is known, and so is
        #: what was read.
        self.wrote: Callable[[Sequence[Transaction]], None] | None = None

    def note_read(self, revision: int) -> None:
        """Note that every change up to this one was read."""
        if self.wrote is None:
            # A client may have read something else before, and waits for changes of that.
            return
        with self._lock:
            self._known = max(self._known, revision)
            self._read_at = time.monotonic()

    def note_written(
        self, transactions: Iterable[Transaction], answers: Sequence[Answer], revision: int
    ) -> None:
        """Note the answers of one call of `commit.lua`, and the revision after it."""
        if self.wrote is None:
            return
        applied = [
            one for one, answer in zip(transactions, answers, strict=True) if answer.word == Word.OK
        ]
        # A condition that something must not exist writes nothing.
        count = sum(
            write.expect != 0 or write.value is not None for one in applied for write in one.writes
        )
        if not count:
            return
        with self._lock:
            self._wrote_at = time.monotonic()
            # Otherwise, changes of other clients come before them.
            if revision - count <= self._known:
                self._known = max(self._known, revision)
        self.wrote(applied)

    def wait(self, timeout_ms: int) -> bool:
        """Return whether there are changes that were not found by the last call, up to the time
        limit. Raises StoreUnavailable.
        """
        left = timeout_ms
        while True:
            revision = read_revision(self._link)
            if self._is_news(revision):
                return True
            if left <= 0:
                return False
            if time.monotonic() - self._wrote_at < _WRITES_WITHIN_S:
                left -= self._pause(left)
            else:
                block_ms = min(left, LONGEST_BLOCK_MS)
                self._await_entry(after_change(revision), block_ms)
                left -= block_ms

    def _pause(self, most_ms: int) -> int:
        """Wait until it is time for a look; return for how long, in milliseconds. A turn that reads
        all changes meanwhile is a look, too.
        """
        waited_ms = 0
        while waited_ms < most_ms:
            step_ms = min(most_ms - waited_ms, LOOK_MS)
            self._link.pause(step_ms / 1000)
            waited_ms += step_ms
            if time.monotonic() - self._read_at >= LOOK_MS / 1000:
                break
        return waited_ms

    def _await_entry(self, after: str, block_ms: int) -> None:
        self._link.wait(lambda client: client.xread({keys.CHANGES: after}, 1, block_ms))

    def _is_news(self, revision: int) -> bool:
        with self._lock:
            # A fallen count: it was set back, or everything was deleted.
            has_fallen = revision < self._known
            if has_fallen:
                self._known = revision
            is_news = revision not in (self._known, self._seen) or has_fallen
            self._seen = revision
        return is_news
