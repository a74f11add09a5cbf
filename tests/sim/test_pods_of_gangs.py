"""The pods of a gang are those of the highest priority among those that fit some node."""

from __future__ import annotations

import pytest

from tests.sim.test_charges_of_running_groups import task_of
from tests.sim.worlds import bound, group, manifest, node, outcome, phases, pod, starts


def test_a_gang_takes_its_tasks_by_the_priority_of_their_pods() -> None:
    """One cpu is free: that is enough for the pod with the highest priority."""
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


def test_a_gang_does_not_wait_for_a_task_that_fits_nowhere_if_others_suffice() -> None:
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
def test_a_gang_that_fits_only_with_its_largest_pods_first_starts(overcommit: str) -> None:
    """The small pods have higher priority. Each on its best node, they would leave no node for all
    of the large ones.
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


def test_a_gang_that_fits_largest_pods_first_starts_although_it_needs_one_small_pod() -> None:
    """A cpu of `large` is as large a share of the total as the gpu that each pod asks for."""
    tasks = [
        task_of("large", 3, runtime="10s", replicas=2),
        {**task_of("small", 2, runtime="10s", replicas=3), "minAvailable": 1},
    ]
    for task in tasks:
        task["template"]["requests"]["gpu"] = 1
    came = outcome(
        node("n1", 6, gpu=3), node("n2", 6), node("n3", 6, gpu=3), group("mixed", tasks=tasks)
    )
    assert set(starts(came).values()) == {0}
    assert phases(came) == {"mixed": "Completed"}


def test_a_node_that_limits_its_pods_is_not_the_fullest_because_of_that() -> None:
    """`s` is the larger pod by its memory, and leaves n2 to `t` only if it takes all of n1."""
    of_s = task_of("s", 2, runtime="10s", replicas=1)
    of_s["template"]["requests"]["memory"] = 5
    came = outcome(
        node("n1", 2, memory=5),
        node("n2", 3, memory=6, pods=4),
        node("n3", 3),
        group("mixed", tasks=[of_s, task_of("t", 3, runtime="10s", replicas=2)]),
    )
    assert bound(came) == [
        (0, {"default/mixed-s-0": "n1", "default/mixed-t-0": "n3", "default/mixed-t-1": "n2"})
    ]


def test_a_gang_with_pods_that_fit_only_one_node_starts() -> None:
    """All ask for a cpu; `picky` tolerates no taint, and comes after `easy` in the gang."""
    easy = task_of("easy", 1, runtime="10s", priority=10, replicas=4)
    easy["template"]["tolerations"] = [{"key": "dear", "operator": "Exists"}]
    taints = [{"key": "dear", "effect": "NoSchedule"}]
    came = outcome(
        manifest("Node", "n1", {"resources": {"cpu": 4}, "taints": taints}),
        manifest("Node", "n2", {"resources": {"cpu": 4, "pods": 4}}),
        group("mixed", tasks=[easy, task_of("picky", 1, runtime="10s", replicas=3)]),
    )
    assert set(starts(came).values()) == {0}
    assert phases(came) == {"mixed": "Completed"}


def test_a_gang_whose_large_pods_would_fill_the_only_node_for_small_ones_starts() -> None:
    """Only n1 is in zone a. Largest pods first, each on the fullest node, would give two cpus of it
    to `large`, so that the gang was said not to fit even empty nodes.
    """
    bound = task_of("bound", 1, runtime="10s", replicas=3)
    bound["template"]["nodeSelector"] = {"zone": "a"}
    came = outcome(
        manifest("Node", "n1", {"resources": {"cpu": 4}}, metadata={"labels": {"zone": "a"}}),
        node("n2", 2),
        node("n3", 2),
        node("n4", 6),
        group("mixed", tasks=[task_of("large", 2, runtime="10s", replicas=3), bound]),
    )
    assert set(starts(came).values()) == {0}
    assert phases(came) == {"mixed": "Completed"}


def test_a_pod_of_another_task_replaces_one_that_is_being_stopped() -> None:
    """The first pod has exceeded its walltime, and takes 30 s to stop; at 12 a cpu is free."""
    first = task_of("first", 1, runtime="100s")
    other = task_of("other", 1, runtime="5s")
    came = outcome(
        node("n1", 2),
        group("busy", runtime="12s", status={"phase": "Running", "startedAt": 0}),
        pod("busy-t-0", "busy", phase="Running", node="n1", startedAt=0),
        group("array", minMember=1, walltime="10s", tasks=[first, {**other, "replicas": 2}]),
    )
    assert starts(came) == {"array-first-0": 0, "array-other-0": 12, "array-other-1": 17}
