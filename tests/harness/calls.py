"""Count the functions that a run calls: its cost, whatever else the machine does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def counting_calls(run: Callable[[], T], *, built_in: bool = False) -> tuple[T, int]:
    """Return what a run returns, and how many functions it calls; built-in ones on request."""
    calls, counted = 0, ("call", "c_call") if built_in else ("call",)

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in counted

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        result = run()
    finally:
        sys.setprofile(former)
    return result, calls
