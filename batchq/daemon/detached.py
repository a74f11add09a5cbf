"""Detached processes of this machine: start them, find them from another process, end them.

The module also names the agents of a machine, divides its resources among them, and starts
temporary agents.

A process is stored as a *record* with its pid and its start time, so that another process to which
the kernel has given the same pid is never mistaken for it.

A `ServiceSupervisor` keeps a service running in a child process: it is started again whenever it
dies. The parent prepares what the child serves with, such as listening sockets, and then only
waits. So connections that arrive while there is no child are accepted by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from batchq.api.node_features import is_device_resource
from batchq.api.resources import CPU, MEMORY, format_quantity
from batchq.daemon import OWN_MISTAKE
from batchq.daemon.logs import FILE_VARIABLE, LARGEST_LOG_BYTES
from batchq.errors import BatchqError, Conflict
from batchq.paths import HOME_VARIABLE, URL_VARIABLE, Home
from batchq.system import structlog
from batchq.worker.host.processes import die_with_parent

_log = structlog.get_logger()

_POLL_S = 0.02
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Signals that a Python parent ignores or blocks; children get the default handling back.
_USUAL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


class Record(Struct, frozen=True, kw_only=True):
    """A started process, as stored on disk. `started_at` in milliseconds."""

    name: str
    pid: int
    birth: str
    log: str
    started_at: int
    #: Free-form notes of the starter.
    notes: dict[str, str] = {}


class ProcessFate(StrEnum):
    """What became of a process that was asked to end."""

    ENDED = "ended"
    KILLED = "killed"
    ABSENT = "absent"


def spawn(
    arguments: Sequence[str],
    *,
    log: Path,
    environ: Mapping[str, str],
    keep_open: int | None = None,
    stdin: bytes = b"",
) -> int:
    """Start a program in a session of its own, its output appended to `log`; return its pid.

    A log that has grown too large is renamed first; batchq's own processes also bound theirs while
    they run. The program inherits the file descriptor `keep_open` as number 3, and reads `stdin`,
    at most 4 KiB, from its standard input. Raises OSError.
    """
    _rename_if_large(log)
    with _filled_pipe(stdin) as readable:
        return _spawn(arguments, log, environ, keep_open, readable)


@contextmanager
def _filled_pipe(content: bytes) -> Iterator[int]:
    """Yield the readable end of a pipe that holds `content`, which fits without a reader."""
    if len(content) > select.PIPE_BUF:
        raise ValueError(f"{len(content)} bytes do not fit into a pipe")
    readable, writable = os.pipe()
    try:
        try:
            os.write(writable, content)
        finally:
            os.close(writable)
        yield readable
    finally:
        os.close(readable)


def _spawn(
    arguments: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    keep_open: int | None,
    readable: int,
) -> int:
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_DUP2, readable, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    if keep_open is not None:
        actions.append((os.POSIX_SPAWN_DUP2, keep_open, 3))
    # Not subprocess: a Popen object warns when it is dropped while its process still runs.
    return os.posix_spawn(
        arguments[0],
        list(arguments),
        {**environ, FILE_VARIABLE: str(log)},
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=_USUAL_SIGNALS,
    )


def birth_of(pid: int) -> str | None:
    """Return what distinguishes a process from others with the same pid; None if it has ended."""
    if sys.platform != "linux":
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
        except psutil.Error:
            return None
    try:
        text = Path("/proc", str(pid), "stat").read_text()
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself contain spaces and ")".
    fields = text.rpartition(")")[2].split()
    state, started_ticks = fields[0], fields[19]
    # Ticks since boot, not a date: setting the clock does not change them.
    return None if state in "ZX" else f"{boot}:{started_ticks}"


def reap(pid: int) -> int | None:
    """Return the exit code (negative: the signal) of a child that has ended, else None."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if ended else None


def is_running(record: Record) -> bool:
    """Return whether the recorded process still runs."""
    reap(record.pid)
    return birth_of(record.pid) == record.birth


def end(record: Record, *, patience_s: float, ask: signal.Signals = signal.SIGTERM) -> ProcessFate:
    """Ask the process to end, wait `patience_s`, then kill it."""
    return end_all([record], patience_s=patience_s, ask=lambda one: send(one, ask))[0]


