"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def until(true: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Return once `true()` holds; fail if it does not in time."""
    deadline = time.monotonic() + within_s
    never = threading.Event()
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        never.wait(0.005)
