"""Kills what a test run has left behind, when the run ends, whatever ends it.

Fixtures end what they have started. A run that is interrupted, killed or out of time ends without
them, and its servers, schedulers and agents would stay. They all inherit a variable that names the
run. A process of its own waits for the run's end and kills those that have it.

A server writes its title over its variables. It is known by a limit that it inherits and does not
need, that of message queues: it is the pid of the run.
"""

from __future__ import annotations

import os
import resource
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
#: The run has left nothing once this many looks in a row find nothing.
_LOOKS = 10


def start() -> subprocess.Popen[bytes]:
    """Mark this process as a run, and start the process that outlives it; return that."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    words = [sys.executable, "-I", "-S", __file__, mark]
    # It has no mark. It notices the end of this process by the end of its input.
    waiting = subprocess.Popen(
        words, stdin=subprocess.PIPE, start_new_session=True, env={**os.environ, RUN_VARIABLE: ""}
    )
    os.environ[RUN_VARIABLE] = mark
    with suppress(ValueError):  # a pid above the limit that the administrator has set
        _, most = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (os.getpid(), most))
    return waiting


def end(waiting: subprocess.Popen[bytes]) -> None:
    """End the run, and wait until nothing is left of it but this process."""
    os.environ.pop(RUN_VARIABLE, None)
    waiting.communicate(timeout=_GIVES_UP_AFTER_S + 30)


def left_over(mark: str) -> list[int]:
    """Return the processes that have a mark."""
    marked = f"{RUN_VARIABLE}={mark}".encode()
    run = mark.partition("-")[0]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = (entry / "environ").read_bytes().split(b"\0")
            if marked in environ or _is_server_of(run, entry):
                found.append(int(entry.name))
    return found


def _is_server_of(run: str, entry: Path) -> bool:
    limits = (entry / "limits").read_text().splitlines()
    limit = next((line.split()[3] for line in limits if line.startswith("Max msgqueue")), "")
    return limit == run and (entry / "exe").readlink().name.endswith("-server")


def main() -> None:
    """Wait for the end of the run, and kill what is left until several looks find nothing."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    deadline, never = time.monotonic() + _GIVES_UP_AFTER_S, threading.Event()
    # The variables of a process that is just starting its program cannot be read yet, so that one
    # look is not enough.
    looks = _LOOKS
    while looks and time.monotonic() < deadline:
        pids = left_over(sys.argv[1])
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        looks = _LOOKS if pids else looks - 1
        never.wait(_PAUSE_S)


if __name__ == "__main__":
    main()
