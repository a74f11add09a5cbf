"""Scheduling gates in worlds in which they meet other rules.

The whole story of each world is stated; it was derived from the documented rules by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.worlds import (
    Manifest,
    answers,
    applies,
    check,
    group,
    node,
    of,
    opens,
    outcome,
    outcome_until,
    priority,
    queue,
    quota,
    reasons,
    refused_steps,
    story,
    timeline,
)


def gated(name: str, *gates: str, **more: Any) -> Manifest:
    return group(name, schedulingGates=[{"name": gate} for gate in gates], **more)


def task(name: str, replicas: int, *gates: str, cpu: int = 1, runtime: str = "") -> Manifest:
    template: Manifest = {"requests": {"cpu": cpu}}
    if gates:
        template["schedulingGates"] = [{"name": gate} for gate in gates]
    if runtime:
        template["annotations"] = {"batchq/runtime": runtime}
    return {"name": name, "replicas": replicas, "template": template}


def test_gates_open_in_any_order_and_the_last_one_releases_the_group() -> None:
    came = outcome(
        node("n1", 1), gated("g", "a", "b"), timeline(opens(10, "g", "b"), opens(20, "g", "a"))
    )
    assert story(came) == ["20 reserved g", "20 admitted g", "20 bound g-t-0"]


def test_a_gated_strict_head_is_passed_and_keeps_its_queue_time() -> None:
    """It is out of line, so no group waits for it. A group's queue time is its creation."""
    came = outcome(
        node("n1", 1),
        queue("default", strategy={"type": "StrictFIFO"}),
        gated("g", "x"),
        group("h", runtime="60s"),
        group("i"),
        timeline(opens(30, "g", "x")),
    )
    assert story(came) == [
        "0 reserved h",
        "0 admitted h",
        "0 bound h-t-0",
        "60 reserved g",
        "60 admitted g",
        "60 bound g-t-0",
        "60 finished h",
    ]
    assert of(came, "i").position == 1


def test_a_group_whose_gate_opens_may_preempt_at_once() -> None:
    came = outcome(
        node("n1", 1),
        priority("high", 9),
        group("h"),
        gated("g", "x", priorityClassName="high"),
        timeline(opens(30, "g", "x")),
    )
    assert story(came) == [
        "0 reserved h",
        "0 admitted h",
        "0 bound h-t-0",
        "30 requeued h Preempted",
        "30 evicted h-t-0 Preempted",
        "30 pledged h-t-0 to g",
        "30 reserved g",
        "60 admitted g",
        "60 bound g-t-0",
    ]


def test_a_gated_group_adds_no_demand() -> None:
    """A group out of line adds nothing to what its queue deserves."""
    came = outcome(
        node("n1", 4), queue("a"), queue("b"), gated("g", "x", queue="a"), group("h", 4, queue="b")
    )
    deserved = {name: came.queues[name].deserved["cpu"] for name in ("a", "b")}
    assert deserved == {"a": "0", "b": "4"}


@pytest.mark.parametrize(
    ("world", "why"),
    [
        ([gated("g", "x", suspend=True)], ["Suspended", "SchedulingGated"]),
        ([gated("g", "x", queue="nowhere")], ["QueueNotFound", "SchedulingGated"]),
        (
            [queue("default", stopPolicy="Hold"), gated("g", "x")],
            ["QueueStopped", "SchedulingGated"],
        ),
        (
            [gated("d", "y"), gated("g", "x", dependsOn=[{"name": "d", "condition": "ok"}])],
            ["SchedulingGated", "DependencyNotMet"],
        ),
    ],
)
def test_all_reasons_of_a_gated_group_are_reported_by_rank(
    world: list[Manifest], why: list[str]
) -> None:
    came = outcome(node("n1", 1), *world)
    assert (story(came), reasons(came, "g")) == ([], why)


def test_a_group_opened_while_suspended_starts_when_it_is_resumed() -> None:
    came = outcome(
        node("n1", 1),
        gated("g", "x", suspend=True),
        timeline(opens(5, "g", "x"), {"at": "9s", "resume": "default/g"}),
    )
    assert story(came) == ["9 reserved g", "9 admitted g", "9 bound g-t-0"]


@pytest.mark.parametrize(
    ("condition", "then"),
    [
        ("ok", ["20 reserved g", "20 admitted g", "20 bound g-t-0", "20 finished d"]),
        ("failed", ["20 finished d, g"]),
    ],
)
def test_a_gate_and_a_dependency_must_both_be_met(condition: str, then: list[str]) -> None:
    """A dependency that can never be met makes the group Failed."""
    came = outcome(
        node("n1", 2),
        group("d", runtime="20s"),
        gated("g", "x", dependsOn=[{"name": "d", "condition": condition}]),
        timeline(opens(5, "g", "x")),
    )
    assert story(came)[3:] == then


