"""The benchmarks run, and compare what they say they compare."""

from __future__ import annotations

from benchmarks.queues import compare, flat, leaves_of, tree


def test_queues_compares_a_thousand_leaves_with_ten() -> None:
    assert len(flat()) == len(leaves_of(flat())) == 10
    assert len(tree()) == 1110
    assert len(leaves_of(tree())) == 1000


def test_queues_has_a_session_that_admits_and_one_that_does_not() -> None:
    some, none = compare(waiting=30, nodes=1, times=1, cpu=8)
    assert (some[0], some[1]) == ("some fit", 8)
    assert (none[0], none[1]) == ("none fits", 0)
