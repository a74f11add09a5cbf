"""Connections and their limits: who is at the other end, how many there are, how long they may do
nothing, and how much one caller may ask.

uvicorn times out only idle keep-alive connections. A client that never reads its answer, or that
sends a byte a minute, would occupy its connection for ever. So every connection is checked once a
second, and closed when it has made no progress in either direction for `STALLED_S`. A stream that
waits for its next event makes no progress either, but has nothing to send, so it is kept.

Requests a second, streams at a time and failed attempts are counted in this process, so each of
several API processes grants the full amounts.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server

from batchq.http.identities import SocketPeer
from batchq.http.problems import too_many

#: Without progress for this long, a connection with something left to do is cut.
STALLED_S = 30.0
#: From connecting to the last byte of a request's head, and between two requests.
_IDLE_S = 15.0
MOST_CONNECTIONS = 2_000
#: File descriptors for everything else: connections to the server, files, the listening sockets.
_KEPT_DESCRIPTORS = 128
#: The longest request line and headers.
MOST_HEAD_BYTES = 32 * 1024
_MOST_JOINED_BYTES = 64 * 1024

_ENDING = (signal.SIGINT, signal.SIGTERM)

#: The key of the peer in a request's scope; absent for TCP.
PEER = "batchq.peer"


def most_connections() -> int:
    """Return how many connections may be open at a time; raises this process's own bound first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + _KEPT_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, soft - _KEPT_DESCRIPTORS))


class JoinedWrites:
    """A transport that sends what is written in one step of the event loop together: the head and
    the body of an answer would wake its reader twice.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the data at the end of this step."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        # The transport says when its reader is behind, so it must know of large amounts.
        if self._size > _MOST_JOINED_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            data, self._parts, self._size = b"".join(self._parts), [], 0
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, and close the connection."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, and discard what was written."""
        self._parts, self._size = [], 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are not sent yet."""
        return self._size + self._transport.get_write_buffer_size()


class BoundedProtocol(HttpToolsProtocol):
    """One connection, which knows its peer and when it last made progress.

    httptools parses a request in a quarter of the time that h11 takes, but does not bound its head.
    """

    most = MOST_CONNECTIONS
    stalled_s = STALLED_S
    idle_s = _IDLE_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined = cast("asyncio.Transport", JoinedWrites(transport))
        super().connection_made(joined)
        self._progress_at = time.monotonic()
        self._unsent = 0
        #: Bytes that came since the last whole head.
        self._unparsed = 0
        if len(self.connections) > self.most:
            transport.abort()
            return
        peer = peer_of(transport)
        if peer is not None:
            self.app = _with_peer(self.app, peer)

    def data_received(self, data: bytes) -> None:
        # Only whole requests count for a client that has none under way: a byte now and then would
        # keep its place for ever.
        if self._is_busy:
            self._progress_at = time.monotonic()
        self._unparsed += len(data)
        super().data_received(data)
        if self._is_busy:
            self._progress_at = time.monotonic()
            self._unparsed = 0
        elif self._unparsed > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MOST_HEAD_BYTES:
            # The parser passes it on as an invalid request.
            raise ValueError("the head of the request is too large")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._progress_at = time.monotonic()
        super().on_response_complete()

    @property
    def _is_busy(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def cut_if_stalled(self, now: float) -> None:
        """Cut the connection if it makes no progress."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._progress_at = unsent, now
            return
        if self._is_busy:
            is_due = unsent > 0 or self.cycle.more_body
            if is_due and now - self._progress_at > self.stalled_s:
                self.transport.abort()
            elif not is_due:
                self._progress_at = now
        elif now - self._progress_at > (self.stalled_s if unsent else self.idle_s):
            self.transport.abort()


def peer_of(transport: asyncio.BaseTransport) -> SocketPeer | None:
    """Return the process that connected to a unix socket; None if it is not known."""
    connection: Any = transport.get_extra_info("socket")
    if sys.platform != "linux" or connection is None or connection.family != socket.AF_UNIX:
        return None
    form = "3i"
    stored = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    pid, uid, _ = struct.unpack(form, stored)
    return SocketPeer(uid=uid, pid=pid)


def _with_peer(app: Any, peer: SocketPeer) -> ASGIApp:
    async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = peer
        await app(scope, receive, send)

    return with_peer


