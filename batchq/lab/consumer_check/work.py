"""The work of the groups that a check submits: a program that says when it starts and ends.

    python work.py JOURNAL GATE EXIT_CODE

It adds a line to JOURNAL when it starts and one when it ends, waits in between until GATE exists
(or the journal is gone: the check is over), and says `twice` if another that has started still
runs. It stands alone: it is started by the consumer, in whatever environment that has.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_POLL_S = 0.05


def main(journal: Path, gate: Path, exit_code: int) -> int:
    """Start, wait for the gate, end."""
    _note(journal, "start")
    for pid in running_in(journal.read_text(encoding="utf-8")):
        if pid != os.getpid() and lives(pid):
            _note(journal, "twice")
    while journal.exists() and not gate.exists():
        time.sleep(_POLL_S)
    _note(journal, "end")
    return exit_code


def running_in(text: str) -> list[int]:
    """The pids that have said that they start, and not that they end."""
    running: list[int] = []
    for line in text.splitlines():
        word, _, pid = line.partition(" ")
        if word == "start":
            running.append(int(pid))
        elif word == "end" and int(pid) in running:
            running.remove(int(pid))
    return running


def lives(pid: int) -> bool:
    """Whether the process runs, and is not merely waited for."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _note(journal: Path, word: str) -> None:
    """One line, whole, behind what others write meanwhile."""
    if word == "end" and not journal.exists():
        return
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{word} {os.getpid()}\n".encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
