"""An API for tests: served by a thread, or by `batchq api` itself; requests to its socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import uvicorn.server

from batchq.cli.api import table_of
from batchq.cli.diagnosis import row_of
from batchq.client.access_control import Delegate
from batchq.http.server import ApiServer, ListenAddress, ServeOptions
from tests.harness import fork_server

READY_WITHIN_S = 90.0

# uvicorn looks ten times a second whether it should end, and pauses as long when it does: more than
# most tests take.
uvicorn.server.asyncio = SimpleNamespace(  # type: ignore[attr-defined]
    **{**vars(asyncio), "sleep": lambda delay_s: asyncio.sleep(min(delay_s, 0.01))}
)


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float = 60.0) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Caller:
    """Sends requests: to a socket, or with a token to a port."""

    def __init__(self, path: Path, port: int, token: str = "") -> None:
        self._path, self._port, self._token = path, port, token

    def connection(self, timeout_s: float = 60.0) -> http.client.HTTPConnection:
        """Return a connection through the caller's door."""
        if self._token:
            return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)
        return SocketConnection(self._path, timeout_s)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def __call__(self, method: str, path: str, document: object = None, **headers: str) -> Got:
        connection = self.connection()
        sent = self.headers() | {name.replace("_", "-"): value for name, value in headers.items()}
        body = None
        if document is not None:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Got(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def events(self, path: str, **headers: str) -> Events:
        """Open a stream of Server-Sent Events."""
        connection = self.connection()
        connection.request("GET", path, headers=self.headers() | {"Accept": "text/event-stream"})
        return Events(connection)


class Events:
    """An open stream of Server-Sent Events; a context manager."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.answer = connection.getresponse()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Yield each event: its fields. The iteration ends with the stream."""
        event: dict[str, str] = {}
        for line in self.answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                event[name] = value
            else:
                yield event
                event = {}

    def until(self, type_: str) -> list[dict[str, str]]:
        """Return the events up to the first one of a type."""
        found = []
        for event in self:
            found.append(event)
            if event["event"] == type_:
                return found
        raise AssertionError(f"the stream ended without {type_}: {found}")


class RunningApi:
    """An API in this process, on a socket and on a port of 127.0.0.1; a context manager."""

    def __init__(self, url: str, **options: Any) -> None:
        # Agents of other tests run under this account, too.
        options.setdefault("is_one_account", True)
        self._folder = tempfile.TemporaryDirectory(prefix="bq")
        self.socket = Path(self._folder.name, "api")
        listen = (
            ListenAddress(path=str(self.socket)),
            ListenAddress(host="127.0.0.1", port=0),
        )
        self.server = ApiServer(
            ServeOptions(listen=listen, **options),
            lambda: Delegate(url),
            lambda client, key: row_of(client.why(key)),
            table_of,
        )
        self.port = int(self.server.urls[1].rpartition(":")[2])
        self._thread = threading.Thread(target=self.server.run, daemon=False)

    def __enter__(self) -> RunningApi:
        self._thread.start()
        # Once it answers, it has logged its start, which would be part of a command's output.
        assert self.caller()("GET", "/livez").status == 200
        return self

    def __exit__(self, *error: object) -> None:
        self.server.stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the API did not end"
        self._folder.cleanup()

    def caller(self, token: str = "") -> Caller:
        """Return a caller: through the socket, or with a token through the port."""
        return Caller(self.socket, self.port, token)


class ApiProcess:
    """`batchq api` as a process of its own; a context manager."""

    def __init__(self, url: str, *options: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bq")
        folder = Path(self._folder.name)
        # Other users of the machine may connect, as to a socket in /run.
        folder.chmod(0o755)
        self.socket, self.log = folder / "api", folder / "log"
        self._words = [
            *(sys.executable, "-m", "batchq.cli", "api"),
            *("--listen", f"unix:{self.socket}", "--one-account", *options),
        ]
        # A command whose arguments contain a password starts again without them, as a new
        # interpreter.
        self._environ = {**os.environ, "BATCHQ_REDIS_URL": url}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ApiProcess:
        with self.log.open("wb") as log:
            self.process = fork_server.Process(self._words, env=self._environ, stderr=log)
        pause = threading.Event()
        for _ in range(round(READY_WITHIN_S / 0.02)):
            assert self.process.poll() is None, self.log.read_text()
            if "api.listens" in self.log.read_text():
                return self
            pause.wait(0.02)
        raise AssertionError(f"the API did not start: {self.log.read_text()}")

    def __exit__(self, *error: object) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(90)
        self._folder.cleanup()

    def caller(self) -> Caller:
        """Return a caller through the socket."""
        return Caller(self.socket, 0)
