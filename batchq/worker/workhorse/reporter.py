"""What a work-horse sends to the server: its pod's output and reports.

The output goes to a bounded local file, and a bounded part of it to the store. The file holds the
newest output. At half its limit it is renamed to `<file>.1`, replacing the former one, and a new
file is started; so at least half the limit is always kept. The stream to the store is batched and
slower than a flood of output. The oldest data that does not fit into the buffer is left out, and a
line in the stream says how much. Neither a full disk nor an unavailable server stops a pod: the
former is reported once, the latter is waited out.

A thread of its own talks to the server, because a hanging server blocks a request for as long as
the connection's timeouts allow. The supervision must not wait that long: it would miss the end of
its own lease. The thread sends the output. It also renews the lease while the agent does not vouch
for the work-horse (`batchq.worker.workhorse.leases`); the supervision loop reads the answers.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic_ns
from typing import Protocol

import msgspec
from msgspec import Struct

from batchq.api.node_report import Ended, NodeReport, PodOutcome
from batchq.api.objects import Pod
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import RedisStore
from batchq.system import structlog

#: How often a work-horse renews its lease while its agent does not vouch for it, and how often it
#: sends output.
CHECK_MS = 500
FLUSH_MS = 200
#: A connection that has not been used for this long is closed.
IDLE_CONNECTION_MS = 5_000
#: How much of a log shows why a program was not executed.
_END_BYTES = 4096
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
    """The thread that talks to the server. Call `start` at most once, and `stop` once."""

    def __init__(
        self,
        stream: LogStream,
        *,
        must_renew: Callable[[], bool],
        renew: Callable[[], LeaseRenewal],
        send: Callable[[str, bytes], None],
        disconnect: Callable[[], None],
        outage: Outage,
    ) -> None:
        self._stream = stream
        self._must_renew = must_renew
        self._renew = renew
        self._send = send
        self._disconnect = disconnect
        #: When the server was last asked; None without a connection.
        self._used_at: int | None = None
        self._answers: SimpleQueue[ReportAnswer] = SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outage = outage
        self._backoff = Backoff(longest_ms=_AGAIN_MAX_MS)
        self._away_until = 0
        #: The thread, and what tells it to stop: most short pods end before there is one.
        self._thread: tuple[threading.Thread, threading.Event] | None = None

    @property
    def has_started(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread; if it is to renew the lease, it does so at once."""
        stopping = threading.Event()
        # With the caller's context, so that the thread's log lines name the pod as well.
        thread = threading.Thread(
            target=copy_context().run, args=(self._run, stopping), name="messenger"
        )
        thread.start()
        self._thread = thread, stopping

    def stop(self) -> None:
        """Send the remaining output and end the thread; do nothing if it was not started.

        It does not wait for an unavailable server; use `send_rest` or `rest` for what remains.
        """
        if self._thread is not None:
            thread, stopping = self._thread
            stopping.set()
            thread.join()
        os.close(self._event)

    def is_needed(self) -> bool:
        """Return whether there is something to send, or to ask."""
        return self._stream.has_waiting() or self._must_renew()

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

    def _run(self, stopping: threading.Event) -> None:
        check_at = monotonic_ms()
        while True:
            if monotonic_ms() >= self._away_until:
                if monotonic_ms() >= check_at and self._must_renew():
                    self._renew_lease()
                    check_at = monotonic_ms() + CHECK_MS
                self._flush(_CHUNKS_PER_FLUSH)
                if self._outage.unavailable and not self.is_needed():
                    # A renewal has failed, and the agent has renewed the lease since.
                    self._note_recovery()
                self._disconnect_if_idle()
            if stopping.wait(FLUSH_MS / 1000):
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

    def _disconnect_if_idle(self) -> None:
        """Close an unused connection: a server has fewer connections than a cluster has pods."""
        used_at = self._used_at
        if used_at is not None and monotonic_ms() - used_at >= IDLE_CONNECTION_MS:
            self._used_at = None
            self._disconnect()

    def _note_failure(self, trouble: StoreUnavailable) -> None:
        self._outage.failed(trouble)
        self._away_until = monotonic_ms() + self._backoff.next_ms()

    def _note_answer(self) -> None:
        self._used_at = monotonic_ms()
        self._note_recovery()

    def _note_recovery(self) -> None:
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


