"""The order of `actions` matters: two orders give the same world two outcomes."""

from __future__ import annotations

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.test_norm_evictions import CLASSES, HI, gone, halves, runs
from tests.sim.worlds import bound, evicted, group, node, outcome, phases

#: Four cpus, and each queue deserves two: b has borrowed one of a's, and a's own group has low
#: priority.
BORROWED = (
    node("n1", 4),
    *halves(2),
    *runs("own", queue="a", prio="low"),
    *runs("lent-1", queue="b", since=0),
    *runs("lent-2", queue="b", since=1),
    *runs("lent-3", queue="b", since=2),
    group("urgent", queue="a", **HI),
)


@pytest.mark.parametrize(
    ("actions", "goes"),
    [
        ("enqueue, allocate, reclaim, preempt", ["lent-3-t-0"]),
        ("enqueue, allocate, preempt, reclaim", ["own-t-0"]),
    ],
)
def test_the_first_action_chooses_the_victims(actions: str, goes: list[str]) -> None:
    assert gone(*BORROWED, config=f"actions: {actions}") == goes


def test_one_order_of_actions_evicts_once_and_the_other_twice_with_the_same_end() -> None:
    """The group evicted for its own queue still reclaims what the other queue has borrowed."""

    def played(actions: str) -> WorldOutcome:
        return outcome(*CLASSES, *BORROWED, config=f"actions: {actions}", cycles=20)

    borrowers_first = played("enqueue, allocate, reclaim, preempt")
    own_first = played("enqueue, allocate, preempt, reclaim")
    assert evicted(borrowers_first) == [(0, [("default/lent-3-t-0", "Reclaimed")])]
    assert evicted(own_first) == [
        (0, [("default/own-t-0", "Preempted")]),
        (30, [("default/lent-3-t-0", "Reclaimed")]),
    ]
    assert phases(borrowers_first) == phases(own_first)


@pytest.mark.parametrize(
    ("actions", "first"),
    [("enqueue, allocate", [(0, {"default/g-t-0": "n1"})]), ("allocate, enqueue", [])],
)
def test_a_group_admitted_after_allocate_is_placed_a_session_later(
    actions: str, first: list[tuple[int, dict[str, str]]]
) -> None:
    world = (node("n1", 1), group("g"))
    assert bound(outcome(*world, config=f"actions: {actions}", cycles=1)) == first
    later = bound(outcome(*world, config=f"actions: {actions}", cycles=3))
    assert [pods for _, pods in later] == [{"default/g-t-0": "n1"}]