class BoundedServer(Server):
    """Serves on sockets that are open already, each with TLS or without."""

    def __init__(
        self,
        config: Config,
        listening: Sequence[tuple[socket.socket, bool]],
        *,
        most_connections: int = MOST_CONNECTIONS,
        before_shutdown: Callable[[], None],
    ) -> None:
        """`listening`: the sockets, and whether the configured TLS is spoken on them."""
        super().__init__(config)
        self._most_connections = most_connections
        self._before_shutdown = before_shutdown
        self._listening = listening
        self._watchman: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        for listening, secured in self._listening:
            server = await loop.create_server(
                self._protocol,
                sock=listening,
                ssl=self.config.ssl if secured else None,
                backlog=self.config.backlog,
            )
            self.servers.append(server)
        self._watchman = loop.create_task(self._cut_stalled())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and wait for the answers under way, for a bounded time."""
        self._before_shutdown()
        await super().shutdown(sockets)
        if self._watchman is not None:
            self._watchman.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGINT and SIGTERM, with the exit code of a process that ends as it should."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _ENDING}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _protocol(self) -> BoundedProtocol:
        protocol = BoundedProtocol(self.config, self.server_state, self.lifespan.state)
        protocol.most = self._most_connections
        return protocol

    async def _cut_stalled(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.cut_if_stalled(now)


Stream: TypeAlias = Literal["watches", "logs", "commands"]

#: Streams that one user may have open at a time.
MOST_STREAMS: dict[Stream, int] = {"watches": 100, "logs": 10, "commands": 40}
#: Logs and the output of commands are read by threads, which are fewer than users.
MOST_OF_ALL: dict[Stream, int] = {"logs": 64, "commands": 128}
#: Callers remembered at a time; the one that asked least recently is forgotten first, and has its
#: whole allowance again.
MOST_REMEMBERED = 10_000


class Rate(NamedTuple):
    """An allowance that grows by `per_s` up to `burst`."""

    per_s: float
    burst: float


#: A loop of one client sends some hundred requests a second; see `TurnsByUser` for the share that a
#: user may have of the API.
READS = Rate(per_s=200.0, burst=1_000.0)
WRITES = Rate(per_s=200.0, burst=1_000.0)
#: Unknown tokens from one address. Tokens cannot be guessed; this bounds the cost of attempts.
FAILURES = Rate(per_s=0.2, burst=20.0)


#: Refusals of one user that are recorded in the audit trail; more are not.
REFUSALS = Rate(per_s=1 / 6, burst=10.0)


class TokenBuckets:
    """Allowances by caller. Used by one thread."""

    def __init__(self, rate: Rate, *, clock: Callable[[], float] = monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Take one request from an allowance and return 0; or return how long until it suffices."""
        now = self._clock()
        left, since = self._left.pop(caller, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - since) * self._rate.per_s)
        missing = 1.0 - left
        self._left[caller] = (left if missing > 0 else left - 1.0, now)
        if len(self._left) > MOST_REMEMBERED:
            self._left.popitem(last=False)
        return max(0.0, missing / self._rate.per_s)

    def take(self, caller: str, what: str) -> None:
        """Take one from an allowance. Raises ApiProblem with the time to wait."""
        wait_s = self.wait_s(caller)
        if wait_s > 0:
            raise too_many(
                f"{caller} has sent more than {self._rate.per_s:g} {what} a second for a while",
                retry_s=wait_s,
            )


class StreamPlaces:
    """Counts open streams by user. Used by one thread."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Stream], int] = {}

    @contextmanager
    def place(self, user: str, stream: Stream) -> Iterator[None]:
        """Hold a place for a stream. Raises ApiProblem if there is none left."""
        count = self._open.get((user, stream), 0)
        if count >= MOST_STREAMS[stream]:
            raise too_many(
                f"user {user} has {count} {stream} open, which is the most there may be",
                retry_s=10,
            )
        most = MOST_OF_ALL.get(stream)
        if most is not None and self._count(stream) >= most:
            raise too_many(f"all {most} places for readers of {stream} are taken", retry_s=5)
        self._open[user, stream] = count + 1
        try:
            yield
        finally:
            left = self._open[user, stream] - 1
            if left:
                self._open[user, stream] = left
            else:
                del self._open[user, stream]

    def _count(self, wanted: Stream) -> int:
        return sum(count for (_, stream), count in self._open.items() if stream == wanted)


#: Explanations run a session of the scheduler, which takes a processor for up to seconds.
MOST_EXPLANATIONS, MOST_EXPLANATIONS_WAITING = 2, 16
#: Calls of one user that run at a time, so that others have threads left; and those that wait.
MOST_CALLS, MOST_CALLS_WAITING = 6, 128


class Turns:
    """Lets a few run at a time, and a few more wait. Used by one thread."""

    def __init__(self, running: int, waiting: int, what: str) -> None:
        """`what` is said to those that may not even wait."""
        self._free = asyncio.Semaphore(running)
        self._most_waiting = waiting
        self._waiting = 0
        self._what = what

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and something could run."""
        return not self._waiting and not self._free.locked()

    async def __aenter__(self) -> None:
        if self._waiting >= self._most_waiting:
            raise too_many(self._what, retry_s=2)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *error: object) -> None:
        self._free.release()


class TurnsByUser:
    """Turns for the calls of each user."""

    def __init__(self) -> None:
        self._turns: dict[str, Turns] = {}

    def of(self, user: str) -> Turns:
        """Return the turns of a user."""
        if len(self._turns) >= MOST_REMEMBERED:
            self._turns = {name: one for name, one in self._turns.items() if not one.is_idle}
        if user not in self._turns:
            what = f"user {user} has too many calls under way"
            self._turns[user] = Turns(MOST_CALLS, MOST_CALLS_WAITING, what)
        return self._turns[user]
