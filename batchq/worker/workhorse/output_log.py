"""A pod's output: all of it in a bounded local file, and a bounded part of it in the store.

The file holds the newest output. At half its limit it is renamed to `<file>.1`, replacing the
former one, and a new file is started; so at least half the limit is always kept.

The stream to the store is batched and slower than a flood of output. The oldest data that does not
fit into the buffer is left out, and a line in the stream says how much. Neither a full disk nor an
unavailable server stops a pod: the former is reported once, the latter is waited out.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

log = structlog.get_logger(__name__)

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


def keep(path: Path, chunks: Chunks) -> None:
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


def kept(path: Path) -> Chunks:
    """Return the stored chunks; empty if the file is missing or unreadable."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=tuple[tuple[str, bytes], ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as trouble:
        log.warning("unsent output not readable", path=str(path), trouble=str(trouble))
        return ()


def send_kept(path: Path, send: Callable[[str, bytes], None]) -> None:
    """Send the stored chunks, and keep only those that could not be sent.

    Raise whatever `send` raises.
    """
    left = list(kept(path))
    try:
        while left:
            send(*left[0])
            del left[0]
    finally:
        keep(path, left)
