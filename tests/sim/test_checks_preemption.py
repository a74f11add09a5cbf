"""Checks and victims: when victims are evicted for a group that still has open checks.

If every check is Anytime, the eviction comes with the reservation. Otherwise the reservation is a
pledge without evictions until the checks allow them; until then the victims are chosen again in
each session.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    check,
    evicted,
    finished,
    group,
    node,
    of,
    outcome_until,
    phases,
    pledged,
    pod,
    priority,
    queue,
    reasons,
    requeued,
    reserved,
    timeline,
)

ALL = "actions: [enqueue, allocate, reclaim, preempt]"
CLASSES = [priority(*one) for one in (("mid", 5), ("high", 10), ("top", 20))]
LATE = check("late", preemptionPolicy="AfterCheckPassedOrOnDemand")
LATER = check("later", preemptionPolicy="AfterCheckPassedOrOnDemand", retryDelayMinutes=1)
ANY = check("any", retryDelayMinutes=1)
HI: Manifest = {"priorityClassName": "high", "queue": "q"}


def runs(
    name: str, pods: int = 1, cpu: Any = 1, *, since: int = 0, grace: str = "10s", **spec: Any
) -> list[Manifest]:
    """Return a group that runs on n1 since before its queue had any checks."""
    spec = {"queue": "q", **spec}
    status: Manifest = {"phase": "Running", "reservedAt": 0, "startedAt": since}
    each = [
        pod(f"{name}-t-{i}", name, i, phase="Running", node="n1", startedAt=since)
        for i in range(pods)
    ]
    return [group(name, pods, cpu, status=status, grace=grace, **spec), *each]


def asks(*checks: str, **spec: Any) -> Manifest:
    return queue("q", admissionChecks=list(checks), **spec)


def play(*manifests: Manifest, until: int = 100, config: str = ALL) -> WorldOutcome:
    return outcome_until(until, *CLASSES, LATE, LATER, ANY, *manifests, config=config)


def test_with_every_check_anytime_victims_are_evicted_at_the_reservation() -> None:
    came = play(
        node("n1", 4),
        asks("any"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(answers(50, "hi", "any", "True")),
    )
    assert reserved(came)[0] == (0, ["default/hi"])
    assert evicted(came) == [
        (0, [("default/low-t-0", "Preempted"), ("default/low-t-1", "Preempted")])
    ]
    # Its victims end at 10; what they release is kept for it until its check has passed.
    assert admitted(came) == [(50, ["default/hi"])]


def test_a_group_that_passes_before_its_victims_have_ended_waits_for_them() -> None:
    came = play(
        node("n1", 4),
        asks("any"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(answers(5, "hi", "any", "True")),
    )
    assert admitted(came) == [(10, ["default/hi"])]


def test_a_preemptors_pledge_does_not_expire_while_only_its_checks_are_open() -> None:
    """The pledge would expire 60 s after the longest grace period."""
    came = play(
        node("n1", 4),
        asks("any"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(answers(500, "hi", "any", "True")),
        until=600,
    )
    assert [one for one in requeued(came) if ("default/hi", "InQueueTimeout") in one[1]] == []
    assert admitted(came) == [(500, ["default/hi"])]


def test_capacity_released_by_victims_is_kept_for_a_preemptor_with_open_checks() -> None:
    came = play(
        node("n1", 4),
        asks("any"),
        queue("other", preemption={"reclaim": "Never"}),
        *runs("low", 2, 2),
        group("hi", 1, 4, **HI),
        timeline({"at": "20s", "apply": group("newcomer", queue="other")}),
    )
    assert admitted(came) == []
    assert reasons(came, "newcomer") == ["WaitingForResources"]


def test_a_retry_releases_the_pledge_and_the_victim_starts_over() -> None:
    came = play(
        node("n1", 4),
        asks("any"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(answers(5, "hi", "any", "False", "Retry"), answers(20, "low", "any", "True")),
        until=60,
    )
    assert requeued(came) == [
        (0, [("default/low", "Preempted")]),
        (5, [("default/hi", "CheckRetry")]),
    ]
    assert (10, ["default/low"]) in reserved(came), "when its own pods have stopped"
    assert admitted(came) == [(20, ["default/low"])]


def test_a_late_check_prevents_evictions_until_it_has_passed() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(answers(5, "hi", "late", "True")),
    )
    assert reserved(came)[0] == (0, ["default/hi"])
    assert pledged(came)[0] == (0, {"default/hi": ["default/low-t-0", "default/low-t-1"]})
    assert evicted(came) == [
        (5, [("default/low-t-0", "Preempted"), ("default/low-t-1", "Preempted")])
    ]
    assert admitted(came) == [(15, ["default/hi"])]
    assert of(came, "hi").phase == "Running"


def test_while_a_late_check_is_open_victims_run_and_the_preemptor_adds_no_charge() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
    )
    assert phases(came) == {"low": "Running", "hi": "Pending"}
    assert evicted(came) == []
    assert came.queues["q"].allocated["cpu"] == "4"
    assert reasons(came, "hi") == ["WaitingForChecks", "WaitingForPreemption"]


def test_with_two_late_checks_both_must_pass_before_any_eviction() -> None:
    came = play(
        node("n1", 4),
        asks("late", "later"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(answers(5, "hi", "late", "True"), answers(8, "hi", "later", "True")),
    )
    assert [at for at, _ in evicted(came)] == [8]
    assert admitted(came) == [(18, ["default/hi"])]


def test_an_additional_anytime_check_does_not_delay_the_eviction() -> None:
    came = play(
        node("n1", 4),
        asks("late", "any"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(answers(5, "hi", "late", "True"), answers(40, "hi", "any", "True")),
    )
    assert [at for at, _ in evicted(came)] == [5]
    assert admitted(came) == [(40, ["default/hi"])]


@pytest.mark.parametrize("who", ["late", "any"])
def test_any_check_may_ask_for_the_preemption_before_it_passes(who: str) -> None:
    came = play(
        node("n1", 4),
        asks("late", "any"),
        *runs("low", 2, 2),
        group("hi", 1, 3, **HI),
        timeline(
            answers(5, "hi", who, "Unknown", "PreemptionRequired"),
            answers(30, "hi", "late", "True"),
            answers(31, "hi", "any", "True"),
        ),
    )
    assert [at for at, _ in evicted(came)] == [5]
    assert admitted(came) == [(31, ["default/hi"])]


@pytest.mark.parametrize(
    ("step", "phase"),
    [
        ({"at": "5s", "suspend": "hi"}, "Pending"),
        ({"at": "5s", "apply": asks("late", stopPolicy="Hold")}, "Pending"),
        (answers(5, "hi", "late", "False", "Retry"), "Pending"),
        (answers(5, "hi", "late", "False", "Reject"), "Failed"),
    ],
)
def test_a_preemptor_that_loses_its_reservation_has_evicted_no_pod(
    step: Manifest, phase: str
) -> None:
    came = play(
        node("n1", 4), asks("late"), *runs("low", 2, 2), group("hi", 1, 3, **HI), timeline(step)
    )
    assert (evicted(came), reserved(came)) == ([], [(0, ["default/hi"])])
    assert phases(came) == {"low": "Running", "hi": phase}
    assert came.queues["q"].reserved["cpu"] == "0"


def test_a_victim_that_ends_normally_leaves_its_capacity_to_the_preemptor() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("low", 1, 4, runtime="3s"),
        group("hi", 1, 3, **HI),
        group("behind", 1, 4, queue="q"),
        timeline(answers(5, "hi", "late", "True")),
    )
    assert finished(came)[0] == (3, ["default/low"])
    assert evicted(came) == []
    assert reserved(came) == [(0, ["default/hi"])]
    assert admitted(came) == [(5, ["default/hi"])]


def test_a_victim_whose_priority_was_raised_is_replaced_by_another() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("old", 1, 2),
        *runs("young", 1, 2, since=9),
        group("hi", 1, 2, **HI),
        timeline(
            {
                "at": "3s",
                "apply": group("young", 1, 2, queue="q", grace="10s", priorityClassName="top"),
            },
            answers(5, "hi", "late", "True"),
        ),
    )
    assert pledged(came)[:2] == [
        (0, {"default/hi": ["default/young-t-0"]}),
        (3, {"default/hi": ["default/old-t-0"]}),
    ]
    assert reserved(came)[0] == (0, ["default/hi"])
    assert [who for _, who in reserved(came)].count(["default/hi"]) == 1
    assert evicted(came) == [(5, [("default/old-t-0", "Preempted")])]
    assert admitted(came) == [(15, ["default/hi"])]


def test_a_preemptor_without_victims_of_lower_priority_loses_its_reservation() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("low", 1, 4),
        group("hi", 1, 2, **HI),
        timeline(
            {
                "at": "3s",
                "apply": group("low", 1, 4, queue="q", grace="10s", priorityClassName="top"),
            }
        ),
    )
    assert requeued(came) == [(3, [("default/hi", "CapacityCut")])]
    assert evicted(came) == []
    assert of(came, "hi").checks == {"late": "Unknown"}
    assert "WaitingForChecks" not in reasons(came, "hi")


def test_a_spent_eviction_budget_delays_the_eviction_and_not_the_reservation() -> None:
    came = play(
        node("n1", 4),
        node("n2", 4),
        asks("late"),
        queue("other"),
        *runs("low", 1, 4),
        *on_n2("victim"),
        group("first", 1, 4, queue="other", priorityClassName="high"),
        group("hi", 1, 4, **HI),
        timeline(answers(5, "hi", "late", "True")),
        config=f"{ALL}\nevictionBudget: {{pods: 1, window: 60s}}",
    )
    assert evicted(came) == [
        (0, [("default/victim-t-0", "Preempted")]),
        (60, [("default/low-t-0", "Preempted")]),
    ]
    assert (0, "default/hi") in [(at, who) for at, names in reserved(came) for who in names]
    assert [one for one in requeued(came) if ("default/hi", "CapacityCut") in one[1]] == []
    assert (70, ["default/hi"]) in admitted(came)


def on_n2(name: str) -> list[Manifest]:
    status = {"phase": "Running", "reservedAt": 0, "startedAt": 0}
    one = pod(f"{name}-t-0", name, phase="Running", node="n2", startedAt=0)
    return [group(name, 1, 4, status=status, grace="10s", queue="other"), one]


def test_reclaim_delays_its_evictions_as_preempt_does() -> None:
    came = play(
        node("n1", 4),
        queue("b", deserved={"cpu": 1}),
        asks("late", deserved={"cpu": 3}, preemption={"reclaim": "Any"}),
        *runs("b1", 1, 2, queue="b"),
        *runs("b2", 1, 2, queue="b", since=5),
        group("in", 1, 2, queue="q"),
        timeline(answers(5, "in", "late", "True")),
    )
    assert pledged(came)[0] == (0, {"default/in": ["default/b2-t-0"]})
    assert evicted(came) == [(5, [("default/b2-t-0", "Reclaimed")])]
    assert admitted(came) == [(15, ["default/in"])]


def test_two_preemptors_with_open_checks_are_pledged_different_victims() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("v1", 1, 2),
        *runs("v2", 1, 2, since=5),
        group("hi1", 1, 2, **HI),
        group("hi2", 1, 2, **HI),
        group("hi3", 1, 2, **HI),
        timeline(answers(5, "hi2", "late", "True"), answers(6, "hi1", "late", "True")),
    )
    assert pledged(came)[0] == (
        0,
        {"default/hi1": ["default/v2-t-0"], "default/hi2": ["default/v1-t-0"]},
    )
    assert evicted(came) == [
        (5, [("default/v1-t-0", "Preempted")]),
        (6, [("default/v2-t-0", "Preempted")]),
    ]
    assert [(at, who) for at, who in admitted(came) if "3" not in who[0]] == [
        (15, ["default/hi2"]),
        (16, ["default/hi1"]),
    ]
    assert of(came, "hi3").phase == "Pending"


def test_pods_beyond_min_member_are_pledged_and_evicted_alone() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("elastic", 4, 1, minMember=2),
        group("hi", 1, 2, **HI),
        timeline(answers(5, "hi", "late", "True")),
    )
    assert pledged(came) == [(0, {"default/hi": ["default/elastic-t-3", "default/elastic-t-2"]})]
    assert evicted(came) == [
        (5, [("default/elastic-t-3", "Preempted"), ("default/elastic-t-2", "Preempted")])
    ]
    assert phases(came)["elastic"] == "Running"
    assert admitted(came) == [(15, ["default/hi"])]


def test_an_external_victim_keeps_its_reservation_until_the_check_has_passed() -> None:
    external = group("ext", queue="q", tasks=[], controller="external", minResources={"cpu": 4})
    external["status"] = {"phase": "InQueue", "reservedAt": 0}
    came = play(
        node("n1", 4),
        asks("late", capability={"cpu": 4}),
        external,
        group("hi", 1, 3, **HI),
        timeline(answers(5, "hi", "late", "True")),
    )
    assert pledged(came)[0] == (0, {"default/hi": ["default/ext"]})
    assert requeued(came)[0] == (5, [("default/ext", "Preempted")])
    assert admitted(came) == [(5, ["default/hi"])]
