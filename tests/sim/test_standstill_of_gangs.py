"""A gang is made of the pods that matter most, of those that fit anywhere."""

from __future__ import annotations

import pytest

from tests.sim.test_standstill_of_promises import task_of
from tests.sim.worlds import group, node, outcome, phases, pod, starts


def test_a_gang_takes_its_tasks_by_the_priority_of_their_pods() -> None:
    """One cpu is free: that is enough for the pod that matters most."""
    came = outcome(
        node("n1", 4),
        group("busy", 1, 3, runtime="100s", status={"phase": "Running", "startedAt": 0}),
        pod("busy-t-0", "busy", phase="Running", node="n1", startedAt=0),
        group(
            "pair",
            minMember=1,
            tasks=[
                task_of("wide", 4, runtime="10s"),
                task_of("narrow", 1, runtime="10s", priority=10),
            ],
        ),
    )
    assert starts(came) == {"pair-narrow-0": 0, "pair-wide-0": 100}


def test_a_gang_does_not_wait_for_a_task_that_fits_nowhere_while_others_would_do() -> None:
    came = outcome(
        node("n1", 4),
        group(
            "pair",
            minMember=1,
            tasks=[task_of("huge", 8, runtime="10s"), task_of("fits", 1, runtime="10s")],
        ),
    )
    assert starts(came) == {"pair-fits-0": 0}


@pytest.mark.parametrize("overcommit", ["1.0", "1.5"])
def test_a_gang_starts_that_fits_only_with_its_largest_pods_first(overcommit: str) -> None:
    """The small pods matter more. Each on the best node, they would leave no node for all of the
    large ones.
    """
    came = outcome(
        node("n1", 4),
        node("n2", 2),
        node("n3", 4),
        group(
            "mixed",
            tasks=[
                task_of("large", 2, runtime="10s", replicas=3),
                task_of("small", 1, runtime="10s", priority=10, replicas=4),
            ],
        ),
        config=f"overcommit: {overcommit}",
    )
    assert set(starts(came).values()) == {0}
    assert phases(came) == {"mixed": "Completed"}
