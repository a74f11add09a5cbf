"""The HTTP server of the metrics: `/metrics`, `/livez` and `/readyz`, GET only.

It listens on loopback unless an address is given, and has no passwords: every client that can
connect can read. It serves a few connections at a time, none for longer than some seconds, so that
a client that sends or reads slowly cannot block it for long.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from msgspec import Struct
from prometheus_client.exposition import choose_encoder

from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.daemon import PATIENCE_S, ThreadService
from batchq.daemon.loop import HANGS_AFTER_PERIODS, Loop, Turn, TurnReport
from batchq.daemon.metrics import Metrics
from batchq.errors import InvalidInput
from batchq.scheduler.cycle import CycleReport, Scheduler
from batchq.store.outage import Outage
from batchq.system import structlog

_log = structlog.get_logger()

LOOPBACK = "127.0.0.1"
#: Connections served at the same time; more wait in the backlog or are refused by the kernel.
MOST_AT_ONCE = 8
_BACKLOG = 16
#: The longest request, from connecting to the last byte read.
LONGEST_REQUEST_S = 10.0
#: The longest single wait for a connection, and so the longest delay of a stop.
_LOOK_EVERY_S = 0.25
PLAIN = "text/plain; charset=utf-8"


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """The response for a path."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


#: Path -> the function that answers it, given the value of the Accept header.
Pages = Mapping[str, Callable[[str], HttpAnswer]]


class Address(NamedTuple):
    """Where to listen; port 0 lets the kernel choose."""

    host: str
    port: int


def parse_address(text: str) -> Address:
    """Parse `[HOST:]PORT`; an IPv6 address is in brackets. Raises InvalidInput."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    if not is_port or (colon and not host) or (":" in host and not text.startswith("[")):
        raise InvalidInput(
            f"expected [HOST:]PORT to serve metrics on, found {text!r}",
            hint="for example 9464, 0.0.0.0:9464, or [::1]:9464; port 0 takes a free one",
        )
    return Address(host or LOOPBACK, int(port))


def listen(address: Address) -> socket.socket:
    """Return a socket that listens there. Raises InvalidInput where that is not possible."""
    try:
        [(family, *_, place), *_] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.create_server(place, family=family, backlog=_BACKLOG)
    except OSError as error:
        # `create_server` appends the address to its message.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise InvalidInput(
            f"cannot serve metrics on {_shown(address)}: {why}",
            hint="choose another --metrics [HOST:]PORT; port 0 takes a free one",
        ) from error
    listening.settimeout(_LOOK_EVERY_S)
    return listening


def check_address(text: str) -> None:
    """Raise InvalidInput if the address cannot be listened on; call it before starting a server."""
    listen(parse_address(text)).close()


def _shown(address: Address) -> str:
    return f"[{address.host}]:{address.port}" if ":" in address.host else "{}:{}".format(*address)


class Listener:
    """A service that answers the paths of `pages` on a listening socket, which it owns."""

    name = "listener"

    def __init__(
        self,
        listening: socket.socket,
        pages: Pages,
        *,
        longest_s: float = LONGEST_REQUEST_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._listening = listening
        self._pages = pages
        self._longest_s = longest_s
        self._patience_s = patience_s
        # Guards `_open` and `_threads`; never held during I/O on a connection.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._open: dict[socket.socket, float] = {}
        self._threads: set[threading.Thread] = set()
        self._service = ThreadService(self.name, self._serve, patience_s=patience_s)
        host, port = listening.getsockname()[:2]
        self.url = f"http://{_shown(Address(host, port))}"

    @property
    def alive(self) -> bool:
        """Whether any of its threads runs."""
        return self._service.alive or bool(self._threads)

    def start(self) -> None:
        """Start answering."""
        self._service.start()
        _log.info("metrics.served", url=f"{self.url}/metrics")

    def stop(self) -> None:
        """Stop answering; open connections are cut off."""
        self._service.stop()
        self._listening.close()
        with self._changed:
            self._cut(-1.0)
            self._changed.wait_for(lambda: not self._threads, self._patience_s)

    def _serve(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            with self._changed:
                self._cut(self._longest_s)
                if not self._changed.wait_for(
                    lambda: len(self._open) < MOST_AT_ONCE, _LOOK_EVERY_S
                ):
                    continue
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as error:
                # The client left before it was accepted, or no file descriptor is free right now.
                _log.warning("metrics.not_accepted", error=str(error))
                stopping.wait(_LOOK_EVERY_S)
                continue
            self._answer_in_thread(connection)

    def _cut(self, longest_s: float) -> None:
        """Shut down connections older than `longest_s`; call with the lock held."""
        now = time.monotonic()
        for connection, since in self._open.items():
            if now - since > longest_s:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _answer_in_thread(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._answer, args=(connection,), name="answer")
        with self._changed:
            self._open[connection] = time.monotonic()
            self._threads.add(thread)
        thread.start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(self._longest_s)
            _Request(connection, self._pages)
        except OSError:
            # The client has gone, or took too long.
            pass
        finally:
            with self._changed:
                del self._open[connection]
                connection.close()
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()


class _Request(BaseHTTPRequestHandler):
    """One request, answered by its constructor."""

    server_version = "batchq"
    sys_version = ""
    error_message_format = "%(message)s\n"
    error_content_type = PLAIN

    def __init__(self, connection: socket.socket, pages: Pages) -> None:
        self._pages = pages
        # The methods of the base class that are used here need no server.
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]  # no server

    def parse_request(self) -> bool:
        """Refuse other methods in the same place as malformed requests."""
        if not super().parse_request():
            return False
        if self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered here")
            return False
        return True

    def do_GET(self) -> None:
        """Answer with a page, or with 404."""
        page = self._pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(
                HTTPStatus.NOT_FOUND, f"expected one of: {', '.join(sorted(self._pages))}"
            )
            return
        answer = page(self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: strangers' requests must not fill the log."""


