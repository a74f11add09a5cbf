"""Files of manifests: YAML with one or more documents, `kind: List`, or JSON.

The reader builds plain dicts, lists and scalars from the parser's events, so that each bound is
checked before memory is spent: bytes, manifests, values, nesting, and the expansion of aliases. A
value that cannot be a manifest is refused at its first event. A file of 8 MiB that holds only
groups stays below all bounds.

A scalar becomes a number only if the number prints as the same text: `007`, `1.10` and `yes` stay
text, so that environment variables and annotations get exactly what was written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from batchq.api import manifest
from batchq.api.notation import Path, path_text, shown
from batchq.api.objects import API_VERSION, Object
from batchq.errors import BatchqError, InvalidInput

MOST_BYTES = 8 * 2**20
DEEPEST = 64
#: The shortest group that can run takes 100 bytes and 11 values.
MOST_MANIFESTS = 100_000
MOST_VALUES = 1_000_000
MOST_VALUES_OF_ONE = 200_000
#: Digits of a number in JSON; a number too large for its field is reported by the field.
MOST_DIGITS = 1000
#: How many values all aliases of a file may expand to together.
MOST_EXPANDED = 10_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")
_WORDS: dict[str, object] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
#: A field at the beginning of a message: `spec.tasks[0].replicas`.
_FIELD = re.compile(r"spec(\.\w+|\[\d+\])*", re.ASCII)
_TAG = "tag:yaml.org,2002:"
_TAGS = {"!", *(f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))}


class Mark(NamedTuple):
    """The position of a value (`line` counts from 1), and of its parts by key or index."""

    line: int
    parts: Mapping[str | int, Mark] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Document:
    """One manifest of a file. `place` counts from 1 across the file, including a List's items."""

    data: dict[str, object]
    source: str
    place: int
    mark: Mark | None = None

    def line_of(self, path: Path) -> int | None:
        """Return the line of a field, or of its nearest ancestor; None if unknown (JSON)."""
        here = self.mark
        if here is None:
            return None
        for part in path:
            inner = here.parts.get(part)
            if inner is None:
                break
            here = inner
        return here.line

    def decode(self) -> Object:
        """Return the object that this manifest describes.

        Raises InvalidInput, which names the file and the line.
        """
        return manifest.decode(self.data, place=self.where(), line_of=self.line_of)

    def problem(self, path: Path, text: str) -> InvalidInput:
        """Return an error about one field: `jobs.yaml, line 7: spec.queue: …`."""
        line = self.line_of(path)
        where = f"{self.where()}, line {line}" if line else self.where()
        return InvalidInput(": ".join(part for part in (where, path_text(path), text) if part))

    def where(self) -> str:
        """Return the file; for JSON, whose lines are unknown, the document too."""
        return self.source if self.mark else f"{self.source}, document {self.place}"


def located(error: BatchqError, documents: Sequence[Document]) -> BatchqError:
    """Return an error of the form `Queue q: spec.parent: …` with the file and the line of that
    field, if one of the documents describes the object; else the error itself.
    """
    for document in documents:
        subject = f"{manifest.subject_of(document.data)}: "
        if not error.message.startswith(subject):
            continue
        field = _FIELD.match(error.message.removeprefix(subject))
        parts = re.findall(r"\w+", field[0]) if field else ()
        line = document.line_of(tuple(int(part) if part.isdigit() else part for part in parts))
        where = f"{document.where()}, line {line}" if line else document.where()
        return type(error)(f"{where}: {error.message}", hint=error.hint)
    return error


def read_bounded(path: FilePath) -> bytes:
    """Read a file up to one byte over the bound, because it may be a device or an endless pipe.

    Raises OSError.
    """
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def read_documents(
    text: str | bytes, source: str, *, check: Callable[[object], None] = lambda data: None
) -> list[Document]:
    """Return the manifests in `text`, in the order of the file, without empty documents.

    `check` is called with each manifest, or what stands in its place, before the next one is read;
    it may raise. Messages call the file `source`. Raises InvalidInput.
    """
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MOST_BYTES:
        raise InvalidInput(f"{source}: expected at most 8 MiB, found more")
    content = _text_of(text, source)
    found: list[Document] = []
    for data, mark in _roots(content, source, check):
        for item, place in _items(data, mark, source):
            found.append(Document(item, source, len(found) + 1, place))
    return found


def _text_of(text: str | bytes, source: str) -> str:
    try:
        content = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        content.encode()
    except UnicodeError:
        raise InvalidInput(f"{source}: expected text in UTF-8, found other bytes") from None
    return content.removeprefix("\ufeff")


def _roots(
    content: str, source: str, check: Callable[[object], None]
) -> Iterator[tuple[object, Mark | None]]:
    if content.lstrip()[:1] in ("{", "["):
        try:
            data = _read_json(content, source)
            for item in _listed(data):
                check(item)
            yield data, None
            return
        except json.JSONDecodeError:
            pass  # It may be YAML in flow style; if not, YAML's message is better.
        except RecursionError:
            raise _too_deep(source) from None
    yield from _read_yaml(content, source, check)


