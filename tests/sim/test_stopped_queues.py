"""A stopped queue, or one below a stopped queue, preempts and reclaims nothing."""

from __future__ import annotations

import pytest

from tests.sim.test_norm_evictions import CLASSES, HI, runs
from tests.sim.worlds import (
    Manifest,
    applies,
    evicted,
    group,
    node,
    outcome_until,
    pod,
    queue,
    taker,
    timeline,
)

ABOVE = [queue("top", deserved={"cpu": 2}), queue("b", deserved={"cpu": 0})]
#: It has been admitted, and fits no node: the groups of `b` that borrow use the capacity.
IN_QUEUE = group("gang", 2, queue="a", status={"phase": "InQueue", "reservedAt": 0})
BORROWED = runs("borrows", 2, queue="b", grace="0s")


def mine(**spec: object) -> Manifest:
    return taker("a", parent="top", deserved={"cpu": 2}, **spec)


def stopped_by(which: str, policy: str) -> list[Manifest]:
    """Return queue `a` below `top`; one of the two is stopped until 20 s."""
    if which == "its own":
        return [ABOVE[0], mine(stopPolicy=policy)]
    return [queue("top", deserved={"cpu": 2}, stopPolicy=policy), mine()]


@pytest.mark.parametrize("which", ["its own", "one above"])
def test_an_admitted_gang_evicts_no_pod_while_its_queue_is_held(which: str) -> None:
    came = outcome_until(
        30,
        *(node("n1", 2), *stopped_by(which, "Hold"), ABOVE[1], *BORROWED, IN_QUEUE),
        timeline(
            applies(20, queue("top", deserved={"cpu": 2}, stopPolicy="None")),
            applies(20, mine(stopPolicy="None")),
        ),
    )
    assert [at for at, _ in evicted(came)] == [20]


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
@pytest.mark.parametrize("which", ["its own", "one above"])
def test_a_waiting_group_evicts_no_pod_while_its_queue_is_stopped(which: str, policy: str) -> None:
    world = [node("n1", 2), *stopped_by(which, policy), ABOVE[1], *BORROWED]
    assert evicted(outcome_until(30, *world, group("gang", 2, queue="a"))) == []


def test_pods_beyond_min_member_evict_no_pod_while_their_queue_is_held() -> None:
    array = group("array", 2, minMember=1, queue="a", status={"phase": "Running", "reservedAt": 0})
    first = pod("array-t-0", "array", phase="Running", node="n1", startedAt=0)
    world = [node("n1", 2), *ABOVE, *runs("borrows", 1, queue="b", grace="0s"), array, first]
    assert len(evicted(outcome_until(30, *world, mine()))) == 1
    assert evicted(outcome_until(30, *world, mine(stopPolicy="Hold"))) == []


def test_a_more_important_group_preempts_nothing_in_a_held_queue() -> None:
    urgent = group("urgent", 2, queue="q", status={"phase": "InQueue", "reservedAt": 0}, **HI)
    world = [*CLASSES, node("n1", 2), *runs("low", 2, queue="q", grace="0s"), urgent]
    assert len(evicted(outcome_until(30, *world, queue("q")))) == 1
    assert evicted(outcome_until(30, *world, queue("q", stopPolicy="Hold"))) == []
