"""The work-horse's talk with the server, in a thread of its own.

A server that hangs holds whoever asks it for as long as the connection's timeouts have it. The
supervision must not wait that long: it would miss the end of its own lease. So a second thread
renews the lease, which is also how an order to stop arrives, and sends the output; the loop only
looks at what came back.
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

#: How often the work-horse asks whether to go on, and how often it sends output.
CHECK_MS = 500
FLUSH_MS = 200
#: At most this many chunks per flush, so that a flood costs the server few megabytes a second.
_CHUNKS_PER_FLUSH = 8
#: A server that is away is asked again this soon at most: a lease is at stake.
_AGAIN_MOST_MS = 1000


class LeaseRenewal(Protocol):
    """What the store says to a renewal: `ok`, `stop` (and why), or `fenced`."""

    @property
    def word(self) -> str: ...

    @property
    def reason(self) -> str: ...


class ReportAnswer(Struct, frozen=True, kw_only=True):
    """A renewal that was answered, and when it had been asked for."""

    word: str
    reason: str
    asked_at: int


class Messenger:
    """A service: `start` once at most, `stop` once; in between one thread talks to the server."""

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
        self._backoff = Backoff(longest_ms=_AGAIN_MOST_MS)
        self._away_until = 0
        # With the context of who makes it, so that its lines in the log name the pod, too.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._talk,), name="messenger"
        )

    @property
    def has_started(self) -> bool:
        """Whether there has been anything to talk about."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Talk from now on; the first renewal at once."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left of the output, and end the thread; nothing if it was not started.

        A server that is away is not waited for: `send_rest` and `rest` are for that.
        """
        self._stopping.set()
        if self.has_started:
            self._thread.join()
        os.close(self._event)

    def rest(self) -> list[tuple[str, bytes]]:
        """The output that is not sent yet."""
        return self._stream.waiting()

    def send_rest(self) -> None:
        """Send what is left, once the messenger has stopped. Raises StoreUnavailable."""
        while (chunk := self._stream.take()) is not None:
            self._send_or_put_back(*chunk)

    def fileno(self) -> int:
        """Readable when an answer has come since the last `clear`."""
        return self._event

    def clear(self) -> None:
        """To be called before the answers are looked at."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return

    def next_answer(self) -> ReportAnswer | None:
        """The answers in the order in which they came."""
        try:
            return self._answers.get_nowait()
        except Empty:
            return None

    def _talk(self) -> None:
        check_at = monotonic_ms()
        while True:
            if monotonic_ms() >= self._away_until:
                if monotonic_ms() >= check_at:
                    self._ask()
                    check_at = monotonic_ms() + CHECK_MS
                self._flush(_CHUNKS_PER_FLUSH)
            if self._stopping.wait(FLUSH_MS / 1000):
                break
        self._flush(None)

    def _ask(self) -> None:
        asked_at = monotonic_ms()
        try:
            renewal = self._renew()
        except StoreUnavailable as trouble:
            self._is_away(trouble)
            return
        self._is_back()
        answer = ReportAnswer(word=str(renewal.word), reason=renewal.reason, asked_at=asked_at)
        self._answers.put(answer)
        os.eventfd_write(self._event, 1)

    def _flush(self, most: int | None) -> None:
        """Send up to `most` chunks; None for all there are."""
        sent = 0
        while (most is None or sent < most) and (chunk := self._stream.take()) is not None:
            try:
                self._send_or_put_back(*chunk)
            except StoreUnavailable as trouble:
                self._is_away(trouble)
                return
            self._is_back()
            sent += 1

    def _is_away(self, trouble: StoreUnavailable) -> None:
        self._outage.failed(trouble)
        self._away_until = monotonic_ms() + self._backoff.next_ms()

    def _is_back(self) -> None:
        self._outage.succeeded()
        self._backoff.reset()

    def _send_or_put_back(self, stream: str, data: bytes) -> None:
        try:
            self._send(stream, data)
        except StoreUnavailable:
            self._stream.put_back(stream, data)
            raise


def monotonic_ms() -> int:
    """Milliseconds of the clock that nobody sets."""
    return monotonic_ns() // 1_000_000


log = structlog.get_logger(__name__)


class ReportSender:
    """The desk of one node. Every method raises StoreUnavailable."""

    def __init__(self, store: RedisStore, node: str) -> None:
        self._store = store
        self._node = node

    def post(self, fact: NodeReport) -> None:
        """Leave a fact in place of the last one on its subject."""
        self._store.inboxes.post(self._node, fact)

    def pending(self) -> Sequence[NodeReport]:
        """What has been left and is not folded yet."""
        return self._store.inboxes.own(self._node)

    def current(self, uid: str, attempt: int) -> Pod | None:
        """The pod, if this is still its attempt."""
        pod = self._store.get_if_readable("Pod", uid)
        return pod if isinstance(pod, Pod) and pod.status.attempt == attempt else None

    def ended(self, uid: str, attempt: int, outcome: PodOutcome, *, author: str) -> None:
        """Tell the end of an attempt, of which no process is left. Twice is harmless."""
        self.post(Ended(pod=uid, attempt=attempt, outcome=outcome, author=author))
        self.end_lease(uid, attempt)

    def end_lease(self, uid: str, attempt: int) -> None:
        """Nothing of the attempt runs any more: there is nothing left to wait for."""
        self._store.end_lease(self._node, uid, attempt)