def test_a_gate_hides_no_dependency_that_is_never_met() -> None:
    came = outcome(
        node("n1", 2),
        group("d", runtime="20s"),
        gated("g", "x", dependsOn=[{"name": "d", "condition": "failed"}]),
    )
    assert story(came)[3:] == ["20 finished d, g"]
    assert reasons(came, "g") == ["DependencyNeverMet"]


def test_an_opened_group_waits_for_its_namespaces_quota_like_any() -> None:
    came = outcome(
        node("n1", 4),
        quota("default", cpu=1),
        group("h", runtime="20s"),
        gated("g", "x"),
        timeline(opens(5, "g", "x")),
    )
    assert story(came)[3:] == ["20 reserved g", "20 admitted g", "20 bound g-t-0", "20 finished h"]


def test_an_external_group_is_gated_like_any() -> None:
    came = outcome_until(
        20,
        gated("e", "x", controller="external", minResources={"cpu": 5}),
        timeline(opens(10, "e", "x")),
    )
    assert story(came) == ["10 reserved e", "10 admitted e"]


def test_an_edit_may_remove_gates_and_never_add_one() -> None:
    world = [
        node("n1", 1),
        gated("g", "a", "b"),
        timeline(
            applies(5, gated("g", "b")), applies(7, gated("g", "a", "b")), applies(10, group("g"))
        ),
    ]
    assert story(outcome(*world)) == ["10 reserved g", "10 admitted g", "10 bound g-t-0"]
    (refused,) = refused_steps(*world)
    assert refused.endswith(
        "apply at 7s: PodGroup default/g: spec.schedulingGates: gate 'a' cannot be added after"
        " creation; gates can only be removed"
    )


def test_the_queue_of_a_gated_group_may_be_changed() -> None:
    came = outcome(
        node("n1", 1),
        queue("w"),
        gated("g", "x"),
        timeline(applies(5, gated("g", "x", queue="w")), opens(10, "g", "x")),
    )
    assert story(came) == ["10 reserved g", "10 admitted g", "10 bound g-t-0"]
    assert {name: came.queues[name].allocated["cpu"] for name in ("default", "w")} == {
        "default": "0",
        "w": "1",
    }


def test_a_gated_group_reserves_nothing_and_the_checks_of_its_last_queue_count() -> None:
    """A group may be edited while gated; checks follow the queue."""
    came = outcome_until(
        100,
        node("n1", 1),
        queue("default", admissionChecks=["a"]),
        queue("w", admissionChecks=["c"]),
        check("a"),
        check("c"),
        gated("g", "x"),
        timeline(
            applies(5, gated("g", "x", queue="w")),
            answers(6, "g", "c", "True"),
            opens(10, "g", "x"),
            answers(20, "g", "c", "True"),
        ),
    )
    assert story(came) == ["10 reserved g", "20 admitted g", "20 bound g-t-0"]
    assert of(came, "g").checks == {"c": "True"}


def test_a_gated_task_may_have_its_gate_opened_while_the_others_run() -> None:
    """A gated pod does not count towards minMember."""
    came = outcome(
        node("n1", 5),
        group(
            "g", minMember=3, tasks=[task("a", 3, runtime="60s"), task("b", 2, "x", runtime="60s")]
        ),
        timeline(opens(30, "g", "x")),
    )
    assert story(came) == [
        "0 reserved g",
        "0 admitted g",
        "0 bound g-a-0, g-a-1, g-a-2",
        "30 bound g-b-0, g-b-1",
        "90 finished g",
    ]


def test_the_reservation_covers_pods_without_gates_and_the_others_fit_later() -> None:
    """A gated first task that would not fit costs nothing."""
    came = outcome(
        node("n1", 4),
        group("g", minMember=2, tasks=[task("a", 2, "x", cpu=2), task("b", 3, runtime="20s")]),
        timeline(opens(10, "g", "x")),
    )
    assert story(came) == [
        "0 reserved g",
        "0 admitted g",
        "0 bound g-b-0, g-b-1, g-b-2",
        "20 bound g-a-0, g-a-1",
    ]


def test_one_of_two_gated_tasks_is_enough_if_min_member_allows_it() -> None:
    came = outcome(
        node("n1", 2),
        group("g", minMember=1, tasks=[task("a", 1, "x"), task("b", 1, "y")]),
        timeline(opens(10, "g", "y")),
    )
    assert story(came) == ["10 reserved g", "10 admitted g", "10 bound g-b-0"]
    assert (came.queues["default"].allocated["cpu"], came.queues["default"].reserved["cpu"]) == (
        "1",
        "0",
    )
