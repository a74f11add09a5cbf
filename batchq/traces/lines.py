"""The lines of a log, packed with gzip or not, each with the number that an editor shows for it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, cast

from batchq.errors import InvalidInput

_LONGEST_LINE_BYTES = 4096


def lines_of(path: Path) -> Generator[tuple[int, str], None, None]:
    """The lines that say something, without the blanks around them.

    Raises InvalidInput for what cannot be read or unpacked, and for a line of more than 4096 bytes.
    """
    try:
        with _opened(path) as file:
            place = 0
            while data := file.readline(_LONGEST_LINE_BYTES + 1):
                place += 1
                if len(data) > _LONGEST_LINE_BYTES:
                    raise InvalidInput(
                        f"{path}, line {place}: expected at most {_LONGEST_LINE_BYTES} bytes"
                    )
                line = data.decode("utf-8", "replace").strip()
                if line:
                    yield place, line
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"{path}: this gzip file is damaged: {error}") from None
    except OSError as error:
        raise InvalidInput(f"{path}: the log cannot be read: {error.strerror or error}") from None


def _opened(path: Path) -> BinaryIO:
    """The file, unpacked if it is packed, whatever its name says."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")
