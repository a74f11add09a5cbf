"""Groups that cannot stay, and groups that end."""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    cordoned,
    created,
    evicted,
    finished,
    group,
    node,
    of,
    outcome,
    phases,
    pod,
    queue,
    quota,
    reasons,
    requeued,
    timeline,
)


def test_a_group_that_fits_no_empty_node_is_out_of_line_until_a_suitable_node_comes() -> None:
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        queue("default", strategy={"type": "StrictFIFO"}),
        group("big", cpu=3, runtime="1s", created=0),
        group("small", cpu=1, runtime="1s", created=1),
        timeline({"at": "60s", "apply": node("n3", 3)}),
    )
    assert requeued(came) == []
    assert bound(came) == [(0, {"default/small-t-0": "n1"}), (60, {"default/big-t-0": "n3"})]


def test_a_group_that_fits_no_empty_node_is_requeued_with_a_growing_back_off() -> None:
    # With overcommit, groups are admitted without a look at nodes.
    came = outcome(
        *(node("n1", 2), cordoned("n2", 3), group("big", cpu=3, runtime="1s")),
        timeline({"at": "60s", "apply": node("n3", 3)}),
        config="overcommit: 2",
    )
    assert requeued(came) == [
        (0, [("default/big", "Unschedulable")]),
        (10, [("default/big", "Unschedulable")]),
        (30, [("default/big", "Unschedulable")]),
    ]
    # The third back-off, 40 s, is waited out, whatever happens.
    assert bound(came) == [(70, {"default/big-t-0": "n3"})]


def test_a_group_that_finds_no_node_in_time_is_requeued_without_a_back_off() -> None:
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        group("holds", 2, status={"phase": "Running"}),
        pod("holds-t-0", "holds", 0, phase="Running", node="n1"),
        pod("holds-t-1", "holds", 1, phase="Running", node="n2"),
        group("big", cpu=2, runtime="10s"),
        timeline({"at": "700s", "finishPod": "default/holds-t-0"}),
        config="overcommit: 2",
    )
    assert requeued(came) == [
        (300, [("default/big", "InQueueTimeout")]),
        (600, [("default/big", "InQueueTimeout")]),
    ]
    assert admitted(came) == [(0, ["default/big"]), (300, ["default/big"]), (600, ["default/big"])]
    assert bound(came) == [(700, {"default/big-t-0": "n1"})]


def test_a_group_requeued_for_want_of_nodes_keeps_its_place_in_line() -> None:
    came = outcome(
        node("n1", 2),
        cordoned("n2", 3),
        group("big", cpu=3, created=0),
        group("second", created=5, suspend=True),
        group("third", created=10, suspend=True),
        config="overcommit: 2",
        cycles=2,
    )
    assert requeued(came) == [(0, [("default/big", "Unschedulable")])]
    assert [of(came, name).position for name in ("big", "second", "third")] == [1, 2, 3]


def test_when_a_quota_is_cut_the_last_groups_in_line_are_requeued_until_the_rest_fits() -> None:
    came = outcome(
        node("n1", 4),
        group("holds", 1, cpu=4, status={"phase": "Running"}),
        pod("holds-t-0", "holds", phase="Running", node="n1"),
        group("a", 2, status={"phase": "InQueue"}),
        group("b", 2, status={"phase": "InQueue"}),
        node("n2", 4, gpu=1),
        timeline({"at": "1s", "apply": quota("default", cpu=6)}),
        config="{actions: [enqueue], inQueueTimeout: 1h}",
        cycles=5,
    )
    assert requeued(came) == [(1, [("default/b", "CapacityCut")])]
    assert reasons(came, "b") == ["WaitingForQuota"]


def test_too_many_in_queue_groups_stay_until_their_timeout() -> None:
    came = outcome(
        node("n1", 2),
        group("a", 2, status={"phase": "InQueue"}),
        group("b", 2, status={"phase": "InQueue"}),
        cycles=5,
    )
    assert bound(came) == [(0, {"default/a-t-0": "n1", "default/a-t-1": "n1"})]
    assert requeued(came) == [(300, [("default/b", "InQueueTimeout")])]


