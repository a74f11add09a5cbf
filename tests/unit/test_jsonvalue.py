"""Values that JSON represents exactly, and values that it would change."""

from __future__ import annotations

import datetime
import json
from enum import StrEnum
from typing import Any

import pytest

from batchq.api.notation import NotJson, as_json


class Colour(StrEnum):
    RED = "red"


class Weight(float):
    """A subclass of float, such as NumPy's float64."""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (0.1, "0.1"),
        (2**70, "1180591620717411303424"),
        ("größe \x00 \U0001f40d", None),
        ([1, [2, {"a": []}]], '[1,[2,{"a":[]}]]'),
        ((1, 2), "[1,2]"),
        (Colour.RED, '"red"'),
        (Weight(1.5), "1.5"),
    ],
)
def test_a_json_value_is_unchanged(value: Any, written: str | None) -> None:
    found = bytes(as_json(value))
    assert written is None or found.decode() == written
    assert json.loads(found) == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    ("value", "place", "found"),
    [
        (float("nan"), "", "nan"),
        ({"a": [0, float("-inf")]}, ".a[1]", "-inf"),
        ({1, 2}, "", "a builtins.set"),
        ([b"x"], "[0]", "a builtins.bytes"),
        ({"when": datetime.date(2026, 1, 1)}, ".when", "a datetime.date"),
        ({"a": {1: 2}}, ".a", "a key that is not text (1)"),
        ("\ud800", "", "text that is not Unicode"),
        ({"\ud800": 1}, "", "text that is not Unicode"),
        (10**300, "", "a number of more than 300 digits"),
        (print, "", "a builtins.builtin_function_or_method"),
    ],
)
def test_a_value_that_json_would_change_is_refused_with_its_path(
    value: Any, place: str, found: str
) -> None:
    with pytest.raises(NotJson) as caught:
        as_json(value)
    assert (caught.value.place, caught.value.found) == (place, found)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotJson) as caught:
        as_json(endless)
    assert caught.value.found == "values nested deeper than 64"
