"""Water-filling and shares, by hand-worked examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.framework.shares import Share, deserved_by_weight, share_of


@pytest.mark.parametrize(
    ("sentence", "available", "demands", "deserved"),
    [
        ("equal weights, equal parts", 10, [(1, 10), (1, 10)], [5, 5]),
        ("twice the weight, twice as much", 9, [(2, 9), (1, 9)], [6, 3]),
        ("who asks for little leaves the rest to others", 10, [(1, 2), (1, 10)], [2, 8]),
        ("what is left over is shared again by weight", 12, [(1, 1), (2, 9), (1, 9)], [1, 7, 3]),
        ("weight 0 deserves nothing", 10, [(0, 10), (1, 4)], [0, 4]),
        ("nobody gets more than is asked for", 10, [(1, 1), (1, 2)], [1, 2]),
        ("fractions round down", 10, [(1, 9), (1, 9), (1, 9)], [3, 3, 3]),
    ],
)
def test_water_filling(
    sentence: str, available: int, demands: list[tuple[int, int]], deserved: list[int]
) -> None:
    given_out = deserved_by_weight({"cpu": available}, [(w, {"cpu": cap}) for w, cap in demands])
    assert [one["cpu"] for one in given_out] == deserved


@given(st.integers(0, 1000), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 500))))
def test_nothing_is_given_out_twice_and_nobody_gets_more_than_asked(
    available: int, demands: list[tuple[int, int]]
) -> None:
    given_out = deserved_by_weight({"cpu": available}, [(w, {"cpu": cap}) for w, cap in demands])
    parts = [one.get("cpu", 0) for one in given_out]
    assert sum(parts) <= available
    assert all(part <= cap for part, (_, cap) in zip(parts, demands, strict=True))


def test_the_share_is_that_of_the_dominant_dimension() -> None:
    share = share_of({"cpu": 2, "memory": 9}, {"cpu": 4, "memory": 10})
    assert share.rounded() == 0.9


def test_pods_and_the_count_of_groups_are_left_apart() -> None:
    assert share_of({"cpu": 1, "pods": 9, "podgroups": 9}, {"cpu": 2, "pods": 1}).rounded() == 0.5


def test_holding_what_is_not_deserved_is_an_infinite_share() -> None:
    assert share_of({"cpu": 1}, {}).rounded() == "inf"


def test_a_queue_without_anything_counts_as_served() -> None:
    assert share_of({}, {}).rounded() == 1.0


def test_shares_are_compared_exactly() -> None:
    assert Share(1, 3) < Share(333_333_333_334, 10**12)
    assert Share(2, 6) == Share(1, 3)
    assert Share(5, 1) < Share(0, 0)
