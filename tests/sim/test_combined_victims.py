"""Victims of the preemptor's own queue combined with victims of queues that borrow."""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    evicted,
    group,
    node,
    outcome,
    pledged,
    pod,
    priority,
    queue,
    taker,
)

LOW = priority("low", -1)


def runs(name: str, cpu: int, of: str, *, prio: str = "", grace: str = "10s") -> list[Manifest]:
    """Return a group of one pod that runs on n1."""
    spec = {"priorityClassName": prio} if prio else {}
    status = {"phase": "Running", "reservedAt": 0}
    one = pod(f"{name}-t-0", name, phase="Running", node="n1", startedAt=0)
    return [group(name, 1, cpu, queue=of, status=status, grace=grace, **spec), one]


@pytest.mark.parametrize("order", ["reclaim, preempt", "preempt, reclaim"])
def test_own_groups_and_borrowers_are_combined_where_neither_suffices(order: str) -> None:
    """Kueue combines victims of the own queue and of the cohort: the queue ends at 6 of 6."""
    came = outcome(
        LOW,
        node("n1", 12),
        taker("mine", deserved={"cpu": 6}),
        taker("theirs", deserved={"cpu": 6}),
        *runs("mine-low", 3, "mine", prio="low"),
        *runs("mine-mid", 2, "mine"),
        *runs("theirs-low", 3, "theirs", prio="low"),
        *runs("theirs-mid", 4, "theirs"),
        group("in", 1, 4, queue="mine"),
        config=f"actions: [enqueue, allocate, {order}]",
    )
    ((at, gone),) = evicted(came)
    assert at == 0
    assert sorted(gone) == [
        ("default/mine-low-t-0", "Preempted"),
        ("default/theirs-low-t-0", "Reclaimed"),
    ]
    assert admitted(came)[0] == (10, ["default/in"])


@pytest.mark.parametrize(
    "actions", ["enqueue, allocate, reclaim", "enqueue, allocate, preempt"], ids=["one", "other"]
)
def test_an_action_that_is_not_configured_adds_no_victims(actions: str) -> None:
    came = outcome(
        LOW,
        node("n1", 12),
        taker("mine", deserved={"cpu": 6}),
        taker("theirs", deserved={"cpu": 6}),
        *runs("mine-low", 3, "mine", prio="low"),
        *runs("mine-mid", 2, "mine"),
        *runs("theirs-low", 3, "theirs", prio="low"),
        *runs("theirs-mid", 4, "theirs"),
        group("in", 1, 4, queue="mine"),
        config=f"actions: [{actions}]",
    )
    assert evicted(came) == []


@pytest.mark.parametrize(
    "policy", [{"reclaim": "Never"}, {"reclaim": "Any", "withinQueue": "Never"}]
)
def test_a_queue_that_takes_nothing_by_one_of_the_actions_combines_no_victims(
    policy: dict[str, str],
) -> None:
    came = outcome(
        LOW,
        node("n1", 12),
        queue("mine", deserved={"cpu": 6}, preemption=policy),
        queue("theirs", deserved={"cpu": 6}),
        *runs("mine-low", 3, "mine", prio="low"),
        *runs("mine-mid", 2, "mine"),
        *runs("theirs-low", 7, "theirs", prio="low"),
        group("in", 1, 4, queue="mine"),
    )
    assert evicted(came) == []


def test_victims_are_not_combined_for_a_queue_that_would_end_above_deserved() -> None:
    """The queue holds 2 that stay, and asks for 5 of the 6 that it deserves."""
    came = outcome(
        LOW,
        node("n1", 12),
        taker("mine", deserved={"cpu": 6}),
        taker("theirs", deserved={"cpu": 6}),
        *runs("mine-low", 3, "mine", prio="low"),
        *runs("mine-mid", 2, "mine"),
        *runs("theirs-low", 3, "theirs", prio="low"),
        *runs("theirs-mid", 4, "theirs"),
        group("in", 1, 5, queue="mine"),
    )
    assert evicted(came) == []


def test_borrowers_give_as_much_as_they_may_before_an_own_group_is_evicted() -> None:
    """Its own queue has to give 2, to end within what it deserves; one borrower gives the rest."""
    own = [one for name in "abcde" for one in runs(f"own-{name}", 1, "mine", prio="low")]
    lent = [one for name in "abcdefg" for one in runs(f"lent-{name}", 1, "theirs")]
    came = outcome(
        LOW,
        node("n1", 12),
        taker("mine", deserved={"cpu": 6}),
        taker("theirs", deserved={"cpu": 6}),
        *own,
        *lent,
        group("in", 1, 3, queue="mine"),
        cycles=1,
    )
    ((_, gone),) = evicted(came)
    assert sorted(reason for _, reason in gone) == ["Preempted", "Preempted", "Reclaimed"]
    assert len(pledged(came)[0][1]["default/in"]) == 3
