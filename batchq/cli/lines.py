"""Files of one JSON object a line, as `submit --from-file` reads them: a line at a time, and twice.

A line is either the fields of a request, called as the options of `batchq submit` are, or a whole
PodGroup manifest. What cannot be read says on which line it stands.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from batchq.api import manifest
from batchq.api.names import shown
from batchq.api.objects import PodGroup, kind_of
from batchq.client import with_working_dir
from batchq.client.groups import marked
from batchq.errors import BatchqError, InvalidInput, UsageError

STDIN = "-"
#: More than any group may have; what is longer is passed over up to its end.
MOST_LINE_BYTES = 4 * 1024 * 1024
#: What is piped in is kept in memory up to here, then in a temporary file.
_MOST_KEPT_BYTES = 16 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
#: What options say of whole manifests, too.
_OF_MANIFESTS = ("namespace", "queue", "priority_class", "labels", "annotations", "working_dir")

_decode = msgspec.json.Decoder().decode


class Line(NamedTuple):
    """What stands on a line: something to submit, or why it cannot be."""

    number: int
    request: Mapping[str, Any] | PodGroup | None
    error: BatchqError | None = None


class Lines:
    """A file, or standard input, to be read more than once; a context manager."""

    def __init__(self, name: str, defaults: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """`defaults` hold for every line; `given` names the options that they come from.

        Raises InvalidInput for a file that cannot be read.
        """
        self.source = "standard input" if name == STDIN else name
        self._defaults = defaults
        self._folder = str(defaults["working_dir"])
        self._for_commands = next(
            (option for field, option in given.items() if field not in _OF_MANIFESTS), ""
        )
        try:
            self._file = _opened(name)
        except OSError as error:
            raise InvalidInput(f"{name}: the file cannot be read: {error.strerror}") from None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def count(self) -> int:
        """How many lines there are, those with nothing on them too."""
        self._file.seek(0)
        found, last = 0, b"\n"
        while block := self._file.read(_BLOCK_BYTES):
            found, last = found + block.count(b"\n"), block[-1:]
        return found + (last != b"\n")

    def read(self) -> Iterator[Line]:
        """Every line that says something, from the first on."""
        self._file.seek(0)
        for number, text in enumerate(_texts(self._file), start=1):
            if len(text) > MOST_LINE_BYTES:
                yield Line(number, None, self._wrong(number, _TOO_LONG))
                continue
            if number == 1:
                text = text.removeprefix(_BOM)
            if not text or text.isspace():
                continue
            try:
                yield Line(number, self._request(_object(text)))
            except InvalidInput as error:
                yield Line(number, None, self.at(number, error))

    def at(self, number: int, error: BatchqError) -> BatchqError:
        """The same error, with the place in front; the command line itself is right."""
        sort = InvalidInput if isinstance(error, UsageError) else type(error)
        return sort(f"{self.source}, line {number}: {error.message}", hint=error.hint)

    def _wrong(self, number: int, sentence: str) -> BatchqError:
        return self.at(number, InvalidInput(sentence))

    def _request(self, data: dict[str, Any]) -> Mapping[str, Any] | PodGroup:
        if "apiVersion" in data or "kind" in data:
            return self._group(data)
        folder = data.get("working_dir", data.get("working-dir"))
        if isinstance(folder, str) and folder and not folder.startswith("/"):
            return {**data, "working_dir": f"{self._folder}/{folder}"}
        return data

    def _group(self, data: dict[str, Any]) -> PodGroup:
        if self._for_commands:
            raise InvalidInput(
                f"{self._for_commands} says how to run a command, and a manifest says that itself",
                hint="leave it out, or put it into the lines",
            )
        # A status is batchq's to write.
        data = {field: value for field, value in data.items() if field != "status"}
        _set(data, "metadata", "namespace", self._defaults.get("namespace"))
        _set(data, "spec", "queue", self._defaults.get("queue"))
        _set(data, "spec", "priorityClassName", self._defaults.get("priority_class"))
        item = manifest.decode(data)
        if not isinstance(item, PodGroup):
            raise InvalidInput(
                f"kind: expected PodGroup, found {kind_of(item)}",
                hint="apply other objects first: `batchq apply -f FILE`",
            )
        labels = self._defaults.get("labels", {}), self._defaults.get("annotations", {})
        return marked(with_working_dir([item], self._folder)[0], *labels)


_TOO_LONG = f"expected at most {MOST_LINE_BYTES} bytes, found more"


def _opened(name: str) -> IO[bytes]:
    if name != STDIN:
        file = Path(name).open("rb")  # noqa: SIM115 - Lines closes it
        if file.seekable():
            return file
        with file:
            return _spooled(file)
    return _spooled(sys.stdin.buffer)


def _spooled(file: IO[bytes]) -> IO[bytes]:
    """What comes out of a pipe, kept: it comes once."""
    kept = tempfile.SpooledTemporaryFile(max_size=_MOST_KEPT_BYTES)  # noqa: SIM115 - Lines closes it
    shutil.copyfileobj(file, kept, _BLOCK_BYTES)
    return kept


def _texts(file: IO[bytes]) -> Iterator[bytes]:
    """Line by line; of one that is too long no more than its beginning."""
    while text := file.readline(MOST_LINE_BYTES + 2):
        rest = text
        while not rest.endswith(b"\n") and len(rest) > MOST_LINE_BYTES:
            rest = file.readline(MOST_LINE_BYTES + 2)
        yield text.rstrip(b"\r\n")


def _object(text: bytes) -> dict[str, Any]:
    try:
        data = _decode(text)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"expected one JSON object, found what is no JSON: {_first_small(str(error))}",
            hint='every line is an object of its own, as in {"command": ["true"], "cpus": 1}',
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput("expected text in UTF-8, found bytes that are none") from None
    except RecursionError:
        raise InvalidInput("expected one JSON object, found one nested too deeply") from None
    if not isinstance(data, dict):
        raise InvalidInput(
            f"expected one JSON object, found {shown(data)}",
            hint='every line is an object of its own, as in {"command": ["true"], "cpus": 1}',
        )
    return data


def _first_small(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def _set(data: dict[str, Any], part: str, field: str, value: object) -> None:
    """Say it in a part of a manifest that is silent about it."""
    inside = data.get(part)
    if value is None or not (isinstance(inside, dict) or inside is None):
        return
    if inside is None or inside.get(field) is None:
        data[part] = {**(inside or {}), field: value}
