"""Admission checks: from Pending over a reservation to InQueue, and back (KEP-993's scenarios).

The KEP's words: Suspended is Pending, Prechecked is Pending with its quota reserved, Admitted is
InQueue and later, Rejected is Failed.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    bound,
    check,
    created,
    evicted,
    finished,
    group,
    manifest,
    node,
    of,
    outcome,
    outcome_until,
    phases,
    pod,
    queue,
    quota,
    reasons,
    refused_steps,
    requeued,
    reserved,
    timeline,
)

ONE = [check("a"), queue("q", admissionChecks=["a"])]
TWO = [check("a"), check("b"), queue("q", admissionChecks=["a", "b"])]
SHORT = [
    check("a", retryDelayMinutes=1),
    check("b", retryDelayMinutes=3),
    queue("q", admissionChecks=["a", "b"]),
]
A = [(0, ["default/g"])]


def running(name: str, pods: int, *said: str, cpu: int = 1, **spec: object) -> list[Manifest]:
    """Return a group of queue q that runs on n1 and whose checks have passed."""
    checks = [{"name": one, "status": "True"} for one in said]
    status: Manifest = {"phase": "Running", "reservedAt": 0, "checks": checks}
    each = [
        pod(f"{name}-t-{index}", name, index, phase="Running", node="n1", startedAt=0)
        for index in range(pods)
    ]
    return [group(name, pods, cpu, queue="q", status=status, **spec), *each]


def test_each_check_stands_unknown_on_a_group_from_its_submission() -> None:
    came = outcome(*TWO, timeline({"at": "5s", "apply": group("g", queue="q")}))
    assert of(came, "g").checks == {"a": "Unknown", "b": "Unknown"}
    assert reserved(came) == []


@pytest.mark.parametrize(("checks", "names"), [(ONE, ["a"]), (TWO, ["a", "b"])])
def test_a_group_that_fits_reserves_its_quota_and_waits_for_its_checks(
    checks: list[Manifest], names: list[str]
) -> None:
    came = outcome_until(
        10,
        node("n1", 4),
        *checks,
        group("g", 3, queue="q"),
    )
    assert (reserved(came), admitted(came), created(came)) == (A, [], [])
    assert (of(came, "g").phase, of(came, "g").shown) == ("Pending", "Pending")
    assert of(came, "g").checks == dict.fromkeys(names, "Unknown")
    assert reasons(came, "g") == ["WaitingForChecks"]
    assert came.queues["q"].reserved == {"cpu": "3", "pods": "3"}
    assert came.queues["q"].allocated == {"cpu": "0"}


def test_a_group_without_checks_is_reserved_and_admitted_at_once() -> None:
    came = outcome(node("n1", 4), queue("q"), group("g", queue="q", runtime="1s"))
    assert (reserved(came), admitted(came)) == (A, A)
    assert of(came, "g").checks == {}
    assert phases(came) == {"g": "Completed"}


def test_a_group_that_does_not_fit_asks_no_check() -> None:
    came = outcome(
        node("n1", 4), *ONE, group("g", 5, queue="q"), timeline(answers(1, "g", "a", "True"))
    )
    assert reserved(came) == []
    assert of(came, "g").checks == {"a": "Unknown"}
    assert "WaitingForChecks" not in reasons(came, "g")


def test_a_reservation_stays_while_no_controller_answers() -> None:
    late = {"at": "1700s", "apply": group("late", 4, queue="q")}
    came = outcome_until(
        1700,
        node("n1", 4),
        *ONE,
        group("g", 3, queue="q"),
        timeline(late),
    )
    assert came.cycles[-1].time >= 1700
    assert reserved(came) == A
    assert came.queues["q"].reserved["cpu"] == "3"


def test_with_its_one_check_passed_a_group_is_admitted_and_runs() -> None:
    came = outcome(
        node("n1", 4),
        *ONE,
        group("g", 2, queue="q", runtime="10s"),
        timeline(answers(5, "g", "a", "True")),
    )
    assert (reserved(came), admitted(came)) == (A, [(5, ["default/g"])])
    assert bound(came) == [(5, {"default/g-t-0": "n1", "default/g-t-1": "n1"})]
    assert finished(came) == [(15, ["default/g"])]


def test_with_two_checks_the_last_answer_admits_the_group_whichever_it_is() -> None:
    for first, last in (("a", "b"), ("b", "a")):
        steps = [answers(5, "g", first, "True"), answers(8, "g", last, "True")]
        came = outcome(node("n1", 4), *TWO, group("g", queue="q", runtime="1s"), timeline(*steps))
        assert (reserved(came), admitted(came)) == (A, [(8, ["default/g"])])


def test_the_checks_of_ancestors_have_to_pass_as_well() -> None:
    came = outcome(
        node("n1", 4),
        *(check(name) for name in "abc"),
        queue("root", admissionChecks=["c"]),
        queue("p", admissionChecks=["b"]),
        queue("q", parent="p", admissionChecks=["a", "b"]),
        group("g", queue="q", runtime="1s"),
        group("above", runtime="1s"),
        timeline(
            answers(1, "g", "a", "True"),
            answers(2, "g", "b", "True"),
            answers(3, "above", "c", "True"),
            answers(4, "g", "c", "True"),
        ),
    )
    assert admitted(came) == [(3, ["default/above"]), (4, ["default/g"])]
    assert list(of(came, "g").checks) == ["c", "b", "a"]


def test_a_true_check_set_back_to_unknown_makes_a_reserved_group_wait_again() -> None:
    steps = [
        answers(1, "g", "a", "True"),
        answers(2, "g", "a", "Unknown"),
        answers(3, "g", "b", "True"),
    ]
    came = outcome_until(
        10,
        node("n1", 4),
        *TWO,
        group("g", queue="q"),
        timeline(*steps),
    )
    assert (reserved(came), admitted(came), requeued(came)) == (A, [], [])
    assert of(came, "g").checks == {"a": "Unknown", "b": "True"}


def test_a_true_check_set_back_to_unknown_leaves_an_admitted_group_alone() -> None:
    steps = [answers(1, "g", "a", "True"), answers(2, "g", "a", "Unknown")]
    came = outcome(node("n1", 4), *ONE, group("g", queue="q", runtime="1h"), timeline(*steps))
    assert (admitted(came), evicted(came), requeued(came)) == ([(1, ["default/g"])], [], [])
    assert finished(came) == [(3601, ["default/g"])]


@pytest.mark.parametrize(
    "cut",
    [
        queue("q", admissionChecks=["a"], capability={"cpu": 1}),
        quota("default", cpu=1),
        queue("root", capability={"cpu": 1}),
    ],
)
def test_a_quota_that_is_cut_takes_the_reservation_back(cut: Manifest) -> None:
    came = outcome(
        node("n1", 4),
        *ONE,
        group("g", 2, queue="q"),
        timeline({"at": "3s", "apply": cut}, answers(5, "g", "a", "True")),
    )
    assert (reserved(came), admitted(came)) == (A, [])
    assert requeued(came) == [(3, [("default/g", "CapacityCut")])]
    assert of(came, "g").checks == {"a": "Unknown"}
    assert came.queues["q"].reserved["cpu"] == "0"


def test_when_the_quota_comes_back_the_checks_are_asked_again() -> None:
    came = outcome(
        node("n1", 4),
        *TWO,
        quota("default", cpu=4),
        group("g", 2, queue="q", runtime="1s"),
        timeline(
            answers(1, "g", "a", "True"),
            {"at": "3s", "apply": quota("default", cpu=1)},
            {"at": "9s", "apply": quota("default", cpu=4)},
            answers(10, "g", "b", "True"),
            answers(20, "g", "a", "True"),
        ),
    )
    assert reserved(came) == [(0, ["default/g"]), (9, ["default/g"])]
    assert admitted(came) == [(20, ["default/g"])]


def on_zone(name: str, cpu: int = 4, **more: object) -> Manifest:
    spec = {"resources": {"cpu": cpu}, **more}
    return manifest("Node", name, spec, metadata={"labels": {"zone": "z"}})


def in_zone(name: str, pods: int) -> Manifest:
    template = {"requests": {"cpu": 1}, "nodeSelector": {"zone": "z"}}
    tasks = [{"name": "t", "replicas": pods, "template": template}]
    return group(name, queue="q", tasks=tasks)


@pytest.mark.parametrize(
    "change",
    [
        node("n1", 4),
        on_zone("n1", taints=[{"key": "busy", "effect": "NoSchedule"}]),
        on_zone("n1", 1),
    ],
)
def test_a_group_passed_on_nodes_that_have_changed_since_loses_its_reservation(
    change: Manifest,
) -> None:
    came = outcome_until(
        6,
        node("n2", 8),
        on_zone("n1"),
        *ONE,
        in_zone("g", 2),
        timeline({"at": "3s", "apply": change}, answers(5, "g", "a", "True")),
    )
    assert (reserved(came)[:1], admitted(came), bound(came)) == (A, [], [])
    assert requeued(came)[:1] == [(5, [("default/g", "Unschedulable")])]
    assert of(came, "g").phase == "Pending"


def test_nodes_that_change_and_change_back_meanwhile_make_no_difference() -> None:
    came = outcome_until(
        10,
        on_zone("n1"),
        *ONE,
        in_zone("g", 2),
        timeline(
            {"at": "3s", "apply": node("n1")},
            {"at": "4s", "apply": on_zone("n1")},
            answers(5, "g", "a", "True"),
        ),
    )
    assert (admitted(came), requeued(came)) == ([(5, ["default/g"])], [])


def test_retry_frees_the_quota_at_once_and_asks_again_after_the_delay() -> None:
    came = outcome(
        node("n1", 4),
        check("a", retryDelayMinutes=1),
        queue("q", admissionChecks=["a"]),
        group("g", 3, queue="q", runtime="1s"),
        timeline(
            {"at": "3s", "apply": group("other", 3, runtime="10s")},
            answers(5, "g", "a", "False", "Retry"),
            answers(70, "g", "a", "True"),
        ),
    )
    assert requeued(came) == [(5, [("default/g", "CheckRetry")])]
    assert reserved(came) == [(0, ["default/g"]), (5, ["default/other"]), (65, ["default/g"])]
    assert admitted(came) == [(5, ["default/other"]), (70, ["default/g"])]


def test_capacity_freed_by_a_retry_is_reserved_by_another_group_in_the_same_session() -> None:
    came = outcome_until(
        5,
        node("n1", 4),
        *ONE,
        group("g", 3, queue="q"),
        group("next", 3, queue="q"),
        timeline(answers(5, "g", "a", "False", "Retry")),
    )
    (cycle,) = [one for one in came.cycles if one.requeued]
    assert ([one.group for one in cycle.requeued], cycle.reserved) == (
        ["default/g"],
        ["default/next"],
    )


def test_until_the_delay_is_over_the_check_stays_false_and_the_group_is_out_of_line() -> None:
    came = outcome_until(
        64,
        node("n1", 4),
        check("a", retryDelayMinutes=1),
        queue("q", admissionChecks=["a"], strategy={"type": "StrictFIFO"}),
        group("g", 3, queue="q"),
        group("behind", 4, queue="q"),
        timeline(answers(5, "g", "a", "False", "Retry"), {"at": "64s", "suspend": "behind"}),
    )
    assert came.cycles[-1].time == 64
    assert reserved(came) == [(0, ["default/g"]), (5, ["default/behind"])]
    assert of(came, "g").checks == {"a": "False"}
    assert reasons(came, "g")[0] == "BackingOff"


def test_the_longest_delay_of_two_retries_counts() -> None:
    came = outcome_until(
        190,
        node("n1", 4),
        *SHORT,
        group("g", queue="q"),
        timeline(answers(5, "g", "a", "False", "Retry"), answers(5, "g", "b", "False", "Retry")),
    )
    assert requeued(came) == [(5, [("default/g", "CheckRetry")])]
    assert reserved(came) == [(0, ["default/g"]), (185, ["default/g"])]
    assert of(came, "g").checks == {"a": "Unknown", "b": "Unknown"}


def test_one_retry_of_two_checks_is_enough_and_a_passed_check_is_asked_again() -> None:
    came = outcome(
        node("n1", 4),
        *SHORT,
        group("g", queue="q", runtime="1s"),
        timeline(
            answers(3, "g", "b", "True"),
            answers(5, "g", "a", "False", "Retry"),
            answers(70, "g", "a", "True"),
            answers(80, "g", "b", "True"),
        ),
    )
    assert reserved(came) == [(0, ["default/g"]), (65, ["default/g"])]
    assert admitted(came) == [(80, ["default/g"])]


def test_a_retry_without_a_delay_asks_again_at_once() -> None:
    came = outcome_until(
        10,
        node("n1", 4),
        check("a", retryDelayMinutes=0),
        queue("q", admissionChecks=["a"]),
        group("g", queue="q"),
        timeline(answers(5, "g", "a", "False", "Retry")),
    )
    assert requeued(came) == [(5, [("default/g", "CheckRetry")])]
    assert reserved(came) == [(0, ["default/g"]), (5, ["default/g"])]
    assert of(came, "g").checks == {"a": "Unknown"}


def test_a_retry_costs_a_group_its_place_in_line() -> None:
    """Its queue time is the moment of the requeue."""
    came = outcome_until(
        200,
        node("n1", 4),
        check("a", retryDelayMinutes=1),
        queue("q", admissionChecks=["a"]),
        group("g", 4, queue="q"),
        group("second", 4, queue="q"),
        group("third", 4, queue="q"),
        timeline(
            answers(5, "g", "a", "False", "Retry"), answers(100, "second", "a", "False", "Reject")
        ),
    )
    assert reserved(came) == [
        (0, ["default/g"]),
        (5, ["default/second"]),
        (100, ["default/third"]),
    ]
    assert (of(came, "third").position, of(came, "g").position) == (1, 2)


@pytest.mark.parametrize("checks", [ONE, TWO])
def test_one_reject_is_enough_to_fail_a_group_for_good(checks: list[Manifest]) -> None:
    came = outcome_until(
        10,
        node("n1", 4),
        *checks,
        group("g", 4, queue="q"),
        group("next", 4, queue="q"),
        timeline(answers(5, "g", "a", "False", "Reject")),
    )
    assert finished(came) == [(5, ["default/g"])]
    assert (of(came, "g").phase, reasons(came, "g")) == ("Failed", ["CheckRejected"])
    assert reserved(came) == [(0, ["default/g"]), (5, ["default/next"])]


def test_reject_beats_retry_whichever_came_first() -> None:
    for order in (("Retry", "Reject"), ("Reject", "Retry")):
        steps = [answers(5, "g", name, "False", how) for name, how in zip("ab", order, strict=True)]
        came = outcome(node("n1", 4), *TWO, group("g", queue="q"), timeline(*steps))
        assert (phases(came), reasons(came, "g")) == ({"g": "Failed"}, ["CheckRejected"])
        assert requeued(came) == []


def test_checks_of_a_rejected_group_cannot_be_set() -> None:
    (result,) = refused_steps(
        node("n1", 4),
        *ONE,
        group("g", queue="q"),
        timeline(answers(5, "g", "a", "False", "Reject"), answers(6, "g", "a", "True")),
    )
    assert result.endswith("PodGroup default/g is Failed already and no check of it can be set")


def test_retry_requeues_a_running_group_at_once_and_frees_its_quota() -> None:
    came = outcome_until(
        70,
        node("n1", 4),
        check("a", retryDelayMinutes=1),
        queue("q", admissionChecks=["a"]),
        *running("g", 3, "a", grace="7s"),
        group("other", 3, runtime="1s"),
        timeline(answers(5, "g", "a", "False", "Retry")),
    )
    assert evicted(came) == [(5, [(f"default/g-t-{index}", "CheckRetry") for index in range(3)])]
    assert requeued(came) == [(5, [("default/g", "CheckRetry")])]
    # Processes that still run are charged until they have ended; the promise is released at once.
    assert admitted(came) == [(12, ["default/other"])]
    assert reserved(came) == [(12, ["default/other"]), (65, ["default/g"])]


def test_a_check_that_turns_false_requeues_a_group_that_is_in_queue_and_has_not_started() -> None:
    came = outcome_until(
        4,
        node("n1", 4),
        node("n2", 4),
        *ONE,
        group("g", 2, 3, queue="q"),
        group("blocks", 1, 2, runtime="60s"),
        timeline(answers(1, "g", "a", "True"), answers(3, "g", "a", "False", "Retry")),
        config="overcommit: 2",
    )
    assert requeued(came) == [(3, [("default/g", "CheckRetry")])]
    assert came.queues["q"].reserved["cpu"] == "0"


def test_reject_fails_a_running_group_and_stops_its_pods() -> None:
    came = outcome(
        node("n1", 4),
        *ONE,
        *running("g", 2, "a", grace="7s"),
        timeline(answers(5, "g", "a", "False", "Reject")),
    )
    assert evicted(came) == [(5, [(f"default/g-t-{index}", "CheckRejected") for index in range(2)])]
    assert finished(came) == [(5, ["default/g"])]
    assert (phases(came), reasons(came, "g")) == ({"g": "Failed"}, ["CheckRejected"])


def test_after_its_delay_a_group_that_ran_is_checked_again_and_starts_over() -> None:
    came = outcome(
        node("n1", 4),
        check("a", retryDelayMinutes=1),
        queue("q", admissionChecks=["a"]),
        group("g", 2, queue="q", runtime="100s", grace="0s"),
        timeline(
            answers(1, "g", "a", "True"),
            answers(50, "g", "a", "False", "Retry"),
            answers(120, "g", "a", "True"),
        ),
    )
    assert reserved(came) == [(0, ["default/g"]), (110, ["default/g"])]
    assert admitted(came) == [(1, ["default/g"]), (120, ["default/g"])]
    assert finished(came) == [(220, ["default/g"])]


def test_a_finished_group_is_not_requeued_by_a_check() -> None:
    came = outcome(
        node("n1", 4),
        *ONE,
        group("g", queue="q", runtime="10s"),
        timeline(answers(1, "g", "a", "True"), answers(11, "g", "a", "False", "Retry")),
    )
    assert (phases(came), requeued(came)) == ({"g": "Completed"}, [])
