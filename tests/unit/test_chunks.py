"""Sequences that share unchanged parts, read like tuples and list their differences."""

from __future__ import annotations

import pytest

from batchq.core.chunks import CHUNK, ByUid, Rows


def numbered(count: int, *, start: int = 0) -> list[tuple[str, str]]:
    return [(f"k{number:06}", f"v{number}") for number in range(start, start + count)]


def test_items_are_ordered_by_their_keys() -> None:
    rows = Rows.of([("b", 2), ("c", 3), ("a", 1)])
    assert list(rows) == [1, 2, 3]
    assert list(rows.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert list(reversed(rows)) == [3, 2, 1]


def test_the_last_of_two_items_with_one_key_is_kept() -> None:
    assert Rows.of([("a", 1), ("a", 2)]) == (2,)


def test_a_table_equals_any_sequence_of_equal_items() -> None:
    assert Rows.of([("a", 1), ("b", 2)]) == (1, 2)
    assert Rows.of([("a", 1), ("b", 2)]) == [1, 2]
    assert Rows.of([("a", 1)]) == Rows.of([("other", 1)])
    assert Rows.of([("a", 1)]) != (2,)
    assert Rows.of([("a", 1)]) != (1, 1)
    assert Rows.of([("a", "1")]) != "1"
    assert Rows() == ()


def test_a_table_is_indexed_like_a_tuple() -> None:
    pairs = numbered(3 * CHUNK + 7)
    rows, plain = Rows.of(pairs), tuple(value for _, value in pairs)
    assert [rows[place] for place in (0, 127, 128, 390, -391)] == [
        "v0",
        "v127",
        "v128",
        "v390",
        "v0",
    ]
    assert rows[-1] == "v390"
    for place in (slice(3), slice(100, 300), slice(-2, None), slice(9, 2), slice(None, None, 60)):
        assert rows[place] == plain[place]


@pytest.mark.parametrize("place", [3, -4])
def test_an_index_out_of_range_is_refused(place: int) -> None:
    with pytest.raises(IndexError, match=f"expected a place among 3 items, found {place}"):
        Rows.of(numbered(3))[place]


def test_an_item_is_found_by_its_key() -> None:
    rows = Rows.of(numbered(2 * CHUNK))
    assert rows.get("k000000") == "v0"
    assert rows.get("k000128") == "v128"
    assert rows.get("k000255") == "v255"
    assert [rows.get(key) for key in ("", "k", "k0001275", "k000256", "z")] == [None] * 5
    assert Rows[int]().get("a") is None


def test_items_from_a_key_on_are_listed() -> None:
    rows = Rows.of(numbered(2 * CHUNK))
    assert next(rows.items_from("k0001265")) == ("k000127", "v127")
    assert next(rows.items_from("k000128")) == ("k000128", "v128")
    assert list(rows.items_from("k000255")) == [("k000255", "v255")]
    assert list(rows.items_from("z")) == []
    assert list(Rows[int]().items_from("a")) == []


def test_items_are_listed_by_a_prefix_of_their_keys() -> None:
    rows = Rows.of([("a/1", 1), ("ab/1", 2), ("b/1", 3), ("b/2", 4)])
    assert rows.within("a/") == (1,)
    assert rows.within("b/") == (3, 4)
    assert rows.within("c/") == ()


def test_a_difference_contains_the_old_and_the_new_item() -> None:
    before = Rows.of([("a", "1"), ("b", "2"), ("d", "4")])
    now = Rows.of([("a", "1"), ("c", "3"), ("d", "5")])
    assert list(now.differences(before)) == [
        ("b", "2", None),
        ("c", None, "3"),
        ("d", "4", "5"),
    ]


def test_an_equal_item_that_is_another_object_counts_as_a_difference() -> None:
    one, other = [1], [1]
    before, now = Rows.of([("a", one)]), Rows.of([("a", other)])
    assert list(now.differences(before)) == [("a", one, other)]


def test_a_table_does_not_differ_from_itself_and_fully_differs_from_none() -> None:
    rows = Rows.of(numbered(600))
    assert list(rows.differences(rows)) == []
    assert list(rows.differences(Rows.of(rows.items()))) == []
    assert list(Rows[str]().differences(rows)) == [(key, it, None) for key, it in numbered(600)]
    assert list(rows.differences(Rows())) == [(key, None, it) for key, it in numbered(600)]


def test_groups_are_found_by_their_uids() -> None:
    of_groups = ByUid(Rows.of([("u2", ("x",)), ("u1", ("y", "z"))]))
    assert dict(of_groups) == {"u1": ("y", "z"), "u2": ("x",)}
    assert of_groups["u2"] == ("x",)
    assert of_groups.get("u3", ()) == ()
    assert len(of_groups) == 2
    assert "u1" in of_groups
    assert "u" not in of_groups
    assert of_groups == {"u2": ("x",), "u1": ("y", "z")}
    with pytest.raises(KeyError):
        of_groups["u3"]
