"""A small HTTP service: `/metrics`, `/livez` and `/readyz`, GET only, and nothing else.

On loopback unless an address says otherwise, without passwords: who may connect may read. A few
connections at a time, none for longer than some seconds, so that nobody can use it up for long
by asking and not listening.
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

import structlog
from msgspec import Struct
from prometheus_client.exposition import choose_encoder

from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.daemon.loop import HANGS_AFTER_PERIODS, Loop, Turn, TurnReport
from batchq.daemon.observability.metrics import Metrics
from batchq.daemon.services import PATIENCE_S, ThreadService
from batchq.errors import InvalidInput
from batchq.scheduler.cycle import CycleReport
from batchq.scheduler.scheduler import Scheduler
from batchq.store.outage import Outage

_log = structlog.get_logger()

LOOPBACK = "127.0.0.1"
#: Connections answered at the same time; more wait, or are refused by the kernel.
MOST_AT_ONCE = 8
_BACKLOG = 16
#: A whole request, from connecting to the last byte read.
LONGEST_REQUEST_S = 10.0
#: How often the service looks up from waiting, and so how long a stop may have to wait.
_LOOK_EVERY_S = 0.25
PLAIN = "text/plain; charset=utf-8"


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """What is sent for a path."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


#: Path -> what answers it, from the value of the request's Accept header.
Pages = Mapping[str, Callable[[str], HttpAnswer]]


class Address(NamedTuple):
    """Where to listen; port 0 leaves the choice to the kernel."""

    host: str
    port: int


def parse_address(text: str) -> Address:
    """`[HOST:]PORT`; an IPv6 address stands in brackets. Raises InvalidInput."""
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
    """A socket that listens there. Raises InvalidInput where that is not possible."""
    try:
        [(family, *_, place), *_] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.create_server(place, family=family, backlog=_BACKLOG)
    except OSError as error:
        # `create_server` repeats the address in its words.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise InvalidInput(
            f"cannot serve metrics on {_shown(address)}: {why}",
            hint="choose another --metrics [HOST:]PORT; port 0 takes a free one",
        ) from error
    listening.settimeout(_LOOK_EVERY_S)
    return listening


def check_address(text: str) -> None:
    """Raises InvalidInput if nobody can listen there now: before others are started who are to."""
    listen(parse_address(text)).close()


def _shown(address: Address) -> str:
    return f"[{address.host}]:{address.port}" if ":" in address.host else "{}:{}".format(*address)


