"""Ending what a process that adopts orphans has below it (`PR_SET_CHILD_SUBREAPER`).

A process that loses its parent becomes a child of the subreaper before its parent can be collected,
so a subreaper without children has no descendants at all, whatever sessions and groups they were
in. Killing children until there are none therefore reaches everything. A program that forks,
calls setsid and exits in a loop changes its pid some thousand times a second: a round here is a
read of one file and a signal for each pid in it, which is shorter than the life of one such
process, so that one of the next rounds hits it. The rounds are bounded; what they could not end is
the answer.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import resource
import select
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from time import monotonic
from types import FrameType

import psutil

from batchq.errors import UsageError

#: How long a round waits for processes that were killed and have not ended yet.
_ROUND_S = 0.1
_COLLECTED_WITHIN_S, _LOOK_AGAIN_MS = 1.0, 2
_TRACER = re.compile(rb"^TracerPid:\s+(\d+)$", re.MULTILINE)
#: As many as there can be processes, as Linux is set up.
_MOST_ANCESTORS = 1 << 15


def kill_children(*, keep: Collection[int], within_s: float) -> list[int]:
    """Kill every descendant of this process but `keep` and theirs; the pids of those children that
    are left after `within_s`.

    For a process that adopts orphans, called in its main thread.
    """
    deadline = monotonic() + within_s
    before: list[int] = []
    others = _others(keep)
    while others:
        left = [pid for pid in others if not _kill(pid)]
        # Those that were killed and collected are not all: what they had forked is here by now.
        others = _others(keep)
        rest = deadline - monotonic()
        if rest <= 0:
            return others
        # Nothing new has come: those that were killed are on their way out, or cannot be killed.
        if left and left == before:
            for pid in left:
                end_tracers(pid)
            await_death(left, min(_ROUND_S, rest))
        before = left
    return []


def reap_orphans(*, keep: Collection[int]) -> None:
    """Collect adopted processes that have ended; those in `keep` are collected elsewhere."""
    for pid in _others(keep):
        _reap(pid)


def child_pids() -> frozenset[int]:
    """The children of this process."""
    return frozenset(_children())


def has_children() -> bool:
    """Whether this process has any child, ended ones included; cheaper than listing them."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_children_of(pid: int) -> bool:
    """Whether another process has any child, if it is there and has a single thread.

    Sure as long as it collects none: they stay in the list when they have ended.
    """
    return bool(_listed_children(pid))


def _others(keep: Collection[int]) -> list[int]:
    """The children but `keep`, those included that have ended and wait to be collected."""
    return [pid for pid in _children() if pid not in keep]


def _children() -> list[int]:
    return _listed_children(os.getpid()) if has_children() else []


