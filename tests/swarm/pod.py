"""What the pods of a swarm run; it uses only the standard library.

    pod.py FOLDER TENTHS MANNER      MANNER: ends, fails, fails-once, stubborn, family or saves

The pod writes its start, ten times a second that it is alive, and its end with its exit code to a
diary, each as one line of `<monotonic seconds> <pid> <pod uid> <attempt> <word>`. While it lives it
holds a lock on the diary, which the kernel releases at its death. A process that finds the lock
taken runs at the same time as another, and writes `twice` instead of `start`.

A pod with devices also holds a lock on a file for each of them, beside the diaries; it writes
`has:<device>` when it has it, and `shares:<device>` if another process holds it.

A stubborn pod ignores SIGTERM. In a family, the first process only waits for its child, as a shell
does. A pod that saves writes at SIGTERM what its stop file says, `told:<reason>`, goes on for a
second as if it wrote a checkpoint, and ends with `saved`. A pod that was evicted before writes the
reason after its start: `after:<reason>`.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: How long a pod takes to write its checkpoint.
SAVES_TENTHS = 10


def main(folder: str, tenths: int, manner: str) -> int:
    """Keep the diary until the pod ends, and return its exit code."""
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    told_to_stop: list[int] = []
    if manner == "saves":
        signal.signal(signal.SIGTERM, lambda number, _: told_to_stop.append(number))
    if manner == "family" and (child := os.fork()):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    path = Path(folder, os.environ["BATCHQ_POD"])
    diary = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    who = f"{os.getpid()} {os.environ['BATCHQ_POD_UID']} {os.environ['BATCHQ_ATTEMPT']}"

    def write(word: str) -> None:
        os.write(diary, f"{time.monotonic():.3f} {who} {word}\n".encode())

    failed_before = "failed" in path.read_text().split()
    try:
        fcntl.lockf(diary, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write("start")
    except BlockingIOError:
        write("twice")
    for device in filter(None, os.environ.get("BATCHQ_GPU_UUIDS", "").split(",")):
        lock = os.open(f"{folder}.devices/{device}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write(f"has:{device}")
        except BlockingIOError:
            write(f"shares:{device}")
    if os.environ["BATCHQ_STOP_REASON"]:
        write(f"after:{os.environ['BATCHQ_STOP_REASON']}")
    for _ in range(tenths):
        select.select([], [], [], 0.1)
        write("alive")
        if told_to_stop:
            return save(write)
    fails = manner == "fails" or (manner == "fails-once" and not failed_before)
    write("failed" if fails else "done")
    return 3 if fails else 0


def save(write: Callable[[str], None]) -> int:
    """Write the stop reason and a checkpoint, as a job does in its grace period."""
    write(f"told:{Path(os.environ['BATCHQ_STOP_FILE']).read_text().strip()}")
    for _ in range(SAVES_TENTHS):
        select.select([], [], [], 0.1)
        write("alive")
    write("saved")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
