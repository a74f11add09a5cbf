"""A status in a file is trusted, and missing parts of it are derived."""

from __future__ import annotations

from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    created,
    evicted,
    finished,
    group,
    manifest,
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


def test_time_zero_is_the_latest_timestamp() -> None:
    came = outcome(
        node("n1", 1),
        group("a", created=100, status={"phase": "Running"}, runtime="30s"),
        pod("a-t-0", "a", phase="Running", node="n1", startedAt=90),
        group("b", created=110),
    )
    # Started at 90, 20 s before time 0: 10 s of its 30 s are left.
    assert finished(came) == [(10, ["default/a"])]


def test_a_future_deadline_does_not_move_time_zero() -> None:
    came = outcome(
        node("n1", 1), group("a", created=100, status={"backoffUntil": 130}), group("b", created=90)
    )
    assert admitted(came) == [(0, ["default/b"])]
    assert reasons(came, "a") == ["WaitingForResources"]
    assert [cycle.time for cycle in came.cycles if cycle.time] == [30, 30]


def test_a_pod_overdue_at_time_zero_ends_at_once() -> None:
    came = outcome(
        node("n1", 1),
        group("a", created=100, status={"phase": "Running"}, runtime="30s"),
        pod("a-t-0", "a", phase="Running", node="n1", startedAt=20),
    )
    assert finished(came) == [(0, ["default/a"])]


def test_a_stated_queue_time_takes_precedence_over_the_creation() -> None:
    came = outcome(
        node("n1", 1),
        group("a", created=1, status={"queueTime": 50}, runtime="1s"),
        group("b", created=2, runtime="1s"),
    )
    assert admitted(came) == [(0, ["default/b"]), (1, ["default/a"])]


def test_a_running_group_counts_from_the_start() -> None:
    came = outcome(
        node("n1", 4),
        quota("default", cpu=4),
        group("a", 3, status={"phase": "Running"}),
        *(pod(f"a-t-{index}", "a", index, phase="Running", node="n1") for index in range(3)),
        group("b", 2),
    )
    assert admitted(came) == []
    assert of(came, "b").reasons[0].message == (
        "needs cpu 2, and the quota of namespace default has 1 free (3 of 4 in use)"
    )


def test_an_in_queue_group_gets_only_the_missing_pods() -> None:
    came = outcome(
        node("n1", 4),
        group("a", 3, status={"phase": "InQueue"}),
        pod("my-own-name", "a", 1),
    )
    assert created(came) == [(0, ["default/a-t-0", "default/a-t-2"])]
    assert bound(came) == [
        (0, {"default/a-t-0": "n1", "default/my-own-name": "n1", "default/a-t-2": "n1"})
    ]


def test_a_pod_is_known_by_its_name_alone() -> None:
    by_name = manifest("Pod", "a-t-1", {"podGroup": "a"}, metadata={"namespace": "default"})
    came = outcome(node("n1", 4), group("a", 2, status={"phase": "InQueue"}), by_name)
    assert created(came) == [(0, ["default/a-t-0"])]


def test_described_pods_of_a_pending_group_are_used_when_it_is_admitted() -> None:
    came = outcome(node("n1", 4), group("a", 2), pod("mine", "a", 0), pod("yours", "a", 1))
    assert created(came) == []
    assert bound(came) == [(0, {"default/mine": "n1", "default/yours": "n1"})]
    assert phases(came) == {"a": "Running"}


def test_described_pods_count_towards_min_member_whatever_their_index() -> None:
    came = outcome(
        node("n1", 2),
        group("a", 4, minMember=2, status={"phase": "InQueue"}),
        pod("a-t-2", "a", 2),
        pod("a-t-3", "a", 3),
    )
    assert created(came) == []


def test_a_terminating_pod_ends_a_grace_after_the_start() -> None:
    came = outcome(
        node("n1", 1),
        group("a", grace="7s", status={"phase": "Pending", "admission": 1}),
        pod("a-t-0", "a", phase="Running", node="n1", terminating=True),
        group("b"),
    )
    # The ledger leaves out the group's old pod for its own admission; on the node its cpu is not
    # free.
    assert admitted(came) == [(7, ["default/a"])]
    assert bound(came) == [(7, {"default/a-t-0": "n1"})]
    assert evicted(came) == []


def test_in_queue_since_before_the_start_times_out_earlier() -> None:
    came = outcome(
        node("n1", 2),
        node("n2", 1),
        node("n3", 1),
        group("a", cpu=2, created=0, status={"phase": "InQueue", "reservedAt": 100}),
        group("b", cpu=2, status={"phase": "Running"}),
        pod("b-t-0", "b", phase="Running", node="n1", startedAt=150),
        cycles=4,
    )
    assert requeued(came) == [(250, [("default/a", "InQueueTimeout")])]