#: Without progress for this long, the loop is unfit, and a leader lets its lease expire.
UNFIT_AFTER_PERIODS = 6 * HANGS_AFTER_PERIODS
#: At least this long without progress, because a loop backs off from a server that is away.
_LEAST_STILL_S = 15.0
#: How long the last successful turn counts as recent.
_RECENT_PERIODS = HANGS_AFTER_PERIODS
_LEAST_RECENT_S = 10.0
#: A store call that takes longer counts as an outage.
_SLOW_STORE_S = 3.0


class Health:
    """The health of this process; any thread may ask. Answers are "" for yes, or why not.

    `ending` returns whether this process is about to end.
    """

    def __init__(self, *, ending: Callable[[], bool]) -> None:
        self._ending = ending
        # Each is set once, the dependent one last, so that readers see all or none.
        self._outage: Outage | None = None
        self._loop: Loop | None = None
        self._turned_at: float | None = None

    def watching(self, turn: Turn) -> Turn:
        """Return the same turn, which also notes the time of each success."""

        def watched() -> TurnReport:
            report = turn()
            self._turned_at = time.monotonic()
            return report

        return watched

    def follow(self, loop: Loop, outage: Outage) -> None:
        """Judge by this loop and outage from now on."""
        self._outage, self._loop = outage, loop

    def why_not_live(self) -> str:
        """Return why this process should be restarted."""
        loop = self._loop
        if loop is None or self._ending():
            return ""
        still_s = loop.standing_still_s()
        if still_s > max(UNFIT_AFTER_PERIODS * loop.period_s, _LEAST_STILL_S):
            return f"the session thread has made no progress for {still_s:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        """Return why this process neither decides nor would take over from a dead leader."""
        if self._ending():
            return "the scheduler is ending"
        loop, outage = self._loop, self._outage
        if loop is None or outage is None:
            return "waiting for the server"
        if outage.unavailable:
            return f"the server has not answered for {outage.lasts_s():.0f} s"
        if (waiting_s := loop.waiting_for_store_s()) > _SLOW_STORE_S:
            return f"the server has not answered for {waiting_s:.0f} s"
        if self._turned_at is None:
            return "no session has ended yet"
        since_s = time.monotonic() - self._turned_at
        if since_s > max(_RECENT_PERIODS * loop.period_s, _LEAST_RECENT_S):
            return f"no session has succeeded for {since_s:.0f} s"
        return ""


#: How many groups have their reasons written in one session. Each takes about 0.1 ms, and groups
#: that could start meanwhile wait until the session ends.
WRITTEN_A_SESSION = 1_000


class MetricsServer:
    """Metrics, health, and the HTTP server for both; a service itself.

    `address` is `[HOST:]PORT`, or None. Raises InvalidInput if the address cannot be listened on:
    the socket is opened here, and answers once the service is started.
    """

    name = "metrics-server"

    def __init__(
        self,
        address: str | None = None,
        *,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.health = Health(ending=ending)
        self.metrics = None if address is None else Metrics()
        self.listener: Listener | None = None
        if address is not None:
            self.listener = Listener(
                listen(parse_address(address)),
                {
                    "/metrics": self._metrics_page,
                    "/livez": lambda _: _verdict(self.health.why_not_live()),
                    "/readyz": lambda _: _verdict(self.health.why_not_ready()),
                },
            )

    @property
    def alive(self) -> bool:
        """Whether the listener runs."""
        return self.listener is not None and self.listener.alive

    def start(self) -> None:
        """Start answering."""
        if self.listener is not None:
            self.listener.start()

    def stop(self) -> None:
        """Stop answering."""
        if self.listener is not None:
            self.listener.stop()

    def assemble(self, config: SchedulerConfig) -> Scheduler:
        """Return the scheduler for `config`, with a stopwatch if metrics are served."""
        scheduler = dataclasses.replace(assemble(config), most_written=WRITTEN_A_SESSION)
        if self.metrics is None:
            return scheduler
        return dataclasses.replace(scheduler, instrument=self.metrics.stopwatch)

    def reloaded(self, ok: bool) -> None:
        """Count a reload of the configuration; `ok`: it was valid."""
        if self.metrics is not None:
            self.metrics.reloaded(ok)

    def observed(self, report: CycleReport) -> None:
        """Observe a committed session; call from the session thread."""
        if self.metrics is not None:
            self.metrics.observed(report)

    def watching(self, turn: Turn) -> Turn:
        """Return the same turn, with its outcomes observed."""
        if self.metrics is None:
            return turn
        return self.health.watching(self.metrics.watching(turn))

    def follow(
        self,
        *,
        loop: Loop,
        outage: Outage,
        epoch: Callable[[], int | None],
        revision: Callable[[], int | None],
        config_hash: Callable[[], str],
        unreadable: Callable[[], Mapping[str, int]],
        mended: Callable[[], int],
    ) -> None:
        """Export these from now on."""
        self.health.follow(loop, outage)
        if self.metrics is not None:
            self.metrics.follow(
                epoch=epoch,
                revision=revision,
                config_hash=config_hash,
                unreadable=unreadable,
                mended=mended,
                outage=outage,
            )

    def _metrics_page(self, accept: str) -> HttpAnswer:
        assert self.metrics is not None
        encode, content_type = choose_encoder(accept)
        body = encode(self.metrics.registry)
        return HttpAnswer(status=HTTPStatus.OK, body=body, content_type=content_type)


def _verdict(why_not: str) -> HttpAnswer:
    if why_not:
        return HttpAnswer(status=HTTPStatus.SERVICE_UNAVAILABLE, body=f"{why_not}\n".encode())
    return HttpAnswer(status=HTTPStatus.OK, body=b"ok\n")
