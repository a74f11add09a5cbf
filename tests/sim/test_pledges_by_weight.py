"""Preemptors with open checks in queues that deserve by weight: each one's request counts."""

from __future__ import annotations

from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    applies,
    check,
    evicted,
    group,
    node,
    outcome,
    pledged,
    pod,
    priority,
    queue,
    requeued,
    reserved,
    timeline,
)

LATE = check("late", preemptionPolicy="AfterCheckPassedOrOnDemand")
BACK = {"reclaim": "Any"}


def runs(name: str, pods: int, of: str, *, grace: str = "10s") -> list[Manifest]:
    """Return a group of queue `of` that runs on n1, each pod with a cpu."""
    status = {"phase": "Running", "reservedAt": 0}
    each = [
        pod(f"{name}-t-{index}", name, index, phase="Running", node="n1", startedAt=0)
        for index in range(pods)
    ]
    return [group(name, pods, queue=of, status=status, grace=grace), *each]


def test_a_queue_that_deserves_by_weight_keeps_its_pledge_while_its_check_is_open() -> None:
    """Without its own request the preemptor's queue would deserve nothing."""
    came = outcome(
        LATE,
        node("n1", 4),
        queue("asks", admissionChecks=["late"], preemption=BACK),
        queue("borrows", preemption=BACK),
        *runs("b1", 2, "borrows"),
        *runs("b2", 2, "borrows"),
        timeline(applies(5, group("in", 2, queue="asks")), answers(60, "in", "late", "True")),
    )
    assert reserved(came) == [(5, ["default/in"])]
    assert pledged(came) == [(5, {"default/in": ["default/b1-t-0", "default/b1-t-1"]})]
    assert [(at, len(pods)) for at, pods in evicted(came)] == [(60, 2)]
    assert requeued(came) == [(60, [("default/b1", "Reclaimed")])]
    assert admitted(came) == [(70, ["default/in"])]


def test_a_queues_deserved_share_counts_a_preemptor_beside_its_running_victims() -> None:
    """Its queue asks for 8 of 12, 4 running and 4 waiting for their check, and the other queue for
    all: each deserves half.
    """
    came = outcome(
        LATE,
        priority("high", 10),
        node("n1", 12),
        queue("q", admissionChecks=["late"]),
        queue("other"),
        *runs("low", 4, "q"),
        *runs("held", 8, "other"),
        group("more", 8, queue="other"),
        group("hi", 4, queue="q", priorityClassName="high"),
        cycles=2,
    )
    assert pledged(came) == [(0, {"default/hi": [f"default/low-t-{n}" for n in range(4)]})]
    assert came.queues["q"].deserved["cpu"] == "6"