def author_of(agent: str, horse: int) -> str:
    """Return the author name of a work-horse: its agent's identity and its pid."""
    return f"{agent}:{horse}"


class ReportSender:
    """Posts reports of one node. Every method raises StoreUnavailable."""

    def __init__(self, store: RedisStore, node: str) -> None:
        self._store = store
        self._node = node

    def post(self, report: NodeReport) -> None:
        """Post a report; it replaces the last one on the same subject."""
        self._store.report_queues.post(self._node, report)

    def pending(self) -> Sequence[NodeReport]:
        """Return the reports that are posted and not applied yet."""
        return self._store.report_queues.pending(self._node)

    def current(self, uid: str, attempt: int) -> Pod | None:
        """Return the pod if this is still its attempt, and None otherwise."""
        pod = self._store.get_if_readable("Pod", uid)
        return pod if isinstance(pod, Pod) and pod.status.attempt == attempt else None

    def ended(self, uid: str, attempt: int, outcome: PodOutcome, *, author: str) -> None:
        """Report the end of an attempt without processes. Repeating the report is harmless."""
        self.post(Ended(pod=uid, attempt=attempt, outcome=outcome, author=author))
        self.end_lease(uid, attempt)

    def end_lease(self, uid: str, attempt: int) -> None:
        """End the lease of an attempt that no longer runs; the scheduler need not wait for it."""
        self._store.end_lease(self._node, uid, attempt)


FILE_LIMIT_BYTES = 16 << 20
CHUNK_BYTES = 64 << 10
#: The store keeps no more than this of an attempt, so a larger buffer gains nothing.
BUFFER_BYTES = 1 << 20
#: The overhead of a chunk. Without it, a pod that writes single bytes to its two streams in turns
#: could use a hundred times the memory of its output.
_CHUNK_COST_BYTES = 128


