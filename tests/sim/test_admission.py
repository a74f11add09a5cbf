"""Admission to a queue: which groups get pods, in described worlds."""

from __future__ import annotations

from tests.sim.worlds import (
    admitted,
    bound,
    created,
    finished,
    group,
    node,
    of,
    outcome,
    phases,
    priority,
    queue,
    quota,
    reasons,
)


def test_a_tenants_second_gang_waits_without_pods_until_its_first_has_ended() -> None:
    came = outcome(
        node("n1", 8),
        quota("blue", cpu=4),
        group("first", 4, runtime="30s", namespace="blue"),
        group("second", 4, runtime="30s", namespace="blue"),
        group("other", 4, runtime="10s", namespace="red"),
    )
    assert admitted(came) == [(0, ["blue/first", "red/other"]), (30, ["blue/second"])]
    assert [time for time, pods in created(came) if "blue/second-t-0" in pods] == [30]
    assert finished(came) == [(10, ["red/other"]), (30, ["blue/first"]), (60, ["blue/second"])]


def test_a_waiting_gang_says_with_numbers_what_it_lacks() -> None:
    came = outcome(
        node("n1", 8),
        quota("blue", cpu=4),
        group("first", 4, namespace="blue"),
        group("second", 3, namespace="blue"),
    )
    (reason,) = of(came, "second", "blue").reasons
    assert reason.reason == "WaitingForQuota"
    assert reason.message == (
        "needs cpu 3, and the quota of namespace blue has 0 free (4 of 4 in use)"
    )


def test_under_strict_fifo_small_groups_wait_behind_the_large_one() -> None:
    came = outcome(
        node("n1", 4),
        queue("q", strategy={"type": "StrictFIFO"}),
        group("a", 3, runtime="30s", queue="q"),
        group("large", 3, runtime="30s", queue="q"),
        group("small", 1, runtime="5s", queue="q"),
    )
    assert admitted(came) == [
        (0, ["default/a"]),
        (30, ["default/large", "default/small"]),
    ]


def test_under_best_effort_fifo_small_groups_are_tried() -> None:
    came = outcome(
        node("n1", 4),
        group("a", 3, runtime="30s"),
        group("large", 3, runtime="30s"),
        group("small", 1, runtime="5s"),
    )
    assert admitted(came) == [
        (0, ["default/a", "default/small"]),
        (30, ["default/large"]),
    ]


def test_a_group_that_waits_for_its_turn_says_so() -> None:
    came = outcome(
        node("n1", 4),
        queue("q", strategy={"type": "StrictFIFO"}),
        group("a", 3, queue="q"),
        group("large", 3, queue="q"),
        group("small", 1, queue="q"),
        group("huge", 9, queue="q"),
    )
    assert reasons(came, "large") == ["WaitingForResources"]
    assert reasons(came, "small") == ["WaitingForTurn"]
    assert reasons(came, "huge") == ["ExceedsCapacity"]


def test_the_more_important_group_goes_first() -> None:
    came = outcome(
        node("n1", 1),
        priority("high", 10),
        group("plain", runtime="5s"),
        group("urgent", runtime="5s", priorityClassName="high"),
    )
    assert admitted(came) == [(0, ["default/urgent"]), (5, ["default/plain"])]


def test_equal_priorities_go_by_creation_and_then_by_place_in_the_file() -> None:
    came = outcome(
        group("late", runtime="5s", created=20),
        group("early", runtime="5s", created=10),
        group("as-early", runtime="5s", created=10),
        node("n1", 1),
    )
    assert admitted(came) == [
        (0, ["default/early"]),
        (5, ["default/as-early"]),
        (10, ["default/late"]),
    ]


def test_places_in_a_file_compare_as_numbers() -> None:
    fillers = [queue(f"q{number}") for number in range(8)]
    names = [f"g{number}" for number in range(9, 13)]
    came = outcome(node("n1", 1), *fillers, *(group(name, runtime="1s") for name in names))
    assert [groups for _, groups in admitted(came)] == [[f"default/{name}"] for name in names]


def test_an_array_has_as_many_pods_as_fit() -> None:
    came = outcome(node("n1", 10), group("sweep", 100_000, minMember=1))
    assert [(time, len(pods)) for time, pods in created(came)] == [(0, 10)]
    assert [(time, len(pods)) for time, pods in bound(came)] == [(0, 10)]
    assert phases(came) == {"sweep": "Running"}


def test_a_waiting_array_has_no_pods() -> None:
    came = outcome(node("n1", 1), group("busy"), group("sweep", 100_000, minMember=1))
    assert created(came) == [(0, ["default/busy-t-0"])]
    assert phases(came)["sweep"] == "Pending"


