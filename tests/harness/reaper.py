"""Kills what a test run has left behind, when the run ends, whatever ends it.

Fixtures end what they have started. A run that is interrupted, killed or out of time ends without
them, and its servers, schedulers and agents would stay. They all inherit a variable that names the
run. A process of its own waits for the run's end and kills those that have it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

#: Not BATCHQ_…, because tests remove such variables.
RUN_VARIABLE = "RUN_OF_BATCHQ_TESTS"
_GIVES_UP_AFTER_S = 30.0
_PAUSE_S = 0.05


def start() -> subprocess.Popen[bytes]:
    """Mark this process as a run, and start the process that outlives it; return that."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    words = [sys.executable, "-I", "-S", __file__, mark]
    # It has no mark. It notices the end of this process by the end of its input.
    waiting = subprocess.Popen(
        words, stdin=subprocess.PIPE, start_new_session=True, env={**os.environ, RUN_VARIABLE: ""}
    )
    os.environ[RUN_VARIABLE] = mark
    return waiting


def end(waiting: subprocess.Popen[bytes]) -> None:
    """End the run, and wait until nothing is left of it but this process."""
    os.environ.pop(RUN_VARIABLE, None)
    waiting.communicate(timeout=_GIVES_UP_AFTER_S + 30)


def left_over(mark: str) -> list[int]:
    """Return the processes that have a mark."""
    marked = f"{RUN_VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marked in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def main() -> None:
    """Wait for the end of the run, and kill what is left until nothing is."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    deadline, never = time.monotonic() + _GIVES_UP_AFTER_S, threading.Event()
    while (pids := left_over(sys.argv[1])) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        never.wait(_PAUSE_S)


if __name__ == "__main__":
    main()