class LogFile:
    """The local file; owned by one work-horse."""

    def __init__(self, path: Path, *, limit_bytes: int = FILE_LIMIT_BYTES) -> None:
        self.path = path
        self.trouble = ""
        self._half = max(1, limit_bytes // 2)
        self._size = 0
        self._descriptor: int | None = None

    def write(self, data: bytes) -> None:
        """Append `data`. After the first error of the disk, do nothing.

        The file is created with the first data, so a pod without output has no file.
        """
        if self.trouble:
            return
        try:
            if data and self._descriptor is None:
                self._open()
            while data and self._descriptor is not None:
                if self._size >= self._half:
                    self._rotate()
                written = os.write(self._descriptor, data[: self._half - self._size])
                self._size += written
                data = data[written:]
        except OSError as trouble:
            self._give_up(trouble)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        self.close()
        self.path.replace(self.path.with_name(self.path.name + ".1"))
        self._open()

    def _give_up(self, trouble: OSError) -> None:
        self.trouble = f"the output could not be kept in {self.path}: {trouble.strerror}"
        log.warning("log file given up", path=str(self.path), trouble=str(trouble))
        self.close()


def end_of_log(path: Path) -> str:
    """Return the end of a local file; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class LogStream:
    """The way to the store: a bounded buffer, filled by one thread and emptied by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, bytearray]] = deque()
        self._size = 0
        self._skipped_bytes = 0

    def write(self, stream: str, data: bytes) -> None:
        """Queue `data`, which came from `stream`."""
        with self._lock:
            for start in range(0, len(data), CHUNK_BYTES):
                self._queue(stream, data[start : start + CHUNK_BYTES])

    def take(self) -> tuple[str, bytes] | None:
        """Remove and return the next chunk to send; None if the buffer is empty."""
        with self._lock:
            if self._skipped_bytes:
                note = _skip_note(self._skipped_bytes)
                self._skipped_bytes = 0
                return "stderr", note
            if not self._waiting:
                return None
            stream, data = self._waiting.popleft()
            self._size -= len(data) + _CHUNK_COST_BYTES
            return stream, bytes(data)

    def has_waiting(self) -> bool:
        """Return whether the buffer has anything to send."""
        return bool(self._waiting) or bool(self._skipped_bytes)

    def put_back(self, stream: str, data: bytes) -> None:
        """Put a chunk that could not be sent back to the front of the buffer."""
        with self._lock:
            self._waiting.appendleft((stream, bytearray(data)))
            self._size += len(data) + _CHUNK_COST_BYTES
            self._drop_excess()

    def waiting(self) -> list[tuple[str, bytes]]:
        """Return the chunks in the buffer without removing them."""
        with self._lock:
            note = [("stderr", _skip_note(self._skipped_bytes))] if self._skipped_bytes else []
            return note + [(stream, bytes(data)) for stream, data in self._waiting]

    def _queue(self, stream: str, part: bytes) -> None:
        last_stream, last = self._waiting[-1] if self._waiting else ("", bytearray())
        if last_stream == stream and len(last) + len(part) <= CHUNK_BYTES:
            last += part
        else:
            self._waiting.append((stream, bytearray(part)))
            self._size += _CHUNK_COST_BYTES
        self._size += len(part)
        self._drop_excess()

    def _drop_excess(self) -> None:
        while self._size > BUFFER_BYTES:
            _, oldest = self._waiting.popleft()
            self._size -= len(oldest) + _CHUNK_COST_BYTES
            self._skipped_bytes += len(oldest)


def _skip_note(count: int) -> bytes:
    return f"\n[batchq: {count} bytes of output left out here]\n".encode()


class PodLog:
    """The destinations of one attempt's output: the file, and the stream."""

    def __init__(self, file: LogFile, stream: LogStream) -> None:
        self._file = file
        self._stream = stream
        self._has_noted_trouble = False

    @property
    def trouble(self) -> str:
        """What went wrong with the file, for the pod's message; empty if nothing did."""
        return self._file.trouble

    def write(self, stream: str, data: bytes) -> None:
        """Keep what the pod wrote to `stream` (`stdout` or `stderr`)."""
        self._file.write(data)
        self._stream.write(stream, data)
        if self._file.trouble and not self._has_noted_trouble:
            self._has_noted_trouble = True
            self._stream.write("stderr", f"[batchq: {self.trouble}]\n".encode())

    def close(self) -> None:
        """Close the file after the last write."""
        self._file.close()


#: Output and its stream, in the order in which it is to be sent.
Chunks = Sequence[tuple[str, bytes]]


def keep_unsent(path: Path, chunks: Chunks) -> None:
    """Replace the stored chunks; no chunks remove the file. A full disk is only logged."""
    try:
        if not chunks:
            path.unlink(missing_ok=True)
            return
        draft = path.with_suffix(".unsent-draft")
        draft.write_bytes(msgspec.msgpack.encode(chunks))
        draft.replace(path)
    except OSError as trouble:
        log.warning("unsent output not kept", path=str(path), trouble=str(trouble))


def read_unsent(path: Path) -> Chunks:
    """Return the stored chunks; empty if the file is missing or unreadable."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=tuple[tuple[str, bytes], ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as trouble:
        log.warning("unsent output not readable", path=str(path), trouble=str(trouble))
        return ()


def send_unsent(path: Path, send: Callable[[str, bytes], None]) -> None:
    """Send the stored chunks, and keep only those that could not be sent.

    Raise whatever `send` raises.
    """
    left = list(read_unsent(path))
    try:
        while left:
            send(*left[0])
            del left[0]
    finally:
        keep_unsent(path, left)
