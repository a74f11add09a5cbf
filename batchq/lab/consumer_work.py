"""The work of the check's groups: a program that records when it starts and ends.

    python consumer_work.py JOURNAL GATE EXIT_CODE

It appends a line to JOURNAL when it starts and when it ends. In between it waits until GATE exists
(or the journal is gone, because the check is over), and writes `twice` if another instance still
runs. It imports nothing of batchq: the consumer starts it in an environment of its own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_POLL_S = 0.05


def main(journal: Path, gate: Path, exit_code: int) -> int:
    """Record the start, wait for the gate, record the end."""
    _note(journal, "start")
    for pid in running_in(journal.read_text(encoding="utf-8")):
        if pid != os.getpid() and lives(pid):
            _note(journal, "twice")
    while journal.exists() and not gate.exists():
        time.sleep(_POLL_S)
    _note(journal, "end")
    return exit_code


def running_in(text: str) -> list[int]:
    """Return the pids that have recorded a start and no end."""
    running: list[int] = []
    for line in text.splitlines():
        word, _, pid = line.partition(" ")
        if word == "start":
            running.append(int(pid))
        elif word == "end" and int(pid) in running:
            running.remove(int(pid))
    return running


def lives(pid: int) -> bool:
    """Return whether the process runs and is no zombie."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _note(journal: Path, word: str) -> None:
    """Append one line in a single write."""
    if word == "end" and not journal.exists():
        return
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{word} {os.getpid()}\n".encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
