"""A list that stays sorted through insertions and removals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.core.chunks import Ordered


def _of(*keys: int) -> Ordered[str]:
    found: Ordered[str] = Ordered()
    for key in keys:
        found.add(key, f"item {key}")
    return found


def test_items_are_in_the_order_of_their_keys() -> None:
    found = _of(3, 1, 2)
    assert list(found) == ["item 1", "item 2", "item 3"]
    assert list(found.pairs()) == [(1, "item 1"), (2, "item 2"), (3, "item 3")]
    assert list(found.pairs_backwards()) == [(3, "item 3"), (2, "item 2"), (1, "item 1")]
    assert len(found) == 3


def test_the_first_item_and_the_successor_of_a_key_are_found() -> None:
    found = _of(3, 1, 2)
    assert found.first() == (1, "item 1")
    assert found.after(1) == (2, "item 2")
    assert found.after(3) is None
    assert _of().first() is None


def test_a_missing_key_cannot_be_removed() -> None:
    found = _of(1, 3)
    with pytest.raises(KeyError):
        found.remove(2)
    found.discard(2)
    assert list(found) == ["item 1", "item 3"]
    found.remove(1)
    with pytest.raises(KeyError):
        found.remove(1)
    assert list(found) == ["item 3"]


def test_an_item_removed_from_the_front_does_not_come_back() -> None:
    found = _of(*range(10_000))
    for key in range(9_990):
        found.remove(key)
    found.add(5, "again 5")
    assert found.first() == (5, "again 5")
    assert len(found) == 11
    assert list(found)[:2] == ["again 5", "item 9990"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80))
def test_the_ordered_list_equals_a_sorted_dict_after_any_changes(
    steps: list[tuple[bool, int]],
) -> None:
    found: Ordered[int] = Ordered()
    plain: dict[int, int] = {}
    for number, (comes, key) in enumerate(steps):
        if comes and key not in plain:
            found.add(key, number)
            plain[key] = number
        else:
            found.discard(key)
            plain.pop(key, None)
        assert list(found.pairs()) == sorted(plain.items())
        assert len(found) == len(plain)
        above = min((one for one in plain if one > key), default=None)
        assert found.after(key) == (None if above is None else (above, plain[above]))
        following = [item for one, item in sorted(plain.items()) if one > key]
        place = found.place_after(key)
        assert found.run(place, 3, None) == following[:3]
        assert found.run(place, 3, key + 2) == [plain[one] for one in (key + 1,) if one in plain]
        assert found.run(place, 3, key) == []
