"""Every field of every document refuses impossible numbers quickly, with a short message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import inspect

from batchq.api.notation import parse_factor
from batchq.api.objects import KINDS
from batchq.config.documents import read_documents
from batchq.config.load import SchedulerFile, load_config
from batchq.errors import InvalidInput

T = TypeVar("T")

HOSTILE = (
    "1e9999999",
    "1e-9999999",
    "1e99999999999999999999",
    "NaN",
    "sNaN",
    "Infinity",
    "-Infinity",
    ".inf",
    ".nan",
    "-1",
    "0x10",
    "1_0",
    "٣",
    "9" * 400,
    "9" * 5000,
    "-" + "9" * 400,
    "1." + "9" * 400,
    "1e400",
    "1e308",
    "9007199254740993",
    "99999999999999999999",
    "½",
    "",
)
#: The longest message; a field with a few valid words names all of them.
LONGEST_MESSAGE = 1000


class Written(str):
    """A value as it is written in the file, in quotes or not."""


def leaves(kind: inspect.Type, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of plain values in a struct, with one item of each list and mapping."""
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            if extra:
                yield (*path, "cpu") if extra["form"] == "amounts" else path
            else:
                yield from leaves(inner, path)
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from leaves(field.type, (*path, field.encode_name))
        case inspect.VarTupleType(item_type=item):
            yield from leaves(item, (*path, 0))
        case inspect.DictType(value_type=item):
            yield from leaves(item, (*path, "a"))
        case inspect.UnionType(types=types):
            for one in types:
                yield from leaves(one, path)
        case inspect.NoneType() | inspect.BoolType():
            pass
        case _:
            yield path


def at(path: tuple[str | int, ...], value: object) -> object:
    """Return the mappings and lists around a value."""
    for part in reversed(path):
        value = [value] if isinstance(part, int) else {part: value}
    return value


def text_of(value: object, *, quoted: bool) -> str:
    """Return JSON, which is also YAML; a `Written` value is inserted verbatim."""
    match value:
        case Written():
            return json.dumps(value) if quoted else str(value)
        case dict():
            pairs = (f"{json.dumps(k)}: {text_of(v, quoted=quoted)}" for k, v in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(text_of(item, quoted=quoted) for item in value) + "]"
        case _:
            return json.dumps(value)


def texts(document: object) -> Iterator[str]:
    """Yield the document as JSON and as YAML, with its number in quotes and without."""
    for quoted in (False, True):
        text = text_of(document, quoted=quoted)
        yield text
        yield f"---\n{text}"


def refusal(read: Callable[[T], object], what: T) -> str:
    """Return the message of the refusal; empty if the text is accepted."""
    try:
        read(what)
    except InvalidInput as refused:
        return refused.message
    return ""


def decode_all(text: str) -> None:
    """Decode all documents as `batchq apply` does."""
    for one in read_documents(text, "file"):
        one.decode()


def is_a_sentence(message: str) -> bool:
    """Return whether the message is one short sentence."""
    return len(message) < LONGEST_MESSAGE and "\n" not in message


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_object_refuses_hostile_numbers_in_a_sentence(kind: str) -> None:
    began = time.monotonic()
    for path in dict.fromkeys(leaves(inspect.type_info(KINDS[kind]))):
        for number in HOSTILE:
            document = {"apiVersion": "batchq/v1", "kind": kind, "metadata": {"name": "a"}}
            document |= at(path, Written(number))  # type: ignore[operator]  # a mapping
            for text in texts(document):
                assert is_a_sentence(refusal(decode_all, text))
    # This takes a second; computing such a number would take minutes.
    assert time.monotonic() - began < 60


def paths_of_settings() -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every plain value of scheduler.yaml except those of plugins."""
    yield from dict.fromkeys(leaves(inspect.type_info(SchedulerFile)))
    for field in ("weight", "tier"):
        yield ("plugins", 0, field)


@pytest.mark.parametrize("number", HOSTILE)
def test_every_setting_refuses_hostile_numbers_in_a_sentence(tmp_path: Path, number: str) -> None:
    file = tmp_path / "scheduler.yaml"
    for path in paths_of_settings():
        for text in texts(at(path, Written(number))):
            file.write_text(text)
            assert is_a_sentence(refusal(load_config, file))


def test_a_factor_with_a_huge_exponent_is_refused_in_one_clear_sentence(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text('overcommit: "1e9999999"\n')
    with pytest.raises(InvalidInput) as refused:
        load_config(file)
    assert refused.value.message == (
        f"{file}, line 1: overcommit: expected a number from 0 to 1000 with at most three decimals,"
        " found '1e9999999'"
    )


def test_a_number_of_5000_digits_in_json_is_refused_in_one_clear_sentence() -> None:
    with pytest.raises(InvalidInput) as refused:
        read_documents('{"spec": {"priority": ' + "9" * 5000 + "}}", "x.json")
    assert refused.value.message == (
        "x.json: expected numbers of at most 1000 digits, found one of 5000"
    )


@pytest.mark.parametrize(
    ("written", "thousandths"),
    [
        ("1.5", 1500),
        (1.5, 1500),
        (2, 2000),
        ("1e2", 100_000),
        ("+.5", 500),
        ("1.500000", 1500),
        (0.001, 1),
        (1000, 1_000_000),
        ("0e99", 0),
    ],
)
def test_a_factor_is_read_exactly(written: str | float, thousandths: int) -> None:
    assert parse_factor(written) == thousandths


@pytest.mark.parametrize(
    "written", ["1e99", "1e-9", 10**400, -1, "-0.1", "1.0001", True, None, float("inf"), 1000.001]
)
def test_an_invalid_factor_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="expected a number from 0 to 1000 with at most three"):
        parse_factor(written)
