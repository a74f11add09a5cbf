"""Sentences of kube-batch's "Delay Pod Creation" that no other test shows.

docs/sources.md has the whole document, sentence by sentence.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    admitted,
    answers,
    bound,
    check,
    cordoned,
    created,
    group,
    node,
    of,
    outcome,
    outcome_until,
    queue,
    quota,
    reasons,
    reserved,
    timeline,
)

ENQUEUE = "actions: [enqueue]"


@pytest.mark.parametrize(
    ("idle", "hard", "phase", "expected"),
    [
        (6, 6, "InQueue", []),
        (6, 5, "Pending", ["WaitingForQuota"]),
        (5, 6, "Pending", ["WaitingForResources"]),
        (5, 5, "Pending", ["WaitingForQuota", "WaitingForResources"]),
    ],
)
def test_a_group_is_in_queue_if_capacity_and_quota_fit_its_min_resources(
    idle: int, hard: int, phase: str, expected: list[str]
) -> None:
    """Its only pod asks for far less; another group of the namespace holds 2 of everything."""
    came = outcome(
        node("n1", 2 + idle),
        quota("default", cpu=2 + hard),
        group("holds", 2, runtime="60s", created=1),
        group("g", created=2, minResources={"cpu": 6}, runtime="1s"),
        cycles=1,
        config=ENQUEUE,
    )
    assert (of(came, "g").phase, reasons(came, "g")) == (phase, expected)


def test_the_sum_of_min_resources_in_a_namespace_is_within_its_quota() -> None:
    came = outcome(
        node("n1", 100),
        quota("blue", cpu=10),
        *(group(f"b{n}", minResources={"cpu": 3}, namespace="blue") for n in range(5)),
        *(group(f"r{n}", minResources={"cpu": 3}, namespace="red") for n in range(5)),
        cycles=2,
        config=ENQUEUE,
    )
    (_, names), *_ = admitted(came)
    assert sorted(names) == [
        *("blue/b0", "blue/b1", "blue/b2"),
        *("red/r0", "red/r1", "red/r2", "red/r3", "red/r4"),
    ]
    [reason] = of(came, "b3", "blue").reasons
    assert reason.message == (
        "needs cpu 3, and the quota of namespace blue has 1 free (9 of 10 in use)"
    )


def test_resources_reserved_by_min_resources_are_used_by_no_other_group() -> None:
    """Neither a later group nor more pods of a running one use them."""
    came = outcome_until(
        20,
        node("n1", 10),
        check("approval"),
        queue("q", admissionChecks=["approval"]),
        group("reserves", queue="q", minResources={"cpu": 6}),
        group("array", 10, minMember=1, runtime="1h"),
        timeline({"at": "5s", "apply": group("late", minResources={"cpu": 3})}),
    )
    assert reserved(came)[0] == (0, ["default/reserves", "default/array"])
    assert [(at, len(pods)) for at, pods in bound(came)] == [(0, 4)]
    assert reasons(came, "late") == ["WaitingForResources"]
    assert came.queues["q"].reserved["cpu"] == "6"


def test_a_reserved_group_that_starts_finds_its_resources_kept() -> None:
    came = outcome_until(
        30,
        node("n1", 10),
        check("approval"),
        queue("q", admissionChecks=["approval"]),
        group("reserves", 6, queue="q"),
        group("array", 10, minMember=1, runtime="1h"),
        timeline(answers(25, "reserves", "approval", "True")),
    )
    assert [(at, len(pods)) for at, pods in bound(came)] == [(0, 4), (25, 6)]


def test_quotas_may_add_up_to_more_than_the_cluster_has() -> None:
    """Resources that one tenant cannot place on any node serve another."""
    came = outcome_until(
        4,
        node("n1", 4),
        node("n2", 4),
        quota("blue", cpu=8),
        quota("red", cpu=8),
        group("wide", cpu=5, namespace="blue"),
        group("all", 8, namespace="red", runtime="5s"),
    )
    assert [(at, len(pods)) for at, pods in bound(came)] == [(0, 8)]
    assert reasons(came, "wide", "blue")[0] == "ExceedsCapacity"


def test_a_group_that_fits_no_node_is_pending_and_its_pods_are_gone() -> None:
    """It is not InQueue, where it would be tried again at once."""
    came = outcome_until(
        35, node("n1", 2), cordoned("n2", 3), group("wide", cpu=3), config="overcommit: 2"
    )
    assert of(came, "wide").phase == "Pending"
    assert reasons(came, "wide")[0] == "BackingOff"
    assert [at for at, _ in created(came)] == [0, 10, 30]


def test_a_group_that_could_never_fit_a_node_has_no_pods() -> None:
    came = outcome(node("n1", 2), node("n2", 2), group("wide", cpu=3))
    assert of(came, "wide").phase == "Pending"
    assert reasons(came, "wide") == ["ExceedsCapacity"]
    assert created(came) == []
