"""Ends all descendants of a process that adopts orphans (`PR_SET_CHILD_SUBREAPER`).

A process that loses its parent becomes a child of the subreaper before that parent can be
collected. So a subreaper without children has no descendants, in whatever sessions and groups they
were, and killing children until none is left reaches all of them. A program that forks, calls
setsid and exits in a loop changes its pid some thousand times a second. A round here reads one file
and signals each pid in it, which takes less time than such a process lives, so a later round hits
it. The rounds are bounded; the processes that remain are returned.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import resource
import select
import signal
import termios
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from time import monotonic
from types import FrameType

import psutil

from batchq.errors import UsageError
from batchq.worker.host.privileges import Capability, raised

#: How long a round waits for killed processes to end.
_ROUND_S = 0.1
_COLLECTED_WITHIN_S, _LOOK_AGAIN_MS = 1.0, 2
_PART_BYTES = 1 << 14
_TRACER = re.compile(rb"^TracerPid:\s+(\d+)$", re.MULTILINE)
#: The default limit of the number of processes on Linux.
_MAX_ANCESTORS = 1 << 15


def kill_children(*, keep: Collection[int], within_s: float) -> list[int]:
    """Kill every descendant of this process except `keep` and their descendants.

    Return the pids of the children that remain after `within_s`. For a process that adopts orphans;
    call it in the main thread.
    """
    deadline = monotonic() + within_s
    before: list[int] = []
    others = _others(keep)
    while others:
        left = [pid for pid in others if not _kill(pid)]
        # Descendants of the children that were killed and collected have become children by now.
        others = _others(keep)
        rest = deadline - monotonic()
        if rest <= 0:
            return others
        # No new child has come: the killed ones are about to end, or cannot be killed.
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
    """Return the children of this process."""
    return frozenset(_children())


def has_children() -> bool:
    """Return whether this process has a child, even an ended one; cheaper than listing them."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_children_of(pid: int) -> bool:
    """Return whether another process, which has a single thread, has any child.

    The answer is reliable while that process collects none, because ended children stay listed.
    """
    return bool(_listed_children(pid))


def _others(keep: Collection[int]) -> list[int]:
    """Return the children except `keep`, including ended ones that wait to be collected."""
    return [pid for pid in _children() if pid not in keep]


def _children() -> list[int]:
    return _listed_children(os.getpid()) if has_children() else []


