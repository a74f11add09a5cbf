"""Ways in which a pod may try to outlive its end: `python -I -S escape_artist.py KIND FILE`.

Each process that lives on appends the time in milliseconds to FILE again and again, which shows a
test how long it lived. After 30 s each process gives up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_GIVES_UP_S = 30.0
_PTRACE_SEIZE = 0x4206
_LOOPS = 8
_NOBODY = 65534
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_CLONE_PARENT, _CLONE_NEWUSER, _CLONE_NEWPID = 0x8000, 0x10000000, 0x20000000


def main() -> None:
    kind, path = sys.argv[1:]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if kind.startswith("killer"):
        _kill_keepers(file, kind)
        return
    parents = (os.getpid(), os.getppid())
    # A sibling is no process below the pod's own: its parent is the work-horse.
    if _clone(_CLONE_PARENT if kind == "sibling" else 0):
        _await(path)
        if kind == "traces-on":
            threading.Event().wait(_GIVES_UP_S)
        return
    until = time.monotonic() + _GIVES_UP_S
    match kind:
        case "forks":
            for _ in range(_LOOPS - 1):
                if not os.fork():
                    break
            _fork_in_a_loop(file, until)
        case "double-fork":
            os.setsid()
            if os.fork():
                os._exit(0)
            _close_output()
            _live(file, until)
        case "traces" | "traces-on":
            os.setsid()
            agent = _parent_of(parents[1])
            traced = trace({*parents, *(_children_of(agent) if agent > 1 else ())})
            os.write(1, b"%d\n" % traced)
            _live(file, until)
        case "holds-output":
            os.setsid()
            if os.fork():
                os._exit(0)
            _live(file, until)
        case _:
            _hide(kind, file, until)


def _hide(kind: str, file: int, until: float) -> None:
    """Live on where a search below the pod's own process does not look."""
    os.setsid()
    _close_output()
    match kind:
        case "sibling":
            _libc().prctl(_PR_SET_NAME, b") Z 1 1 1 (", 0, 0, 0)
            _live(file, until)
        case "reaper":
            # Adopts its orphans, which run as another user where that is possible.
            _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            if os.fork() == 0:
                with suppress(OSError):
                    os.setuid(_NOBODY)
                _fork_in_a_loop(file, until)
            while time.monotonic() < until:
                with suppress(ChildProcessError):
                    os.wait()
        case "namespace":
            # Without root this takes a user namespace.
            if _libc().unshare(_CLONE_NEWPID):
                _libc().unshare(_CLONE_NEWPID | _CLONE_NEWUSER)
            if os.fork():
                os._exit(0)
            for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(signum, signal.SIG_IGN)
            _live(file, until)


def _kill_keepers(file: int, kind: str) -> None:
    """Kill the guard, the agent and the work-horse, as far as they are visible, and live on."""
    until = time.monotonic() + _GIVES_UP_S
    horse = os.getppid()
    agent = _parent_of(horse) if horse > 0 else 0
    if os.fork() == 0:
        os.setsid()
        victims = [agent, *_children_of(agent)] if agent > 1 else []
        # All are stopped before any is killed, so that none notices the death of another.
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                os.kill(pid, signum)
        if kind == "killer-forks":
            _fork_in_a_loop(file, until)
        _live(file, until)
    threading.Event().wait(_GIVES_UP_S)


def trace(pids: set[int]) -> int:
    """Trace the processes, so that this one learns of their end first and never collects it.

    Return how many could be traced.
    """
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return sum(libc.ptrace(_PTRACE_SEIZE, pid, None, None) == 0 for pid in sorted(pids))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _clone(flags: int) -> int:
    """Fork with these flags; return the pid of the new process, and 0 in it."""
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    return int(_libc().syscall(number, flags | signal.SIGCHLD, 0, 0, 0, 0))


def _fork_in_a_loop(file: int, until: float) -> None:
    while time.monotonic() < until:
        if os.getsid(0) != os.getpid():
            os.setsid()
        _write_time(file)
        if os.fork():
            os._exit(0)


def _live(file: int, until: float) -> None:
    while time.monotonic() < until:
        _write_time(file)
        threading.Event().wait(0.01)
    os._exit(0)


def _write_time(file: int) -> None:
    os.write(file, b"%d\n" % (time.time_ns() // 1_000_000))


def _await(path: str) -> None:
    """Wait in the pod's own process until the escaped process writes."""
    while Path(path).stat().st_size < 100:
        threading.Event().wait(0.01)


def _close_output() -> None:
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(empty, descriptor)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def _children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in children.split()]


if __name__ == "__main__":
    main()