def _listed(data: object) -> list[object]:
    """Return the items of a `kind: List`; any other manifest is alone."""
    items = data.get("items") if isinstance(data, dict) and data.get("kind") == "List" else None
    return items if isinstance(items, list) else [data]


def _items(
    data: object, mark: Mark | None, source: str
) -> Iterator[tuple[dict[str, object], Mark | None]]:
    """Return a document, or the items of a `kind: List`, whose paths then start at the item."""
    where = f"{source}, line {mark.line}" if mark else source
    if data is None:
        return
    if not isinstance(data, dict):
        raise InvalidInput(f"{where}: expected a mapping of fields, found {shown(data)}")
    if data.get("kind") != "List":
        yield data, mark
        return
    items = data.get("items")
    if data.get("apiVersion") not in (API_VERSION, "v1", None) or not isinstance(items, list):
        raise InvalidInput(
            f"{where}: expected a List of apiVersion {API_VERSION} with a list of items"
        )
    marks = mark.parts.get("items") if mark else None
    for index, item in enumerate(items):
        yield from _items(item, marks.parts.get(index) if marks else None, source)


def _read_json(content: str, source: str) -> object:
    def pairs(fields: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in fields:
            if key in found:
                raise InvalidInput(
                    f"{source}: the field {shown(key)} is given twice in one mapping"
                )
            found[key] = value
        return found

    def whole(digits: str) -> int:
        # Python refuses ints of more than 4,300 digits with a message of its own.
        if len(digits) > MOST_DIGITS:
            raise InvalidInput(
                f"{source}: expected numbers of at most {MOST_DIGITS} digits, found one of"
                f" {len(digits)}"
            )
        return int(digits)

    def constant(word: str) -> object:
        raise InvalidInput(f"{source}: {word} is not a JSON number")

    data = json.loads(content, object_pairs_hook=pairs, parse_constant=constant, parse_int=whole)
    if depth_above(data, DEEPEST):
        raise _too_deep(source)
    return data


def depth_above(data: object, most: int) -> bool:
    """Return whether lists and mappings are nested more deeply than `most` levels."""
    level = [data]
    for _ in range(most):
        level = [
            inner
            for item in level
            for inner in (
                item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            )
        ]
        if not level:
            return False
    return True


def _read_yaml(
    content: str, source: str, check: Callable[[object], None]
) -> Iterator[tuple[object, Mark]]:
    loader = _Loader(content)
    try:
        yield from _Builder(loader.get_event, source, check).documents()
    except yaml.YAMLError as error:
        raise InvalidInput(_sentence(error, content, source)) from None
    finally:
        loader.dispose()


def _sentence(error: yaml.YAMLError, content: str, source: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    if mark is None:
        return f"{source}: this is not YAML: {problem}"
    lines = content.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if line[: len(line) - len(line.lstrip())].count("\t"):
        problem = "the line is indented with a tab; YAML requires spaces"
    return f"{source}, line {mark.line + 1}: this is not YAML: {problem}"


def _too_deep(source: str, line: int | None = None) -> InvalidInput:
    where = f"{source}, line {line}" if line else source
    return InvalidInput(f"{where}: expected at most {DEEPEST} levels of nesting")


class _Built(NamedTuple):
    """A value, its mark, and its number of values with all aliases expanded."""

    value: object
    mark: Mark
    size: int


class _Builder:
    """Builds the documents of one event stream; owns the anchors of the current document."""

    def __init__(
        self, next_event: Callable[[], Any], source: str, check: Callable[[object], None]
    ) -> None:
        self._next_event = next_event
        self._source = source
        self._check = check
        self._anchors: dict[str, _Built] = {}
        self._expanded = 0
        self._manifests = 0
        self._values = 0
        #: The number of values before the current manifest.
        self._values_before = 0

    def documents(self) -> Iterator[tuple[object, Mark]]:
        while not isinstance(event := self._next_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                event = self._next_event()
                self._begin_manifest(event)
                built = self._build(event, 1)
                self._check(built.value)
                yield built.value, built.mark

    def _begin_manifest(self, event: Any) -> None:
        """Start a manifest; refuse anything but a mapping before it is read."""
        line = event.start_mark.line + 1
        self._manifests += 1
        if self._manifests > MOST_MANIFESTS:
            raise self._problem(line, f"expected at most {MOST_MANIFESTS} manifests in one file")
        self._values_before = self._values
        if isinstance(event, yaml.SequenceStartEvent):
            raise self._problem(line, "expected a mapping of fields, found a list")
        if isinstance(event, yaml.ScalarEvent) and (value := _scalar(event)) is not None:
            raise self._problem(line, f"expected a mapping of fields, found {shown(value)}")

    def _count(self, line: int) -> None:
        self._values += 1
        if self._values - self._values_before > MOST_VALUES_OF_ONE:
            raise self._problem(
                line, f"expected at most {MOST_VALUES_OF_ONE} values in one manifest"
            )
        if self._values > MOST_VALUES:
            raise self._problem(
                line, f"expected at most {MOST_VALUES} values in one file; split the file"
            )

    def _build(self, event: Any, depth: int, *, lists_manifests: bool = False) -> _Built:
        line = event.start_mark.line + 1
        self._count(line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, line)
        if depth > DEEPEST:
            raise _too_deep(self._source, line)
        self._check_tag(event, line)
        if isinstance(event, yaml.MappingStartEvent):
            built = self._mapping(line, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            built = self._sequence(line, depth, of_manifests=lists_manifests)
        else:
            built = _Built(_scalar(event), Mark(line), 1)
        if event.anchor is not None:
            # Registered only now: an alias inside its own anchor would be endless.
            self._anchors[event.anchor] = built
        return built

    def _alias(self, anchor: str | None, line: int) -> _Built:
        built = self._anchors.get(anchor or "")
        if built is None:
            raise self._problem(line, f"the alias *{shown(anchor)[1:-1]} has no anchor before it")
        self._expanded += built.size
        if self._expanded > MOST_EXPANDED:
            raise self._problem(
                line, f"the aliases expand to more than {MOST_EXPANDED} values; write them out"
            )
        return _Built(built.value, Mark(line, built.mark.parts), built.size)

    def _sequence(self, line: int, depth: int, *, of_manifests: bool) -> _Built:
        values: list[object] = []
        parts: dict[str | int, Mark] = {}
        size = 1
        while not isinstance(event := self._next_event(), yaml.SequenceEndEvent):
            if of_manifests:
                self._begin_manifest(event)
            built = self._build(event, depth + 1)
            if of_manifests:
                self._check(built.value)
            parts[len(values)] = built.mark
            values.append(built.value)
            size += built.size
        return _Built(values, Mark(line, parts), size)

    def _mapping(self, line: int, depth: int) -> _Built:
        found: dict[str, object] = {}
        merged: list[dict[str, object]] = []
        parts: dict[str | int, Mark] = {}
        size = 1
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            key_line = event.start_mark.line + 1
            key = self._key(event, key_line)
            is_items = depth == 1 and key == "items"
            built = self._build(self._next_event(), depth + 1, lists_manifests=is_items)
            size += built.size + 1
            if key == "<<" and event.style in (None, ""):
                merged.extend(self._merged(built.value, key_line))
                continue
            if key in found:
                first = parts[key].line
                text = (
                    f"the field {shown(key)} is given twice in one mapping (first on line {first})"
                )
                raise self._problem(key_line, text)
            found[key] = built.value
            parts[key] = Mark(key_line, built.mark.parts)
        for fields in merged:
            for key, value in fields.items():
                found.setdefault(key, value)
        return _Built(found, Mark(line, parts), size)

    def _key(self, event: Any, line: int) -> str:
        if isinstance(event, yaml.AliasEvent):
            value = self._alias(event.anchor, line).value
            if isinstance(value, str):
                return value
        if not isinstance(event, yaml.ScalarEvent):
            raise self._problem(line, "expected text as the name of a field")
        if event.anchor is not None:
            self._anchors[event.anchor] = _Built(event.value, Mark(line), 1)
        return str(event.value)

    def _merged(self, value: object, line: int) -> list[dict[str, object]]:
        many: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(fields, dict) for fields in many):
            raise self._problem(line, "expected a mapping, or a list of them, to merge at <<")
        return many

    def _check_tag(self, event: Any, line: int) -> None:
        """Refuse all other tags: loaders create objects for them, or their meaning is unknown."""
        if event.tag is not None and event.tag not in _TAGS:
            raise self._problem(line, f"the tag {shown(event.tag)} is not allowed here")

    def _problem(self, line: int, text: str) -> InvalidInput:
        return InvalidInput(f"{self._source}, line {line}: {text}")


def _scalar(event: Any) -> object:
    quoted = event.tag is None and not event.implicit[0]
    return event.value if quoted or event.tag in ("!", f"{_TAG}str") else _resolved(event.value)


def _resolved(text: str) -> object:
    """Resolve a plain scalar: a word of YAML 1.2, a number that prints as written, or text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= 20 and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= 20 and _DECIMAL.fullmatch(text):
        number = float(text)
        if math.isfinite(number) and str(number) == text:
            return number
    return text


def print_documents(manifests: Sequence[Mapping[str, object]]) -> str:
    """Return the manifests as YAML, one document each, keys in the given order.

    `read_documents` reads the same manifests back.
    """
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, and multi-line texts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _print_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if not all(character.isprintable() or character == "\n" for character in text):
        # YAML 1.1 treats some control characters as line breaks; escaped, they are preserved.
        style = '"'
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _print_text)