def _listed_children(pid: int) -> list[int]:
    try:
        return [int(one) for one in read_kernel_file(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:
        pass
    # The process is gone, or the kernel lacks CONFIG_PROC_CHILDREN.
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def read_kernel_file(path: str | Path) -> bytes:
    """Return what a kernel file holds. Raise OSError.

    This runs for each pod and in each round. `open` would ask for the file's kind, size and
    position, too.
    """
    parts = []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The kernel may give a part only, however much is asked for; nothing is the end.
        while part := os.read(descriptor, _PART_BYTES):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _kill(pid: int) -> bool:
    """Kill a child, collect it if it has ended, and return whether it is gone.

    Its pid cannot be reused until it is collected.
    """
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        # The program runs with another user's rights.
        pass
    except ProcessLookupError:
        return True
    return _reap(pid)


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def collect(pid: int) -> int | None:
    """Return the wait status of a child that has ended or is about to; None if it takes too long.

    A traced process ends for its tracer first, and for its parent only when the tracer has
    collected it or has ended. A pod must not be able to delay this, so a tracer below this process
    is killed. Raise ChildProcessError if there is no such child.
    """
    deadline = monotonic() + _COLLECTED_WITHIN_S
    while True:
        collected, wait_status = os.waitpid(pid, os.WNOHANG)
        if collected:
            return wait_status
        if monotonic() >= deadline:
            return None
        end_tracers(pid)
        select.poll().poll(_LOOK_AGAIN_MS)


def exit_code_of(pid: int) -> int:
    """Collect a child that has ended or is about to; return its exit code as subprocess has it."""
    wait_status = collect(pid)
    return -signal.SIGKILL if wait_status is None else os.waitstatus_to_exitcode(wait_status)


def is_answered(answers: socket, within_s: float, *, waiting_for: Collection[int]) -> bool:
    """Return whether data to read arrives within that time.

    Meanwhile, tracers below this process that trace one of `waiting_for` are killed.
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
    """Kill the tracers of a process that are below this process, and so belong to pods."""
    for tracer in tracers_of(pid):
        if lineage(tracer):
            send(tracer, signal.SIGKILL)


def tracers_of(pid: int) -> list[int]:
    """Return the processes that trace this one or one of its threads (ptrace)."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - faster
    except OSError:
        return []
    found = set()
    for thread in threads:
        with suppress(OSError):
            shown = _TRACER.search(read_kernel_file(f"/proc/{pid}/task/{thread}/status"))
            found.add(int(shown[1]) if shown else 0)
    return sorted(found - {0})


def lineage(pid: int) -> list[int]:
    """Return a process and its ancestors below this process; empty if it is not below it."""
    line = [pid]
    while len(line) <= _MAX_ANCESTORS:
        try:
            stat = read_kernel_file(f"/proc/{line[-1]}/stat")
        except OSError:
            return []
        # The process name before it is in brackets, and may contain brackets.
        parent = int(stat.rpartition(b") ")[2].split()[1])
        if parent == os.getpid():
            return line
        if parent <= 1:
            return []
        line.append(parent)
    return []


def members_of_group(group: int) -> list[int]:
    """Return the processes of a process group except its leader."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - faster
        if name.isdigit() and name != str(group):
            with suppress(ProcessLookupError):
                if os.getpgid(int(name)) == group:
                    found.append(int(name))
    return found


def send(pid: int, sent: signal.Signals) -> None:
    """Send a signal; do nothing if the process is gone or may not be signalled."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sent)


_RLIMIT_LOCKS = 10
#: Far above what an operator would set, and still exact in every tool that reads it.
_BASE, _RANGE = 1 << 48, 1 << 48
_LOCK_LIMIT = re.compile(rb"^Max file locks +\S+ +(\d+) ", re.MULTILINE)
_STOP_FILE = b"BATCHQ_STOP_FILE="
_ENDED = "ZXx"
#: From the kernel: linux/sched.h.
_PF_KTHREAD = 0x0020_0000


def mark_of(run_dir: Path) -> int:
    """Return the number that identifies the folder of an agent's run files."""
    digest = hashlib.sha256(os.fsencode(run_dir)).digest()
    wanted = _BASE + int.from_bytes(digest[:6]) % _RANGE
    _, hard = resource.getrlimit(_RLIMIT_LOCKS)
    # The limit may be lower, for example inside a pod of another agent; the mark must be below it
    # and is still distinct.
    return wanted if hard == resource.RLIM_INFINITY or wanted < hard else wanted % max(hard, 1)


def set_mark(mark: int) -> None:
    """Set the mark of this process and of all its descendants."""
    resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def has_mark(pid: int, mark: int, run_dir: Path) -> bool | None:
    """Return whether a running process belongs to a pod of the agent with this mark and folder.

    None if the process no longer exists, or has ended. Such a process may have forked another one.
    """
    try:
        shown = _LOCK_LIMIT.search(read_kernel_file(f"/proc/{pid}/limits"))
        if not (shown and int(shown[1]) == mark) and not _has_stop_file(pid, run_dir):
            return False
        return True if _runs(pid) else None
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return False


def _runs(pid: int) -> bool:
    """Return whether a thread of a process runs; the first one may end before the others."""
    fields = read_kernel_file(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    return fields[0].decode() not in _ENDED or int(fields[17]) > 1


def _has_stop_file(pid: int, run_dir: Path) -> bool:
    """Return whether its environment names a stop file in the folder; False if unreadable.

    Raise FileNotFoundError or ProcessLookupError if the process no longer exists.
    """
    try:
        with raised(Capability.DAC_READ_SEARCH):
            environment = read_kernel_file(f"/proc/{pid}/environ")
    except PermissionError:
        return False
    except ProcessLookupError:
        # Recent kernels answer so for kernel threads, too, which have no environment; a search that
        # took them for vanished would read all of them again and again. A process that is ending
        # has vanished: it may have forked another one that the search does not know.
        if _is_kernel_thread(pid):
            return False
        raise
    prefix = _STOP_FILE + os.fsencode(run_dir) + b"/"
    return any(
        part.startswith(prefix) and b"/" not in part[len(prefix) :]
        for part in environment.split(b"\0")
    )


def _is_kernel_thread(pid: int) -> bool:
    flags = read_kernel_file(f"/proc/{pid}/stat").rpartition(b") ")[2].split()[6]
    return bool(int(flags) & _PF_KTHREAD)


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
    """Load the C library in advance: a child between fork and exec must not load anything."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "prctl") else None


_LIBC = _load()


def require() -> None:
    """Raise UsageError if the system has no prctl."""
    if _LIBC is None:
        raise UsageError(
            "a worker needs Linux, and this system has no prctl()",
            hint="start the worker on a Linux machine; every other command works here",
        )


def die_with_parent(sent: signal.Signals, parent: int) -> None:
    """Have `sent` delivered to this process when its parent, `parent`, ends.

    If the parent has already ended, the signal is sent here, because the kernel would not send it.
    """
    _call(_PR_SET_PDEATHSIG, int(sent))
    if os.getppid() != parent:
        os.kill(os.getpid(), sent)


def control_terminal() -> None:
    """Make the terminal on stdin the controlling one of this session, which has none."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def detach(kept: Collection[int]) -> None:
    """Drop the session and the descriptors of the agent, except `kept`, in a process that it has
    forked: an open one would hide from work-horses that the agent is gone.
    """
    signal.set_wakeup_fd(-1)
    os.setsid()
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in {0, 1, 2}.difference(kept):
        os.dup2(empty, descriptor)
    below = 3
    for descriptor in sorted(set(kept) - {0, 1, 2}):
        os.closerange(below, descriptor)
        below = descriptor + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))


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
    """Counts the signals that arrive; one per process, owned by its loop."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._counts = dict.fromkeys(numbers, 0)
        self._former: dict[signal.Signals, signal._HANDLER] = {}
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> None:
        """Install the handlers; call it in the main thread."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in self._counts:
            self._former[number] = signal.signal(number, self._seen)

    def close(self) -> None:
        """Restore the former handlers and close the pipe."""
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(-1)
        os.close(self._read_end)
        os.close(self._write_end)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal has arrived since the last `clear`."""
        return self._read_end

    def clear(self) -> None:
        """Empty the pipe; the counts stay."""
        try:
            while os.read(self._read_end, 512):
                pass
        except BlockingIOError:
            return

    def count(self, number: signal.Signals) -> int:
        """Return how often `number` has arrived."""
        return self._counts[number]

    def wait(self, within_s: float) -> None:
        """Return when a signal arrives, or after `within_s`."""
        is_readable(self._read_end, within_ms=round(within_s * 1000))
        self.clear()

    def _seen(self, number: int, _frame: FrameType | None) -> None:
        self._counts[signal.Signals(number)] += 1


def is_readable(descriptor: int, *, within_ms: int) -> bool:
    """Return whether there is data to read now or within that time; any descriptor number works."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_ms))


#: By a signal, and by a debugger.
_STOPPED = ("T", "t")


def stopped(pids: Collection[int]) -> list[int]:
    """Return the processes that are stopped, by a signal or by a debugger."""
    return [pid for pid in pids if _state(pid) in _STOPPED]


def _state(pid: int) -> str:
    """Return the state letter of a process in /proc; empty if there is no such process.

    psutil would open three files where one is enough, and this runs every second.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The process name before it is in brackets, and may contain brackets.
    return stat.rpartition(") ")[2][:1]
