"""A queue that accepts groups of certain namespaces only."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.test_norm_evictions import CLASSES, HI, runs
from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    applies,
    check,
    evicted,
    group,
    node,
    of,
    opens,
    outcome,
    outcome_until,
    phases,
    queue,
    reasons,
    reserved,
    timeline,
)


def messages(came: WorldOutcome, name: str, namespace: str = "default") -> list[str]:
    return [one.message for one in of(came, name, namespace).reasons]


def gpu(*namespaces: str, **spec: Any) -> Manifest:
    return queue("gpu", **({"namespaces": list(namespaces)} if namespaces else {}), **spec)


def test_a_waiting_group_is_out_of_line_from_the_change_of_its_queue_until_the_next() -> None:
    came = outcome(
        node("n1", 1),
        gpu("default", "home", strategy={"type": "StrictFIFO"}),
        group("first", queue="gpu", runtime="10s"),
        group("second", queue="gpu", namespace="home", runtime="10s"),
        group("third", queue="gpu", runtime="10s"),
        timeline(
            applies(5, gpu("default", strategy={"type": "StrictFIFO"})),
            applies(15, gpu("home", strategy={"type": "StrictFIFO"})),
        ),
    )
    # The second holds up no other while it is refused, and comes when its namespace is named again.
    assert admitted(came) == [
        (0, ["default/first"]),
        (10, ["default/third"]),
        (20, ["home/second"]),
    ]


def test_the_reason_names_the_namespaces_that_are_accepted() -> None:
    came = outcome(
        node("n1", 4),
        gpu("lab", "ml"),
        group("a", queue="gpu"),
        group("b", queue="gpu", namespace="ml"),
    )
    assert reasons(came, "a") == ["Misconfigured"]
    assert messages(came, "a") == [
        "queue gpu accepts only groups of namespaces lab and ml, not of default"
    ]
    assert reasons(came, "b", "ml") == []


def test_groups_that_ask_for_the_same_are_judged_by_their_own_namespace() -> None:
    names = ("lab", "ml", "home", "default")
    groups = [
        group(f"{name}-{number}", queue="gpu", namespace=name)
        for number in range(3)
        for name in names
    ]
    came = outcome(node("n1", 2), gpu("lab", "ml"), *groups)
    assert admitted(came) == [(0, ["lab/lab-0", "ml/ml-0"])]
    first = {key: found.reasons[0].reason for key, found in came.podgroups.items() if found.reasons}
    assert first == {
        **dict.fromkeys(["lab/lab-1", "lab/lab-2", "ml/ml-1", "ml/ml-2"], "WaitingForResources"),
        **dict.fromkeys(["home/home-0", "home/home-1", "home/home-2"], "Misconfigured"),
        **dict.fromkeys([f"default/default-{number}" for number in range(3)], "Misconfigured"),
    }


def test_the_lists_of_all_queues_above_count() -> None:
    world = [
        node("n1", 4),
        queue("root", namespaces=["lab", "default"]),
        queue("school", namespaces=["lab", "home"]),
        gpu(parent="school"),
    ]
    groups = [group(name, queue="gpu", namespace=name) for name in ("lab", "home", "default")]
    came = outcome(*world, *groups)
    assert admitted(came) == [(0, ["lab/lab"])]
    for name in ("home", "default"):
        assert messages(came, name, name) == [
            f"queue gpu accepts only groups of namespace lab, not of {name}"
        ]


def test_groups_that_hold_quota_stay_as_they_are_when_the_queue_stops_accepting_them() -> None:
    came = outcome(
        node("n1", 8),
        check("ask"),
        gpu("default", admissionChecks=["ask"]),
        queue("free", namespaces=["default"]),
        group("reserved", queue="gpu", runtime="10s"),
        group("runs", queue="free", runtime="10s"),
        timeline(
            applies(2, gpu("lab", admissionChecks=["ask"])),
            applies(2, queue("free", namespaces=["lab"])),
            answers(5, "reserved", "ask", "True"),
        ),
    )
    assert reserved(came) == [(0, ["default/reserved", "default/runs"])]
    assert admitted(came) == [(0, ["default/runs"]), (5, ["default/reserved"])]
    assert phases(came) == {"reserved": "Completed", "runs": "Completed"}


def test_an_evicted_group_does_not_return_to_a_queue_that_no_longer_accepts_it() -> None:
    came = outcome_until(
        20,
        node("n1", 4),
        gpu("default"),
        group("a", queue="gpu", grace="0s"),
        timeline(
            applies(2, gpu("lab")),
            {"at": "4s", "suspend": "default/a"},
            {"at": "6s", "resume": "default/a"},
        ),
    )
    assert admitted(came) == [(0, ["default/a"])]
    assert reasons(came, "a") == ["Misconfigured"]


def test_a_gated_group_is_told_at_once() -> None:
    world = [node("n1", 4), gpu("lab"), group("a", queue="gpu", schedulingGates=[{"name": "g"}])]
    assert reasons(outcome(*world), "a") == ["Misconfigured", "SchedulingGated"]
    came = outcome(*world, timeline(opens(3, "a", "g"), applies(5, gpu("lab", "default"))))
    assert admitted(came) == [(5, ["default/a"])]


@pytest.mark.parametrize(
    "actions", ["enqueue, allocate, reclaim, preempt", "preempt, reclaim, enqueue, allocate"]
)
def test_no_group_is_evicted_for_one_that_the_queue_no_longer_accepts(actions: str) -> None:
    world = [
        *CLASSES,
        node("n1", 2),
        *runs("low", 2, queue="gpu", grace="0s"),
        *(group(f"urgent-{number}", 2, queue="gpu", namespace="home", **HI) for number in (1, 2)),
    ]
    config = f"actions: {actions}"
    assert evicted(outcome_until(9, *world, gpu("default", "home"), config=config)) != []
    assert evicted(outcome_until(9, *world, gpu("default"), config=config)) == []
    closes = [
        gpu("default", "home", preemption={"withinQueue": "Never"}),
        timeline(applies(5, gpu("default"))),
    ]
    assert evicted(outcome_until(9, *world, *closes, config=config)) == []
