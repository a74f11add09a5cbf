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

import os
import signal
from collections.abc import Collection
from time import monotonic

import psutil

from batchq.worker.pidfds import await_death

#: How long a round waits for processes that were killed and have not ended yet.
_ROUND_S = 0.1


def kill_children(*, keep: Collection[int], within_s: float) -> list[int]:
    """Kill every descendant of this process but `keep` and theirs; the pids of those children that
    are left after `within_s`.

    For a process that adopts orphans, called in its main thread.
    """
    if keep and _are_all(keep):
        return []
    deadline = monotonic() + within_s
    before: list[int] = []
    while True:
        left = [pid for pid in _others(keep) if not _kill(pid)]
        if not left and not _others(keep):
            return []
        rest = deadline - monotonic()
        if rest <= 0:
            return left
        # Nothing new has come: those that were killed are on their way out, or cannot be killed.
        if left and left == before:
            await_death(left, min(_ROUND_S, rest))
        before = left


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


def _others(keep: Collection[int]) -> list[int]:
    """The children but `keep`, those included that have ended and wait to be collected."""
    return [pid for pid in _children() if pid not in keep]


def _children() -> list[int]:
    if not has_children():
        return []
    try:
        return [int(one) for one in _read(_children_file()).split()]
    except OSError:
        # A kernel without CONFIG_PROC_CHILDREN.
        return [child.pid for child in psutil.Process().children()]


def _are_all(keep: Collection[int]) -> bool:
    """Whether there are no children but these, as far as Linux tells quickly: a list that changes
    while it is read may lack some, so it is read until it says the same twice.
    """
    path = _children_file()
    try:
        first = _read(path)
        return first == _read(path) and {int(one) for one in first.split()} <= set(keep)
    except OSError:
        return False


def _children_file() -> str:
    me = os.getpid()
    return f"/proc/{me}/task/{me}/children"


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
