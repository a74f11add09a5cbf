"""A dependent starts when its dependency has ended as required and its processes have ended."""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    admitted,
    group,
    node,
    of,
    outcome,
    outcome_until,
    phases,
    reasons,
    timeline,
)


def _after(condition: str) -> list[dict[str, str]]:
    return [{"name": "first", "condition": condition}]


@pytest.mark.parametrize("condition", ["failed", "any"])
def test_a_dependent_of_a_group_that_exceeded_its_walltime_waits_for_the_grace_period(
    condition: str,
) -> None:
    came = outcome(
        node("n1", 8),
        group("first", walltime="10s", grace="30s"),
        group("second", runtime="1s", dependsOn=_after(condition)),
    )
    # Failed at 10; its process has until 40 to save its output.
    assert admitted(came) == [(0, ["default/first"]), (40, ["default/second"])]
    assert phases(came) == {"first": "Failed", "second": "Completed"}


def test_a_dependent_of_a_failed_gang_waits_for_the_last_pod_of_the_gang() -> None:
    came = outcome(
        node("n1", 8),
        group("first", 3, grace="20s"),
        group("cleanup", runtime="1s", dependsOn=_after("failed")),
        timeline({"at": "5s", "failPod": "default/first-t-1"}),
    )
    assert admitted(came) == [(0, ["default/first"]), (25, ["default/cleanup"])]


def test_a_dependent_that_can_never_start_fails_before_the_processes_have_ended() -> None:
    came = outcome_until(
        10,
        node("n1", 8),
        group("first", walltime="10s", grace="30s"),
        group("second", dependsOn=_after("ok")),
    )
    assert phases(came)["second"] == "Failed"
    assert reasons(came, "second") == ["DependencyNeverMet"]


def test_a_group_says_that_it_waits_for_processes_to_end() -> None:
    came = outcome_until(
        10,
        node("n1", 8),
        group("first", walltime="10s", grace="30s"),
        group("second", dependsOn=_after("any")),
    )
    (reason,) = of(came, "second").reasons
    assert reason.reason == "DependencyNotMet"
    assert reason.message == (
        "waits for first to end; first is Failed, and its processes have not ended yet"
    )


def test_an_ended_group_is_kept_until_dependents_of_its_processes_have_started() -> None:
    came = outcome(
        node("n1", 8),
        group("first", walltime="10s", grace="30s", ttlAfterFinished="1s"),
        group("second", runtime="1s", dependsOn=_after("failed")),
    )
    assert admitted(came) == [(0, ["default/first"]), (40, ["default/second"])]
    assert phases(came) == {"second": "Completed"}
