"""Checks as a world states them: which statuses are accepted, and which answers are refused."""

from __future__ import annotations

import pytest

from tests.sim.test_checks_rules import A, B, asks, said, until
from tests.sim.worlds import (
    admitted,
    answers,
    group,
    node,
    of,
    outcome_until,
    phases,
    pod,
    reasons,
    refusal,
    refused_steps,
    requeued,
    reserved,
    timeline,
)


def test_a_pending_group_whose_checks_were_all_stated_as_true_is_admitted_at_once() -> None:
    came = until(20, asks("a"), group("g", queue="q", status=said("Pending", ("a", True, ""))))
    assert (reserved(came), admitted(came)) == ([(0, ["default/g"])], [(0, ["default/g"])])


def test_a_reserved_group_waits_only_for_checks_that_are_not_stated() -> None:
    status = said("Pending", ("a", True, ""), reservedAt=0)
    came = until(
        20,
        asks("a", "b"),
        group("g", 4, queue="q", status=status),
        group("h", 1, queue="q"),
        timeline(answers(5, "g", "b", "True")),
    )
    assert (reserved(came), admitted(came)) == ([], [(5, ["default/g"])])
    assert reasons(came, "h") == ["WaitingForResources"]


def test_a_stated_retry_is_waited_out_and_a_stated_reject_is_final() -> None:
    for reason, phase, again in (
        ("Retry", "Pending", [(60, ["default/g"])]),
        ("Reject", "Failed", []),
    ):
        status = said("Pending", ("a", False, reason))
        came = until(70, asks("a"), group("g", queue="q", status=status))
        assert (phases(came), reserved(came)) == ({"g": phase}, again)


@pytest.mark.parametrize("phase", ["InQueue", "Running"])
def test_an_admitted_group_has_only_the_checks_that_its_world_states(phase: str) -> None:
    world = (
        asks("a", "b"),
        group("g", queue="q", status=said(phase, ("a", True, ""))),
        *([pod("g-t-0", "g", phase="Running", node="n1")] if phase == "Running" else []),
    )
    came = until(20, *world)
    assert (phases(came), of(came, "g").checks) == ({"g": "Running"}, {"a": "True"})
    came = until(20, *world, timeline(answers(5, "g", "a", "False", "Reject")))
    assert phases(came) == {"g": "Failed"}


def test_a_status_may_be_a_word_or_a_boolean() -> None:
    for status in (True, "True"):
        came = until(20, asks("a"), group("g", queue="q"), timeline(answers(5, "g", "a", status)))
        assert of(came, "g").checks == {"a": "True"}
    for status in (False, "False"):
        steps = timeline(answers(5, "g", "a", status, "Retry"))
        came = until(20, asks("a"), group("g", queue="q"), steps)
        assert of(came, "g").checks == {"a": "False"}


def test_a_retry_whose_delay_is_over_when_it_is_read_requeues_a_group_once() -> None:
    """As after a time without sessions."""
    message = [{"name": "a", "status": "False", "reason": "Retry", "since": 0}]
    status = {"phase": "Running", "reservedAt": 0, "checks": message}
    came = until(
        10,
        asks("a"),
        group("g", queue="q", created=120, grace="0s", status=status),
        pod("g-t-0", "g", phase="Running", node="n1", startedAt=0),
    )
    assert requeued(came) == [(0, [("default/g", "CheckRetry")])]
    assert reserved(came) == [(0, ["default/g"])]
    assert of(came, "g").checks == {"a": "Unknown"}


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ("True", "Retry", "check a: status True takes no reason, found 'Retry'"),
        ("True", "Reject", "check a: status True takes no reason, found 'Reject'"),
        (
            "False",
            "",
            "check a: expected with status False the reason 'Retry' or 'Reject', found none",
        ),
        (
            "False",
            "PreemptionRequired",
            (
                "check a: expected with status False the reason 'Retry' or 'Reject', found"
                " 'PreemptionRequired'"
            ),
        ),
        (
            "Unknown",
            "Retry",
            (
                "check a: expected with status Unknown the reason 'PreemptionRequired', or none,"
                " found 'Retry'"
            ),
        ),
    ],
)
def test_any_other_combination_is_bad_content(status: str, reason: str, message: str) -> None:
    world = [node("n1", 4), A, asks("a"), group("g", queue="q")]
    assert refusal(*world, timeline(answers(5, "g", "a", status, reason))).endswith(message)


def test_an_unknown_status_or_field_is_bad_content() -> None:
    world = [node("n1", 4), A, asks("a"), group("g", queue="q")]
    for step, message in (
        (answers(5, "g", "a", "Maybe"), "expected True, False or Unknown, found 'Maybe'"),
        (answers(5, "g", "a", None), "expected True, False or Unknown, found"),
        (answers(5, "ghost", "a", "True"), "PodGroup default/ghost does not exist"),
        (answers(5, "g", "z", "True"), "PodGroup default/g has no admission check 'z'"),
        ({"at": 0, "setCheck": {"podGroup": "default/g", "chek": "a"}}, "there is no such field"),
    ):
        assert message in refusal(*world, timeline(step))


def test_a_check_can_be_set_only_while_its_group_is_reserved_or_admitted() -> None:
    (message,) = refused_steps(
        node("n1", 4),
        A,
        asks("a"),
        group("g", 5, queue="q"),
        timeline(answers(5, "g", "a", "True")),
    )
    assert message.endswith(
        "setCheck at 5s: PodGroup default/g has no quota reserved, so its check a cannot be set"
    )


def test_an_answer_after_the_reservation_was_lost_changes_nothing() -> None:
    world = [
        node("n1", 4),
        A,
        B,
        asks("a", "b"),
        group("g", queue="q"),
        timeline(
            answers(5, "g", "a", "False", "Retry"),
            answers(6, "g", "b", "True"),
            answers(7, "g", "a", "False", "Reject"),
        ),
    ]
    assert len(refused_steps(*world)) == 2
    came = outcome_until(10, *world)
    assert of(came, "g").checks == {"a": "False", "b": "Unknown"}
    assert phases(came) == {"g": "Pending"}