def test_a_walltime_counts_from_the_described_start() -> None:
    came = outcome(
        node("n1", 2),
        group("a", created=100, walltime="60s", status={"phase": "Running", "startedAt": 70}),
        pod("a-t-0", "a", phase="Running", node="n1", startedAt=70),
    )
    assert finished(came) == [(30, ["default/a"])]


def test_a_running_group_without_pods_gets_them_and_recovers() -> None:
    came = outcome(node("n1", 2), group("a", 2, status={"phase": "Running"}))
    assert created(came) == [(0, ["default/a-t-0", "default/a-t-1"])]
    assert phases(came) == {"a": "Running"}


def test_an_array_continues_where_it_was() -> None:
    came = outcome(
        node("n1", 1),
        group("a", 3, minMember=1, runtime="10s", status={"phase": "Running"}),
        pod("a-t-0", "a", 0, phase="Succeeded"),
        pod("a-t-1", "a", 1, phase="Running", node="n1"),
    )
    assert [(time, list(pods)) for time, pods in bound(came)] == [(10, ["default/a-t-2"])]
    assert finished(came) == [(20, ["default/a"])]


def test_a_failed_pod_without_retries_left_has_failed() -> None:
    came = outcome(
        node("n1", 1),
        group("a", 2, minMember=1, status={"phase": "Running"}, runtime="5s"),
        pod("a-t-0", "a", 0, phase="Failed", exitCode=9),
        pod("a-t-1", "a", 1, phase="Running", node="n1"),
    )
    assert finished(came) == [(5, ["default/a"])]
    assert of(came, "a").reasons[0].message == (
        "1 of 2 pods failed; the first, a-t-0, exited with 9"
    )


def test_described_attempts_count_as_failures() -> None:
    def world(attempt: int) -> tuple[Manifest, ...]:
        return (
            node("n1", 1),
            group("a", retry={"limit": 1, "backoff": "1s"}, status={"phase": "Running"}),
            pod("a-t-0", "a", phase="Running", node="n1", attempt=attempt),
            timeline({"at": "5s", "failPod": "default/a-t-0"}),
        )

    assert phases(outcome(*world(1))) == {"a": "Running"}
    assert phases(outcome(*world(2))) == {"a": "Failed"}


def test_a_finished_group_stays_finished() -> None:
    came = outcome(
        node("n1", 1),
        group("a", status={"phase": "Completed"}),
        group("b", dependsOn=[{"name": "a"}], runtime="1s"),
    )
    assert phases(came) == {"a": "Completed", "b": "Completed"}


def test_a_described_overload_of_a_node_is_accepted() -> None:
    came = outcome(
        node("n1", 1),
        group("a", 2, status={"phase": "Running"}),
        pod("a-t-0", "a", 0, phase="Running", node="n1"),
        pod("a-t-1", "a", 1, phase="Running", node="n1"),
        group("b"),
    )
    assert phases(came) == {"a": "Running", "b": "Pending"}
    assert came.queues["default"].allocated == {"cpu": "2", "pods": "2"}


def test_a_node_that_is_not_ready_gets_nothing_and_loses_its_pods() -> None:
    broken = {**node("n1", 4), "status": {"ready": False}}
    came = outcome(
        broken,
        group("a", grace="5s", status={"phase": "Running"}),
        pod("a-t-0", "a", phase="Running", node="n1"),
        cycles=4,
    )
    assert evicted(came) == [(35, [("default/a-t-0", "NodeLost")])]


def test_a_group_whose_queue_is_missing_waits_for_it() -> None:
    world = (node("n1", 1), group("a", queue="new", runtime="1s"))
    assert reasons(outcome(*world), "a") == ["QueueNotFound"]
    came = outcome(*world, timeline({"at": "10s", "apply": queue("new")}))
    assert admitted(came) == [(10, ["default/a"])]


def test_contradictions_show_as_misconfigured() -> None:
    def task(**more: int) -> list[Manifest]:
        return [{"name": "t", "template": {"requests": {"cpu": 1}}, **more}]

    came = outcome(
        node("n1", 1),
        group("too-many", 2, minMember=3),
        group("too-large", 50_001),
        group("none", minMember=0),
        group("least", tasks=task(replicas=1, minAvailable=2)),
        group("empty", tasks=[]),
        group("class", priorityClassName="nobility"),
        group("missing", dependsOn=[{"name": "godot"}]),
        group("circle-a", dependsOn=[{"name": "circle-b"}]),
        group("circle-b", dependsOn=[{"name": "circle-a"}]),
        group("itself", dependsOn=[{"name": "itself"}]),
        group("after-a-circle", dependsOn=[{"name": "circle-a"}]),
    )
    first = {name: reasons(came, name)[0] for name in phases(came)}
    assert first.pop("after-a-circle") == "DependencyNotMet"
    assert set(first.values()) == {"Misconfigured"}
    assert len(first) == 10
    assert admitted(came) == []
