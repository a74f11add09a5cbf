"""Events from outside in a world, and their order at one instant."""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    evicted,
    finished,
    group,
    node,
    outcome,
    phases,
    pod,
    priority,
    reasons,
    refused_steps,
    timeline,
)


def test_steps_of_the_first_instant_come_before_the_first_session() -> None:
    came = outcome(group("a"), timeline({"at": 0, "apply": node("n1", 1)}))
    assert admitted(came) == [(0, ["default/a"])]


def test_pods_end_before_steps_and_steps_before_the_session() -> None:
    came = outcome(
        node("n1", 1),
        group("a", runtime="10s"),
        timeline({"at": "10s", "failNode": "n1"}),
    )
    assert phases(came) == {"a": "Completed"}


def test_steps_of_one_instant_keep_the_order_of_the_file() -> None:
    came = outcome(
        node("n1", 1),
        timeline(
            {"at": "10s", "apply": group("a")},
            {"at": "10s", "suspend": "default/a"},
            {"at": "5s", "apply": group("b")},
        ),
        timeline({"at": "10s", "resume": "default/a"}),
    )
    assert admitted(came) == [(5, ["default/b"])]
    assert reasons(came, "a") == ["WaitingForResources"]


def test_a_group_applied_later_is_behind_the_present_ones() -> None:
    came = outcome(
        node("n1", 1),
        group("holds", runtime="10s"),
        timeline({"at": "5s", "apply": group("second", runtime="1s")}),
        group("first", runtime="1s"),
    )
    assert admitted(came) == [
        (0, ["default/holds"]),
        (10, ["default/first"]),
        (11, ["default/second"]),
    ]


def test_an_applied_change_takes_effect_at_once() -> None:
    came = outcome(
        node("n1", 1),
        group("a", 2),
        timeline({"at": "20s", "apply": node("n1", 2)}),
    )
    assert bound(came) == [(20, {"default/a-t-0": "n1", "default/a-t-1": "n1"})]


def test_a_pod_finishes_at_its_step() -> None:
    came = outcome(
        node("n1", 2),
        group("a", 2),
        timeline({"at": "5s", "finishPod": "a-t-0"}, {"at": "9s", "finishPod": "default/a-t-1"}),
    )
    assert finished(came) == [(9, ["default/a"])]


def test_a_stopping_pod_may_end_earlier_than_its_grace_period() -> None:
    came = outcome(
        node("n1", 1),
        group("a", grace="30s"),
        group("b"),
        timeline({"at": "5s", "suspend": "default/a"}, {"at": "8s", "finishPod": "default/a-t-0"}),
    )
    assert admitted(came) == [(0, ["default/a"]), (8, ["default/b"])]


def test_deleting_a_waiting_group_removes_it() -> None:
    came = outcome(group("a"), timeline({"at": "5s", "delete": "PodGroup/default/a"}))
    assert came.podgroups == {}


def test_deleting_a_running_group_stops_it_first() -> None:
    came = outcome(
        node("n1", 1),
        group("a", grace="3s"),
        group("b"),
        timeline({"at": "5s", "delete": "PodGroup/default/a"}),
    )
    assert evicted(came) == [(5, [("default/a-t-0", "Cancelled")])]
    assert admitted(came) == [(0, ["default/a"]), (8, ["default/b"])]
    assert list(came.podgroups) == ["default/b"]


def test_deleting_a_node_takes_its_pods_along() -> None:
    came = outcome(
        node("n1", 1),
        group("a", runtime="50s"),
        timeline({"at": "5s", "delete": "Node/n1"}, {"at": "9s", "apply": node("n2", 1)}),
    )
    assert bound(came) == [(0, {"default/a-t-0": "n1"}), (9, {"default/a-t-0": "n2"})]
    assert finished(came) == [(59, ["default/a"])]


def test_a_step_far_ahead_is_reached_in_one_jump() -> None:
    came = outcome(node("n1", 1), timeline({"at": "365d", "apply": group("a", runtime="1s")}))
    assert [cycle.time for cycle in came.cycles] == [0, *[31_536_000] * 3, *[31_536_001] * 2]


def test_a_step_between_two_seconds_happens_at_the_next() -> None:
    came = outcome(node("n1", 1), timeline({"at": "1500ms", "apply": group("a")}))
    assert admitted(came) == [(2, ["default/a"])]


def test_a_lost_pod_of_a_full_gang_comes_back_with_the_next_attempt() -> None:
    came = outcome(
        node("n1", 1),
        node("n2", 1),
        group("a", 2, status={"phase": "Running"}),
        pod("a-t-0", "a", 0, phase="Running", node="n1"),
        pod("a-t-1", "a", 1, phase="Running", node="n2"),
        timeline({"at": "10s", "failNode": "n2"}, {"at": "12s", "recoverNode": "n2"}),
    )
    assert bound(came) == [(12, {"default/a-t-1": "n2"})]
    assert phases(came) == {"a": "Running"}


@pytest.mark.parametrize(
    ("sentence", "manifests", "expected"),
    [
        (
            "a pod that has not started",
            [
                group("a", status={"phase": "InQueue"}),
                pod("x", "a"),
                timeline({"at": 0, "failPod": "x"}),
            ],
            "Pod default/x is Pending at that moment",
        ),
        (
            "a class that is in use",
            [
                priority("high", 1),
                group("a", priorityClassName="high"),
                timeline({"at": 0, "delete": "PriorityClass/high"}),
            ],
            "is still named by 1 unfinished pod group",
        ),
        (
            "a gate that is added later",
            [
                group("a"),
                timeline({"at": 0, "apply": group("a", schedulingGates=[{"name": "x"}])}),
            ],
            "gates can only be removed",
        ),
    ],
)
def test_a_step_that_the_rules_refuse_is_reported_and_the_world_goes_on(
    sentence: str, manifests: list[Manifest], expected: str
) -> None:
    (refused,) = refused_steps(*manifests)
    assert expected in refused


def test_a_step_that_comes_just_too_late_changes_nothing() -> None:
    came = outcome(
        node("n1", 1),
        group("a", runtime="5s"),
        timeline({"at": "5s", "failPod": "default/a-t-0"}, {"at": "6s", "suspend": "default/a"}),
    )
    assert phases(came) == {"a": "Completed"}


def test_a_deleted_group_may_be_applied_again_when_its_grace_periods_end() -> None:
    again = group("a", runtime="1s")
    came = outcome(
        node("n1", 1),
        group("a", runtime="60s", grace="3s"),
        timeline({"at": "5s", "delete": "PodGroup/default/a"}, {"at": "8s", "apply": again}),
    )
    assert admitted(came) == [(0, ["default/a"]), (8, ["default/a"])]