def test_in_queue_groups_that_no_longer_fit_are_requeued_when_a_node_is_lost() -> None:
    came = outcome(
        node("n1", 1),
        node("n2", 1),
        group("a", 2, cpu=1, status={"phase": "InQueue"}),
        group("b", 2, cpu=1, status={"phase": "InQueue"}),
        timeline({"at": 0, "failNode": "n2"}),
        cycles=1,
    )
    assert requeued(came) == [
        (0, [("default/b", "NodeLost"), ("default/a", "NodeLost")]),
    ]


def test_pods_of_a_failed_node_restart_elsewhere() -> None:
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        group("a", 2, runtime="100s"),
        timeline({"at": "10s", "failNode": "n1"}),
    )
    assert bound(came) == [
        (0, {"default/a-t-0": "n1", "default/a-t-1": "n2"}),
        (10, {"default/a-t-0": "n2"}),
    ]
    assert finished(came) == [(110, ["default/a"])]


def test_a_group_without_enough_pods_is_unknown_until_its_node_recovers() -> None:
    world = (
        node("n1", 2),
        group("a", 2, runtime="100s"),
        timeline({"at": "10s", "failNode": "n1"}, {"at": "20s", "recoverNode": "n1"}),
    )
    assert phases(outcome(*world, cycles=5)) == {"a": "Unknown"}
    came = outcome(*world)
    assert [time for time, _ in bound(came)] == [0, 20]
    assert finished(came) == [(120, ["default/a"])]


def test_a_group_that_does_not_recover_is_evicted_whole() -> None:
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        group("a", 2, cpu=2, runtime="1000s"),
        timeline({"at": "10s", "failNode": "n1"}, {"at": "400s", "recoverNode": "n1"}),
    )
    assert requeued(came) == [(310, [("default/a", "RecoveryTimeout")])]
    assert evicted(came) == [(310, [("default/a-t-1", "RecoveryTimeout")])]
    assert admitted(came) == [(0, ["default/a"]), (400, ["default/a"])]


def test_a_silent_nodes_pods_are_lost_when_lease_and_grace_period_are_over() -> None:
    silent = {**node("n1", 1), "status": {"heartbeat": 0}}
    came = outcome(silent, group("a", grace="5s"))
    # Bound at 0 and not claimed by a node that is heard of again: a lease of 30 s and a grace
    # period of 5 s, detected when the node falls silent.
    assert evicted(came)[0] == (40, [("default/a-t-0", "NodeLost")])


def test_a_gangs_walltime_ends_it() -> None:
    came = outcome(node("n1", 2), group("a", 2, walltime="60s", grace="5s"))
    assert finished(came) == [(60, ["default/a"])]
    assert evicted(came) == [
        (60, [("default/a-t-0", "WalltimeExceeded"), ("default/a-t-1", "WalltimeExceeded")])
    ]
    assert phases(came) == {"a": "Failed"}
    assert reasons(came, "a") == ["WalltimeExceeded"]


def test_an_end_at_the_walltime_itself_is_a_success() -> None:
    came = outcome(node("n1", 2), group("a", 2, walltime="60s", runtime="60s"))
    assert phases(came) == {"a": "Completed"}


def test_pods_of_an_array_have_a_walltime_each() -> None:
    came = outcome(
        node("n1", 2),
        group("a", 3, minMember=1, walltime="60s", grace="5s"),
        timeline({"at": "70s", "finishPod": "default/a-t-2"}),
    )
    assert evicted(came) == [
        (60, [("default/a-t-0", "WalltimeExceeded"), ("default/a-t-1", "WalltimeExceeded")]),
    ]
    assert bound(came)[1] == (65, {"default/a-t-2": "n1"})
    # All have ended, one successfully: enough for minMember, and yet not every pod succeeded.
    assert finished(came) == [(70, ["default/a"])]
    assert phases(came) == {"a": "Failed"}


