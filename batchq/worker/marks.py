"""The mark that every process of an agent's pods bears, by which the next agent knows it.

Environment, session and process group are a process's own to change. A hard resource limit is
not: it is inherited, /proc shows it to everybody, and only root can raise it. So the work-horses
lower a limit that Linux has ignored since 2.4.25, the number of file locks (`RLIMIT_LOCKS`), to a
number made of the path of the agent's folder. A process that names that folder in its environment
counts as marked as well.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
from pathlib import Path

_RLIMIT_LOCKS = 10
#: Far above what anybody would set by hand, and still exact in every tool that reads it.
_LEAST, _RANGE = 1 << 48, 1 << 48
_SHOWN = re.compile(rb"^Max file locks +\S+ +(\d+) ", re.MULTILINE)
_STOP_FILE = b"BATCHQ_STOP_FILE="
_ENDED = "ZXx"


def mark_of(run_dir: Path) -> int:
    """The number that stands for the folder of an agent's run files."""
    digest = hashlib.sha256(os.fsencode(run_dir)).digest()
    wanted = _LEAST + int.from_bytes(digest[:6]) % _RANGE
    _, hard = resource.getrlimit(_RLIMIT_LOCKS)
    # Inside a pod of another agent, say: it stays below that one's mark, and is still its own.
    return wanted if hard == resource.RLIM_INFINITY or wanted < hard else wanted % max(hard, 1)


def put_on(mark: int) -> None:
    """Have this process, and all that comes of it, bear the mark."""
    resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def bears(pid: int, mark: int, run_dir: Path) -> bool | None:
    """Whether a process that runs is of a pod of the agent with this mark and folder; None if there
    is no such process any more.
    """
    try:
        shown = _SHOWN.search(_read(f"/proc/{pid}/limits"))
        if not (shown and int(shown[1]) == mark) and not _names(pid, run_dir):
            return False
        state = _read(f"/proc/{pid}/stat").rpartition(b") ")[2][:1].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return False
    return state not in _ENDED


def _names(pid: int, run_dir: Path) -> bool:
    """Whether its environment has a stop file in the folder; False where that is not shown."""
    try:
        environment = _read(f"/proc/{pid}/environ")
    except PermissionError:
        return False
    prefix = _STOP_FILE + os.fsencode(run_dir) + b"/"
    return any(
        part.startswith(prefix) and b"/" not in part[len(prefix) :]
        for part in environment.split(b"\0")
    )


def _read(path: str) -> bytes:
    """A file of the kernel's, read while what it tells of may vanish: so without pathlib."""
    parts = []
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - see above
        while part := file.read(1 << 16):
            parts.append(part)
    return b"".join(parts)
