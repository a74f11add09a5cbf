"""Two Linux process controls that Python's library lacks.

A work-horse must not outlive its agent, nor a command its work-horse; and whoever starts other
people's programs must stay the parent of what they leave behind.
"""

from __future__ import annotations

import ctypes
import os
import signal

from batchq.errors import UsageError

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
