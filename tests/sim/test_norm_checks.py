"""Admission checks in worlds in which several of their rules meet.

The whole story of each world is stated; it was derived from the documented rules by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.worlds import (
    Manifest,
    answers,
    applies,
    check,
    group,
    node,
    of,
    outcome_until,
    phases,
    pod,
    priority,
    queue,
    reasons,
    story,
    taker,
    timeline,
)

CLASSES = [priority("low", -1), priority("high", 10)]
C = check("c", retryDelayMinutes=1)
LATE = check("late", retryDelayMinutes=1, preemptionPolicy="AfterCheckPassedOrOnDemand")


def asks(*checks: str, **spec: Any) -> Manifest:
    return queue("default", admissionChecks=list(checks), **spec)


def runs(name: str, *, runtime: str | None = None, **spec: Any) -> list[Manifest]:
    """Return a group with one pod on n1, since before its queue had checks; its grace period is 30
    seconds.
    """
    status = {"phase": "Running", "reservedAt": 0}
    spec = {"priorityClassName": "low", **spec}
    one = group(name, status=status, runtime=runtime, **spec)
    return [one, pod(f"{name}-t-0", name, phase="Running", node="n1", startedAt=0)]


def high(name: str, pods: int = 1, **spec: Any) -> Manifest:
    return group(name, pods, priorityClassName="high", **spec)


def checks_of(came: WorldOutcome, name: str) -> dict[str, str]:
    return of(came, name).checks


def test_after_a_retry_groups_submitted_meanwhile_come_first() -> None:
    """A group's queue time is the moment of the requeue after check Retry."""
    came = outcome_until(
        200,
        node("n1", 1),
        asks("c"),
        C,
        group("a"),
        group("b"),
        timeline(
            applies(5, group("x")),
            answers(10, "a", "c", "False", "Retry"),
            answers(80, "b", "c", "False", "Retry"),
        ),
    )
    assert story(came) == [
        "0 reserved a",
        "10 requeued a CheckRetry",
        "10 reserved b",
        "80 requeued b CheckRetry",
        "80 reserved x",
    ]
    assert [of(came, name).position for name in ("x", "a", "b")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("passed", "story_of_it", "states"),
    [
        ("quick", ["0 reserved g", "120 finished g"], {"quick": "True", "slow": "False"}),
        (
            "slow",
            ["0 reserved g", "60 requeued g CheckRetry", "180 reserved g"],
            {"quick": "Unknown", "slow": "Unknown"},
        ),
    ],
)
def test_the_timeout_of_the_unanswered_check_counts(
    passed: str, story_of_it: list[str], states: dict[str, str]
) -> None:
    """unknownTimeout, counted from the reservation, frees stuck ones: onTimeout Retry or Reject."""
    came = outcome_until(
        200,
        node("n1", 1),
        asks("quick", "slow"),
        check("quick", unknownTimeout="60s", retryDelayMinutes=2),
        check("slow", unknownTimeout="120s", onTimeout="Reject"),
        group("g"),
        timeline(answers(50, "g", passed, "True")),
    )
    assert (story(came), checks_of(came, "g")) == (story_of_it, states)


def test_a_check_that_joins_later_has_its_timeout_from_the_reservation_too() -> None:
    came = outcome_until(
        100,
        node("n1", 1),
        asks("c"),
        C,
        check("new", unknownTimeout="40s", onTimeout="Reject"),
        group("g"),
        timeline(applies(30, asks("c", "new"))),
    )
    assert story(came) == ["0 reserved g", "40 finished g"]


def test_a_stated_reservation_counts_from_its_stated_time() -> None:
    """Time is integer seconds from 0, the latest timestamp in the file."""
    came = outcome_until(
        1000,
        node("n1", 1),
        asks("c"),
        check("c", unknownTimeout="1000s", onTimeout="Reject"),
        group("now", created=700, suspend=True),
        group("g", status={"reservedAt": 100}),
    )
    assert story(came) == ["400 finished g"]


def test_a_retry_without_a_delay_reserves_when_its_own_processes_have_ended() -> None:
    """In rules 2-4 the ledger leaves out the group itself; a node does not."""
    came = outcome_until(
        300,
        node("n1", 1),
        asks("c"),
        check("c", retryDelayMinutes=0),
        group("g", grace="2m"),
        timeline(
            answers(5, "g", "c", "True"),
            answers(10, "g", "c", "False", "Retry"),
            answers(140, "g", "c", "True"),
        ),
    )
    assert story(came) == [
        "0 reserved g",
        "5 admitted g",
        "5 bound g-t-0",
        "10 requeued g CheckRetry",
        "10 evicted g-t-0 CheckRetry",
        "130 reserved g",
        "140 admitted g",
        "140 bound g-t-0",
    ]


