"""What the argument of `batchq simulate` is: a world, or a log of a real machine.

This is the one place that tells them apart. A name's end decides where it says it, else the
beginning of the content does: a log in the Standard Workload Format begins with remarks (`;`) or
with eighteen numbers, and no manifest does. Another kind of log has its line in `_NAMES`, its sign
in `_kind_of_lines` and its reader in `batchq.cli.simulating.logs`.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from batchq.config.documents import MOST_BYTES, read_bounded
from batchq.errors import InvalidInput, UsageError

STDIN = "-"
#: Remarks alone may be longer; then it begins with a `;` all the same.
_LOOKED_AT_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]*)?")
_FIELDS_OF_SWF = 18
_HEADING_OF_PODS = b"name,cpu_milli,"


class Kind(Enum):
    """What can be simulated."""

    WORLD = "a world"
    SWF = "a log in the Standard Workload Format"
    PODS = "a table of pods"


#: Ends of names, in lower case, that say what is in a file.
_NAMES = {
    ".swf": Kind.SWF,
    ".swf.gz": Kind.SWF,
    ".csv": Kind.PODS,
    ".csv.gz": Kind.PODS,
    ".yaml": Kind.WORLD,
    ".yml": Kind.WORLD,
    ".json": Kind.WORLD,
}


class Given(NamedTuple):
    """The argument: `source` is what messages call it; `content` is there of a world only."""

    kind: Kind
    source: str
    path: Path
    content: bytes = b""


def given(word: str) -> Given:
    """Find out what WORLD|TRACE is, `-` being a world on standard input.

    Raises InvalidInput for what cannot be read; UsageError for a log on standard input: its reader
    begins anew once it knows whether the log is packed.
    """
    if word == STDIN:
        text = sys.stdin.buffer.read(MOST_BYTES + 1)
        if text[:2] == _GZIP or _kind_of_lines(text[:_LOOKED_AT_BYTES]) is not Kind.WORLD:
            raise UsageError(
                "standard input is a log, and a log is read from a file",
                hint="give the file's name: batchq simulate TRACE.swf.gz",
            )
        return Given(Kind.WORLD, "standard input", Path(word), text)
    path = Path(word)
    try:
        kind = _kind_by_name(path.name) or _kind_of_lines(_beginning(path))
        content = read_bounded(path) if kind is Kind.WORLD else b""
    except OSError as error:
        named = _kind_by_name(path.name) or Kind.WORLD
        noun = "world" if named is Kind.WORLD else "log"
        raise InvalidInput(f"{word}: the {noun} cannot be read: {error.strerror}") from None
    return Given(kind, word, path, content)


def _kind_by_name(name: str) -> Kind | None:
    lowered = name.lower()
    return next((kind for end, kind in _NAMES.items() if lowered.endswith(end)), None)


def _beginning(path: Path) -> bytes:
    """The first bytes of a file, unpacked if it is packed.

    Raises InvalidInput for a file that is damaged right there, OSError where it cannot be read.
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


def _kind_of_lines(beginning: bytes) -> Kind:
    """By the first line that says something; what is nothing else is taken for a world."""
    first = next((line for line in beginning.splitlines() if line.strip()), b"").strip()
    if first.startswith(_HEADING_OF_PODS):
        return Kind.PODS
    words = first.split()
    numbers = len(words) == _FIELDS_OF_SWF and all(_NUMBER.fullmatch(word) for word in words)
    return Kind.SWF if first.startswith(b";") or numbers else Kind.WORLD
