"""AdmissionChecks as objects, in queues that list them, and in the status of groups."""

from __future__ import annotations

import pytest

from batchq.api.objects import Object, PodGroup
from batchq.errors import InvalidInput, NotFound
from tests.builders import a_queue
from tests.client.checking import a_check, asking
from tests.client.stage import Stage


def submit(stage: Stage, name: str, **request: object) -> None:
    stage.client.submit(command=["true"], name=name, queue="q", **request)
    stage.turn()


def test_a_group_has_the_checks_of_its_queue_and_those_above_from_its_submission(
    stage: Stage,
) -> None:
    stage.furnish(
        *(asking("root", "licence"), asking("org", "budget"), a_queue("beside")),
        asking("team", "approval", "budget", parent="org"),
    )
    group = stage.client.submit(command=["true"], name="g", queue="team")
    assert [(state.name, state.status) for state in group.status.checks] == [
        ("licence", "Unknown"),
        ("budget", "Unknown"),
        ("approval", "Unknown"),
    ]
    assert group.status.checks[0].since == group.metadata.creation_timestamp
    elsewhere = stage.client.submit(command=["true"], name="h", queue="beside")
    assert [state.name for state in elsewhere.status.checks] == ["licence"]
    listed = [(one.name, one.listed_by) for one in stage.client.checks.of_queue("team")]
    assert listed == [("licence", "root"), ("budget", "org"), ("approval", "team")]


def test_checks_to_be_answered_are_distinguished_from_others(stage: Stage) -> None:
    stage.furnish(a_check(), asking("q", "approval"))
    submit(stage, "first", cpus=8)
    submit(stage, "second", cpus=8)
    with stage.client.checks.watch("boss"):
        stage.turn()
        both = stage.client.checks.views(queue="q")
        assert [view.group.metadata.name for view in both] == ["first", "second"]
        [waiting] = stage.client.checks.views(waiting=True)
        assert (waiting.group.metadata.name, waiting.check.active) == ("first", True)
    assert stage.client.checks.views(queue="default") == []
    with pytest.raises(NotFound, match="Queue elsewhere does not exist"):
        stage.client.checks.views(queue="elsewhere")


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (a_check(controller=""), "spec.controllerName: expected the name of its controller"),
        (a_check(controller="my boss"), "such as budget or example.com/budget, found 'my boss'"),
        (a_check(retry_delay_minutes=-1), "spec.retryDelayMinutes: expected a number from 0 to"),
        (a_check(unknown_timeout=999), "spec.unknownTimeout: expected at least 1s, found 999ms"),
        (a_check(parameters={"a": "x" * 70_000}), "spec.parameters, in bytes: expected at most"),
        (asking("q", "a", "b", "a"), "spec.admissionChecks: 'a' is named twice"),
        (asking("q", "A check"), "expected at most 253 lower-case letters, digits"),
        (asking("q", *(f"c{n}" for n in range(65))), "spec.admissionChecks: expected at most 64"),
    ],
)
def test_nonsensical_checks_and_queues_are_refused(
    stage: Stage, item: Object, problem: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        stage.client.apply([item])
    assert problem in refused.value.message


def test_a_queue_that_asks_for_a_missing_check_is_taken_with_a_warning(stage: Stage) -> None:
    [applied] = stage.client.apply([asking("q", "approval", "budget")])
    [warning] = applied.warnings
    assert warning == (
        "Queue q asks for the admission checks approval, budget, which do not exist: it admits no"
        " group until every check is applied and its controller runs"
    )
    both = stage.client.apply([a_check("gpu"), asking("r", "gpu")])
    assert [one.warnings for one in both] == [(), ()]


def test_a_check_that_queues_ask_for_is_deleted_with_a_warning(stage: Stage) -> None:
    stage.furnish(a_check(), asking("q", "approval"))
    stage.furnish(asking("p", "approval"))
    [deleted] = stage.client.delete_all([("AdmissionCheck", "approval")])
    [warning] = deleted.warnings
    assert warning == (
        "queues p, q still ask for the admission check approval: no group is admitted there"
        " until it is applied again, or removed from spec.admissionChecks"
    )
    submit(stage, "g")
    group = stage.client.get("PodGroup", "g")
    assert isinstance(group, PodGroup)
    assert [str(verdict.reason) for verdict in group.status.reasons] == ["CheckInactive"]
    stage.client.delete_all([("Queue", "p")])
