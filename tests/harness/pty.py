"""Runs a command in this process on a real terminal."""

from __future__ import annotations

import os
import threading
import tty
from contextlib import redirect_stderr, redirect_stdout

from batchq.cli.main import main


def on_a_terminal(*words: str, url: str) -> tuple[int, bytes]:
    """Return the exit code, and every byte that stdout and stderr send to the terminal."""
    ours, theirs = os.openpty()
    # No line discipline: a line end stays one byte.
    tty.setraw(theirs)
    shown = bytearray()
    reading = threading.Thread(target=_read, args=(ours, shown))
    reading.start()
    try:
        with (
            os.fdopen(theirs, "w", encoding="utf-8") as terminal,
            redirect_stdout(terminal),
            redirect_stderr(terminal),
        ):
            code = _exit_code(["--redis-url", url, *words])
    finally:
        reading.join(60)
        os.close(ours)
    return code, bytes(shown)


def _exit_code(words: list[str]) -> int:
    try:
        main(words)
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("a command ends with its exit code")


def _read(terminal: int, shown: bytearray) -> None:
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        return  # Linux signals so that the other end of the terminal was closed
