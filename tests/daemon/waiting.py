"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: A condition may be a request to a server, so one that takes long is tried less often.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.05


def until(true: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Return once `true()` holds; fail if it does not in time."""
    deadline = time.monotonic() + within_s
    never, pause_s = threading.Event(), _FIRST_PAUSE_S
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        never.wait(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether, according to the kernel, a process handles the signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
