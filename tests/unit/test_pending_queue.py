"""The pending queue after evictions and ends of groups, and head reservations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from batchq.api.intents import RollBack
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Dependency, PodGroupStatus, SchedulingGate
from batchq.assembly import assemble
from batchq.config import DEFAULT_PLUGINS, SchedulerConfig
from batchq.scheduler.pod_controller import roll_back_over_limits
from tests.builders import (
    a_group,
    a_node,
    a_pod,
    a_queue,
    a_quota,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
    decide,
)

_SCHEDULER = assemble(SchedulerConfig())
_LARGE: dict[str, Any] = {"requests": {"cpu": 4}, "priority": 9}


def _in_queue(since: int = 0, **reserved: int) -> PodGroupStatus:
    return PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=0,
        in_queue_at=since,
        reservation=amounts(**reserved),
    )


def _without(*names: str) -> SchedulerConfig:
    plugins = tuple(entry for entry in DEFAULT_PLUGINS if entry.name not in names)
    return SchedulerConfig(plugins=plugins)


def test_a_group_that_does_not_fit_on_ready_nodes_when_empty_blocks_no_other_group() -> None:
    decided = decide(
        a_queue(strict=True),
        a_node(cpu=3),
        a_group("first", 4, created=1, min_member=4, status=_in_queue(cpu=4, pods=4)),
        a_group("second", 2, created=2),
        # Not ready, but seen within a day: the first group could fit again.
        a_node("n2", cpu=3, ready=False),
    )
    assert decided.admitted == ["default/second"]
    assert set(decided.reasons("first")) == {"WaitingForResources"}


def test_a_group_that_fails_in_a_session_is_in_no_pending_queue() -> None:
    decided = decide(
        a_node(cpu=3),
        a_group("g", depends_on=(Dependency(name="gone", uid="gone"),)),
        config=_without("dependencies"),
    )
    assert decided.admitted == []
    assert decided.session.by_key["default/g"].phase == PodGroupPhase.FAILED


def test_stopping_the_root_queue_stops_all_queues() -> None:
    decided = decide(
        a_node(cpu=3),
        a_queue("root", stop_policy="Hold"),
        *a_running_group("runs"),
        a_group("waits"),
    )
    assert decided.reasons("waits") == ["QueueStopped"]
    assert decided.session.by_key["default/runs"].phase == PodGroupPhase.RUNNING
    drained = decide(
        a_node(cpu=3), a_queue("root", stop_policy="HoldAndDrain"), *a_running_group("runs")
    )
    assert drained.reasons("runs") == ["QueueStopped"]


def test_a_dependency_may_be_deleted_once_its_dependent_was_admitted() -> None:
    depends = (Dependency(name="first", uid="first"),)
    came_back = PodGroupStatus(admission=1)
    decided = decide(a_node(cpu=3), a_group("g", depends_on=depends, status=came_back))
    assert decided.admitted == ["default/g"]
    never = decide(a_node(cpu=3), a_group("g", depends_on=depends))
    assert never.session.by_key["default/g"].phase == PodGroupPhase.FAILED


def test_without_nodes_a_group_that_exceeds_its_queue_has_that_reason() -> None:
    decided = decide(
        a_queue("small", capability={"cpu": 1}, strict=True),
        a_group("giant", 2, queue="small", created=1),
        a_group("fits", 1, queue="small", created=2),
    )
    assert decided.reasons("giant") == ["ExceedsMaxQuota"]
    assert decided.reasons("fits") == ["WaitingForResources"]


def test_without_enqueue_a_group_that_never_fits_stays_pending() -> None:
    decided = decide(
        a_node(cpu=2),
        a_group("giant", 3),
        a_group("torn", 2, min_member=3),
        config=SchedulerConfig(actions=("allocate",)),
    )
    assert decided.admitted == []
    assert decided.reasons("giant") == ["ExceedsCapacity"]
    assert decided.reasons("torn") == ["Misconfigured"]


def test_without_enqueue_max_pod_groups_applies_at_the_bind() -> None:
    decided = decide(
        a_node(cpu=2),
        a_queue(max_pod_groups=1),
        a_group("one", created=1),
        a_group("two", created=2),
        config=SchedulerConfig(actions=("allocate",)),
    )
    assert decided.admitted == ["default/one", "default/two"]
    assert list(decided.bound) == ["default/one-w-0"]
    assert decided.message("two") == (
        "needs podgroups 1, and queue default has 0 free (1 of 1 in use)"
    )


def test_without_enqueue_a_group_that_a_limit_keeps_from_its_node_names_the_limit() -> None:
    decided = decide(
        a_node(cpu=4),
        a_quota(cpu=1),
        a_group("one", created=1),
        a_group("two", created=2),
        config=SchedulerConfig(actions=("allocate",)),
    )
    assert list(decided.bound) == ["default/one-w-0"]
    assert decided.message("two") == (
        "needs cpu 1, and the quota of namespace default has 0 free (1 of 1 in use)"
    )


def test_a_head_refused_by_the_root_queue_gets_a_reservation_there() -> None:
    # The root allows 8 of 16; the strict head needs all 8, and 4 of them are deserved.
    objects = (
        a_node(cpu=16),
        a_queue("root", capability={"cpu": 8}),
        a_queue("strict", strict=True),
        a_queue("other"),
        *a_running_group("runs", 2, queue="other"),
        a_group("head", 8, queue="strict", created=1),
        a_group("large", 3, queue="other", created=2),
        a_group("small", 2, queue="other", created=3),
    )
    decided = decide(*objects)
    assert decided.reasons("head") == ["WaitingForQuota"]
    assert decided.admitted == []


def test_a_head_refused_by_the_cluster_and_its_namespace_gets_a_reservation() -> None:
    decided = decide(
        a_node(cpu=8),
        a_queue("strict", strict=True),
        a_queue("other"),
        a_quota("team", cpu=8),
        *a_running_group("runs", 6, queue="other", namespace="team"),
        a_group("head", 4, queue="strict", namespace="team", created=1),
        a_group("next", 1, queue="other", created=2),
    )
    assert decided.reasons("head", "team") == ["WaitingForQuota", "WaitingForResources"]
    assert decided.admitted == []


def _bound_beside_a_strict_head(queue: str) -> int:
    """Return how many more pods of an array in `queue` are bound on a node with eight cpus."""
    status = PodGroupStatus(
        phase=PodGroupPhase.RUNNING,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        started_at=0,
        reservation=amounts(cpu=1, pods=1),
    )
    array = a_group("array", 9, queue=queue, min_member=1, status=status)
    decided = decide(
        a_node(cpu=8),
        a_queue("strict", strict=True),
        a_queue("other"),
        array,
        a_pod(array, phase=PodPhase.RUNNING, node="n1", bound_at=0, started_at=0),
        *a_running_group("runs", 4, queue="other"),
        a_group("head", 4, queue="strict", created=1),
    )
    assert decided.reasons("head") == ["WaitingForResources"]
    return len(decided.bound)


def test_a_head_reservation_limits_elastic_pods_of_other_queues() -> None:
    # Both deserve four: the array may take none of the three free cpus.
    assert _bound_beside_a_strict_head("other") == 0


def test_a_head_reservation_does_not_limit_elastic_pods_of_its_own_queue() -> None:
    assert _bound_beside_a_strict_head("strict") == 3


def test_the_message_of_a_group_refused_for_a_head_reservation_says_so() -> None:
    decided = decide(
        a_node(cpu=8),
        a_queue("strict", strict=True),
        a_queue("other"),
        *a_running_group("runs", 6, queue="other"),
        a_group("head", 4, queue="strict", created=1),
        a_group("next", 1, queue="other", created=2),
    )
    assert decided.message("next") == (
        "needs cpu 1, and the cluster has 0 free (8 of 8 in use);"
        " part of that is reserved for the head of strict"
    )


def test_an_admission_that_requests_more_changes_the_share_of_every_queue() -> None:
    # Before the array requests nine cpus, c holds 5 of 7 deserved and b 3 of 4; afterwards
    # both deserve 4.
    decided = decide(
        a_node(cpu=12),
        a_queue("a"),
        a_queue("b"),
        a_queue("c"),
        *a_running_group("holds", 3, queue="b"),
        *a_running_group("keeps", 5, queue="c"),
        a_group("array", 9, queue="a", min_member=1),
        a_group("y", 1, queue="b"),
        a_group("z", 2, queue="c"),
        # With `reclaim` the array would reclaim what z just got above what c deserves.
        config=SchedulerConfig(actions=("enqueue", "allocate")),
    )
    assert decided.admitted == ["default/array", "default/y", "default/z"]


def test_a_reduced_max_pod_groups_requeues_the_last_admitted_group() -> None:
    decided = decide(
        a_node(cpu=4),
        a_queue(max_pod_groups=1),
        a_group("one", created=1, status=_in_queue(cpu=1, pods=1)),
        a_group("two", created=2, status=_in_queue(cpu=1, pods=1)),
    )
    groups = decided.session.by_key
    assert groups["default/one"].phase == PodGroupPhase.IN_QUEUE
    assert groups["default/two"].phase == PodGroupPhase.PENDING


@pytest.mark.parametrize(
    ("sentence", "began_under", "leave"),
    [
        ("no limit was reduced since the described state began", 3, []),
        ("a limit was reduced since the described state began", 4, ["late", "early"]),
    ],
)
def test_groups_in_queue_beyond_the_capacity_are_rolled_back_when(
    sentence: str, began_under: int, leave: list[str]
) -> None:
    snapshot = a_snapshot(
        a_node(cpu=3),
        a_group("early", 4, created=1, status=_in_queue(cpu=4, pods=4)),
        a_group("late", 4, created=2, status=_in_queue(cpu=4, pods=4)),
        a_node("n2", cpu=1, cordoned=True, ready=False),
    )
    stated = {"cluster": amounts(cpu=began_under)}
    # Without allocate, which would reject both because they do not fit on empty nodes.
    session = _SCHEDULER.open(msgspec.structs.replace(snapshot, overbooked=stated), 0)
    roll_back_over_limits(session)
    rolled_back = [one.group for one in session.intents if isinstance(one, RollBack)]
    assert rolled_back == [f"default/{name}" for name in leave]


def test_terminating_pods_do_not_requeue_their_readmitted_group() -> None:
    """Four pods of the former admission are terminating; the new one reserves two of three cpus."""
    former = a_group("g", 4, min_member=2, status=PodGroupStatus(admission=1))
    pods = [
        a_pod(former, index, phase=PodPhase.RUNNING, node="n1", terminating=True)
        for index in range(4)
    ]
    status = PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=2,
        reserved_at=0,
        in_queue_at=0,
        reservation=amounts(cpu=2, pods=2),
    )
    decided = decide(
        a_node(cpu=9), a_quota(cpu=3), a_group("g", 4, min_member=2, status=status), *pods
    )
    assert decided.session.by_key["default/g"].phase == PodGroupPhase.IN_QUEUE


def test_without_a_queue_order_the_gangs_of_all_queues_are_placed_in_one_order() -> None:
    decided = decide(
        a_node("n1", cpu=1),
        a_node("n2", cpu=1, cordoned=True),
        a_queue("a"),
        a_queue("b"),
        a_group("second", queue="a", created=2, status=_in_queue(cpu=1, pods=1)),
        a_group("first", queue="b", created=1, status=_in_queue(cpu=1, pods=1)),
        config=_without("proportion"),
    )
    assert decided.bound == {"default/first-w-0": "n1"}


def test_in_one_pending_queue_a_strict_head_blocks_all_groups_behind_it() -> None:
    decided = decide(
        a_node(cpu=4),
        a_queue("a", strict=True),
        a_queue("b"),
        *a_running_group("runs", 2, queue="b"),
        a_group("small", 1, queue="b", created=1),
        a_group("head", 3, queue="a", created=2),
        a_group("behind", 1, queue="b", created=3),
        config=_without("proportion"),
    )
    assert decided.admitted == ["default/small"]
    assert decided.reasons("behind") == ["WaitingForTurn"]


def test_limits_apply_in_the_session_even_without_their_plugins() -> None:
    decided = decide(
        a_node(cpu=4),
        a_quota(cpu=1),
        a_group("one", 1, created=1),
        a_group("two", 1, created=2),
        a_group("wide", 4, namespace="other", created=3),
        config=_without("capacity", "quota"),
    )
    assert decided.admitted == ["default/one"]
    assert decided.reasons("two") == ["WaitingForQuota"]
    assert decided.reasons("wide", "other") == ["WaitingForResources"]


def test_pods_beyond_min_member_are_ordered_by_priority_before_task() -> None:
    tasks = (a_task("low", 2), a_task("high", 2, priority=9))
    decided = decide(a_node(cpu=3), a_group("g", tasks=tasks, min_member=1))
    assert list(decided.bound) == ["default/g-high-0", "default/g-high-1", "default/g-low-0"]


def test_a_task_that_a_limit_stops_does_not_stop_the_others_of_its_group() -> None:
    tasks = (a_task("large", 3, requests={"cpu": 3}), a_task("small", 9))
    decided = decide(a_node(cpu=9), a_quota(cpu=5), a_group("g", tasks=tasks, min_member=1))
    assert list(decided.bound) == [
        "default/g-large-0",
        "default/g-small-0",
        "default/g-small-1",
    ]


def test_a_gang_that_fits_in_the_order_of_its_priorities_is_not_unschedulable() -> None:
    # Placed first, the small pod would take the larger node, which the large pod needs.
    tasks = (a_task("small", 1, requests={"cpu": 3}), a_task("large", 1, 0, **_LARGE))
    status = _in_queue(cpu=7, pods=2)
    decided = decide(
        a_node("n1", cpu=4), a_node("n2", cpu=3), a_group("g", tasks=tasks, status=status)
    )
    assert decided.bound == {"default/g-large-0": "n1", "default/g-small-0": "n2"}


def test_the_reason_of_a_gang_that_never_fits_together_does_not_blame_busy_nodes() -> None:
    status = _in_queue(cpu=6, pods=3)
    decided = decide(
        a_node("n1", cpu=3),
        a_node("n2", cpu=3),
        a_node("n3", cpu=4, cordoned=True),
        *a_running_group("one", node="n1", cpu=2),
        *a_running_group("two", node="n2", cpu=2),
        a_group("gang", 3, cpu=2, status=status),
    )
    (left,) = decided.of(RollBack)
    assert (left.reason, left.message) == (
        "Unschedulable",
        "3 pods do not fit together on empty nodes; 1 of 3 nodes is cordoned",
    )


def test_a_gang_in_phase_unknown_holds_no_node_that_it_cannot_use() -> None:
    status = PodGroupStatus(
        phase=PodGroupPhase.UNKNOWN,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        started_at=1,
        unknown_at=200_000,
        reservation=amounts(cpu=6, pods=2),
    )
    decided = decide(
        a_node("n1", cpu=4),
        a_node("n2", cpu=2),
        a_group("gang", tasks=(a_task("w", 2, requests={"cpu": 3}),), status=status),
        a_group("small", cpu=2, queue="default", min_member=1, status=_in_queue(cpu=2, pods=1)),
        a_node("n3", cpu=4, ready=True, cordoned=True),
        now_ms=200_000,
    )
    assert decided.bound == {"default/small-w-0": "n1"}


def test_conditions_change_with_an_eviction_and_a_readmission() -> None:
    group, *pods = a_running_group("g", suspend=True)
    left = decide(a_node(cpu=1), group, *pods).session.by_key["default/g"].status
    assert _conditions(left) == {
        "Admitted": "False",
        "Evicted": "True",
        "QuotaReserved": "False",
    }
    again = decide(a_node(cpu=1), a_group("g", status=left))
    assert _conditions(again.session.by_key["default/g"].status) == {
        "Admitted": "True",
        "Evicted": "False",
        "QuotaReserved": "True",
    }


def test_a_gate_shows_in_the_conditions_until_it_is_open() -> None:
    gate = (SchedulingGate(name="data"),)
    gated = decide(a_node(cpu=1), a_group("g", suspend=True, scheduling_gates=gate))
    status = gated.session.by_key["default/g"].status
    assert _reason_of(status, "Scheduled") == "SchedulingGated"
    opened = decide(a_node(cpu=1), *a_running_group("runs"), a_group("g", status=status))
    assert _reason_of(opened.session.by_key["default/g"].status, "Scheduled") == (
        "WaitingForResources"
    )


def _reason_of(status: PodGroupStatus, kind: str) -> str:
    return next(one.reason for one in status.conditions if one.type == kind)


def _conditions(status: PodGroupStatus) -> dict[str, str]:
    return {condition.type: condition.status for condition in status.conditions}
