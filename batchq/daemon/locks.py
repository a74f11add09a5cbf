"""Locks between processes of one machine, by files that the kernel unlocks when a process dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchq.errors import Conflict

_POLL_S = 0.02


def take(path: Path) -> int | None:
    """An open file that holds the lock, or None if another holds it.

    Whoever inherits the file holds the lock too, until the last copy is closed.
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
    """Hold the lock meanwhile.

    Raises Conflict when another process has held it for `wait_s`; `doing` says what it keeps from.
    """
    deadline = time.monotonic() + wait_s
    while (held := take(path)) is None:
        if time.monotonic() >= deadline:
            raise Conflict(
                f"cannot {doing}: another process has been at it for {wait_s:.0f} s",
                hint=f"see who holds {path} with `fuser {path}`, or try again",
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(held)
