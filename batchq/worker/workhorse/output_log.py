"""A pod's output: all of it in a bounded local file, and as much as is wise in the store.

The file holds the newest output: it is written up to half its limit, then renamed to `<file>.1`
in place of the one before, and begun anew. So between half the limit and all of it is there.

The stream to the store is batched, and slower than a flood: what does not fit into the buffer is
left out, oldest first, and a line in the stream says how much. Neither a full disk nor a server
that is away stops a pod: the first is told once, the second is waited out.
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
#: The store keeps no more than this of an attempt, so nothing is gained by a larger buffer.
BUFFER_BYTES = 1 << 20
#: What a chunk costs beside its data: a pod that writes single bytes to its two streams in turns
#: would otherwise fill the memory a hundred times over.
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
        """Keep `data`; after the first failure of the disk nothing more is tried.

        A pod that says nothing has no file.
        """
        if self.trouble:
            return
        try:
            if data and self._descriptor is None:
                self._open()
            while data and self._descriptor is not None:
                if self._size >= self._half:
                    self._turn_over()
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

    def _turn_over(self) -> None:
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
        self._left_out = 0

    def write(self, stream: str, data: bytes) -> None:
        """Queue `data`, which came from `stream`."""
        with self._lock:
            for start in range(0, len(data), CHUNK_BYTES):
                self._queue(stream, data[start : start + CHUNK_BYTES])

    def take(self) -> tuple[str, bytes] | None:
        """The next chunk to send, out of the buffer for good; None if nothing waits."""
        with self._lock:
            if self._left_out:
                note = _left_out(self._left_out)
                self._left_out = 0
                return "stderr", note
            if not self._waiting:
                return None
            stream, data = self._waiting.popleft()
            self._size -= len(data) + _CHUNK_COST_BYTES
            return stream, bytes(data)

    def put_back(self, stream: str, data: bytes) -> None:
        """What could not be sent is the first to be sent again."""
        with self._lock:
            self._waiting.appendleft((stream, bytearray(data)))
            self._size += len(data) + _CHUNK_COST_BYTES
            self._bound()

    def waiting(self) -> list[tuple[str, bytes]]:
        """What would be taken now, chunk by chunk; it stays."""
        with self._lock:
            note = [("stderr", _left_out(self._left_out))] if self._left_out else []
            return note + [(stream, bytes(data)) for stream, data in self._waiting]

    def _queue(self, stream: str, part: bytes) -> None:
        last_stream, last = self._waiting[-1] if self._waiting else ("", bytearray())
        if last_stream == stream and len(last) + len(part) <= CHUNK_BYTES:
            last += part
        else:
            self._waiting.append((stream, bytearray(part)))
            self._size += _CHUNK_COST_BYTES
        self._size += len(part)
        self._bound()

    def _bound(self) -> None:
        while self._size > BUFFER_BYTES:
            _, oldest = self._waiting.popleft()
            self._size -= len(oldest) + _CHUNK_COST_BYTES
            self._left_out += len(oldest)


def _left_out(count: int) -> bytes:
    return f"\n[batchq: {count} bytes of output left out here]\n".encode()


class PodLog:
    """Where the output of one pod attempt goes: the file, and the stream."""

    def __init__(self, file: LogFile, stream: LogStream) -> None:
        self._file = file
        self._stream = stream
        self._told = False

    @property
    def trouble(self) -> str:
        """What went wrong with the file, for the pod's message; empty if nothing did."""
        return self._file.trouble

    def write(self, stream: str, data: bytes) -> None:
        """Keep what the pod wrote to `stream` (`stdout` or `stderr`)."""
        self._file.write(data)
        self._stream.write(stream, data)
        if self._file.trouble and not self._told:
            self._told = True
            self._stream.write("stderr", f"[batchq: {self.trouble}]\n".encode())

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


#: What was written to which stream, in the order in which it is to be sent.
Chunks = Sequence[tuple[str, bytes]]


def keep(path: Path, chunks: Chunks) -> None:
    """Replace what is kept; nothing to keep is no file. A full disk is told in the log."""
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
    """What is kept; nothing where there is no file, or none that can be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=tuple[tuple[str, bytes], ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as trouble:
        log.warning("unsent output not readable", path=str(path), trouble=str(trouble))
        return ()


def send_kept(path: Path, send: Callable[[str, bytes], None]) -> None:
    """Send what is kept, and keep no more of it than could not be sent.

    Raises whatever `send` raises.
    """
    left = list(kept(path))
    try:
        while left:
            send(*left[0])
            del left[0]
    finally:
        keep(path, left)
