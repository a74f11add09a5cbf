"""A small HTTP service: `/metrics`, `/livez` and `/readyz`, GET only, and nothing else.

On loopback unless an address says otherwise, without passwords: who may connect may read. A few
connections at a time, none for longer than some seconds, so that nobody can use it up for long
by asking and not listening.
"""

from __future__ import annotations

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

from batchq.daemon.service import PATIENCE_S, ThreadService
from batchq.errors import InvalidInput

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


class Answer(Struct, frozen=True, kw_only=True):
    """What is sent for a path."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


#: Path -> what answers it, from the value of the request's Accept header.
Pages = Mapping[str, Callable[[str], Answer]]


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
