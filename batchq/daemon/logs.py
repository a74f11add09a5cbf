"""Logging of batchq's processes: structured lines on stderr, in UTC, that never stop the process.

Lines are for people on a terminal and `key=value` elsewhere; BATCHQ_LOG=json makes them JSON, and
BATCHQ_LOG_LEVEL sets the lowest level. A line that cannot be written (a full disk) is counted, and
the count is logged as soon as writing works again.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from batchq.errors import InvalidInput, printable
from batchq.system import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

FORMAT_VARIABLE = "BATCHQ_LOG"
LEVEL_VARIABLE = "BATCHQ_LOG_LEVEL"

_LEVELS = ("debug", "info", "warning", "error")
_FORMATS = ("console", "logfmt", "json")

#: Libraries whose lines repeat at length what batchq logs once.
_QUIET = ("apscheduler", "rq.worker", "redis")


class LossyStream:
    """Writes lines to a stream, and counts those it cannot write instead of raising.

    Thread-safe.
    """

    def __init__(self, stream: TextIO, *, environ: Mapping[str, str] = os.environ) -> None:
        self._stream = stream
        # Write past Python's buffer: after a full disk, the rest of the buffer would make the
        # interpreter's exit fail with an exit code of its own.
        self._descriptor = _descriptor_of(stream)
        self._file = own_file(self._descriptor, environ)
        self._lock = threading.Lock()
        self.lost = 0

    def write(self, line: str) -> None:
        """Write one line."""
        with self._lock:
            if self.lost:
                line = f"event=log.lost lines={self.lost}\n{line}"
            try:
                self._put(line + "\n")
            except OSError:
                self.lost += 1
            else:
                self.lost = 0

    def _put(self, text: str) -> None:
        if self._descriptor is None:
            self._stream.write(text)
            return
        data = text.encode(errors="backslashreplace")
        if self._file is not None:
            self._file.bound()
        while data:
            data = data[os.write(self._descriptor, data) :]

    # The method names that structlog calls.
    msg = debug = info = warning = warn = error = err = critical = fatal = exception = log = write


class _Bridge(logging.Handler):
    """Passes on the lines of libraries that use the standard library's logging."""

    def __init__(self, stream: LossyStream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        self._stream.write(self.format(record))


def configure(
    *, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ
) -> LossyStream:
    """Set up logging for this process; call it once, before the first line.

    Raises InvalidInput if the environment asks for an unknown format or level.
    """
    # A process started with stderr closed has none; its lines are dropped.
    target = stream or sys.stderr or io.StringIO()
    on_terminal = target.isatty()
    form = _choice(environ, FORMAT_VARIABLE, _FORMATS, "console" if on_terminal else "logfmt")
    level = getattr(logging, _choice(environ, LEVEL_VARIABLE, _LEVELS, "info").upper())
    output = LossyStream(target, environ=environ)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if on_terminal:
        shared.append(_escaped)
    renderer = _renderer(form, colors=on_terminal and "NO_COLOR" not in environ)
    traceback_formatter: list[Processor] = (
        [] if form == "console" else [structlog.processors.format_exc_info]
    )
    structlog.configure(
        processors=[*shared, *traceback_formatter, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: output,
        # A cached logger would not see a later configuration.
        cache_logger_on_first_use=False,
    )
    bridge = _Bridge(output)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *traceback_formatter,
                renderer,
            ],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [bridge]
    root.setLevel(max(level, logging.WARNING))
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return output


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


def _escaped(_: object, __: str, event: EventDict) -> EventDict:
    """Escape control characters in names and messages, which others may have chosen."""
    return {
        key: printable(value) if isinstance(value, str) else value for key, value in event.items()
    }


def _choice(environ: Mapping[str, str], name: str, known: tuple[str, ...], default: str) -> str:
    found = environ.get(name, "") or default
    if found.lower() not in known:
        raise InvalidInput(f"{name} is {found!r}, expected one of {', '.join(known)}")
    return found.lower()


def _renderer(form: str, *, colors: bool) -> Processor:
    match form:
        case "json":
            return structlog.processors.JSONRenderer()
        case "console":
            return structlog.dev.ConsoleRenderer(colors=colors)
        case _:
            order = ["timestamp", "level", "event"]
            return structlog.processors.LogfmtRenderer(key_order=order, bool_as_flag=False)


LARGEST_LOG_BYTES = 16 * 1024 * 1024
#: Names the log file that a process was started with; other files are not ours to truncate.
FILE_VARIABLE = "BATCHQ_LOG_FILE"


class OwnFile:
    """A log file, and the descriptor by which this process writes to it."""

    def __init__(
        self, path: Path, descriptor: int, *, largest_bytes: int = LARGEST_LOG_BYTES
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._largest_bytes = largest_bytes

    def bound(self) -> None:
        """Move the content to `<path>.1` if it is too large. Raises OSError."""
        if not self._is_too_large():
            return
        backup = os.open(f"{self._path}.1", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(backup, "r+b") as copy:
            try:
                fcntl.lockf(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            # A former holder of the lock may have moved it already.
            if self._is_too_large():
                copy.truncate(0)
                with self._path.open("rb") as content:
                    shutil.copyfileobj(content, copy)
                os.ftruncate(self._descriptor, 0)

    def _is_too_large(self) -> bool:
        return os.fstat(self._descriptor).st_size > self._largest_bytes


def own_file(descriptor: int | None, environ: Mapping[str, str]) -> OwnFile | None:
    """Return the file that `environ` names, if the descriptor refers to it."""
    named = environ.get(FILE_VARIABLE, "")
    if descriptor is None or not named:
        return None
    try:
        is_the_same = os.path.samestat(Path(named).stat(), os.fstat(descriptor))
    except OSError:
        return None
    return OwnFile(Path(named), descriptor) if is_the_same else None
