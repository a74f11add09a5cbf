"""The advice of a plan: other requests that would start, without circumventing any limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from batchq.api.objects import (
    Metadata,
    PodGroup,
    QueuePreemption,
    SchedulingGate,
)
from batchq.api.views import Advice, Outcome, Plan
from tests.builders import (
    RECLAIMS,
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
)
from tests.client.plans import CPU_8, HIGH, NOW, a_check, a_request, advices, only, plan_of, plan_on
from tests.client.waits import NEVER


def test_the_largest_request_that_starts_now_is_found() -> None:
    plan = plan_of(a_request(replicas=2, cpu=3), *a_running_group("r", cpu=4))
    assert advices(plan) == [
        "asking for cpu 2 instead of 3 per pod, it would start now",
        "with minMember 1 instead of 2, it would start now with 1 pod or more",
    ]


def test_a_request_for_parts_of_a_core_is_advised_parts() -> None:
    task = a_task("w", 1, requests={"cpu": "3300m"}, command=("true",))
    plan = plan_of(a_request(tasks=(task,)), *a_running_group("r", cpu="5700m"))
    assert advices(plan) == ["asking for cpu 2300m instead of 3300m, it would start now"]


def test_a_request_that_only_a_cordoned_node_could_take_waits() -> None:
    there = a_snapshot(a_node("n1", cpu=3), a_node("n2", cpu=4, cordoned=True))
    group = only(plan_on(there, a_request(cpu=4)))
    assert (group.outcome, group.phase, group.never) == (Outcome.WAITS, "Pending", "")


def test_a_gang_is_advised_to_uncordon_a_node_before_it_asks_for_less() -> None:
    there = a_snapshot(a_node("n1", cpu=4), a_node("n2", cpu=4, cordoned=True))
    assert advices(plan_on(there, a_request(replicas=8)))[:2] == [
        "after `batchq nodes uncordon n2`, it would start now",
        "asking for cpu 500m instead of 1 per pod, it would start now",
    ]


def test_a_gang_that_needs_a_cordoned_node_and_others_to_end_is_advised_of_both() -> None:
    there = a_snapshot(
        a_node("n1", cpu=4), a_node("n2", cpu=4, cordoned=True), *a_running_group("r", cpu=1)
    )
    assert advices(plan_on(there, a_request(replicas=8)))[0] == (
        "after `batchq nodes uncordon n2`, it would wait in line, and could start later"
    )


def test_uncordoning_a_node_that_takes_none_of_its_pods_is_not_advised() -> None:
    there = a_snapshot(
        *(a_node("n1", cpu=4, labels={"pool": "a"}), a_node("n2", cpu=4, cordoned=True)),
        *a_running_group("r", cpu=2),
    )
    task = a_task("w", 1, requests={"cpu": 3}, command=("true",), node_selector={"pool": "a"})
    assert advices(plan_on(there, a_request(tasks=(task,)))) == [
        "asking for cpu 2 instead of 3, it would start now"
    ]


def test_a_gang_is_advised_to_bring_back_a_node_that_is_not_ready() -> None:
    there = a_snapshot(a_node("n1", cpu=4), a_node("n2", cpu=4, ready=False))
    plan = plan_on(there, a_request(replicas=8))
    assert advices(plan)[:2] == [
        "once n2 is ready again (`batchq nodes`), it would start now",
        "asking for cpu 500m instead of 1 per pod, it would start now",
    ]
    first = only(plan).advice[0]
    assert (first.change, first.value, first.outcome) == ("nodeReady", "n2", Outcome.NOW)


def test_a_gang_is_advised_to_bring_back_a_node_that_has_been_silent() -> None:
    there = a_snapshot(
        a_node("n1", cpu=4, heartbeat=NOW), a_node("n2", cpu=4, heartbeat=NOW - 200_000)
    )
    assert advices(plan_on(there, a_request(replicas=8)))[0] == (
        "once n2 is ready again (`batchq nodes`), it would start now"
    )


def test_a_gang_that_needs_a_silent_and_a_cordoned_node_is_advised_of_both() -> None:
    there = a_snapshot(
        a_node("n1", cpu=4), a_node("n2", cpu=4, cordoned=True), a_node("n3", cpu=4, ready=False)
    )
    assert advices(plan_on(there, a_request(replicas=12)))[0] == (
        "after `batchq nodes uncordon n2`, and once n3 is ready again (`batchq nodes`),"
        " it would start now"
    )


def test_a_gang_that_uncordoning_starts_is_not_advised_to_bring_back_a_node() -> None:
    there = a_snapshot(
        a_node("n1", cpu=4), a_node("n2", cpu=4, cordoned=True), a_node("n3", cpu=4, ready=False)
    )
    assert advices(plan_on(there, a_request(replicas=8)))[:2] == [
        "after `batchq nodes uncordon n2`, it would start now",
        "asking for cpu 500m instead of 1 per pod, it would start now",
    ]


def test_a_node_that_is_not_ready_and_takes_none_of_its_pods_is_not_advised() -> None:
    there = a_snapshot(
        *(a_node("n1", cpu=4, labels={"pool": "a"}), a_node("n2", cpu=4, ready=False)),
        *a_running_group("r", cpu=2),
    )
    task = a_task("w", 1, requests={"cpu": 3}, command=("true",), node_selector={"pool": "a"})
    assert advices(plan_on(there, a_request(tasks=(task,)))) == [
        "asking for cpu 2 instead of 3, it would start now"
    ]


def test_a_request_larger_than_every_empty_node_never_starts() -> None:
    there = a_snapshot(
        a_node("n1", cpu=4), a_node("n2", cpu=4), *a_running_group("r", cpu=4, walltime=60_000)
    )
    plan = plan_on(there, a_request(cpu=5))
    [group] = plan.groups
    assert (plan.exit_code, group.earliest_start, group.after) == (5, None, ())
    [verdict] = group.blockers
    assert verdict.reason == "ExceedsCapacity"
    assert verdict.message == (
        "not even empty nodes take it: task w: 0/2 nodes fit: 2 insufficient cpu; a pod needs"
        " cpu 5, and the largest node has 4"
    )


@pytest.mark.parametrize("cpu", [5, 7, 9, 30])
def test_a_request_larger_than_every_node_is_advised_about_the_largest(cpu: int) -> None:
    nodes = (a_node("n1", cpu=4), a_node("n2", cpu=4))
    empty = plan_on(a_snapshot(*nodes), a_request(cpu=cpu))
    assert (empty.exit_code, advices(empty)) == (
        5,
        [f"asking for cpu 4 instead of {cpu}, it would start now"],
    )
    full = (*a_running_group("a", cpu=4), *a_running_group("b", cpu=4, node="n2"))
    busy = plan_on(a_snapshot(*nodes, *full), a_request(cpu=cpu))
    assert busy.exit_code == 5
    assert advices(busy) == [
        f"asking for cpu 4 instead of {cpu}, it would wait in line, and could start later"
    ]


def test_a_request_short_of_cpu_and_of_gpu_nodes_is_advised_about_nodes() -> None:
    there = a_snapshot(
        *(a_node("n1", cpu=4, gpu=1), a_node("n2", cpu=4, gpu=1)),
        *a_running_group("r", cpu=3),
    )
    task = a_task("w", 1, requests={"cpu": 1, "gpu": 2}, command=("true",))
    plan = plan_on(there, a_request(tasks=(task,)))
    assert (plan.exit_code, advices(plan)) == (
        5,
        ["asking for gpu 1 instead of 2, it would start now"],
    )


def test_the_plan_of_a_gated_request_says_that_it_can_never_start() -> None:
    there = a_snapshot(a_node("n1", cpu=4), a_node("n2", cpu=4))
    plan = plan_on(there, a_request(cpu=7, scheduling_gates=(SchedulingGate(name="a"),)))
    assert plan.exit_code == 5
    assert advices(plan) == [
        (
            "once gate a is open, it could never start: ExceedsCapacity, not even empty nodes take"
            " it: task w: 0/2 nodes fit: 2 insufficient cpu; a pod needs cpu 7, and the largest"
            " node has 4"
        )
    ]


def test_advice_considers_each_node_and_not_their_sum() -> None:
    """Twelve cpus are free, but no node has more than four of them."""
    there = a_snapshot(*(a_node(f"n{place}", cpu=4) for place in range(3)))
    plan = plan_on(there, a_request(cpu=10))
    assert advices(plan) == ["asking for cpu 4 instead of 10, it would start now"]


def test_a_queue_and_a_class_in_which_it_would_start_are_named() -> None:
    plan = plan_of(
        a_request(cpu=4, queue="busy"),
        HIGH,
        a_priority("higher", 20),
        a_queue("busy"),
        a_queue("free", preemption=RECLAIMS),
        a_queue("held", stop_policy="Hold"),
        *a_running_group("r", cpu=6, queue="busy"),
    )
    assert advices(plan) == [
        "asking for cpu 2 instead of 4, it would start now",
        "in queue free, it would start, and 1 pod of others would be evicted",
        "with priority class high, it would start, and 1 pod of others would be evicted",
    ]


def lent_out(asked: int = 2, *, mine: QueuePreemption = NEVER, **theirs: Any) -> Plan:
    """Return the plan of a group of queue mine, of whose node queue theirs uses all."""
    return plan_of(
        a_request(cpu=asked, queue="mine"),
        a_queue("mine", preemption=mine),
        a_queue("theirs", **theirs),
        *a_running_group("r", cpu=8, queue="theirs"),
    )


def test_a_queue_that_takes_nothing_back_is_advised_to_reclaim_what_others_borrow() -> None:
    plan = lent_out()
    assert [one for one in only(plan).advice if one.change == "reclaim"] == [
        Advice(
            change="reclaim",
            value="mine",
            outcome=Outcome.EVICTS,
            sentence="with `preemption.reclaim: Any` set on queue mine, it would start, and 1 pod"
            " of others would be evicted",
        )
    ]


@pytest.mark.parametrize(
    "plan",
    [
        # It would hold more than it deserves, which no reclaim gives it.
        lambda: lent_out(5),
        lambda: lent_out(reclaimable=False),
        # It reclaims already.
        lambda: lent_out(mine=RECLAIMS),
    ],
)
def test_a_queue_that_reclaiming_would_not_help_is_not_advised_to_reclaim(
    plan: Callable[[], Plan],
) -> None:
    assert "preemption.reclaim" not in "".join(advices(plan()))


def queues_advised(plan: Plan) -> list[str]:
    return [advice.value for advice in only(plan).advice if advice.change == "queue"]


def test_a_queue_that_skips_a_check_is_no_advice() -> None:
    there = a_snapshot(
        CPU_8,
        a_queue("org", admission_checks=("budget",)),
        a_queue("careful", parent="org"),
        a_queue("as-careful", parent="org", admission_checks=("approval",)),
        a_queue("careless"),
        a_queue("default", stop_policy="Hold"),
    )
    checked = structs.replace(there, admission_checks=(a_check(active=False),))
    assert queues_advised(plan_on(checked, a_request(queue="careful"))) == []
    busy = structs.replace(
        a_snapshot(CPU_8, *there.queues, *a_running_group("r", cpu=6, queue="careful")),
        admission_checks=(a_check(), a_check("approval")),
    )
    # If the careless queue requires the check, too, moving there does not skip it.
    assert queues_advised(plan_on(busy, a_request(cpu=4, queue="careful"))) == []
    assert queues_advised(plan_on(busy, a_request(cpu=4))) == []


@pytest.mark.parametrize("closed", [{"stop_policy": "Hold"}, {"capability": {"cpu": 4}}])
def test_advice_does_not_circumvent_a_stop_or_a_quota(closed: dict[str, Any]) -> None:
    plan = plan_of(
        a_request(cpu=4, queue="closed"),
        a_queue("closed", **closed),
        a_queue("free"),
        *a_running_group("r", cpu=2, queue="closed"),
    )
    assert (plan.exit_code, queues_advised(plan)) == (4, [])


def test_queues_that_do_not_accept_the_namespace_take_no_place_among_those_that_are_tried() -> None:
    plan = plan_of(
        a_request(cpu=4, queue="busy"),
        a_queue("busy"),
        *(a_queue(f"closed-{number}", namespaces=("lab",)) for number in range(9)),
        a_queue("free", preemption=RECLAIMS),
        *a_running_group("r", cpu=6, queue="busy"),
    )
    assert queues_advised(plan) == ["free"]


def test_memory_is_advised_in_sizes_that_people_write() -> None:
    there = a_snapshot(a_node("n1", cpu=8, memory="10Gi"))
    task = a_task("w", 1, requests={"cpu": 1, "memory": "16Gi"}, command=("true",))
    plan = plan_on(there, a_request(tasks=(task,)))
    assert advices(plan) == ["asking for memory 10Gi instead of 16Gi, it would start now"]


def test_a_request_too_large_for_ever_is_advised_a_size_that_would_wait() -> None:
    plan = plan_of(a_request(cpu=12), *a_running_group("r", cpu=8))
    assert advices(plan) == [
        "asking for cpu 8 instead of 12, it would wait in line, and could start later"
    ]


def test_an_external_group_is_advised_about_what_it_reserves() -> None:
    wanted = PodGroup(
        metadata=Metadata(name="x"),
        spec=structs.replace(
            a_group("x").spec, tasks=(), controller="external", min_resources=amounts(cpu=4)
        ),
    )
    queue = a_queue(capability={"cpu": 3})
    assert advices(plan_of(wanted, queue)) == ["asking for cpu 3 instead of 4, it would start now"]


def test_a_plan_has_no_advice_if_the_request_starts_or_none_was_asked_for() -> None:
    assert only(plan_of(a_request())).advice == ()
    assert only(plan_of(a_request(cpu=9), advise=False)).advice == ()


def test_a_plan_uses_the_actions_of_the_configuration() -> None:
    wanted = a_request(cpu=4, priority_class_name="high")
    there = (HIGH, *a_running_group("low", cpu=6))
    assert plan_of(wanted, *there).outcome == "Evicts"
    assert plan_of(wanted, *there, actions=("enqueue", "allocate")).outcome == "Waits"
