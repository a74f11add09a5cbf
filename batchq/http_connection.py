"""HTTP/1.1 on one connection: requests with whole bodies, and their answers.

The standard library's `http.client` would take a third of the time that `batchq jobs` runs: most of
that is its parser of e-mail, which it uses for the head of each answer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

_PART_BYTES = 64 * 1024
_MOST_HEAD_BYTES = 64 * 1024
#: The longest line before a chunk.
_MOST_LINE_BYTES = 1024
_WITH_BODY = ("POST", "PUT", "PATCH")
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0")
_FIRST_FINAL, _NO_CONTENT, _NOT_MODIFIED = 200, 204, 304
_DIGITS_OF_STATUS = 3
_DIGITS, _HEX_DIGITS = frozenset(b"0123456789"), frozenset(b"0123456789abcdefABCDEF")
#: The digits of the longest length that is believed.
_MOST_DIGITS = 15
_CUT = "the connection was cut"
_NO_HTTP = "it does not speak HTTP"


class HttpError(OSError):
    """The other side closed the connection too early, or does not speak HTTP."""


class HttpAnswer:
    """An answer: its status and headers; its body is still to be read.

    The names of headers are in lower case. Of one that comes twice, the last one counts.
    """

    def __init__(self, source: _Source, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._source = source
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        #: What is left of the body or, of a chunked one, of the chunk; None: up to the end.
        self._left = None if self._is_chunked else _length(status, headers)
        self._is_last_chunk = False
        self._is_read = self._left == 0

    @property
    def leaves_open(self) -> bool:
        """Whether it has been read, and its connection can be used for another request."""
        return self._is_read and self.headers.get("connection", "").lower() != "close"

    def part(self) -> bytes:
        """Return the next part of the body; b"" at its end.

        Raises OSError; after a TimeoutError it may be called again.
        """
        if self._is_chunked and not self._left:
            self._begin_chunk()
        if self._is_read:
            return b""
        found = self._source.some(_PART_BYTES if self._left is None else self._left)
        if self._left is None:
            self._is_read = not found
            return found
        if not found:
            raise HttpError(_CUT)
        self._left -= len(found)
        self._is_read = not self._left and not self._is_chunked
        return found

    def body(self, most: int) -> bytes:
        """Return the body; it is not read on after `most` bytes. Raises OSError."""
        parts = []
        while most > 0 and (part := self.part()):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)

    def _begin_chunk(self) -> None:
        if self._left == 0:
            # A chunk ends with an empty line.
            self._source.line()
            self._left = None
        if not self._is_last_chunk:
            digits = self._source.line().partition(b";")[0].strip()
            if not digits or len(digits) > _MOST_DIGITS or not _HEX_DIGITS.issuperset(digits):
                raise HttpError("it sends a chunk without a length")
            self._left = int(digits, 16) or None
            self._is_last_chunk = self._left is None
        while self._is_last_chunk and not self._is_read:
            self._is_read = not self._source.line()


class _Source:
    """What has come from a socket and has not been read yet."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self._rest = b""

    def some(self, most: int) -> bytes:
        """Return some bytes, b"" at the end."""
        if not self._rest:
            return self._connected.recv(min(most, _PART_BYTES))
        found, self._rest = self._rest[:most], self._rest[most:]
        return found

    def up_to(self, mark: bytes, most: int) -> bytes:
        """Return what comes before the mark, which is skipped. Raises HttpError."""
        while True:
            found, seen, rest = self._rest.partition(mark)
            if seen:
                self._rest = rest
                return found
            if len(self._rest) > most:
                raise HttpError(_NO_HTTP)
            data = self._connected.recv(_PART_BYTES)
            if not data:
                raise HttpError(_CUT)
            self._rest += data

    def line(self) -> bytes:
        return self.up_to(b"\r\n", _MOST_LINE_BYTES)


class HttpConnection:
    """A connection, opened at the first request. Belongs to one thread."""

    def __init__(self, host: str, connect: Callable[[], socket.socket]) -> None:
        """`host` is the name in the header Host; `connect` opens a socket, or raises OSError."""
        self._host = host
        self._connect = connect
        self._connected: socket.socket | None = None
        self._source: _Source | None = None

    def exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HttpAnswer:
        """Send a request, and return its answer; that of the former one must have been read.

        Raises OSError, and ValueError for a path or a header that is no single line.
        """
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", "Accept-Encoding: identity"]
        if body is not None or method in _WITH_BODY:
            lines.append(f"Content-Length: {len(body or b'')}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines)
        if not path.isascii() or " " in path or len(head.splitlines()) != len(lines):
            raise ValueError("a path or a header of the request is no single line")
        # Head and body go together: two messages would wake the other side twice.
        return self._sent(head.encode("latin-1") + b"\r\n\r\n" + (body or b""))

    def _sent(self, request: bytes) -> HttpAnswer:
        if self._connected is None or self._source is None:
            self._connected = self._connect()
            self._source = _Source(self._connected)
        try:
            self._connected.sendall(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            # A request may be refused before it was sent whole.
            try:
                return _final_answer(self._source, is_last=True)
            except OSError:
                raise error from None
        return _final_answer(self._source)

    def set_timeout(self, seconds: float) -> None:
        """Let an answer under way take this long for its next bytes."""
        if self._connected is not None:
            self._connected.settimeout(seconds)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connected is not None:
            self._connected.close()
            self._connected = self._source = None


def _final_answer(source: _Source, *, is_last: bool = False) -> HttpAnswer:
    """Return the answer, without others that come before it; `is_last`: the connection ends."""
    while True:
        status, headers = _head(source.up_to(b"\r\n\r\n", _MOST_HEAD_BYTES))
        if status >= _FIRST_FINAL:
            if is_last:
                headers["connection"] = "close"
            return HttpAnswer(source, status, headers)


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of an answer."""
    first, *lines = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    digits = rest[:_DIGITS_OF_STATUS]
    is_status = len(digits) == _DIGITS_OF_STATUS and _DIGITS.issuperset(digits)
    if version not in _VERSIONS or not is_status:
        raise HttpError(_NO_HTTP)
    headers = {"connection": "close"} if version == b"HTTP/1.0" else {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise HttpError(_NO_HTTP)
        headers[name.lower()] = value.strip()
    return int(digits), headers


def _length(status: int, headers: Mapping[str, str]) -> int | None:
    if status in (_NO_CONTENT, _NOT_MODIFIED):
        return 0
    stated = headers.get("content-length")
    if stated is None:
        return None
    if not (stated.isascii() and stated.isdigit() and len(stated) <= _MOST_DIGITS):
        raise HttpError("it states no length")
    return int(stated)


def unix_socket(path: str, timeout_s: float) -> socket.socket:
    """Connect to a unix socket. Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(timeout_s)
    try:
        connected.connect(path)
    except BaseException:  # an interruption, too, would leave it open
        connected.close()
        raise
    return connected


def tcp_socket(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to a port. Raises OSError."""
    connected = socket.create_connection((host, port), timeout=timeout_s)
    with suppress(OSError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