def test_a_failed_pod_is_retried_after_its_back_off() -> None:
    came = outcome(
        node("n1", 1),
        group("a", retry={"limit": 1, "backoff": "7s"}),
        timeline(
            {"at": "5s", "failPod": "default/a-t-0", "exitCode": 3},
            {"at": "30s", "failPod": "default/a-t-0", "exitCode": 4},
        ),
    )
    assert [time for time, _ in bound(came)] == [0, 12]
    assert finished(came) == [(30, ["default/a"])]
    (reason,) = of(came, "a").reasons
    assert reason.reason == "RetriesSpent"
    assert reason.message == "1 of 1 pods failed; the first, a-t-0, exited with 4"


def test_a_full_gang_fails_at_its_first_final_failure() -> None:
    came = outcome(
        node("n1", 2),
        group("a", 2, grace="3s"),
        timeline({"at": "5s", "failPod": "default/a-t-0"}),
    )
    assert finished(came) == [(5, ["default/a"])]
    assert evicted(came) == [(5, [("default/a-t-1", "RetriesSpent")])]


def test_evictions_and_lost_nodes_do_not_count_as_retries() -> None:
    came = outcome(
        node("n1", 1),
        group("a", runtime="10s"),
        timeline(
            {"at": "1s", "failNode": "n1"},
            {"at": "2s", "recoverNode": "n1"},
            {"at": "3s", "failNode": "n1"},
            {"at": "4s", "recoverNode": "n1"},
        ),
    )
    assert [time for time, _ in bound(came)] == [0, 2, 4]
    assert phases(came) == {"a": "Completed"}


@pytest.mark.parametrize(
    ("condition", "ends_with", "phase", "at"),
    [
        ("ok", {"finishPod": "default/first-t-0"}, "Completed", 5),
        ("ok", {"failPod": "default/first-t-0"}, "Failed", None),
        ("failed", {"failPod": "default/first-t-0"}, "Completed", 5),
        ("failed", {"finishPod": "default/first-t-0"}, "Failed", None),
        ("any", {"failPod": "default/first-t-0"}, "Completed", 5),
        ("any", {"finishPod": "default/first-t-0"}, "Completed", 5),
    ],
)
def test_a_dependency_is_met_or_can_never_be_met(
    condition: str, ends_with: Manifest, phase: str, at: int | None
) -> None:
    came = outcome(
        node("n1", 4),
        group("second", runtime="1s", dependsOn=[{"name": "first", "condition": condition}]),
        group("first"),
        timeline({"at": "5s", **ends_with}),
    )
    assert phases(came)["second"] == phase
    times = [time for time, groups in admitted(came) if "default/second" in groups]
    assert times == ([] if at is None else [at])
    if at is None:
        assert reasons(came, "second") == ["DependencyNeverMet"]


def test_a_dependent_of_a_group_that_never_ends_waits() -> None:
    came = outcome(node("n1", 4), group("first"), group("second", dependsOn=[{"name": "first"}]))
    assert reasons(came, "second") == ["DependencyNotMet"]


def test_a_suspended_group_releases_everything_and_comes_again() -> None:
    came = outcome(
        node("n1", 2),
        group("a", 2, grace="5s", runtime="100s"),
        timeline({"at": "10s", "suspend": "default/a"}, {"at": "60s", "resume": "default/a"}),
    )
    assert requeued(came) == [(10, [("default/a", "Suspended")])]
    assert evicted(came) == [(10, [("default/a-t-0", "Suspended"), ("default/a-t-1", "Suspended")])]
    assert admitted(came) == [(0, ["default/a"]), (60, ["default/a"])]
    assert finished(came) == [(160, ["default/a"])]


def test_a_suspended_groups_resources_are_free_only_when_its_pods_have_ended() -> None:
    came = outcome(
        node("n1", 2),
        group("a", 2, grace="5s"),
        group("b", 2),
        timeline({"at": "10s", "suspend": "default/a"}),
    )
    assert admitted(came) == [(0, ["default/a"]), (15, ["default/b"])]


