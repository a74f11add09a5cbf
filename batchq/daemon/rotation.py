"""A detached process's own log file, kept small while the process runs.

The file is its stderr, which it shares with what it forks; so nobody can begin a new file for all
of them. When it has grown too large its content goes to `<file>.1`, in place of the one before,
and it is emptied. Lines that others write in that very moment are lost.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

LARGEST_LOG_BYTES = 16 * 1024 * 1024
#: Names the file to a process that was started with one; other files are not ours to cut.
FILE_VARIABLE = "BATCHQ_LOG_FILE"


class OwnFile:
    """A log file and the descriptor by which this process writes to it."""

    def __init__(
        self, path: Path, descriptor: int, *, largest_bytes: int = LARGEST_LOG_BYTES
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._largest_bytes = largest_bytes

    def bound(self) -> None:
        """Set aside what is in it if that is too much. Raises OSError."""
        if not self._is_too_large():
            return
        aside = os.open(f"{self._path}.1", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(aside, "r+b") as copy:
            try:
                fcntl.lockf(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            # Whoever had the lock before may have done it.
            if self._is_too_large():
                copy.truncate(0)
                with self._path.open("rb") as content:
                    shutil.copyfileobj(content, copy)
                os.ftruncate(self._descriptor, 0)

    def _is_too_large(self) -> bool:
        return os.fstat(self._descriptor).st_size > self._largest_bytes


def own_file(descriptor: int | None, environ: Mapping[str, str]) -> OwnFile | None:
    """The file that `environ` names, if the descriptor leads there."""
    named = environ.get(FILE_VARIABLE, "")
    if descriptor is None or not named:
        return None
    try:
        is_the_same = os.path.samestat(Path(named).stat(), os.fstat(descriptor))
    except OSError:
        return None
    return OwnFile(Path(named), descriptor) if is_the_same else None
