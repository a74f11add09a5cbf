"""Bounds of a group's status."""

from __future__ import annotations

from itertools import product
from typing import Literal

from batchq.api.objects import PodGroupStatus
from batchq.core.session.transitions import bounded_spent, with_condition
from tests.builders import a_group, a_node, a_queue, a_task
from tests.scheduler.conftest import Stack

MANY = [f"r{number:02}" for number in range(60)]
STATES: tuple[Literal["True", "False"], ...] = ("True", "False")


def test_status_keeps_the_most_fundamental_of_very_many_reasons(stack: Stack) -> None:
    stack.ready(a_node())
    stack.apply(a_queue("none", capability=dict.fromkeys(MANY, 0)))
    task = a_task("t", 1, command=("true",), requests=dict.fromkeys(MANY, 1000))
    stack.apply(a_group("greedy", queue="none", tasks=(task,)))
    stack.turn()
    kept = stack.group("greedy")
    # Refused by the queue and by the cluster, for each of sixty resources.
    assert [str(reason.reason) for reason in kept.status.reasons] == [
        *["ExceedsMaxQuota"] * 60,
        *["ExceedsCapacity"] * 4,
    ]
    stack.turn()
    assert stack.group("greedy").metadata.revision == kept.metadata.revision


def test_status_has_one_condition_of_each_type() -> None:
    status = PodGroupStatus()
    for number, (kind, state) in enumerate(product(("Admitted", "Evicted"), STATES)):
        conditions = with_condition(
            status.conditions, kind, state, f"Reason{number}", "", now_ms=number
        )
        status = PodGroupStatus(conditions=conditions)
    assert [(one.type, one.reason) for one in status.conditions] == [
        ("Admitted", "Reason1"),
        ("Evicted", "Reason3"),
    ]


def test_the_retries_of_ten_thousand_pods_are_remembered_those_that_failed_most() -> None:
    counts = {str(ordinal): 1 for ordinal in range(12_000)} | {"11999": 3}
    kept = bounded_spent(counts)
    assert len(kept) == 10_000
    assert kept["11999"] == 3
    assert list(kept)[-2:] == ["9998", "11999"]


def test_fewer_retries_are_remembered_unchanged() -> None:
    counts = {"7": 2, "3": 1}
    assert bounded_spent(counts) is counts
