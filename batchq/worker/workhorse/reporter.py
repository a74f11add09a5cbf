"""The work-horse's communication with the server, in a separate thread.

A hanging server blocks a request for as long as the connection's timeouts allow. The supervision
must not wait that long: it would miss the end of its own lease. So this thread renews the lease,
which also brings requests to stop, and sends the output; the supervision loop only reads the
answers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import Empty, SimpleQueue
from time import monotonic_ns
from typing import Protocol

import structlog
from msgspec import Struct

from batchq.api.node_report import Ended, NodeReport, PodOutcome
from batchq.api.objects import Pod
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import RedisStore
from batchq.worker.workhorse.output_log import LogStream

#: How often the work-horse renews its lease, and how often it sends output.
CHECK_MS = 500
FLUSH_MS = 200
#: Chunks per flush; bounds a flood of output to a few megabytes a second on the server.
_CHUNKS_PER_FLUSH = 8
#: The longest pause before an unavailable server is asked again: a lease is at stake.
_AGAIN_MAX_MS = 1000


class LeaseRenewal(Protocol):
    """The store's answer to a renewal: `ok`, `stop` (with the reason), or `fenced`."""

    @property
    def word(self) -> str: ...

    @property
    def reason(self) -> str: ...


class ReportAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a renewal, and when the renewal was requested."""

    word: str
    reason: str
    asked_at: int


class Messenger:
    """The thread that talks to the server. Call `start` at limit once, and `stop` once."""

    def __init__(
        self,
        stream: LogStream,
        *,
        renew: Callable[[], LeaseRenewal],
        send: Callable[[str, bytes], None],
        outage: Outage,
    ) -> None:
        self._stream = stream
        self._renew = renew
        self._send = send
        self._answers: SimpleQueue[ReportAnswer] = SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = threading.Event()
        self._outage = outage
        self._backoff = Backoff(longest_ms=_AGAIN_MAX_MS)
        self._away_until = 0
        # With the creator's context, so that the thread's log lines name the pod as well.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="messenger"
        )

    @property
    def has_started(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Start the thread; it renews the lease at once."""
        self._thread.start()

    def stop(self) -> None:
        """Send the remaining output and end the thread; do nothing if it was not started.

        It does not wait for an unavailable server; use `send_rest` or `rest` for what remains.
        """
        self._stopping.set()
        if self.has_started:
            self._thread.join()
        os.close(self._event)

    def rest(self) -> list[tuple[str, bytes]]:
        """Return the output that has not been sent."""
        return self._stream.waiting()

    def send_rest(self) -> None:
        """Send the remaining output, once the messenger has stopped. Raise StoreUnavailable."""
        while (chunk := self._stream.take()) is not None:
            self._send_or_put_back(*chunk)

    def fileno(self) -> int:
        """Return a descriptor that is readable when an answer has come since the last `clear`."""
        return self._event

    def clear(self) -> None:
        """Reset the descriptor; call it before reading the answers."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return

    def next_answer(self) -> ReportAnswer | None:
        """Return the next answer, oldest first; None if there is no other."""
        try:
            return self._answers.get_nowait()
        except Empty:
            return None

    def _run(self) -> None:
        check_at = monotonic_ms()
        while True:
            if monotonic_ms() >= self._away_until:
                if monotonic_ms() >= check_at:
                    self._renew_lease()
                    check_at = monotonic_ms() + CHECK_MS
                self._flush(_CHUNKS_PER_FLUSH)
            if self._stopping.wait(FLUSH_MS / 1000):
                break
        self._flush(None)

    def _renew_lease(self) -> None:
        asked_at = monotonic_ms()
        try:
            renewal = self._renew()
        except StoreUnavailable as trouble:
            self._note_failure(trouble)
            return
        self._note_answer()
        answer = ReportAnswer(word=str(renewal.word), reason=renewal.reason, asked_at=asked_at)
        self._answers.put(answer)
        os.eventfd_write(self._event, 1)

    def _flush(self, limit: int | None) -> None:
        """Send up to `limit` chunks; None means all."""
        sent = 0
        while (limit is None or sent < limit) and (chunk := self._stream.take()) is not None:
            try:
                self._send_or_put_back(*chunk)
            except StoreUnavailable as trouble:
                self._note_failure(trouble)
                return
            self._note_answer()
            sent += 1

    def _note_failure(self, trouble: StoreUnavailable) -> None:
        self._outage.failed(trouble)
        self._away_until = monotonic_ms() + self._backoff.next_ms()

    def _note_answer(self) -> None:
        self._outage.succeeded()
        self._backoff.reset()

    def _send_or_put_back(self, stream: str, data: bytes) -> None:
        try:
            self._send(stream, data)
        except StoreUnavailable:
            self._stream.put_back(stream, data)
            raise


def monotonic_ms() -> int:
    """Return the milliseconds of the monotonic clock, which is never set."""
    return monotonic_ns() // 1_000_000


log = structlog.get_logger(__name__)


class ReportSender:
    """Posts reports of one node. Every method raises StoreUnavailable."""

    def __init__(self, store: RedisStore, node: str) -> None:
        self._store = store
        self._node = node

    def post(self, report: NodeReport) -> None:
        """Post a report; it replaces the last one on the same subject."""
        self._store.inboxes.post(self._node, report)

    def pending(self) -> Sequence[NodeReport]:
        """Return the reports that are posted and not applied yet."""
        return self._store.inboxes.own(self._node)

    def current(self, uid: str, attempt: int) -> Pod | None:
        """Return the pod if this is still its attempt, and None otherwise."""
        pod = self._store.get_if_readable("Pod", uid)
        return pod if isinstance(pod, Pod) and pod.status.attempt == attempt else None

    def ended(self, uid: str, attempt: int, outcome: PodOutcome, *, author: str) -> None:
        """Report the end of an attempt, none of whose processes is left. Repeating it is
        harmless.
        """
        self.post(Ended(pod=uid, attempt=attempt, outcome=outcome, author=author))
        self.end_lease(uid, attempt)

    def end_lease(self, uid: str, attempt: int) -> None:
        """End the lease of an attempt that no longer runs, so that the scheduler need not wait for
        it.
        """
        self._store.end_lease(self._node, uid, attempt)