def test_a_drained_queue_empties_and_admits_no_group() -> None:
    came = outcome(
        node("n1", 2),
        queue("q"),
        group("a", queue="q", grace="3s"),
        timeline({"at": "10s", "apply": queue("q", stopPolicy="HoldAndDrain")}),
    )
    assert requeued(came) == [(10, [("default/a", "QueueStopped")])]
    assert reasons(came, "a") == ["QueueStopped"]


def test_a_held_queue_lets_running_groups_run() -> None:
    came = outcome(
        node("n1", 1),
        queue("q"),
        group("a", queue="q", runtime="20s"),
        group("b", queue="q"),
        timeline({"at": "10s", "apply": queue("q", stopPolicy="Hold")}),
    )
    assert phases(came) == {"a": "Completed", "b": "Pending"}
    assert "QueueStopped" in reasons(came, "b")


def test_a_gated_group_is_out_of_line_until_its_last_gate_opens() -> None:
    world = (
        node("n1", 2),
        group("a", 2, runtime="5s", schedulingGates=[{"name": "data"}, {"name": "licence"}]),
        group("b", 2, runtime="5s"),
    )
    came = outcome(
        *world,
        timeline(
            {"at": "10s", "openGate": {"podGroup": "default/a", "gate": "data"}},
            {"at": "60s", "openGate": {"podGroup": "default/a", "gate": "licence"}},
        ),
    )
    assert admitted(came) == [(0, ["default/b"]), (60, ["default/a"])]
    waits = of(outcome(*world), "a")
    assert (waits.phase, waits.shown) == ("Pending", "SchedulingGated")
    assert waits.reasons[0].message == (
        "Scheduling is blocked due to non-empty scheduling gates: data, licence"
    )


def test_with_the_plugin_off_gates_are_kept_and_ignored() -> None:
    plugins = "[dependencies, quota, capacity, gang, priority, predicates, leastAllocated]"
    came = outcome(
        node("n1", 2),
        group("a", runtime="5s", schedulingGates=[{"name": "data"}]),
        config=f"plugins: {plugins}",
    )
    assert phases(came) == {"a": "Completed"}


def test_a_group_is_deleted_after_a_stated_time_to_live() -> None:
    came = outcome(node("n1", 2), group("a", runtime="2s", ttlAfterFinished="60s"))
    assert came.cycles[-1].time == 62
    assert came.podgroups == {}


def test_the_default_time_to_live_of_a_week_is_not_played() -> None:
    came = outcome(node("n1", 2), group("a", runtime="2s"))
    assert came.cycles[-1].time == 2
    assert phases(came) == {"a": "Completed"}


def test_a_waiting_dependent_still_learns_how_a_finished_group_ended() -> None:
    came = outcome(
        node("n1", 2),
        group("a", runtime="2s", ttlAfterFinished="60s"),
        group("b", runtime="2s", dependsOn=[{"name": "a"}], suspend=True),
        timeline({"at": "100s", "resume": "default/b"}),
    )
    assert phases(came) == {"b": "Completed"}


def test_a_gang_of_two_tasks_first_gets_the_minimum_of_each() -> None:
    def task(name: str, replicas: int, least: int) -> Manifest:
        template = {"requests": {"cpu": 1}}
        return {
            "name": name,
            "replicas": replicas,
            "minAvailable": least,
            "template": template,
        }

    came = outcome(
        node("n1", 3),
        group("a", minMember=3, tasks=[task("server", 4, 0), task("client", 4, 2)]),
    )
    assert created(came) == [
        (0, ["default/a-server-0", "default/a-client-0", "default/a-client-1"])
    ]


def test_while_one_pod_of_an_array_waits_for_its_retry_another_takes_its_place() -> None:
    came = outcome(
        node("n1", 1),
        group("a", 2, minMember=1, runtime="10s", retry={"limit": 1, "backoff": "400s"}),
        timeline({"at": "2s", "failPod": "default/a-t-0"}),
    )
    assert [(time, names) for time, names in bound(came)][:2] == [
        (0, {"default/a-t-0": "n1"}),
        (2, {"default/a-t-1": "n1"}),
    ]
