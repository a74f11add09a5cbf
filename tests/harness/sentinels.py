"""A primary, its replica and three sentinels, for tests of failovers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.harness.server import READY_WITHIN_S, server_binary

SERVICE = "the-primary"
#: A server that is silent for this long is taken for dead.
DOWN_AFTER_MS = 500
_QUORUM = 2


class ReplicatedServer:
    """A primary, its replica and their sentinels on ports of 127.0.0.1; a context manager."""

    def __init__(
        self,
        *,
        password: str = "",
        sentinel_password: str = "",
        down_after_ms: int = DOWN_AFTER_MS,
    ) -> None:
        """`down_after_ms`: how long a server may be silent before another one is chosen."""
        self.folder = Path(tempfile.mkdtemp(prefix="bq"))
        self._password = password
        self._sentinel_password = sentinel_password
        self._down_after_ms = down_after_ms
        self._reserved: list[socket.socket] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = [self._port() for _ in range(2)]
        self.sentinels = [self._port() for _ in range(3)]

    @property
    def url(self) -> str:
        """The URL with which batchq finds the primary."""
        return self.url_of(SERVICE)

    def url_of(self, service: str) -> str:
        """Return the URL with the same sentinels and another service name."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        user = f":{self._password}@" if self._password else ""
        asked = f"?sentinel_password={self._sentinel_password}" if self._sentinel_password else ""
        return f"redis+sentinel://{user}{hosts}/{service}/0{asked}"

    def __enter__(self) -> ReplicatedServer:
        primary, replica = self.servers
        self.start_server(primary)
        self.start_server(replica, "--replicaof", "127.0.0.1", str(primary))
        self._until(lambda: self._field(replica, "master_link_status") == "up")
        for port in self.sentinels:
            self._start_sentinel(port, primary)
        for port in self.sentinels:
            self._until(lambda port=port: self._sees_all(port))  # type: ignore[misc]
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        for held in self._reserved:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def primary(self) -> int:
        """Return the port of the server that most sentinels name as the primary."""
        named = [self._state(port)["port"] for port in self.sentinels if port in self._processes]
        return max(named, key=named.count)

    def raw(self, port: int) -> redis.Redis:
        """Return a plain client of one server or sentinel; the caller closes it."""
        password = self._sentinel_password if port in self.sentinels else self._password
        return redis.Redis(
            port=port, password=password or None, socket_timeout=20, retry=Retry(NoBackoff(), 0)
        )

    def kill(self, port: int) -> None:
        """`kill -9` the process on that port."""
        process = self._processes.pop(port)
        process.kill()
        process.wait()

    def pause(self, port: int) -> None:
        """Send SIGSTOP."""
        os.kill(self._processes[port].pid, signal.SIGSTOP)

    def resume(self, port: int) -> None:
        """Send SIGCONT."""
        os.kill(self._processes[port].pid, signal.SIGCONT)

    def await_failover(self, before: int, *, within_s: float = 60.0) -> int:
        """Wait until most sentinels name another primary than `before`, and that one takes
        writes.
        """
        self._until(lambda: self.primary() != before, within_s=within_s)
        port = self.primary()
        self._until(lambda: self._field(port, "role") == "master", within_s=within_s)
        return port

    def start_server(self, port: int, *options: str) -> None:
        """Start one of the servers, with its existing data."""
        folder = self.folder / str(port)
        folder.mkdir(exist_ok=True)
        arguments = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        arguments += ["--save", "", "--appendonly", "yes", "--repl-diskless-sync-delay", "0"]
        if self._password:
            arguments += ["--requirepass", self._password, "--masterauth", self._password]
        self._start(port, [*arguments, *options])

    def _start_sentinel(self, port: int, primary: int) -> None:
        lines = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary} {_QUORUM}",
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 3000",
        ]
        if self._password:
            lines.append(f"sentinel auth-pass {SERVICE} {self._password}")
        if self._sentinel_password:
            lines.append(f"requirepass {self._sentinel_password}")
            lines.append(f"sentinel sentinel-pass {self._sentinel_password}")
        # Sentinels write their state into it.
        config = self.folder / f"{port}.conf"
        config.write_text("\n".join([f"port {port}", "bind 127.0.0.1", *lines, ""]))
        self._start(port, [str(config), "--sentinel"])

    def _start(self, port: int, arguments: list[str]) -> None:
        log = self.folder / f"{port}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(server_binary()), *arguments], stdout=output, stderr=output, cwd=self.folder
            )
        self._processes[port] = process
        self._until(lambda: self._answers(port, process, log))

    def _answers(self, port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        with self.raw(port) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    def _field(self, port: int, name: str) -> Any:
        with self.raw(port) as client:
            try:
                return client.info("replication").get(name)
            except redis.ConnectionError:
                return None

    def _state(self, sentinel: int) -> Any:
        with self.raw(sentinel) as client:
            masters: Any = client.sentinel_masters()
        return masters[SERVICE]

    def _sees_all(self, sentinel: int) -> bool:
        state = self._state(sentinel)
        return (state["num-slaves"], state["num-other-sentinels"]) == (1, len(self.sentinels) - 1)

    def _port(self) -> int:
        """Return a reserved port. It is bound and not listening, so the server can still use it."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self._reserved.append(held)
        port: int = held.getsockname()[1]
        return port

    def _until(self, true: Callable[[], bool], *, within_s: float = READY_WITHIN_S) -> None:
        deadline, never = time.monotonic() + within_s, threading.Event()
        while not true():
            assert time.monotonic() < deadline, self._logs()
            never.wait(0.02)

    def _logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)