def _listed_children(pid: int) -> list[int]:
    try:
        return [int(one) for one in _read(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:
        pass
    # It is gone, or this is a kernel without CONFIG_PROC_CHILDREN.
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def _read(path: str) -> bytes:
    """A file of the kernel's, read for each pod and in each round: so without pathlib."""
    parts = []
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - see above
        while part := file.read(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _kill(pid: int) -> bool:
    """Kill a child, and collect it if it has ended by now; whether it is gone.

    Until it is collected its number cannot be anybody else's.
    """
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        # A program that runs with another user's rights.
        pass
    except ProcessLookupError:
        return True
    return _reap(pid)


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def collect(pid: int, *, within_s: float = _COLLECTED_WITHIN_S) -> int | None:
    """The wait status of a child that has ended, or is about to. None if that cannot be had within
    this time. Raises ChildProcessError if there is no such child.

    A process that is traced ends for its tracer first, and for its parent only when the tracer has
    asked for that or has ended itself. So nobody waits here for as long as a pod likes: a tracer
    that comes from below this process is killed.
    """
    deadline = monotonic() + within_s
    while True:
        collected, wait_status = os.waitpid(pid, os.WNOHANG)
        if collected:
            return wait_status
        if monotonic() >= deadline:
            return None
        end_tracers(pid)
        select.poll().poll(_LOOK_AGAIN_MS)


def is_answered(answers: socket, within_s: float, *, waiting_for: Collection[int]) -> bool:
    """Whether there is something to read within that time. Tracers from below this process of those
    that are to answer, or that these wait for, are killed meanwhile.
    """
    deadline = monotonic() + within_s
    while True:
        rest = deadline - monotonic()
        if is_readable(answers.fileno(), within_ms=round(1000 * max(0.0, min(_ROUND_S, rest)))):
            return True
        if rest <= 0:
            return False
        for pid in waiting_for:
            end_tracers(pid)


def end_tracers(pid: int) -> None:
    """Kill those that trace a process, as far as they come from below this one: those of pods."""
    for tracer in tracers_of(pid):
        if line_to(tracer):
            send(tracer, signal.SIGKILL)


def tracers_of(pid: int) -> list[int]:
    """The processes that trace this one, or one of its threads (ptrace)."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - asked of each, every second
    except OSError:
        return []
    found = set()
    for thread in threads:
        with suppress(OSError):
            shown = _TRACER.search(_read(f"/proc/{pid}/task/{thread}/status"))
            found.add(int(shown[1]) if shown else 0)
    return sorted(found - {0})


def line_to(pid: int) -> list[int]:
    """A process and its ancestors, up to a child of this process; empty if it is not below it."""
    line = [pid]
    while len(line) <= _MOST_ANCESTORS:
        try:
            stat = _read(f"/proc/{line[-1]}/stat")
        except OSError:
            return []
        # The name before it is in brackets, and may hold brackets of its own.
        parent = int(stat.rpartition(b") ")[2].split()[1])
        if parent == os.getpid():
            return line
        if parent <= 1:
            return []
        line.append(parent)
    return []


def send(pid: int, sent: signal.Signals) -> None:
    """Send a signal, if there is still somebody who may be sent it."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sent)


_RLIMIT_LOCKS = 10
#: Far above what anybody would set by hand, and still exact in every tool that reads it.
_LEAST, _RANGE = 1 << 48, 1 << 48
_SHOWN = re.compile(rb"^Max file locks +\S+ +(\d+) ", re.MULTILINE)
_STOP_FILE = b"BATCHQ_STOP_FILE="
_ENDED = "ZXx"


def mark_of(run_dir: Path) -> int:
    """The number that stands for the folder of an agent's run files."""
    digest = hashlib.sha256(os.fsencode(run_dir)).digest()
    wanted = _LEAST + int.from_bytes(digest[:6]) % _RANGE
    _, hard = resource.getrlimit(_RLIMIT_LOCKS)
    # Inside a pod of another agent, say: it stays below that one's mark, and is still its own.
    return wanted if hard == resource.RLIM_INFINITY or wanted < hard else wanted % max(hard, 1)


def put_on(mark: int) -> None:
    """Have this process, and all that comes of it, bear the mark."""
    resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def bears(pid: int, mark: int, run_dir: Path) -> bool | None:
    """Whether a process that runs is of a pod of the agent with this mark and folder; None if there
    is no such process any more.
    """
    try:
        shown = _SHOWN.search(_read(f"/proc/{pid}/limits"))
        if not (shown and int(shown[1]) == mark) and not _names(pid, run_dir):
            return False
        state = _read(f"/proc/{pid}/stat").rpartition(b") ")[2][:1].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return False
    return state not in _ENDED


def _names(pid: int, run_dir: Path) -> bool:
    """Whether its environment has a stop file in the folder; False where that is not shown."""
    try:
        environment = _read(f"/proc/{pid}/environ")
    except PermissionError:
        return False
    prefix = _STOP_FILE + os.fsencode(run_dir) + b"/"
    return any(
        part.startswith(prefix) and b"/" not in part[len(prefix) :]
        for part in environment.split(b"\0")
    )


def await_death(pids: Sequence[int], within_s: float) -> None:
    """Return when one of them has ended, or after `within_s`."""
    poll = select.poll()
    descriptors: list[int] = []
    for pid in pids:
        try:
            descriptors.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    if descriptors:
        poll.poll(within_s * 1000)
    for descriptor in descriptors:
        os.close(descriptor)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _load() -> ctypes.CDLL | None:
    """The C library, looked up once: a child between fork and exec must not load anything."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "prctl") else None


_LIBC = _load()


def require() -> None:
    """Raises UsageError where the system has no prctl."""
    if _LIBC is None:
        raise UsageError(
            "a worker needs Linux, and this system has no prctl()",
            hint="start the worker on a Linux machine; every other command works here",
        )


def die_with_parent(sent: signal.Signals, parent: int) -> None:
    """Have `sent` delivered to this process when its parent, `parent`, ends.

    If the parent has ended already the signal would never come, so it is sent here.
    """
    _call(_PR_SET_PDEATHSIG, int(sent))
    if os.getppid() != parent:
        os.kill(os.getpid(), sent)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def _call(option: int, value: int) -> None:
    if _LIBC is None:
        return
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Signals:
    """Counts of the signals that came; one per process, owned by its loop."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._counts = dict.fromkeys(numbers, 0)
        self._former: dict[signal.Signals, signal._HANDLER] = {}
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> None:
        """Hear the signals from now on; in the main thread only."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in self._counts:
            self._former[number] = signal.signal(number, self._seen)

    def close(self) -> None:
        """Stop hearing; what heard them before `install` does so again."""
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(-1)
        os.close(self._read_end)
        os.close(self._write_end)

    def fileno(self) -> int:
        """Readable when something came since the last `clear`."""
        return self._read_end

    def clear(self) -> None:
        """Empty the pipe; the counts stay."""
        try:
            while os.read(self._read_end, 512):
                pass
        except BlockingIOError:
            return

    def count(self, number: signal.Signals) -> int:
        """How often `number` came."""
        return self._counts[number]

    def wait(self, within_s: float) -> None:
        """Return when a signal comes, or after `within_s`."""
        is_readable(self._read_end, within_ms=round(within_s * 1000))
        self.clear()

    def _seen(self, number: int, _frame: FrameType | None) -> None:
        self._counts[signal.Signals(number)] += 1


def is_readable(descriptor: int, *, within_ms: int) -> bool:
    """Whether there is something to read, now or within that time; for any descriptor number."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_ms))
