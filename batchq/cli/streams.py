"""The process's own streams where there is something wrong with them: closed, or full.

A shell's `>&-` and some init systems start a process without a stdout; Python then has None in its
place, which nobody expects.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Literal, TextIO


def stand_in() -> None:
    """Put something in the place of each stream that the process was started without.

    What is read there is empty, what is said on stderr is gone; writing an answer to stdout fails
    as it does in any other program: there it matters.
    """
    # In the order of their numbers: what is opened gets the lowest one that is free.
    if sys.stdin is None:
        sys.stdin = _null(os.O_RDONLY, "r")
    if sys.stdout is None:
        sys.stdout = _null(os.O_RDONLY, "w")
    if sys.stderr is None:
        sys.stderr = _null(os.O_WRONLY, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal's letters cannot say, or no letters can, is escaped as on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_stdout() -> None:
    """Nothing more is written to stdout: what is left in its buffer goes nowhere at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    finally:
        os.close(null)


def _null(flags: int, mode: Literal["r", "w"]) -> TextIO:
    return os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8")
