"""Gates in the templates of tasks and on single pods: which pods they hold back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    created,
    finished,
    group,
    manifest,
    node,
    of,
    outcome,
    phases,
    queue,
    reasons,
    refusal,
    refused_steps,
    requeued,
    timeline,
)

MESSAGE = "Scheduling is blocked due to non-empty scheduling gates: "
WITHOUT_PLUGIN = (
    "plugins: [dependencies, quota, capacity, gang, priority, proportion, predicates,"
    " leastAllocated]\nactions: [enqueue, allocate]"
)
DATA = [{"name": "data"}]


def task(name: str, replicas: int = 1, *gates: str, cpu: Any = 1, least: int = 0) -> Manifest:
    template: Manifest = {"requests": {"cpu": cpu}, "annotations": {"batchq/runtime": "10s"}}
    if gates:
        template["schedulingGates"] = [{"name": gate} for gate in gates]
    return {"name": name, "replicas": replicas, "minAvailable": least, "template": template}


def opens(at: str | int, gate: str = "data", **more: str) -> Manifest:
    return {"at": at, "openGate": {"podGroup": "default/g", "gate": gate, **more}}


def gated_pod(name: str, of_group: str, index: int, *gates: str, **status: Any) -> Manifest:
    names = [{"name": gate} for gate in gates]
    spec = {"podGroup": of_group, "task": "t", "index": index, "schedulingGates": names}
    return manifest("Pod", name, spec, metadata={"namespace": "default"}, status=status)


def names(found: list[tuple[int, Any]]) -> list[tuple[int, list[str]]]:
    return [(at, sorted(pod.removeprefix("default/g-") for pod in pods)) for at, pods in found]


def test_a_group_with_enough_other_pods_starts_without_its_gated_ones() -> None:
    came = outcome(
        node("n1", 8), group("g", minMember=2, tasks=[task("b", 3, "data"), task("a", 2)])
    )
    assert admitted(came) == [(0, ["default/g"])]
    assert names(created(came)) == [(0, ["a-0", "a-1"])]
    assert names(bound(came)) == [(0, ["a-0", "a-1"])]
    # It is not over: three of its pods have not run.
    assert phases(came) == {"g": "Running"}


def test_a_gated_task_runs_once_its_gate_opens_while_the_group_runs() -> None:
    came = outcome(
        node("n1", 8),
        group("g", minMember=2, tasks=[task("b", 3, "data"), task("a", 2)]),
        timeline(opens("5s")),
    )
    assert names(bound(came)) == [(0, ["a-0", "a-1"]), (5, ["b-0", "b-1", "b-2"])]
    assert finished(came) == [(15, ["default/g"])]
    assert phases(came) == {"g": "Completed"}


def test_a_gated_task_runs_once_its_gate_opens_after_all_other_pods_have_ended() -> None:
    came = outcome(
        node("n1", 8),
        group("g", minMember=2, tasks=[task("b", 3, "data"), task("a", 2)]),
        timeline(opens("60s")),
    )
    assert names(bound(came)) == [(0, ["a-0", "a-1"]), (60, ["b-0", "b-1", "b-2"])]
    assert phases(came) == {"g": "Completed"}


def test_a_group_with_fewer_ungated_pods_than_min_member_is_gated() -> None:
    world = (
        node("n1", 8),
        group("g", minMember=3, tasks=[task("a", 2), task("b", 3, "data", "money")]),
        group("h"),
    )
    waits = outcome(*world)
    assert admitted(waits) == [(0, ["default/h"])]
    assert (of(waits, "g").phase, of(waits, "g").shown) == ("Pending", "SchedulingGated")
    assert [(one.reason, one.message) for one in of(waits, "g").reasons] == [
        ("SchedulingGated", f"{MESSAGE}data, money")
    ]
    came = outcome(*world, timeline(opens("5s"), opens("7s", "money")))
    assert admitted(came) == [(0, ["default/h"]), (7, ["default/g"])]
    assert names(created(came))[1:] == [(7, ["a-0", "a-1", "b-0", "b-1", "b-2"])]


def test_a_group_whose_task_lacks_its_min_available_is_gated() -> None:
    tasks = [task("a", 4), task("b", 2, "data", least=1)]
    world = (node("n1", 8), group("g", minMember=3, tasks=tasks))
    assert reasons(outcome(*world), "g") == ["SchedulingGated"]
    came = outcome(*world, timeline(opens(3)))
    assert admitted(came) == [(3, ["default/g"])]


def test_a_full_gang_waits_for_every_gate_of_its_pods() -> None:
    world = (node("n1", 8), group("g", tasks=[task("a", 1), task("b", 1, "data")]))
    assert of(outcome(*world), "g").shown == "SchedulingGated"
    assert admitted(outcome(*world, timeline(opens(4)))) == [(4, ["default/g"])]


def test_gates_of_the_group_and_of_its_pods_are_reported_together_each_once() -> None:
    tasks = [task("a", 1, "data"), task("b", 1, "data", "money")]
    world = (node("n1", 8), group("g", schedulingGates=[{"name": "go"}], tasks=tasks))
    assert of(outcome(*world), "g").reasons[0].message == f"{MESSAGE}go, data, money"
    # A gate that does not hold the group back is not reported.
    world = (
        node("n1", 8),
        group("g", minMember=1, schedulingGates=DATA, tasks=[task("a"), tasks[1]]),
    )
    assert of(outcome(*world), "g").reasons[0].message == f"{MESSAGE}data"


def test_a_step_opens_only_the_gate_of_the_group_if_its_pods_have_one_of_the_same_name() -> None:
    world = (
        node("n1", 8),
        group("g", minMember=1, schedulingGates=DATA, tasks=[task("a"), task("b", 1, "data")]),
    )
    came = outcome(*world, timeline(opens(2)))
    assert names(bound(came)) == [(2, ["a-0"])]
    assert phases(came) == {"g": "Running"}
    came = outcome(*world, timeline(opens(2), opens(9)))
    assert names(bound(came)) == [(2, ["a-0"]), (9, ["b-0"])]


def test_a_step_opens_the_gates_of_all_tasks_or_of_the_one_that_it_names() -> None:
    tasks = [task("a", 1, "data"), task("b", 1, "data")]
    world = (node("n1", 8), group("g", minMember=1, tasks=tasks))
    assert names(bound(outcome(*world, timeline(opens(2))))) == [(2, ["a-0", "b-0"])]
    assert names(bound(outcome(*world, timeline(opens(2, task="b"))))) == [(2, ["b-0"])]


def test_a_step_about_an_open_gate_changes_nothing() -> None:
    world = (node("n1", 8), group("g", tasks=[task("a", 1, "data")]))
    assert refused_steps(*world, timeline(opens(2), opens(3))) == ()
    assert refusal(*world, timeline(opens(2, "dat"))).endswith(
        "PodGroup default/g has no scheduling gate 'dat'"
    )
    assert refusal(*world, timeline(opens(2, task="b"))).endswith(
        "PodGroup default/g has no task 'b'"
    )


def test_pods_whose_gate_opens_later_take_no_other_pods_place() -> None:
    """The InQueue group already has minMember pods, so opened ones do not replace them."""
    came = outcome(
        node("n1", 8),
        group("g", minMember=2, tasks=[task("a", 2, "data"), task("b", 2)]),
        timeline(opens("5s")),
        config="actions: [enqueue]\ninQueueTimeout: 20s",
        cycles=3,
    )
    assert names(created(came)) == [(0, ["b-0", "b-1"])]


def test_a_reservation_is_for_the_pods_that_would_run() -> None:
    world = (
        node("n1", 8),
        queue("default"),
        group("g", minMember=2, tasks=[task("big", 1, "data", cpu=4), task("a", 2)]),
    )
    came = outcome(*world, config="actions: [enqueue]", cycles=1)
    assert came.queues["default"].reserved["cpu"] == "2"
    ignored = outcome(*world, config=WITHOUT_PLUGIN, cycles=1)
    assert admitted(ignored) == [(0, ["default/g"])]
    assert set(ignored.cycles[0].bound) == {"default/g-big-0", "default/g-a-0", "default/g-a-1"}


def test_a_reservation_leaves_out_single_pods_with_gates() -> None:
    tasks = [{**task("t"), "replicas": 1}, task("u", 2, cpu=2)]
    came = outcome(
        node("n1", 8),
        queue("default"),
        group("g", minMember=2, tasks=tasks),
        gated_pod("g-t-0", "g", 0, "data"),
        config="actions: [enqueue]",
        cycles=1,
    )
    assert came.queues["default"].reserved["cpu"] == "4"


def test_capacity_of_ended_pods_is_not_kept_for_gated_ones() -> None:
    tasks = [task("a", 2), task("b", 2, "data")]
    for one in tasks:
        one["template"].pop("annotations")
    came = outcome(
        node("n1", 2),
        group("g", minMember=2, tasks=tasks),
        group("h"),
        timeline({"at": "5s", "finishPod": "default/g-a-0"}),
    )
    assert admitted(came) == [(0, ["default/g"]), (5, ["default/h"])]


def test_gated_pods_of_admitted_groups_add_no_demand() -> None:
    world = [
        node("n1", 8),
        *(queue("a"), queue("b")),
        group("x", minMember=1, queue="a", tasks=[task("u"), task("v", 20, "data")]),
        group("y", 20, minMember=1, queue="b"),
    ]
    came = outcome(*world, config="actions: [enqueue]", cycles=1)
    assert {name: came.queues[name].deserved["cpu"] for name in "ab"} == {"a": "1", "b": "7"}


def test_opened_pods_need_capacity_like_any_others() -> None:
    came = outcome(
        node("n1", 2),
        queue("default", capability={"cpu": 1}),
        group("g", minMember=1, tasks=[task("a"), task("b", 2, "data")]),
        timeline(opens("5s")),
    )
    # The queue may hold only one cpu: a-0 has it until 10.
    assert names(bound(came)) == [(0, ["a-0"]), (10, ["b-0"]), (20, ["b-1"])]


def test_a_group_that_permanently_lost_too_many_pods_waits_for_the_gate_of_the_others() -> None:
    tasks = [task("a", 2), task("b", 2, "data")]
    for one in tasks:
        one["template"].pop("annotations")
    came = outcome(
        node("n1", 8),
        group("g", minMember=2, tasks=tasks),
        timeline(
            {"at": "10s", "failPod": "default/g-a-1"},
            opens("500s"),
        ),
        config="recoveryTimeout: 60s\nactions: [enqueue, allocate]",
    )
    assert requeued(came) == [(70, [("default/g", "RecoveryTimeout")])]
    assert admitted(came) == [(0, ["default/g"]), (500, ["default/g"])]
    assert names(bound(came))[1:] == [(500, ["a-0", "b-0", "b-1"])]


def test_with_the_plugin_off_gated_pods_run_and_count_like_any() -> None:
    came = outcome(
        node("n1", 8),
        group("g", minMember=3, tasks=[task("a", 2), task("b", 3, "data")]),
        config=WITHOUT_PLUGIN,
    )
    assert names(bound(came)) == [(0, ["a-0", "a-1", "b-0", "b-1", "b-2"])]
    assert phases(came) == {"g": "Completed"}
    assert (
        of(
            outcome(node("n1", 1), group("g", 2, schedulingGates=DATA), config=WITHOUT_PLUGIN), "g"
        ).shown
        == "Pending"
    )


def test_a_pod_with_gates_of_its_own_does_not_count_and_another_replaces_it() -> None:
    came = outcome(
        node("n1", 8),
        group("g", 3, minMember=2, runtime="10s"),
        gated_pod("g-t-0", "g", 0, "data"),
    )
    assert names(created(came)) == [(0, ["t-1", "t-2"])]
    assert names(bound(came)) == [(0, ["t-1", "t-2"])]
    assert phases(came) == {"g": "Running"}


def test_a_group_with_too_few_pods_beside_those_with_gates_is_gated_until_they_open() -> None:
    world = (
        node("n1", 8),
        group("g", 2, minMember=2, runtime="10s"),
        gated_pod("g-t-0", "g", 0, "data", "money"),
    )
    waits = of(outcome(*world), "g")
    assert (waits.shown, waits.reasons[0].message) == ("SchedulingGated", f"{MESSAGE}data, money")
    came = outcome(*world, timeline(opens(4, "money"), opens(6)))
    assert admitted(came) == [(6, ["default/g"])]
    assert phases(came) == {"g": "Completed"}


def test_with_the_plugin_off_gates_of_single_pods_are_ignored() -> None:
    came = outcome(
        node("n1", 8),
        group("g", 2, minMember=2, runtime="10s"),
        gated_pod("g-t-0", "g", 0, "data"),
        config=WITHOUT_PLUGIN,
    )
    assert names(bound(came)) == [(0, ["t-0", "t-1"])]


@pytest.mark.parametrize(
    "status",
    [
        {"node": "n1"},
        {"phase": "Running", "node": "n1"},
        {"phase": "Succeeded"},
        {"phase": "Failed"},
    ],
    ids=str,
)
def test_a_pod_with_a_node_or_past_pending_has_no_gates(status: Any) -> None:
    bad = gated_pod("g-t-0", "g", 0, "data", **status)
    said = "a pod with a node, or in a phase after Pending, cannot have scheduling gates"
    world = (node("n1", 8), group("g", 2, minMember=2))
    assert refusal(*world, bad) == f"world: Pod default/g-t-0: spec.schedulingGates: {said}"
    assert said in refusal(*world, timeline({"at": 1, "apply": bad}))


def test_a_gated_group_is_not_scheduled_for_15_seconds_and_within_5_of_the_opening() -> None:
    came = outcome(
        node("n1", 8),
        group("g", 1, runtime="1s", schedulingGates=[{"name": "foo"}, {"name": "bar"}]),
        timeline(opens("15s", "foo"), opens("15s", "bar")),
    )
    [(at, pods)] = names(bound(came))
    assert pods == ["t-0"]
    assert 15 <= at <= 20
    # Once the reason for the wait was stored, no session was held for the group.
    assert {cycle.time for cycle in came.cycles if cycle.time < 15} == {0}