def end_all(
    records: Sequence[Record],
    *,
    patience_s: float,
    ask: Callable[[Record], bool] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[ProcessFate]:
    """End several processes at once, which share one patience.

    `ask` asks one to end, with SIGTERM by default, and returns whether it was running. `meanwhile`
    is called often.
    """
    ask = ask or (lambda record: send(record, signal.SIGTERM))
    fates = [ProcessFate.ENDED if ask(record) else ProcessFate.ABSENT for record in records]
    await_end(records, patience_s=patience_s, meanwhile=meanwhile)
    for place, record in enumerate(records):
        if fates[place] is not ProcessFate.ABSENT and send(record, signal.SIGKILL):
            fates[place] = ProcessFate.KILLED
    await_end(records, patience_s=patience_s)
    return fates


def send(record: Record, number: signal.Signals) -> bool:
    """Send a signal; return whether the process was running."""
    if not is_running(record):
        return False
    try:
        os.kill(record.pid, number)
    except ProcessLookupError:
        return False
    return True


def await_end(
    records: Sequence[Record],
    *,
    patience_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Wait until none of them runs; return False if the patience is over first."""
    deadline = time.monotonic() + patience_s
    while any(is_running(record) for record in records):
        if time.monotonic() >= deadline:
            return False
        meanwhile()
        time.sleep(_POLL_S)
    return True


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(record))
    draft.replace(path)


def read_record(path: Path) -> Record | None:
    """Return a record, or None if none is readable (for example after a full disk)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def tail(log: Path, *, since: int = 0, lines: int = 5) -> str:
    """Return the last lines written after the first `since` bytes."""
    most_bytes = 8192
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since, size - most_bytes) if since <= size else 0)
            text = file.read(most_bytes).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def size_of(log: Path) -> int:
    """Return the log's size in bytes, 0 if it does not exist; `tail` takes it as `since`."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def in_words(exit_code: int) -> str:
    """Return `exit code 1` or `signal 9`."""
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def _rename_if_large(log: Path) -> None:
    if size_of(log) > LARGEST_LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))


def take(path: Path) -> int | None:
    """Return an open file that holds the lock, or None if another process holds it.

    A process that inherits the file holds the lock too, until the last copy is closed.
    """
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


@contextmanager
def exclusive(path: Path, *, wait_s: float, doing: str) -> Iterator[None]:
    """Hold the lock during the block.

    Raises Conflict when another process has held it for `wait_s`; `doing` completes "cannot …".
    """
    deadline = time.monotonic() + wait_s
    while (held := take(path)) is None:
        if time.monotonic() >= deadline:
            raise Conflict(
                f"cannot {doing}: another process has held the lock for {wait_s:.0f} s",
                hint=f"see who holds {path} with `fuser {path}`, or try again",
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(held)


_MIB = 1024 * 1024
#: A label has at most 63 characters; the rest is left for the number.
_LONGEST_HOST = 50


def node_names(count: int, *, host: str | None = None) -> tuple[str, ...]:
    """Return `<host>-1`, `<host>-2` …, as valid labels of a Node."""
    first = (host if host is not None else socket.gethostname()).partition(".")[0].lower()
    label = re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:_LONGEST_HOST].strip("-") or "node"
    return tuple(f"{label}-{number}" for number in range(1, count + 1))


def divide(
    machine: Mapping[str, int], taken: Mapping[str, Mapping[str, int]], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return what each of `names` gets of the machine, less what other agents have `taken`.

    CPU and memory are split evenly; the first agent of the machine gets all GPUs, so that a pod can
    have all of them. Amounts are in units of `batchq.api.resources`.

    Raises Conflict when nothing is left to divide.
    """
    if not names:
        return {}
    free = dict(machine)
    for other in taken.values():
        for resource, amount in other.items():
            free[resource] = free.get(resource, 0) - amount
    cpu, memory = free.get(CPU, 0) // len(names), free.get(MEMORY, 0) // len(names)
    if cpu < 1 or memory < _MIB:
        count = len(taken) + len(names)
        raise Conflict(
            f"no cpu or memory of this machine is left for {', '.join(names)}: "
            + (f"{', '.join(taken)} take all of it" if taken else "the machine is too small"),
            hint=f"run `batchq down`, then `batchq up --agents {count}`, which divides the machine"
            " among all agents; or set what each agent offers:"
            f" `batchq up --agents {count} --resources cpu=1,memory=1Gi`",
        )
    shares = {name: {CPU: cpu, MEMORY: memory // _MIB * _MIB} for name in names}
    shares[names[0]] |= {
        name: units
        for name, units in free.items()
        if is_device_resource(name) and 0 < units == machine.get(name)
    }
    return shares


def written(amounts: Mapping[str, int]) -> str:
    """Return `cpu=2,memory=4294967296`, as `--resources` parses it."""
    return ",".join(f"{name}={format_quantity(name, amounts[name])}" for name in sorted(amounts))


#: How long temporary agents have to end; their pods have ended or are of no interest any more.
ENDS_WITHIN_S = 15.0


@contextmanager
def temporary_agents(
    home: Home, url: str, agents: Mapping[str, Sequence[str]]
) -> Iterator[Sequence[Record]]:
    """Run agents by node name, each with options of `batchq worker`; end them on leaving.

    Names must be new each time. The logs stay if the block raises.

    Raises OSError where a process cannot be started.
    """
    home.prepare()
    records: list[Record] = []
    failed = True
    try:
        for name, options in agents.items():
            records.append(_start(home, url, name, options))
        yield tuple(records)
        failed = False
    finally:
        end_all(records, patience_s=ENDS_WITHIN_S)
        for record in records:
            (home.run / f"{record.name}.json").unlink(missing_ok=True)
            if not failed:
                Path(record.log).unlink(missing_ok=True)
        for name in agents:
            # The run files of its pods: no agent comes back under this name.
            shutil.rmtree(home.run / name, ignore_errors=True)


def refuse_dead(records: Sequence[Record]) -> None:
    """Raise BatchqError with the end of its log if one of the agents has died."""
    for record in records:
        if not is_running(record):
            last_lines = tail(Path(record.log)) or "its log is empty"
            raise BatchqError(
                f"the {record.name.replace('-', ' ', 1)} has died: {last_lines}",
                hint=f"its log is {record.log}",
            )


def _start(home: Home, url: str, name: str, options: Sequence[str]) -> Record:
    log = home.logs / f"agent-{name}.log"
    pid = spawn(
        [sys.executable, "-P", "-m", "batchq.cli", "worker", "--name", name, *options],
        log=log,
        environ={**os.environ, HOME_VARIABLE: str(home.root), URL_VARIABLE: url},
    )
    record = Record(
        name=f"agent-{name}",
        pid=pid,
        birth=birth_of(pid) or "",
        log=str(log),
        started_at=time.time_ns() // 1_000_000,
        notes={"url": hashlib.sha256(url.encode()).hexdigest()[:16]},
    )
    write_record(home.run / f"{record.name}.json", record)
    return record


_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
_HEEDED = _ENDING | {signal.SIGCHLD}
#: A child that has served for so long is replaced at once; earlier deaths are followed by a pause.
SETTLED_S = 10.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
#: How long a child may take to end after it was asked.
_CHILD_ENDS_WITHIN_S = 20.0


class ServiceSupervisor:
    """Runs `serve` in a child process until SIGINT or SIGTERM. Main thread only.

    `serve` returns when the child gets SIGTERM. The child ends, too, if the parent is killed.
    """

    def __init__(self, name: str, serve: Callable[[], None]) -> None:
        self._name = name
        self._serve = serve
        self._pause_s = FIRST_PAUSE_S

    def run(self) -> None:
        """Supervise until the end is requested."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
        try:
            while True:
                pid, began_at = self._start(before), time.monotonic()
                status = self._await_end(pid)
                if status is None:
                    self._end(pid)
                    return
                how = in_words(os.waitstatus_to_exitcode(status))
                _log.warning(f"{self._name}.died", pid=pid, how=how)
                if self._is_ended_during_pause(time.monotonic() - began_at):
                    return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self, mask: set[int | signal.Signals]) -> int:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = OWN_MISTAKE
        try:
            for number in _ENDING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            die_with_parent(signal.SIGTERM, parent)
            self._serve()
            code = 0
        except BaseException:  # the child must not go on in its parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _await_end(self, pid: int) -> int | None:
        """Return the status of the child's death; None if the end is requested first."""
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            if signal.sigwait(_HEEDED) in _ENDING:
                return None

    def _end(self, pid: int) -> None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _CHILD_ENDS_WITHIN_S
        while not os.waitpid(pid, os.WNOHANG)[0]:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or signal.sigtimedwait(_HEEDED, left_s) is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return

    def _is_ended_during_pause(self, served_s: float) -> bool:
        """Wait before the next start; return whether the end was requested meanwhile."""
        if served_s >= SETTLED_S:
            self._pause_s = FIRST_PAUSE_S
            return False
        found = signal.sigtimedwait(_ENDING, self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return found is not None