class Listener:
    """A service that answers the pages' paths on a socket that listens already, and owns it."""

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
        # Guards what is open; never held while anything is sent or read.
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._open: dict[socket.socket, float] = {}
        self._threads: set[threading.Thread] = set()
        self._service = ThreadService(self.name, self._serve, patience_s=patience_s)
        host, port = listening.getsockname()[:2]
        self.url = f"http://{_shown(Address(host, port))}"

    @property
    def alive(self) -> bool:
        """Whether anything of it runs."""
        return self._service.alive or bool(self._threads)

    def start(self) -> None:
        """Begin to answer."""
        self._service.start()
        _log.info("metrics.served", url=f"{self.url}/metrics")

    def stop(self) -> None:
        """Stop answering; whoever is being answered is cut off."""
        self._service.stop()
        self._listening.close()
        with self._room:
            self._cut(-1.0)
            self._room.wait_for(lambda: not self._threads, self._patience_s)

    def _serve(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            with self._room:
                self._cut(self._longest_s)
                if not self._room.wait_for(lambda: len(self._open) < MOST_AT_ONCE, _LOOK_EVERY_S):
                    continue
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as error:
                # Gone again before it was taken; or no file is left to be opened for a moment.
                _log.warning("metrics.not_accepted", error=str(error))
                stopping.wait(_LOOK_EVERY_S)
                continue
            self._answer_apart(connection)

    def _cut(self, longest_s: float) -> None:
        """End the connections that are older; with the lock held."""
        now = time.monotonic()
        for connection, since in self._open.items():
            if now - since > longest_s:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _answer_apart(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._answer, args=(connection,), name="answer")
        with self._room:
            self._open[connection] = time.monotonic()
            self._threads.add(thread)
        thread.start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(self._longest_s)
            _Request(connection, self._pages)
        except OSError:
            # Whoever asked has gone, or took too long.
            pass
        finally:
            with self._room:
                del self._open[connection]
                connection.close()
                self._threads.discard(threading.current_thread())
                self._room.notify_all()


class _Request(BaseHTTPRequestHandler):
    """One request; made, it has been answered."""

    server_version = "batchq"
    sys_version = ""
    error_message_format = "%(message)s\n"
    error_content_type = PLAIN

    def __init__(self, connection: socket.socket, pages: Pages) -> None:
        self._pages = pages
        # The server that the base class is given is of no use to what is used of it here.
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
        """Answer a page, or that there is none."""
        page = self._pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND, f"there are {', '.join(sorted(self._pages))}")
            return
        answer = page(self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """What strangers ask for is nothing for the log."""


#: So long nothing of the loop may move. A leader that hangs for as long lets its lease run out.
UNFIT_AFTER_PERIODS = 6 * HANGS_AFTER_PERIODS
#: A loop backs off from a server that is away, and turns again before these are over.
_LEAST_STILL_S = 15.0
#: A turn that ended well is recent for so long.
_RECENT_PERIODS = HANGS_AFTER_PERIODS
_LEAST_RECENT_S = 10.0
#: Who has waited for an answer for so long may wait for more.
_SLOW_STORE_S = 3.0


class Health:
    """Answers are "" for yes, or why not, in a sentence. Any thread may ask.

    `ending` says whether this process is to end.
    """

    def __init__(self, *, ending: Callable[[], bool]) -> None:
        self._ending = ending
        # Set once each, what depends on another after it: a question sees all or nothing.
        self._outage: Outage | None = None
        self._loop: Loop | None = None
        self._turned_at: float | None = None

    def watching(self, turn: Turn) -> Turn:
        """The same turn, whose good ends are noted."""

        def watched() -> TurnReport:
            report = turn()
            self._turned_at = time.monotonic()
            return report

        return watched

    def follow(self, loop: Loop, outage: Outage) -> None:
        """From now on, judge by these."""
        self._outage, self._loop = outage, loop

    def why_not_live(self) -> str:
        """Why this process should be started anew."""
        loop = self._loop
        if loop is None or self._ending():
            return ""
        still_s = loop.standing_still_s()
        if still_s > max(UNFIT_AFTER_PERIODS * loop.period_s, _LEAST_STILL_S):
            return f"nothing has moved in the session thread for {still_s:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        """Why nothing is decided here, nor would be if the leader died."""
        if self._ending():
            return "the scheduler is ending"
        loop, outage = self._loop, self._outage
        if loop is None or outage is None:
            return "waits for the server"
        if outage.unavailable:
            return f"the server has not answered for {outage.lasts_s():.0f} s"
        if (waiting_s := loop.waiting_for_store_s()) > _SLOW_STORE_S:
            return f"the server has not answered for {waiting_s:.0f} s"
        if self._turned_at is None:
            return "no session has ended yet"
        since_s = time.monotonic() - self._turned_at
        if since_s > max(_RECENT_PERIODS * loop.period_s, _LEAST_RECENT_S):
            return f"no session has ended well for {since_s:.0f} s"
        return ""


#: So many groups have their reasons written in one session. Each takes about a tenth of a
#: millisecond, and what comes in meanwhile and could start waits for the session to end.
WRITTEN_A_SESSION = 1_000


class MetricsServer:
    """Metrics, health, and the service that tells of both; a service itself.

    `address` is `[HOST:]PORT`, or None. Raises InvalidInput if nothing can listen there: the
    socket is open, and answers once it is started.
    """

    name = "lookout"

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

    # --- the service ---------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether anything of it runs."""
        return self.listener is not None and self.listener.alive

    def start(self) -> None:
        """Begin to answer."""
        if self.listener is not None:
            self.listener.start()

    def stop(self) -> None:
        """Stop answering."""
        if self.listener is not None:
            self.listener.stop()

    # --- what the daemon is put together with --------------------------------------------------

    def assemble(self, config: SchedulerConfig) -> Scheduler:
        """The scheduler that `config` describes, with a stopwatch if anybody looks at one."""
        scheduler = dataclasses.replace(assemble(config), most_written=WRITTEN_A_SESSION)
        if self.metrics is None:
            return scheduler
        return dataclasses.replace(scheduler, instrument=self.metrics.stopwatch)

    def reloaded(self, ok: bool) -> None:
        """A configuration was read anew; `ok`: it is right."""
        if self.metrics is not None:
            self.metrics.reloaded(ok)

    def observed(self, report: CycleReport) -> None:
        """A session is over, and committed; from the deciding thread."""
        if self.metrics is not None:
            self.metrics.observed(report)

    def watching(self, turn: Turn) -> Turn:
        """The same turn, with its ends noted."""
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
        """From now on, tell of these."""
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
