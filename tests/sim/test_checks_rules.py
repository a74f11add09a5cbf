"""Checks: changes of lists, missing controllers, time limits, stops, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    check,
    finished,
    group,
    manifest,
    node,
    of,
    outcome_until,
    phases,
    queue,
    reasons,
    requeued,
    reserved,
    timeline,
)

A = check("a", retryDelayMinutes=1)
B = check("b", retryDelayMinutes=1)


def asks(*checks: str, **spec: Any) -> Manifest:
    return queue("q", admissionChecks=list(checks), **spec)


def at(second: int, obj: Manifest) -> Manifest:
    return {"at": f"{second}s", "apply": obj}


def until(second: int, *manifests: Manifest, config: str = "") -> WorldOutcome:
    return outcome_until(second, node("n1", 4), A, B, *manifests, config=config)


def external(name: str, cpu: int = 2, **spec: Any) -> Manifest:
    return group(
        name, queue="q", tasks=[], controller="external", minResources={"cpu": cpu}, **spec
    )


def said(phase: str, *answers: tuple[str, Any, str], **more: Any) -> Manifest:
    checks = [{"name": name, "status": status, "reason": why} for name, status, why in answers]
    return {"phase": phase, "checks": checks, **more}


def test_a_check_that_is_added_later_joins_reserved_groups() -> None:
    came = until(
        20,
        asks("a"),
        group("g", queue="q"),
        timeline(at(3, asks("a", "b")), answers(5, "g", "a", "True"), answers(9, "g", "b", "True")),
    )
    assert reserved(came) == [(0, ["default/g"])]
    assert admitted(came) == [(9, ["default/g"])]


def test_a_check_that_is_added_later_does_not_join_admitted_groups() -> None:
    came = until(
        20,
        asks("a"),
        group("g", queue="q"),
        timeline(answers(1, "g", "a", "True"), at(3, asks("a", "b"))),
    )
    assert (phases(came), of(came, "g").checks) == ({"g": "Running"}, {"a": "True"})


def test_a_check_that_is_added_later_is_asked_for_when_the_group_is_requeued() -> None:
    came = until(
        20,
        asks("a"),
        group("g", queue="q", grace="0s"),
        timeline(
            answers(1, "g", "a", "True"),
            at(3, asks("a", "b")),
            {"at": "5s", "suspend": "g"},
            {"at": "6s", "resume": "g"},
        ),
    )
    assert of(came, "g").checks == {"a": "Unknown", "b": "Unknown"}
    assert admitted(came) == [(1, ["default/g"])]


def test_a_check_that_is_removed_from_the_queue_is_dropped_and_admits_the_group() -> None:
    came = until(
        20,
        asks("a", "b"),
        group("g", queue="q"),
        timeline(answers(1, "g", "a", "True"), at(3, asks("a"))),
    )
    assert (admitted(came), of(came, "g").checks) == ([(3, ["default/g"])], {"a": "True"})


def test_a_check_that_is_removed_is_dropped_from_running_groups() -> None:
    came = until(
        20,
        asks("a", "b"),
        group("g", queue="q"),
        timeline(answers(1, "g", "a", "True"), answers(1, "g", "b", "True"), at(3, asks("b"))),
    )
    assert (phases(came), of(came, "g").checks) == ({"g": "Running"}, {"b": "True"})


def test_a_removed_check_takes_the_delay_of_its_retry_with_it() -> None:
    came = until(
        20,
        asks("a"),
        group("g", queue="q"),
        timeline(answers(1, "g", "a", "False", "Retry"), at(3, queue("q"))),
    )
    assert admitted(came) == [(3, ["default/g"])]


def test_checks_of_an_ancestor_join_and_leave_like_those_of_the_queue() -> None:
    parent = queue("p", admissionChecks=["b"])
    came = until(
        20,
        queue("p"),
        asks("a", parent="p"),
        group("g", queue="q"),
        timeline(at(1, parent), answers(3, "g", "a", "True"), at(7, queue("p"))),
    )
    assert admitted(came) == [(7, ["default/g"])]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([], "there is no AdmissionCheck c, which queue q asks for"),
        (
            [check("c", active=False)],
            "check c is inactive: somebody holds no lease on it",
        ),
    ],
)
def test_a_missing_or_inactive_check_holds_the_queue_and_says_so(
    there: list[Manifest], expected: str
) -> None:
    came = until(20, *there, asks("c"), group("g", queue="q"), group("other"))
    assert reserved(came) == [(0, ["default/other"])]
    assert [(one.reason, one.message) for one in of(came, "g").reasons] == [
        ("CheckInactive", expected)
    ]


def test_a_group_held_by_an_inactive_check_delays_no_other() -> None:
    came = until(
        20,
        check("c", active=False),
        queue("p", strategy={"type": "StrictFIFO"}),
        asks("c"),
        group("g", 4, queue="q"),
        group("other", 4),
    )
    assert admitted(came) == [(0, ["default/other"])]


def test_a_check_that_becomes_active_releases_its_queue() -> None:
    came = until(
        20,
        asks("c"),
        group("g", queue="q"),
        timeline(at(5, check("c")), answers(7, "g", "c", "True")),
    )
    assert (reserved(came), admitted(came)) == ([(5, ["default/g"])], [(7, ["default/g"])])


def test_reserved_groups_keep_their_reservation_when_a_check_becomes_inactive() -> None:
    came = until(
        20,
        check("c"),
        asks("c"),
        group("g", queue="q"),
        timeline({"at": "3s", "delete": "AdmissionCheck/c"}, at(5, group("late", queue="q"))),
    )
    assert (reserved(came), requeued(came)) == ([(0, ["default/g"])], [])
    assert reasons(came, "g") == ["WaitingForChecks", "CheckInactive"]
    assert reasons(came, "late") == ["CheckInactive"]


def leased(name: str, expires_at: int) -> Manifest:
    return manifest(
        "AdmissionCheck",
        name,
        {"controllerName": "somebody"},
        status={"active": True, "expiresAt": expires_at},
    )


def test_an_expired_lease_makes_its_check_inactive_without_any_event() -> None:
    came = until(
        200,
        leased("c", 10),
        asks("c"),
        group("g", queue="q"),
        timeline(
            at(9, group("in-time", queue="q")),
            at(10, group("late", queue="q")),
        ),
    )
    assert reserved(came) == [(0, ["default/g"]), (9, ["default/in-time"])]
    assert reasons(came, "late") == ["CheckInactive"]
    assert [cycle.time for cycle in came.cycles if cycle.time == 10] != []


def test_a_check_that_does_not_answer_in_time_counts_as_a_retry() -> None:
    slow = check("s", unknownTimeout="20s", retryDelayMinutes=1)
    came = until(90, slow, asks("s"), timeline(at(7, group("g", queue="q"))))
    assert reserved(came) == [(7, ["default/g"]), (87, ["default/g"])]
    assert requeued(came) == [(27, [("default/g", "CheckRetry")])]


def test_an_unanswered_check_may_also_reject() -> None:
    slow = check("s", unknownTimeout="20s", onTimeout="Reject")
    came = until(90, slow, asks("s"), timeline(at(7, group("g", queue="q"))))
    assert finished(came) == [(27, ["default/g"])]
    assert (phases(came), reasons(came, "g")) == ({"g": "Failed"}, ["CheckRejected"])


def test_the_default_unknown_timeout_is_half_an_hour() -> None:
    came = until(1900, asks("a"), group("g", queue="q"))
    assert requeued(came) == [(1800, [("default/g", "CheckRetry")])]


def test_the_timeout_counts_from_the_reservation_despite_answers_in_between() -> None:
    slow = check("s", unknownTimeout="20s")
    came = until(
        30,
        slow,
        asks("s", "a"),
        group("g", queue="q"),
        timeline(
            answers(5, "g", "s", "True"),
            answers(12, "g", "s", "Unknown"),
            answers(15, "g", "s", "Unknown", "PreemptionRequired"),
        ),
    )
    assert requeued(came) == [(20, [("default/g", "CheckRetry")])]


def test_an_answered_check_has_no_time_limit() -> None:
    slow = check("s", unknownTimeout="20s")
    came = until(
        100, slow, asks("s", "a"), group("g", queue="q"), timeline(answers(19, "g", "s", "True"))
    )
    assert (requeued(came), phases(came)) == ([], {"g": "Pending"})


def test_an_admitted_group_is_left_alone_when_a_check_is_unknown_again() -> None:
    slow = check("s", unknownTimeout="20s")
    came = until(
        100,
        slow,
        asks("s"),
        group("g", queue="q"),
        timeline(answers(5, "g", "s", "True"), answers(9, "g", "s", "Unknown")),
    )
    assert (requeued(came), phases(came)) == ([], {"g": "Running"})


def test_a_group_that_reserves_nothing_is_not_timed_out() -> None:
    slow = check("s", unknownTimeout="20s", onTimeout="Reject")
    came = until(100, slow, asks("s"), group("g", 5, queue="q"))
    assert phases(came) == {"g": "Pending"}


def test_only_as_many_groups_are_reserved_as_fit_together_and_those_behind_wait() -> None:
    groups = [group(f"g{place}", 2, queue="q") for place in range(5)]
    came = until(
        60,
        asks("a"),
        *groups,
        timeline(
            answers(10, "g1", "a", "False", "Reject"),
            answers(20, "g0", "a", "False", "Retry"),
            answers(30, "g2", "a", "True"),
        ),
    )
    assert reserved(came) == [
        (0, ["default/g0", "default/g1"]),
        (10, ["default/g2"]),
        (20, ["default/g3"]),
    ]
    assert admitted(came) == [(30, ["default/g2"])]
    assert reasons(came, "g4") == ["WaitingForResources"]


@pytest.mark.parametrize("limit", [{"capability": {"cpu": 2}}, {"maxPodGroups": 1}])
def test_a_group_that_waits_for_its_checks_counts_in_its_queue(limit: Manifest) -> None:
    came = until(20, asks("a", **limit), group("g", 2, queue="q"), group("h", 2, queue="q"))
    assert reserved(came) == [(0, ["default/g"])]
    assert reasons(came, "h") == ["WaitingForQuota"]


def test_a_strict_head_that_is_reserved_and_waits_blocks_no_group() -> None:
    came = until(
        20,
        asks("a", strategy={"type": "StrictFIFO"}),
        group("head", 2, queue="q"),
        group("second", 2, queue="q"),
        timeline(answers(5, "second", "a", "True")),
    )
    assert reserved(came) == [(0, ["default/head", "default/second"])]
    assert admitted(came) == [(5, ["default/second"])]
    assert (of(came, "head").position, reasons(came, "head")) == (1, ["WaitingForChecks"])


def test_behind_reserved_groups_the_strict_head_is_the_first_that_does_not_fit() -> None:
    came = until(
        20,
        asks("a", strategy={"type": "StrictFIFO"}),
        group("g", 3, queue="q"),
        group("head", 2, queue="q"),
        group("small", 1, queue="q"),
    )
    assert reserved(came) == [(0, ["default/g"])]
    assert reasons(came, "small")[0] == "WaitingForTurn"


@pytest.mark.parametrize(
    ("step", "reason", "waits"),
    [
        ({"at": "5s", "suspend": "g"}, "Suspended", "Suspended"),
        (at(5, asks("a", "b", stopPolicy="Hold")), "QueueStopped", "QueueStopped"),
        (at(5, asks("a", "b", stopPolicy="HoldAndDrain")), "QueueStopped", "QueueStopped"),
    ],
)
def test_a_reserved_group_is_requeued_with_checks_cleared_when_suspended_or_stopped(
    step: Manifest, reason: str, waits: str
) -> None:
    came = until(
        20, asks("a", "b"), group("g", queue="q"), timeline(answers(1, "g", "a", "True"), step)
    )
    assert requeued(came) == [(5, [("default/g", reason)])]
    assert of(came, "g").checks == {"a": "Unknown", "b": "Unknown"}
    assert reasons(came, "g") == [waits]
    assert came.queues["q"].reserved["cpu"] == "0"


def test_hold_leaves_admitted_groups_alone_and_hold_and_drain_does_not() -> None:
    for policy, phase in (("Hold", "Running"), ("HoldAndDrain", "Pending")):
        came = until(
            20,
            asks("a"),
            group("g", queue="q", grace="0s"),
            timeline(answers(1, "g", "a", "True"), at(5, asks("a", stopPolicy=policy))),
        )
        assert phases(came) == {"g": phase}


def test_a_stopped_ancestor_takes_a_reservation_back() -> None:
    came = until(
        20,
        queue("p"),
        asks("a", parent="p"),
        group("g", queue="q"),
        timeline(at(5, queue("p", stopPolicy="Hold"))),
    )
    assert requeued(came) == [(5, [("default/g", "QueueStopped")])]


def test_without_enqueue_no_check_is_asked() -> None:
    came = until(20, asks("a"), group("g", queue="q"), config="actions: [allocate]")
    assert admitted(came) == [(0, ["default/g"])]
    assert phases(came) == {"g": "Running"}


def test_with_the_plugin_off_checks_are_kept_and_ignored() -> None:
    off = "plugins: {multiPoint: {disabled: [{name: checks}]}}"
    came = until(
        20,
        asks("a", "missing"),
        group("g", queue="q", status=said("Pending", ("a", False, "Reject"))),
        config=off,
    )
    assert (reserved(came), admitted(came)) == ([(0, ["default/g"])], [(0, ["default/g"])])
    assert of(came, "g").checks == {"a": "False", "missing": "Unknown"}


def test_an_external_group_reserves_and_waits_for_its_checks_like_any() -> None:
    came = until(20, asks("a"), external("e"), timeline(answers(5, "e", "a", "True")))
    assert (reserved(came), admitted(came)) == ([(0, ["default/e"])], [(5, ["default/e"])])
    assert of(came, "e").phase == "InQueue"


@pytest.mark.parametrize(("reason", "phase"), [("Retry", "Pending"), ("Reject", "Failed")])
def test_a_check_requeues_or_fails_an_external_group(reason: str, phase: str) -> None:
    came = until(
        20,
        asks("a"),
        external("e"),
        timeline(answers(5, "e", "a", "True"), answers(8, "e", "a", "False", reason)),
    )
    assert of(came, "e").phase == phase
    assert came.queues["q"].reserved["cpu"] == "0"
