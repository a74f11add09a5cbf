"""Looking ahead from a live snapshot: start times and evictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.notation import DAY, HOUR, MINUTE, SECOND
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckStatus,
    Dependency,
    GroupClaim,
    Metadata,
    Pledge,
    PodGroupStatus,
    SchedulingGate,
)
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.lab.simulation.look_ahead import look_ahead
from batchq.lab.simulation.report import Future, Lasting, Stopped, compared
from tests.builders import (
    a_group,
    a_node,
    a_pod,
    a_priority,
    a_queue,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
    as_charged,
)

#: Running groups started at 0; the look ahead begins an hour later.
NOW = HOUR
WITHOUT_PREEMPT = SchedulerConfig(actions=("enqueue", "allocate"))


def ahead(
    *objects: Any,
    config: SchedulerConfig | None = None,
    until_ms: int | None = None,
    leases: dict[str, int] | None = None,
    **lasting: Any,
) -> Future:
    """Return the predicted course of these objects."""
    scheduler = assemble(config or SchedulerConfig())
    snapshot = a_snapshot(*as_charged(*objects), leases=leases)
    found = look_ahead(
        snapshot, scheduler, now_ms=NOW, lasting=Lasting(**lasting), until_ms=until_ms
    )
    assert found.refused == 0
    return found


def starts(future: Future) -> dict[str, list[int]]:
    """Return name -> seconds from now of every start."""
    return {
        key.removeprefix("default/"): [(at - NOW) // SECOND for at in group.starts]
        for key, group in future.groups.items()
    }


def ends(future: Future) -> dict[str, int | None]:
    """Return name -> seconds from now."""
    return {
        key.removeprefix("default/"): None if one.ends_at is None else (one.ends_at - NOW) // SECOND
        for key, one in future.groups.items()
    }


def test_a_running_group_ends_when_the_rest_of_its_walltime_is_over() -> None:
    future = ahead(
        a_node(cpu=4),
        *a_running_group("r", cpu=3, walltime=2 * HOUR),
        a_group("a", cpu=4, walltime=HOUR),
        a_group("b", cpu=1, walltime=HOUR, created=1000),
    )
    assert starts(future) == {"a": [3600], "b": [0], "r": []}
    assert ends(future) == {"a": 7200, "b": 3600, "r": 3600}
    assert {group.phase for group in future.groups.values()} == {PodGroupPhase.COMPLETED}
    assert (future.stopped, future.stopped_at - NOW) == (Stopped.SETTLED, 2 * HOUR)


def test_an_end_at_the_walltime_is_a_success_and_no_walltime_exceeded() -> None:
    future = ahead(a_node(cpu=1), *a_running_group("r", walltime=2 * HOUR))
    assert future.groups["default/r"].ending == "Succeeded"


def test_a_group_without_a_walltime_never_ends_and_groups_behind_it_do_not_start() -> None:
    future = ahead(a_node(cpu=1), *a_running_group("r"), a_group("a", walltime=HOUR))
    assert starts(future) == {"a": [], "r": []}
    assert future.stopped is Stopped.SETTLED
    [reason] = future.groups["default/a"].waits_for
    assert reason.reason == "WaitingForResources"
    assert reason.message == "needs cpu 1, and the cluster has 0 free (1 of 1 in use)"


def test_a_group_without_a_walltime_runs_for_the_assumed_runtime() -> None:
    future = ahead(
        a_node(cpu=1), *a_running_group("r"), a_group("a"), assumed_ms=HOUR + 10 * MINUTE
    )
    assert starts(future) == {"a": [600], "r": []}
    assert ends(future) == {"a": 600 + 4200, "r": 600}


def test_a_group_that_outlived_the_assumed_runtime_is_assumed_to_run_as_long_again() -> None:
    future = ahead(a_node(cpu=1), *a_running_group("r"), a_group("a"), assumed_ms=30 * MINUTE)
    assert starts(future) == {"a": [1800], "r": []}


def test_a_fraction_shortens_the_rest_of_running_groups_and_all_of_waiting_ones() -> None:
    future = ahead(
        a_node(cpu=1),
        *a_running_group("r", walltime=3 * HOUR),
        a_group("a", walltime=HOUR),
        thousandths=500,
    )
    assert starts(future) == {"a": [3600], "r": []}
    assert ends(future) == {"a": 5400, "r": 3600}


def test_an_annotated_runtime_takes_precedence_over_the_walltime() -> None:
    task = a_task(requests={"cpu": 1}, annotations={"batchq/runtime": "10m"})
    future = ahead(a_node(cpu=1), a_group("a", tasks=(task,), walltime=HOUR), thousandths=500)
    assert ends(future) == {"a": 600}


def test_a_group_that_would_exceed_its_walltime_fails_without_an_eviction() -> None:
    task = a_task(requests={"cpu": 1}, annotations={"batchq/runtime": "2h"})
    future = ahead(a_node(cpu=1), a_group("a", tasks=(task,), walltime=HOUR))
    group = future.groups["default/a"]
    assert (ends(future), group.phase, group.ending) == ({"a": 3600}, "Failed", "WalltimeExceeded")
    assert (future.evictions, group.evictions) == ((), 0)


def test_an_unreadable_annotation_is_ignored() -> None:
    task = a_task(requests={"cpu": 1}, annotations={"batchq/runtime": "soon"})
    future = ahead(a_node(cpu=1), a_group("a", tasks=(task,), walltime=HOUR))
    assert ends(future) == {"a": 3600}


def test_each_pod_of_an_array_has_a_walltime_of_its_own() -> None:
    future = ahead(a_node(cpu=2), a_group("a", 5, min_member=1, walltime=HOUR))
    assert (starts(future), ends(future)) == ({"a": [0]}, {"a": 3 * 3600})


def test_later_pods_of_a_gang_end_with_it() -> None:
    future = ahead(
        a_node(cpu=3),
        *a_running_group("r", walltime=HOUR + 10 * MINUTE),
        a_group("g", 3, min_member=2, walltime=HOUR),
        a_group("after", cpu=3, walltime=HOUR),
    )
    # Its third pod starts when r has ended.
    assert ends(future)["g"] == 3600
    assert starts(future)["after"] == [3600]


def test_a_stopping_pod_releases_its_resources_after_its_grace_period() -> None:
    group, pod = a_running_group("r", cpu=1)
    status = structs.replace(group.status, phase=PodGroupPhase.PENDING, reserved_at=None)
    stopped = structs.replace(
        pod.status, terminating=True, terminating_at=NOW - 10 * SECOND, reason="Suspended"
    )
    gone = structs.replace(group, spec=structs.replace(group.spec, suspend=True), status=status)
    future = ahead(a_node(cpu=1), gone, structs.replace(pod, status=stopped), a_group("a"))
    assert starts(future) == {"a": [20], "r": []}


def test_a_bound_pod_starts_at_once() -> None:
    status = PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=0,
        in_queue_at=NOW - SECOND,
        reservation=amounts(cpu=1, pods=1),
    )
    group = a_group("a", walltime=HOUR, status=status)
    pod = a_pod(group, phase=PodPhase.BOUND, node="n1", bound_at=NOW - SECOND)
    future = ahead(a_node(cpu=1), group, pod)
    assert (starts(future), ends(future)) == ({"a": [0]}, {"a": 3600})


def test_a_back_off_is_waited_out() -> None:
    status = PodGroupStatus(backoff_until=NOW + 90 * SECOND, backoff_count=3)
    future = ahead(a_node(cpu=1), a_group("a", walltime=HOUR, status=status))
    assert starts(future) == {"a": [90]}


def test_a_dependent_starts_when_its_dependency_has_ended() -> None:
    needs = (Dependency(name="first", uid="first"),)
    future = ahead(
        a_node(cpu=4),
        *a_running_group("first", walltime=2 * HOUR),
        a_group("second", walltime=HOUR, depends_on=needs),
    )
    assert starts(future) == {"first": [], "second": [3600]}


def test_a_dependent_of_a_group_that_failed_earlier_ends_as_failed() -> None:
    failed = a_group(
        "first", status=PodGroupStatus(phase=PodGroupPhase.FAILED, admission=1, finished_at=NOW)
    )
    needs = (Dependency(name="first", uid="first"),)
    future = ahead(a_node(cpu=4), failed, a_group("second", depends_on=needs))
    assert [*future.groups] == ["default/second"]
    second = future.groups["default/second"]
    assert (second.phase, second.ending, second.starts) == ("Failed", "DependencyNeverMet", ())


def test_a_suspended_or_gated_group_waits_and_says_so() -> None:
    gated = a_group("gated", scheduling_gates=(SchedulingGate(name="later"),))
    future = ahead(a_node(cpu=4), a_group("held", suspend=True), gated)
    reasons = {key: one.waits_for[0].reason for key, one in future.groups.items()}
    assert reasons == {"default/gated": "SchedulingGated", "default/held": "Suspended"}
    assert starts(future) == {"gated": [], "held": []}


def an_important_preemptor() -> list[Any]:
    return [
        a_node(cpu=4),
        a_priority("high", 10),
        *a_running_group("low", cpu=4, walltime=3 * HOUR),
        a_group("top", cpu=4, walltime=HOUR, priority_class_name="high"),
    ]


def test_an_eviction_names_its_victim_time_preemptor_and_cost() -> None:
    future = ahead(*an_important_preemptor())
    [eviction] = future.evictions
    assert (eviction.at, eviction.key, eviction.by) == (NOW, "default/low", "default/top")
    assert (eviction.action, eviction.reason) == ("preempt", "Preempted")
    assert (eviction.whole, eviction.pods) == (True, ("default/low-w-0",))
    assert eviction.lost == amounts(cpu=4 * 3600, pods=3600)
    # After the victim's grace period; the victim starts over when the preemptor has ended.
    assert starts(future) == {"low": [30 + 3600], "top": [30]}
    assert ends(future) == {"low": 30 + 3600 + 3 * 3600, "top": 30 + 3600}
    assert future.groups["default/low"].evictions == 1


def test_another_configuration_evicts_no_pod() -> None:
    future = ahead(*an_important_preemptor(), config=WITHOUT_PREEMPT)
    assert (future.evictions, starts(future)) == ((), {"low": [], "top": [7200]})


def test_two_configurations_side_by_side_show_their_differences() -> None:
    objects = [*an_important_preemptor(), a_node("n2", cpu=1), a_group("other", walltime=HOUR)]
    session = assemble(SchedulerConfig()).open(a_snapshot(*objects), NOW)
    futures = {"live": ahead(*objects), "new": ahead(*objects, config=WITHOUT_PREEMPT)}
    found = compared(session, futures)
    assert [(fate.present.key, fate.differs) for fate in found.fates] == [
        ("default/low", True),
        ("default/other", False),
        ("default/top", True),
    ]
    sums = [figures[0] for figures in found.figures]
    assert [(one.waiting, one.started, one.evictions) for one in sums] == [(2, 2, 1), (2, 2, 0)]
    # They were submitted at 0: `other` starts now, `top` after the grace period, or when `low` has
    # ended.
    assert [one.median_wait_ms for one in sums] == [HOUR + 15 * SECOND, 2 * HOUR]
    assert [one.last_end_at for one in sums] == [NOW + 4 * HOUR + 30 * SECOND, NOW + 3 * HOUR]
    assert [one.lost for one in sums] == [amounts(cpu=4 * 3600, pods=3600), {}]


def test_a_standing_pledge_is_kept() -> None:
    group, pod = a_running_group("low", cpu=4)
    result = structs.replace(
        pod.status, terminating=True, terminating_at=NOW - SECOND, reason="Preempted"
    )
    leaves = structs.replace(
        group,
        status=structs.replace(
            group.status, phase=PodGroupPhase.PENDING, reserved_at=None, reservation={}
        ),
    )
    pledge = Pledge(
        claimant="default/top",
        action="preempt",
        victims=("default/low-w-0",),
        holds={pod.metadata.uid: 1},
        groups=("low",),
        whole=("low",),
        plan={"0": "n1"},
        made_at=NOW - SECOND,
    )
    status = PodGroupStatus(
        reserved_at=NOW - SECOND, reservation=amounts(cpu=4, pods=1), pledge=pledge
    )
    top = a_group("top", cpu=4, priority_class_name="high", walltime=HOUR, status=status)
    future = ahead(
        *(a_node(cpu=4), a_priority("high", 10), leaves, structs.replace(pod, status=result), top),
        # It has waited for longer, and would take the capacity if it were not kept; a group of the
        # same priority would take the pledge over.
        a_group("early", cpu=2, created=-5, walltime=HOUR),
    )
    assert (starts(future)["top"], future.evictions) == ([29], ())


def test_a_check_without_an_answer_keeps_a_group_waiting_and_is_named() -> None:
    check = AdmissionCheck(
        metadata=Metadata(name="budget"),
        status=AdmissionCheckStatus(holder="x", expires_at=NOW + 10 * SECOND),
    )
    future = ahead(
        a_node(cpu=4), check, a_queue(admission_checks=("budget",)), a_group("a"), until_ms=HOUR
    )
    group = future.groups["default/a"]
    assert (group.starts, group.unanswered) == ((), ("budget",))
    # Its controller keeps its lease.
    assert "CheckInactive" not in [reason.reason for reason in group.waits_for]


def test_an_external_group_is_claimed_at_once_and_succeeds_at_its_walltime() -> None:
    needs = {"controller": "external", "min_resources": amounts(cpu=2)}
    first = a_group("first", **needs, walltime=HOUR)
    second = a_group("second", **needs, walltime=HOUR, created=5)
    # Nodes are irrelevant to it: its queue has capacity for one at a time.
    future = ahead(a_queue(capability={"cpu": 2}), first, second)
    assert (starts(future), ends(future)) == (
        {"first": [0], "second": [3600]},
        {"first": 3600, "second": 7200},
    )


def test_a_current_consumer_lease_is_renewed_and_an_expired_one_is_not() -> None:
    def claimed(name: str, expires_at: int) -> Any:
        status = PodGroupStatus(
            phase=PodGroupPhase.RUNNING,
            admission=1,
            reserved_at=0,
            in_queue_at=0,
            started_at=0,
            reservation=amounts(cpu=1),
            claim=GroupClaim(
                phase="Running",
                holder="render",
                claimed_at=0,
                expires_at=expires_at,
                ttl=MINUTE,
                grace=30 * SECOND,
                holding=amounts(cpu=1),
            ),
        )
        return a_group(
            name,
            tasks=(a_task(requests={"cpu": 1}),),
            controller="external",
            min_resources=amounts(cpu=1),
            walltime=3 * HOUR,
            status=status,
        )

    held, lapsed = claimed("held", NOW + SECOND), claimed("lapsed", NOW - 10 * SECOND)
    future = ahead(a_node(cpu=2), held, lapsed)
    assert (starts(future)["held"], ends(future)["held"]) == ([], 7200)
    # After the grace period, and the back-off that follows.
    assert starts(future)["lapsed"] == [20 + 10]
    assert [one.reason for one in future.evictions] == ["ClaimLapsed"]
    assert future.evictions[0].lost == amounts(cpu=3620)


def test_ready_nodes_keep_beating_and_their_pods_keep_their_leases() -> None:
    future = ahead(
        a_node(cpu=1, heartbeat=NOW - SECOND),
        *a_running_group("r", walltime=2 * HOUR),
        leases={"r-1-0": NOW + SECOND},
    )
    assert (ends(future), future.evictions) == ({"r": 3600}, ())


def test_pods_on_a_silent_node_are_lost_and_start_again_elsewhere() -> None:
    future = ahead(
        a_node("n1", cpu=1, heartbeat=NOW - 35 * SECOND),
        a_node("n2", cpu=1, heartbeat=NOW - SECOND),
        a_node("n3", cpu=1, heartbeat=NOW - 41 * SECOND),
        *a_running_group("r", node="n3", walltime=2 * HOUR),
        leases={"r-1-0": NOW - 11 * SECOND},
    )
    [eviction] = future.evictions
    assert (eviction.key, eviction.reason, eviction.at - NOW) == ("default/r", "NodeLost", 19_000)
    # It recovers, which is no new start: its walltime counts from the old one.
    assert (starts(future), ends(future)) == ({"r": []}, {"r": 3600})


def test_a_lease_on_a_silent_node_expires() -> None:
    future = ahead(
        a_node("n1", cpu=1, heartbeat=NOW - 41 * SECOND),
        *a_running_group("r", node="n1", walltime=2 * HOUR),
        leases={"r-1-0": NOW + 5 * SECOND},
        until_ms=HOUR,
    )
    assert [(one.reason, one.at - NOW) for one in future.evictions] == [("NodeLost", 35_000)]


def test_the_look_ahead_stops_at_the_requested_time() -> None:
    future = ahead(
        a_node(cpu=1),
        a_group("a", walltime=HOUR),
        a_group("b", walltime=HOUR, created=1),
        a_group("c", walltime=HOUR, created=2),
        until_ms=90 * MINUTE,
    )
    assert starts(future) == {"a": [0], "b": [3600], "c": []}
    assert (ends(future)["b"], future.groups["default/b"].phase) == (None, "Running")
    assert (future.stopped, future.stopped_at - NOW) == (Stopped.UNTIL, 90 * MINUTE)


def test_a_start_due_at_the_very_end_still_happens() -> None:
    objects = (a_node(cpu=1), a_group("a", walltime=HOUR), a_group("b", created=1))
    assert starts(ahead(*objects, until_ms=HOUR))["b"] == [3600]
    assert starts(ahead(*objects, until_ms=HOUR - SECOND))["b"] == []


def test_the_look_ahead_does_not_go_on_for_ever() -> None:
    check = AdmissionCheck(metadata=Metadata(name="budget"))
    future = ahead(a_node(cpu=4), check, a_queue(admission_checks=("budget",)), a_group("a"))
    assert future.stopped is Stopped.IDLE
    assert DAY - HOUR < future.stopped_at - NOW <= DAY


def test_an_empty_cluster_ends_at_once() -> None:
    future = ahead()
    assert (future.groups, future.stopped, future.stopped_at) == ({}, Stopped.SETTLED, NOW)


@pytest.mark.parametrize("seconds", [0, 1, 3599])
def test_groups_that_ended_before_are_not_part_of_the_look_ahead(seconds: int) -> None:
    done = a_group(
        "done",
        ttl_after_finished=HOUR,
        status=PodGroupStatus(
            phase=PodGroupPhase.COMPLETED, admission=1, finished_at=seconds * SECOND
        ),
    )
    future = ahead(a_node(cpu=1), done, a_group("a", walltime=HOUR))
    assert starts(future) == {"a": [0]}


class Counting:
    """Counts the groups that each session visits."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        def counted(session: Session) -> None:
            self.groups.append(len(session.groups))
            execute(session)

        return counted


def test_ended_groups_do_not_slow_later_sessions() -> None:
    counting = Counting()
    done = PodGroupStatus(phase=PodGroupPhase.COMPLETED, admission=1, finished_at=0)
    groups = [a_group(f"g{number}", walltime=HOUR, created=number) for number in range(9)]
    snapshot = a_snapshot(a_node(cpu=1), a_group("done", status=done), *groups)
    config = SchedulerConfig(actions=("enqueue", "allocate"))
    look_ahead(snapshot, replace(assemble(config), instrument=counting), now_ms=NOW)
    # Each action of a session counts; the last session has no group left to visit.
    assert (counting.groups[0], counting.groups[-1]) == (10, 0)


def test_a_listener_gets_the_number_of_ended_groups() -> None:
    heard: list[tuple[int, int]] = []
    snapshot = a_snapshot(a_node(cpu=1), a_group("a", walltime=HOUR), a_group("b", walltime=HOUR))
    look_ahead(
        snapshot,
        assemble(SchedulerConfig()),
        now_ms=NOW,
        tell=lambda ended, now_ms: heard.append((ended, (now_ms - NOW) // SECOND)),
    )
    assert heard == [(0, 0), (1, 3600), (2, 7200)]