def test_an_array_works_through_its_pods() -> None:
    came = outcome(node("n1", 2), group("sweep", 5, minMember=1, runtime="10s"))
    assert [(time, list(pods)) for time, pods in bound(came)] == [
        (0, ["default/sweep-t-0", "default/sweep-t-1"]),
        (10, ["default/sweep-t-2", "default/sweep-t-3"]),
        (20, ["default/sweep-t-4"]),
    ]
    assert finished(came) == [(30, ["default/sweep"])]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        group("holds", 2, cpu="1500m", runtime="60s"),
        group("gang", 2, cpu="500m", runtime="60s"),
        group("late", 2, cpu="1500m", runtime="60s"),
    )
    assert [(time, sorted(pods)) for time, pods in bound(came)] == [
        (0, ["default/gang-t-0", "default/gang-t-1", "default/holds-t-0", "default/holds-t-1"]),
        (60, ["default/late-t-0", "default/late-t-1"]),
    ]


def test_a_queue_holds_at_most_its_capability() -> None:
    came = outcome(
        node("n1", 8),
        queue("q", capability={"cpu": 2}),
        group("a", 2, queue="q", runtime="9s"),
        group("b", 2, queue="q", runtime="9s"),
        group("c", 3, queue="q"),
    )
    assert admitted(came) == [(0, ["default/a"]), (9, ["default/b"])]
    assert reasons(came, "c") == ["ExceedsMaxQuota"]


def test_a_queue_holds_at_most_max_pod_groups() -> None:
    came = outcome(
        node("n1", 8),
        queue("q", maxPodGroups=1),
        group("a", queue="q", runtime="9s"),
        group("b", queue="q", runtime="9s"),
    )
    assert admitted(came) == [(0, ["default/a"]), (9, ["default/b"])]


def test_the_capability_of_the_root_queue_binds_every_group() -> None:
    came = outcome(
        node("n1", 8),
        queue("root", capability={"cpu": 3}),
        queue("q"),
        group("a", 2, queue="q", runtime="9s"),
        group("b", 2, runtime="9s"),
        group("misplaced", queue="root"),
    )
    assert admitted(came) == [(0, ["default/a"]), (9, ["default/b"])]
    assert reasons(came, "misplaced") == ["Misconfigured"]


def test_without_enqueue_pods_exist_at_once_and_limits_hold_at_the_bind() -> None:
    came = outcome(
        node("n1", 8),
        quota("default", cpu=2),
        group("a", 2, runtime="5s"),
        group("b", 2, runtime="5s"),
        config="actions: [allocate]",
    )
    assert admitted(came) == [(0, ["default/a", "default/b"])]
    assert [time for time, _ in bound(came)] == [0, 5]
    assert phases(came) == {"a": "Completed", "b": "Completed"}


def test_capacity_released_by_one_array_goes_to_another_in_the_same_session() -> None:
    """Each array binds again within the charge of its ended pods, and one grows into the rest."""
    came = outcome(
        node("n1", 1),
        node("n2", "1500m"),
        group("a", 4, cpu="500m", minMember=1, runtime="0s"),
        group("b", 5, cpu="500m", minMember=1, runtime="0s"),
    )
    assert [(time, len(pods)) for time, pods in bound(came)] == [(0, 5), (0, 4)]
    assert phases(came) == {"a": "Completed", "b": "Completed"}


def test_a_namespace_has_at_most_as_many_groups_as_its_quota_allows() -> None:
    came = outcome(
        node("n1", 8),
        quota("default", podgroups=1),
        group("a", runtime="5s"),
        group("b", runtime="5s"),
    )
    assert admitted(came) == [(0, ["default/a"]), (5, ["default/b"])]


def test_a_quota_of_no_groups_admits_none() -> None:
    came = outcome(node("n1", 8), quota("default", podgroups=0), group("a"))
    assert reasons(came, "a") == ["ExceedsMaxQuota"]


def test_a_group_with_too_few_pods_and_no_queue_has_both_reasons() -> None:
    came = outcome(node("n1", 8), group("a", 1, queue="zz", minMember=2))
    assert reasons(came, "a") == ["Misconfigured", "QueueNotFound"]


def test_a_reserved_group_whose_queue_is_gone_waits_and_says_so() -> None:
    reserved = {"phase": "Pending", "reservedAt": 0}
    came = outcome(node("n1", 2), group("a", 1, queue="nowhere", status=reserved))
    assert reasons(came, "a")[0] == "QueueNotFound"
