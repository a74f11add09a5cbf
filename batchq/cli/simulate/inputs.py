"""The inputs of a simulation, and output files: checked before the work, written whole or not.

A long run must not end in "no such folder", and Ctrl-C must not leave half a file.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from batchq.config.documents import MOST_BYTES, read_bounded
from batchq.errors import BatchqError, InvalidInput, UsageError

#: The formats of plots, by the file's suffix.
PLOT_FORMATS = ("png", "svg", "pdf")


def check_output(path: Path, option: str, *, inputs: Sequence[Path] = ()) -> None:
    """Check that a file can be written, so that an error is noticed before a long run.

    Raises InvalidInput if it cannot, UsageError if the file is also read.
    """
    try:
        _check_place(path, option, inputs)
    except OSError as error:
        # A folder that this user may not enter, or a name that is too long.
        raise _unwritable(path, option, error.strerror) from None


def _check_place(path: Path, option: str, inputs: Sequence[Path]) -> None:
    folder = path.resolve().parent
    if path.is_dir():
        raise InvalidInput(f"{option} {path}: expected a file to write, found a folder")
    if not folder.is_dir():
        what = (
            "a folder that does not exist" if not folder.exists() else "something that is no folder"
        )
        raise InvalidInput(f"{option} {path}: the file cannot be written: it is in {what}")
    if any(path.resolve() == read.resolve() for read in inputs):
        raise UsageError(f"{option} {path}: that file is read, and would be overwritten")
    if path.exists() and not os.access(path, os.W_OK):
        raise _unwritable(path, option, "Permission denied")
    if not _is_special(path):
        # Permissions do not show that a file system is read-only.
        _beside(path).unlink()


def check_plot(path: Path, *, inputs: Sequence[Path] = ()) -> None:
    """Check --plot, as `check_output` does, and that matplotlib is installed.

    Raises UsageError for another suffix, BatchqError if matplotlib is missing.
    """
    if path.suffix[1:].lower() not in PLOT_FORMATS:
        ends = ", ".join(f".{name}" for name in PLOT_FORMATS)
        raise UsageError(f"--plot {path}: expected a name that ends in one of {ends}")
    try:
        import_module("matplotlib")
    except ImportError:
        raise BatchqError(
            "--plot draws with matplotlib, which is not installed",
            hint="pip install 'batchq[plot]'",
        ) from None
    check_output(path, "--plot", inputs=inputs)


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write a temporary file, then rename it: a reader finds the old content or the new.

    A device or a pipe is written directly. Raises InvalidInput.
    """
    try:
        if _is_special(path):
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content)
    except OSError as error:
        raise _unwritable(path, option, error.strerror) from None


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _unwritable(path: Path, option: str, reason: str | None) -> InvalidInput:
    return InvalidInput(f"{option} {path}: the file cannot be written: {reason or 'no reason'}")


def _replace(path: Path, content: bytes) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else _usual_mode()
    beside = _beside(path)
    try:
        beside.write_bytes(content)
        beside.chmod(mode)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Create an empty file in the same folder, with a random name, since two runs may overlap."""
    handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name[:100]}.")
    os.close(handle)
    return Path(name)


def _usual_mode() -> int:
    """Return the mode of a file opened for writing; `mkstemp` allows only its owner to read it."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


STDIN = "-"
#: Enough to recognise a file. Comments alone may be longer, but those begin with a `;` anyway.
_LOOKED_AT_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]*)?")
_FIELDS_OF_SWF = 18
_HEADING_OF_PODS = b"name,cpu_milli,"


class InputKind(Enum):
    """The kinds of input that can be simulated."""

    WORLD = "a world"
    SWF = "a log in the Standard Workload Format"
    PODS = "a table of pods"


#: Suffixes, in lower case, that determine the kind of a file.
_NAMES = {
    ".swf": InputKind.SWF,
    ".swf.gz": InputKind.SWF,
    ".csv": InputKind.PODS,
    ".csv.gz": InputKind.PODS,
    ".yaml": InputKind.WORLD,
    ".yml": InputKind.WORLD,
    ".json": InputKind.WORLD,
}


class Given(NamedTuple):
    """The input: `source` is its name in messages; `content` is set for a world only."""

    kind: InputKind
    source: str
    path: Path
    content: bytes = b""


def given(word: str) -> Given:
    """Determine the kind of the input; `-` is a world on standard input.

    Raises InvalidInput if it cannot be read, UsageError for a log on standard input, because the
    reader has to rewind a log after detecting compression.
    """
    if word == STDIN:
        text = sys.stdin.buffer.read(MOST_BYTES + 1)
        if text[:2] == _GZIP or _kind_of_lines(text[:_LOOKED_AT_BYTES]) is not InputKind.WORLD:
            raise UsageError(
                "standard input is a log, which can only be read from a file",
                hint="give the file's name: batchq simulate TRACE.swf.gz",
            )
        return Given(InputKind.WORLD, "standard input", Path(word), text)
    path = Path(word)
    try:
        kind = _kind_by_name(path.name) or _kind_of_lines(_beginning(path))
        content = read_bounded(path) if kind is InputKind.WORLD else b""
    except OSError as error:
        named = _kind_by_name(path.name) or InputKind.WORLD
        noun = "world" if named is InputKind.WORLD else "log"
        raise InvalidInput(f"{word}: the {noun} cannot be read: {error.strerror}") from None
    return Given(kind, word, path, content)


def _kind_by_name(name: str) -> InputKind | None:
    lowered = name.lower()
    return next((kind for end, kind in _NAMES.items() if lowered.endswith(end)), None)


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed if necessary.

    Raises InvalidInput if the beginning is damaged, OSError if it cannot be read.
    """
    with path.open("rb") as file:
        first = file.read(_LOOKED_AT_BYTES)
    if first[:2] != _GZIP:
        return first
    try:
        with gzip.open(path, "rb") as packed:
            return packed.read(_LOOKED_AT_BYTES)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"{path}: this gzip file is damaged: {error}") from None


def _kind_of_lines(beginning: bytes) -> InputKind:
    """Determine the kind by the first line that is not empty; the default is a world."""
    first = next((line for line in beginning.splitlines() if line.strip()), b"").strip()
    if first.startswith(_HEADING_OF_PODS):
        return InputKind.PODS
    words = first.split()
    numbers = len(words) == _FIELDS_OF_SWF and all(_NUMBER.fullmatch(word) for word in words)
    return InputKind.SWF if first.startswith(b";") or numbers else InputKind.WORLD
