"""Water-filling and shares, by hand-worked examples."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.core.quota.fair_shares import QueuePart, Share, share_of, water_fill


@pytest.mark.parametrize(
    ("sentence", "amount", "wanted", "given_out"),
    [
        ("equal weights, equal parts", 10, [(1, 10), (1, 10)], [5, 5]),
        ("twice the weight, twice as much", 9, [(2, 9), (1, 9)], [6, 3]),
        ("who asks for little leaves the rest to others", 10, [(1, 2), (1, 10)], [2, 8]),
        ("what is left over is shared again by weight", 12, [(1, 1), (2, 9), (1, 9)], [1, 7, 3]),
        ("weight 0 deserves nothing", 10, [(0, 10), (1, 4)], [0, 4]),
        ("no queue gets more than it asks for", 10, [(1, 1), (1, 2)], [1, 2]),
        ("fractions round down", 10, [(1, 9), (1, 9), (1, 9)], [3, 3, 3]),
        ("of nothing there is nothing", 0, [(1, 9), (2, 9)], [0, 0]),
        ("without queues nothing is shared", 10, [], []),
    ],
)
def test_water_filling(
    sentence: str, amount: int, wanted: list[tuple[int, int]], given_out: list[int]
) -> None:
    assert water_fill(amount, [QueuePart(weight, 0, cap) for weight, cap in wanted])[0] == given_out


@pytest.mark.parametrize(
    ("sentence", "amount", "parts", "given_out"),
    [
        ("a floor lifts, and the others share the rest", 12, [(1, 6, 9), (1, 0, 9)], [6, 6]),
        ("a floor that weight passes is no matter", 12, [(1, 2, 9), (1, 0, 9)], [6, 6]),
        ("a high floor is taken from the others", 10, [(1, 8, 9), (1, 0, 9)], [8, 2]),
        ("a floor holds without demand, and is not shared", 10, [(1, 4, 0), (1, 0, 9)], [4, 6]),
        ("weight 0 has its floor and no more", 10, [(0, 3, 9), (1, 0, 9)], [3, 7]),
        ("floors hold where there is not enough for them", 5, [(1, 4, 9), (1, 3, 9)], [4, 3]),
        (
            "who starts to rise late",
            15,
            [(1, 5, 9), (2, 0, 9), (1, 0, 1)],
            [5, 9, 1],
        ),
        (
            "two floors, one passed by the level",
            16,
            [(2, 4, 20), (1, 4, 20), (1, 1, 20)],
            [8, 4, 4],
        ),
    ],
)
def test_water_filling_above_floors(
    sentence: str, amount: int, parts: list[tuple[int, int, int]], given_out: list[int]
) -> None:
    assert water_fill(amount, [QueuePart(*part) for part in parts])[0] == given_out


def test_water_filling_returns_the_rest_that_no_queue_requests() -> None:
    assert water_fill(10, [QueuePart(1, 0, 3), QueuePart(1, 0, 4)]) == ([3, 4], 3)


def test_a_fraction_lost_by_rounding_does_not_count_as_rest() -> None:
    assert water_fill(10, [QueuePart(1, 0, 9), QueuePart(1, 0, 9), QueuePart(1, 0, 9)]) == (
        [3, 3, 3],
        None,
    )


def test_an_amount_that_exactly_satisfies_all_leaves_no_rest() -> None:
    assert water_fill(7, [QueuePart(1, 0, 3), QueuePart(1, 0, 4)]) == ([3, 4], 0)


def test_nearly_equal_levels_are_distinguished() -> None:
    # The first queue is satisfied at level 0.333333000001, the second at 0.333333333333.
    parts = [QueuePart(1_000_003, 0, 333_334), QueuePart(3, 0, 1)]
    assert water_fill(333_335, parts) == ([333_334, 1], 0)


_PARTS = st.lists(st.builds(QueuePart, st.integers(0, 5), st.integers(0, 60), st.integers(0, 500)))
_UNEVEN = st.lists(
    st.builds(QueuePart, st.integers(0, 10**6), st.integers(0, 9), st.integers(0, 2**53))
)


def _filled_simply(amount: int, parts: list[QueuePart]) -> list[int]:
    """Raise all parts by weight until the next one is full or reaches its floor, and repeat."""
    level = Fraction(0)

    def at(height: Fraction) -> list[Fraction]:
        return [
            max(Fraction(one.floor), min(Fraction(one.cap), one.weight * height)) for one in parts
        ]

    while True:
        rest = amount - sum(at(level))
        if rest < 0:
            return [part.floor for part in parts]
        rising = [
            part.weight
            for part in parts
            if part.weight and part.floor <= part.weight * level < part.cap
        ]
        bends = [
            Fraction(units, part.weight)
            for part in parts
            for units in (part.floor, part.cap)
            if part.weight and Fraction(units, part.weight) > level
        ]
        ends = [*bends, *([level + Fraction(rest, sum(rising))] if rising else [])]
        if not ends or (rising and min(ends) == level):
            return [int(units) for units in at(level)]
        if rising and rest == 0:
            return [int(units) for units in at(level)]
        level = min(ends)


@given(st.integers(0, 1000), _PARTS)
def test_the_level_equals_that_of_a_step_by_step_filling(
    amount: int, parts: list[QueuePart]
) -> None:
    assert water_fill(amount, parts)[0] == _filled_simply(amount, parts)


@given(st.integers(0, 2**53), _UNEVEN)
def test_the_level_is_exact_for_large_and_uneven_weights(
    amount: int, parts: list[QueuePart]
) -> None:
    assert water_fill(amount, parts)[0] == _filled_simply(amount, parts)


@given(st.integers(0, 1000), _PARTS)
def test_the_sum_never_exceeds_the_amount_and_only_a_floor_exceeds_a_request(
    amount: int, parts: list[QueuePart]
) -> None:
    given_out, unwanted = water_fill(amount, parts)
    assert sum(given_out) + (unwanted or 0) <= max(amount, sum(part.floor for part in parts))
    for units, part in zip(given_out, parts, strict=True):
        assert part.floor <= units <= max(part.floor, part.cap)


@given(st.integers(0, 1000), _PARTS, st.randoms(use_true_random=False))
def test_the_order_of_the_parts_does_not_matter(
    amount: int, parts: list[QueuePart], chance: object
) -> None:
    order = list(range(len(parts)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    plain, shuffled = water_fill(amount, parts), water_fill(amount, [parts[at] for at in order])
    assert shuffled == ([plain[0][at] for at in order], plain[1])


def test_the_share_is_that_of_the_dominant_dimension() -> None:
    share = share_of({"cpu": 2, "memory": 9}, {"cpu": 4, "memory": 10})
    assert share.rounded() == 0.9


def test_pods_and_the_number_of_groups_do_not_count_in_a_share() -> None:
    assert share_of({"cpu": 1, "pods": 9, "podgroups": 9}, {"cpu": 2, "pods": 1}).rounded() == 0.5


def test_pods_count_in_a_share_when_only_groups_are_excluded() -> None:
    share = share_of({"cpu": 1, "pods": 9}, {"cpu": 2, "pods": 10}, apart={"podgroups"})
    assert share.rounded() == 0.9


def test_usage_of_a_resource_that_is_not_deserved_is_an_infinite_share() -> None:
    assert share_of({"cpu": 1}, {}).rounded() == "inf"
    assert share_of({"cpu": 1, "gpu": 1}, {"cpu": 9, "gpu": 0}).rounded() == "inf"


def test_a_resource_neither_deserved_nor_held_does_not_count() -> None:
    assert share_of({"cpu": 1, "gpu": 0}, {"cpu": 2, "gpu": 0}).rounded() == 0.5


def test_a_queue_that_deserves_nothing_counts_as_served() -> None:
    assert share_of({}, {}).rounded() == 1.0
    assert share_of({"cpu": 0}, {"cpu": 0, "pods": 7}).rounded() == 1.0


def test_a_queue_that_deserves_something_and_holds_nothing_has_share_zero() -> None:
    assert share_of({}, {"cpu": 4}).rounded() == 0.0


def test_shares_are_compared_exactly() -> None:
    assert Share(1, 3) < Share(333_333_333_334, 10**12)
    assert Share(2, 6) == Share(1, 3)
    assert Share(5, 1) < Share(0, 0)


def test_the_ranks_of_shares_are_ordered_as_the_shares() -> None:
    most = 2**80
    ordered = [Share(0, 7), Share(1, most), Share(1, most - 1), Share(1, 3)]
    ordered += [Share(most // 3 + 1, most), Share(most - 1, 1), Share(most, 1), Share(0, 0)]
    ranks = [share.rank() for share in ordered]
    assert ranks == sorted(set(ranks))
    assert Share(2, 6).rank() == Share(1, 3).rank()
    assert Share(3, 0).rank() == Share(0, 0).rank()
