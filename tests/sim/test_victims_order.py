"""The order of victims among pods: the first index, often rank 0, is evicted last."""

from __future__ import annotations

from tests.sim.test_norm_evictions import HI, gone, runs, task
from tests.sim.worlds import group, node


def test_pods_that_started_together_go_by_the_highest_index_first_and_rank_0_last() -> None:
    both = [*runs("x", 3, minMember=1), *runs("y", 3, minMember=1)]
    for asked, goes in (
        (1, ["x-t-2"]),
        (3, ["x-t-1", "x-t-2", "y-t-2"]),
        (4, ["x-t-1", "x-t-2", "y-t-1", "y-t-2"]),
        (5, ["x-t-0", "x-t-1", "x-t-2", "y-t-1", "y-t-2"]),
    ):
        assert gone(node("n1", 6), *both, group("hi", asked, **HI)) == goes


def test_a_groups_own_pods_go_lowest_priority_first_whatever_their_index() -> None:
    tasks = [task("main", 1, prio=0), task("spare", 2, prio=-5), task("work", 2)]
    mixed = runs("x", 5, minMember=1, tasks=tasks)
    assert gone(node("n1", 5), *mixed, group("hi", 2, **HI)) == ["x-spare-0", "x-spare-1"]
    assert gone(node("n1", 5), *mixed, group("hi", 4, **HI)) == [
        "x-spare-0", "x-spare-1", "x-work-0", "x-work-1"
    ]  # fmt: skip
