"""Values that JSON holds exactly, for what travels from one process to another.

An encoder makes null of NaN, a list of a set, a text of a date: what arrives is not what was sent.
Here such a value is refused, and its place is told.
"""

from __future__ import annotations

import json
from math import isfinite

import msgspec

from batchq.api.names import shown

_DEEPEST = 64
_LARGEST = 10**300


class NotJson(ValueError):
    """What was found instead of a JSON value, and where in the value: `[2].when`."""

    def __init__(self, place: str, found: str) -> None:
        super().__init__(place, found)
        self.place = place
        self.found = found


def as_json(value: object) -> msgspec.Raw:
    """`value` as JSON, exactly: nothing is turned into something that JSON happens to have.

    Raises NotJson.
    """
    _check(value, "", 0)
    # Twice, so that subclasses of plain types (NumPy's float64) are plain, and 1e16 is written in
    # one way, whoever wrote it.
    return msgspec.Raw(msgspec.json.encode(json.loads(json.dumps(value))))


def _check(value: object, place: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise NotJson("", f"values nested deeper than {_DEEPEST}")
    match value:
        case None | bool():
            return
        case int():
            if abs(value) >= _LARGEST:
                raise NotJson(place, "a number of more than 300 digits")
        case float():
            if not isfinite(value):
                raise NotJson(place, str(value))
        case str():
            _check_text(value, place)
        case list() | tuple():
            for number, item in enumerate(value):
                _check(item, f"{place}[{number}]", depth + 1)
        case dict():
            _check_table(value, place, depth)
        case _:
            raise NotJson(place, f"a {type(value).__module__}.{type(value).__qualname__}")


def _check_table(table: dict[object, object], place: str, depth: int) -> None:
    for key, item in table.items():
        if not isinstance(key, str):
            raise NotJson(place, f"a key that is no text ({shown(key)})")
        _check_text(key, place)
        _check(item, f"{place}.{key[:40]}", depth + 1)


def _check_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJson(place, "text that is not Unicode") from None
