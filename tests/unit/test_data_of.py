"""Views as programs read them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from batchq.api.notation import data_of
from batchq.api.objects import Amounts, Duration, Instant


class Color(StrEnum):
    RED = "red"


class Part(Struct, frozen=True, rename="camel"):
    held_by: dict[str, Amounts]
    color: Color = Color.RED


class Whole(Struct, frozen=True, rename="camel"):
    request: Amounts
    started_at: Instant | None
    longest: Duration | None = None
    parts: tuple[Part, ...] = ()


def test_a_view_has_every_field_in_the_notation_of_people() -> None:
    part = Part({"a": {"cpu": 1500}})
    view = Whole({"memory": 2**30, "cpu": 2000}, started_at=60_000, longest=90_000, parts=(part,))
    assert data_of(view) == {
        "request": {"memory": "1073741824", "cpu": "2"},
        "startedAt": "1970-01-01T00:01:00Z",
        "longest": "90s",
        "parts": [{"heldBy": {"a": {"cpu": "1500m"}}, "color": "red"}],
    }


def test_amounts_keep_their_order() -> None:
    data = data_of(Whole({"memory": 2**30, "cpu": 2000}, started_at=None))
    assert list(data["request"]) == ["memory", "cpu"]  # type: ignore[call-overload] # a dict


def test_a_field_at_its_default_is_written() -> None:
    assert data_of(Whole({}, started_at=None)) == {
        "request": {},
        "startedAt": None,
        "longest": None,
        "parts": [],
    }


def test_lists_and_maps_of_views_become_lists_and_maps() -> None:
    assert data_of({"items": [Part({})]}) == {"items": [{"heldBy": {}, "color": "red"}]}