def test_a_group_that_times_out_in_queue_asks_its_checks_again() -> None:
    """It lacked only a node, so it does not back off."""
    came = outcome_until(
        400,
        node("n1", 2),
        asks("c"),
        C,
        *runs("r"),
        group("g", 1, 2),
        node("n2", 1),
        timeline(answers(5, "g", "c", "True")),
        config="overcommit: 2",
    )
    assert story(came) == [
        "0 reserved g",
        "5 admitted g",
        "305 requeued g InQueueTimeout",
        "305 reserved g",
    ]
    assert (checks_of(came, "g"), reasons(came, "g")) == ({"c": "Unknown"}, ["WaitingForChecks"])


def test_a_group_that_stops_after_a_retry_counts_in_max_pod_groups() -> None:
    """maxPodGroups: groups with a reservation or a charge."""
    came = outcome_until(
        100,
        node("n1", 9),
        asks("c", maxPodGroups=1),
        C,
        group("g"),
        group("h"),
        timeline(answers(5, "g", "c", "True"), answers(10, "g", "c", "False", "Retry")),
    )
    assert story(came) == [
        "0 reserved g",
        "5 admitted g",
        "5 bound g-t-0",
        "10 requeued g CheckRetry",
        "10 evicted g-t-0 CheckRetry",
        "40 reserved h",
    ]


def test_a_rejected_group_has_failed_for_its_dependents() -> None:
    came = outcome_until(
        50,
        node("n1", 9),
        queue("w", admissionChecks=["c"]),
        C,
        group("g", queue="w"),
        group("cleanup", dependsOn=[{"name": "g", "condition": "failed"}]),
        group("next", dependsOn=[{"name": "g", "condition": "ok"}]),
        timeline(answers(5, "g", "c", "False", "Reject")),
    )
    assert story(came) == [
        "0 reserved g",
        "5 reserved cleanup",
        "5 admitted cleanup",
        "5 bound cleanup-t-0",
        "5 finished g, next",
    ]
    assert reasons(came, "next") == ["DependencyNeverMet"]


def test_a_strict_head_that_fits_no_empty_ready_node_is_passed() -> None:
    """It loses its reservation with its node, and is out of line until a node comes."""
    came = outcome_until(
        100,
        node("n1", 1),
        node("n2", 1),
        asks("c", strategy={"type": "StrictFIFO"}),
        C,
        group("a", 2),
        group("b"),
        timeline({"at": "10s", "failNode": "n2"}),
    )
    assert story(came) == ["0 reserved a", "10 requeued a NodeLost", "10 reserved b"]
    assert reasons(came, "b") == ["WaitingForChecks"]


def test_a_preemptor_whose_node_is_lost_takes_other_victims_in_the_same_session() -> None:
    came = outcome_until(
        200,
        *CLASSES,
        node("n1", 1),
        node("n2", 1),
        asks("c"),
        C,
        *runs("low"),
        high("hi"),
        timeline({"at": "10s", "failNode": "n2"}, answers(20, "hi", "c", "True")),
    )
    assert story(came) == [
        "0 reserved hi",
        "10 requeued hi NodeLost, low Preempted",
        "10 evicted low-t-0 Preempted",
        "10 pledged low-t-0 to hi",
        "10 reserved hi",
        "40 admitted hi",
        "40 bound hi-t-0",
    ]


@pytest.mark.parametrize(
    "room",
    [
        applies(5, node("n2", 1)),
        applies(10, node("n2", 1)),
        {"at": "5s", "finishPod": "default/other-t-0"},
    ],
)
def test_capacity_that_has_become_free_meanwhile_avoids_the_eviction(room: Manifest) -> None:
    """Before the first eviction victims are chosen again in each session; only needed ones are
    evicted.
    """
    came = outcome_until(
        100,
        *CLASSES,
        node("n1", 2),
        queue("q", admissionChecks=["late"]),
        LATE,
        *runs("low", queue="q"),
        *runs("other", priorityClassName="high"),
        high("hi", queue="q"),
        timeline(room, answers(10, "hi", "late", "True")),
    )
    result = [line for line in story(came) if line != "5 finished other"]
    assert result == [
        "0 pledged low-t-0 to hi",
        "0 reserved hi",
        "10 admitted hi",
        "10 bound hi-t-0",
    ]
    assert phases(came)["low"] == "Running"


def test_terminating_pods_are_counted_on_before_any_eviction() -> None:
    """Terminating pods that are not pledged to another group count next, before any victim."""
    came = outcome_until(
        100,
        *CLASSES,
        node("n1", 2),
        queue("q", admissionChecks=["late"]),
        LATE,
        *runs("low", queue="q"),
        *runs("other", priorityClassName="high"),
        high("hi", queue="q"),
        timeline({"at": "5s", "suspend": "default/other"}, answers(10, "hi", "late", "True")),
    )
    assert story(came) == [
        "0 pledged low-t-0 to hi",
        "0 reserved hi",
        "5 requeued other Suspended",
        "5 evicted other-t-0 Suspended",
        "5 pledged other-t-0 to hi",
        "35 admitted hi",
        "35 bound hi-t-0",
    ]


def test_a_reservation_and_its_answers_are_kept_when_a_borrower_ends() -> None:
    """No pod of that queue may be reclaimed any more, and none has to be."""
    came = outcome_until(
        100,
        node("n1", 3),
        taker("a", admissionChecks=["c", "late"], deserved={"cpu": 1}),
        queue("b", deserved={"cpu": 2}),
        C,
        LATE,
        *CLASSES,
        *runs("b1", queue="b"),
        *runs("b2", queue="b"),
        *runs("b3", queue="b", runtime="5s"),
        group("a1", queue="a"),
        timeline(answers(3, "a1", "c", "True"), answers(10, "a1", "late", "True")),
    )
    assert story(came) == [
        "0 pledged b1-t-0 to a1",
        "0 reserved a1",
        "5 finished b3",
        "10 admitted a1",
        "10 bound a1-t-0",
    ]


def test_after_its_victim_has_ended_the_preemptor_waits_for_its_checks_alone() -> None:
    came = outcome_until(
        20,
        *CLASSES,
        node("n1", 1),
        asks("late"),
        LATE,
        *runs("low"),
        high("hi"),
        timeline(applies(5, node("n2", 1))),
    )
    assert story(came) == ["0 pledged low-t-0 to hi", "0 reserved hi"]
    assert reasons(came, "hi") == ["WaitingForChecks"]


def test_two_preemptors_evict_their_victims_each_when_its_checks_allow_it() -> None:
    came = outcome_until(
        100,
        *CLASSES,
        node("n1", 2),
        asks("late"),
        LATE,
        *runs("l1"),
        *runs("l2"),
        high("h1"),
        high("h2"),
        timeline(answers(10, "h2", "late", "True"), answers(20, "h1", "late", "True")),
    )
    assert story(came) == [
        "0 pledged l1-t-0 to h1, l2-t-0 to h2",
        "0 reserved h1, h2",
        "10 requeued l2 Preempted",
        "10 evicted l2-t-0 Preempted",
        "20 requeued l1 Preempted",
        "20 evicted l1-t-0 Preempted",
        "40 admitted h2",
        "40 bound h2-t-0",
        "50 admitted h1",
        "50 bound h1-t-0",
    ]


def test_a_victim_of_a_preemption_that_was_retried_returns_and_is_pledged_without_a_process() -> (
    None
):
    """PreemptionRequired evicts; Retry releases; the group that only reserves is preempted in the
    end.
    """
    came = outcome_until(
        100,
        *CLASSES,
        node("n1", 1),
        asks("late"),
        LATE,
        *runs("low"),
        high("hi"),
        timeline(
            answers(10, "hi", "late", "Unknown", "PreemptionRequired"),
            answers(20, "hi", "late", "False", "Retry"),
            answers(90, "hi", "late", "True"),
        ),
    )
    assert story(came) == [
        "0 pledged low-t-0 to hi",
        "0 reserved hi",
        "10 requeued low Preempted",
        "10 evicted low-t-0 Preempted",
        "20 requeued hi CheckRetry",
        "40 reserved low",
        "80 pledged low to hi",
        "80 reserved hi",
        "90 requeued low Preempted",
        "90 admitted hi",
        "90 bound hi-t-0",
    ]
    assert checks_of(came, "low") == {"late": "Unknown"}


def test_a_victim_that_has_been_evicted_once_is_not_evicted_again() -> None:
    """A True check set back to Unknown makes a reserved group wait again."""
    came = outcome_until(
        100,
        *CLASSES,
        node("n1", 1),
        asks("late"),
        LATE,
        *runs("low"),
        high("hi"),
        timeline(
            answers(10, "hi", "late", "True"),
            answers(20, "hi", "late", "Unknown"),
            answers(50, "hi", "late", "True"),
        ),
    )
    assert story(came) == [
        "0 pledged low-t-0 to hi",
        "0 reserved hi",
        "10 requeued low Preempted",
        "10 evicted low-t-0 Preempted",
        "50 admitted hi",
        "50 bound hi-t-0",
    ]


@pytest.mark.parametrize(
    "change", [asks("c"), check("late", preemptionPolicy="Anytime", retryDelayMinutes=1)]
)
def test_without_the_late_check_or_its_policy_victims_are_evicted_at_once(change: Manifest) -> None:
    came = outcome_until(
        20,
        *CLASSES,
        node("n1", 1),
        asks("c", "late"),
        C,
        LATE,
        *runs("low"),
        high("hi"),
        timeline(applies(10, change)),
    )
    assert story(came) == [
        "0 pledged low-t-0 to hi",
        "0 reserved hi",
        "10 requeued low Preempted",
        "10 evicted low-t-0 Preempted",
    ]


def test_a_victim_that_is_suspended_meanwhile_stops_once_and_for_that_reason() -> None:
    came = outcome_until(
        100,
        *CLASSES,
        node("n1", 1),
        asks("late"),
        LATE,
        *runs("low"),
        high("hi"),
        timeline({"at": "5s", "suspend": "default/low"}, answers(10, "hi", "late", "True")),
    )
    assert story(came) == [
        "0 pledged low-t-0 to hi",
        "0 reserved hi",
        "5 requeued low Suspended",
        "5 evicted low-t-0 Suspended",
        "35 admitted hi",
        "35 bound hi-t-0",
    ]
