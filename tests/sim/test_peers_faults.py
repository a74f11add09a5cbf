"""Complaints about preemption in kube-batch, Volcano and Kueue, as small worlds: the victims that
preempt and reclaim take here.

docs/faults.md names these tests, and others, complaint by complaint.
"""

from __future__ import annotations

import pytest

from tests.sim.test_evictions import ALL, pledged, running
from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    evicted,
    group,
    manifest,
    node,
    of,
    outcome,
    phases,
    pod,
    priority,
    reasons,
    taker,
    timeline,
)

HIGH = priority("high", 10)


def labelled(name: str, cpu: int, **labels: str) -> Manifest:
    return manifest("Node", name, {"resources": {"cpu": cpu}}, metadata={"labels": labels})


def task(requests: Manifest, **template: object) -> list[Manifest]:
    return [{"name": "t", "replicas": 1, "template": {"requests": requests, **template}}]


def turns(every: int, many: int) -> Manifest:
    """Return a Timeline with an event every few seconds, so that sessions take place."""
    return timeline(
        *({"at": f"{every * turn}s", "apply": node("empty", 0)} for turn in range(1, many + 1))
    )


def test_while_one_victim_stops_no_other_is_evicted() -> None:
    """kube-batch evicted six pods for one with a grace period of five sessions."""
    came = outcome(
        node("n1", 4),
        HIGH,
        *(one for n in range(4) for one in running(f"low-{n}", 1, grace="300s")),
        group("hi", 1, priorityClassName="high"),
        turns(10, 12),
        config=ALL,
    )
    assert len(came.cycles) > 12
    assert evicted(came) == [(0, [("default/low-0-t-0", "Preempted")])]
    assert (300, ["default/hi"]) in admitted(came)


def test_several_small_preemptors_share_what_one_large_victim_releases() -> None:
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        HIGH,
        *running("large-1", 1, 4, grace="60s"),
        *running("large-2", 1, 4, on="n2", grace="60s"),
        *(group(f"hi-{n}", 1, priorityClassName="high") for n in range(3)),
        config=ALL,
    )
    assert evicted(came) == [(0, [("default/large-1-t-0", "Preempted")])]
    assert admitted(came)[0] == (60, ["default/hi-0", "default/hi-1", "default/hi-2"])


def test_a_preemptor_that_does_not_fit_beside_the_first_one_has_a_victim_of_its_own() -> None:
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        HIGH,
        *running("large-1", 1, 4, grace="60s"),
        *running("large-2", 1, 4, on="n2", grace="60s"),
        *(group(f"hi-{n}", 1, 3, priorityClassName="high") for n in range(2)),
        config=ALL,
        cycles=1,
    )
    assert pledged(came) == [
        (0, {"default/hi-0": ["default/large-1-t-0"], "default/hi-1": ["default/large-2-t-0"]})
    ]


def test_idle_resources_are_credited_before_any_eviction() -> None:
    """Two of four cpus are idle, and the preemptor needs three."""
    came = outcome(
        node("n1", 4),
        HIGH,
        *running("one", 1),
        *running("two", 1),
        group("hi", 3, priorityClassName="high"),
        config=ALL,
        cycles=1,
    )
    assert evicted(came) == [(0, [("default/one-t-0", "Preempted")])]


def test_a_gang_is_never_left_with_fewer_than_it_needs() -> None:
    """One of four pods is dispensable, and two are needed: the gang is evicted whole or not at
    all.
    """
    gang = running("gang", 4, minMember=3, grace="5s")
    equal = outcome(node("n1", 4), *gang, group("two", 2), config=ALL)
    assert evicted(equal) == []
    higher = outcome(
        node("n1", 4), HIGH, *gang, group("two", 2, priorityClassName="high"), config=ALL, cycles=1
    )
    assert [name for name, _ in evicted(higher)[0][1]] == [f"default/gang-t-{n}" for n in range(4)]


def test_groups_of_one_pod_are_safe_from_groups_of_equal_priority() -> None:
    came = outcome(node("n1", 2), *running("one"), *running("two"), group("equal"), config=ALL)
    assert evicted(came) == []


def test_a_pod_without_requests_evicts_no_pod_on_a_full_node() -> None:
    came = outcome(
        node("n1", 4),
        HIGH,
        *running("low", 4),
        group("bare", tasks=task({}), priorityClassName="high"),
        config=ALL,
    )
    assert evicted(came) == []
    assert phases(came)["bare"] == "Running"


def test_a_gang_of_small_pods_preempts_one_large_pod() -> None:
    """Volcano sought victims for each pod separately."""
    came = outcome(
        node("n1", 4),
        HIGH,
        *running("large", 1, 4, grace="5s"),
        group("hi", 2, 2, priorityClassName="high"),
        config=ALL,
    )
    assert evicted(came) == [(0, [("default/large-t-0", "Preempted")])]
    assert bound(came) == [(5, {"default/hi-t-0": "n1", "default/hi-t-1": "n1"})]


def test_a_pod_without_requests_counts_in_its_gang() -> None:
    """It has a node as soon as the others have, and not before."""
    first = {"name": "t", "replicas": 1, "template": {"requests": {"cpu": 2}}}
    bare = {"name": "bare", "replicas": 1, "template": {"requests": {}}}
    came = outcome(
        node("n1", 2),
        group("before", 1, 1, runtime="10s", created=0),
        group("gang", tasks=[first, bare], created=1),
        config=ALL,
    )
    assert bound(came) == [
        (0, {"default/before-t-0": "n1"}),
        (10, {"default/gang-t-0": "n1", "default/gang-bare-0": "n1"}),
    ]


def test_idle_and_terminating_resources_are_added_together() -> None:
    """kube-batch used a node's idle cpus or its terminating ones, never both."""
    came = outcome(
        node("n1", 4),
        HIGH,
        *running("low", 1),
        group("leaves", 1),
        pod("leaves-t-0", "leaves", phase="Running", node="n1", startedAt=0, terminating=True),
        group("hi", 1, 3, priorityClassName="high"),
        config=ALL,
        cycles=1,
    )
    assert evicted(came) == []
    assert pledged(came) == [(0, {"default/hi": ["default/leaves-t-0"]})]


def test_a_group_preempts_only_for_the_pods_it_needs() -> None:
    """It runs with its minMember; its other pods wait and preempt no group."""
    came = outcome(
        node("n1", 4),
        HIGH,
        *running("low", 2),
        *running("hi", 2, priorityClassName="high", minMember=2, tasks=_of(4)),
        config=ALL,
    )
    assert evicted(came) == []


def _of(pods: int) -> list[Manifest]:
    return [{"name": "t", "replicas": pods, "template": {"requests": {"cpu": 1}}}]


def test_a_preemptor_names_its_victims_and_a_victim_names_its_preemptor() -> None:
    came = outcome(
        node("n1", 2),
        HIGH,
        *running("low", 2, grace="60s"),
        group("hi", 2, priorityClassName="high"),
        config=ALL,
        cycles=1,
    )
    assert [(r.reason, r.message) for r in of(came, "hi").reasons] == [
        (
            "WaitingForPreemption",
            (
                "waits until default/low-t-0, default/low-t-1 have stopped for it, at the latest at"
                " 1970-01-01T00:02:00Z"
            ),
        )
    ]
    assert [r.message for r in of(came, "low").reasons] == [
        "made room for default/hi, and waits until that group has been placed"
    ]


@pytest.mark.parametrize("why", ["no group has lower priority", "the queue preempts no group"])
def test_a_preemptor_without_victims_says_what_it_lacks(why: str) -> None:
    policy = {"withinQueue": "Never"} if "queue" in why else {}
    came = outcome(
        node("n1", 4),
        HIGH,
        taker("q", preemption=policy),
        *running("low", 4, queue="q", priorityClassName="" if policy else "high"),
        group("hi", 2, queue="q", priorityClassName="high"),
        config=ALL,
    )
    assert [r.message for r in of(came, "hi").reasons] == [
        "needs cpu 2, and the cluster has 0 free (4 of 4 in use)"
    ]


def test_two_queues_with_endless_demand_stop_evicting_once_they_are_even() -> None:
    """kube-batch: 19 evictions in 12 rounds on six slots."""
    came = outcome(
        node("n1", 6),
        taker("a"),
        taker("b"),
        *running("one", 6, queue="a", minMember=1, grace="1s"),
        group("two", 6, queue="b", minMember=1, grace="1s"),
        turns(5, 30),
        config=ALL,
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == [(0, 1), (1, 2)]
    assert came.queues["a"].allocated["cpu"] == came.queues["b"].allocated["cpu"] == "3"


def test_neither_of_two_queues_takes_the_cpu_that_both_could_have() -> None:
    """Volcano, 11 cpus and pods of two: the queues took the odd cpu from each other for ever."""
    halves = {"deserved": {"cpu": 5}, "capability": {"cpu": 10}}
    came = outcome(
        node("n1", 11),
        taker("a", **halves),
        taker("b", **halves),
        *running("job-a", 5, 2, queue="a", minMember=2, grace="5s"),
        group("job-b", 5, 2, queue="b", minMember=2, grace="5s"),
        turns(10, 30),
        config=ALL,
    )
    assert evicted(came) == [
        (0, [("default/job-a-t-4", "Reclaimed"), ("default/job-a-t-3", "Reclaimed")])
    ]


def test_a_queue_that_gave_back_more_than_it_had_borrowed_does_not_reclaim_it() -> None:
    """The gang that is evicted takes its queue below what it deserves."""
    came = outcome(
        node("n1", 8),
        taker("a", deserved={"cpu": 4}),
        taker("b", deserved={"cpu": 4}),
        *running("gang", 5, queue="a", grace="5s"),
        group("claims", 4, queue="b"),
        turns(10, 30),
        config=ALL,
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == [(0, 5)]
    assert phases(came) == {"claims": "Running", "gang": "Pending"}


def test_no_pod_is_evicted_where_the_preemptor_may_not_run() -> None:
    """The sum suffices, but the node that it asks for is full of its own queue's pods."""
    came = outcome(
        labelled("n1", 4, disk="hdd"),
        labelled("n2", 4, disk="ssd"),
        taker("a", deserved={"cpu": 5}),
        taker("b", deserved={"cpu": 3}),
        *running("borrows", 4, queue="b"),
        *running("own", 3, on="n2", queue="a"),
        group("claims", queue="a", tasks=task({"cpu": 2}, nodeSelector={"disk": "ssd"})),
        turns(10, 3),
        config=ALL,
    )
    assert evicted(came) == []


def test_a_group_that_can_never_fit_has_no_victims_and_delays_no_other() -> None:
    """Kueue: the workloads of 4 and of 3 evicted each other in turn, and a third was evicted each
    time.

    A cohort of 3, and the queue that deserves them all.
    """
    came = outcome(
        node("n1", 4),
        taker("cohort", deserved={"cpu": 3}, capability={"cpu": 3}),
        taker("a", parent="cohort", deserved={"cpu": 3}),
        taker("b", parent="cohort", deserved={"cpu": 0}),
        *running("one", 1, 1, queue="b", grace="5s"),
        group("four", 1, 4, queue="a"),
        group("three", 1, 3, queue="a"),
        turns(10, 5),
        config=ALL,
    )
    assert evicted(came) == [(0, [("default/one-t-0", "Reclaimed")])]
    assert admitted(came) == [(5, ["default/three"])]
    assert reasons(came, "four") == ["ExceedsMaxQuota"]


def test_best_effort_tenants_are_evicted_once_for_anothers_guarantee() -> None:
    """Kueue's loop between tenants without quota and one that has it."""
    came = outcome(
        node("n1", 4),
        taker("guaranteed", deserved={"cpu": 2}),
        taker("tenant-a", deserved={"cpu": 0}),
        taker("tenant-b", deserved={"cpu": 0}),
        *running("a-0", queue="tenant-a", grace="1s"),
        *running("a-1", queue="tenant-a", grace="1s"),
        *running("b-0", queue="tenant-b", grace="1s"),
        *running("b-1", queue="tenant-b", grace="1s"),
        group("g-0", queue="guaranteed"),
        group("g-1", queue="guaranteed"),
        turns(10, 10),
        config=ALL,
    )
    assert evicted(came) == [
        (0, [("default/a-0-t-0", "Reclaimed"), ("default/a-1-t-0", "Reclaimed")])
    ]
    assert (1, ["default/g-0", "default/g-1"]) in admitted(came)


def test_queues_that_use_only_one_resource_lose_and_reclaim_it() -> None:
    """kube-batch: a queue without memory was never overused, and could reclaim nothing."""
    came = outcome(
        node("n1", 8, memory="8Gi"),
        taker("a"),
        taker("b"),
        *running("takes-all", 8, queue="a", minMember=1, grace="5s"),
        group("cpu-alone", 2, queue="b"),
        config=ALL,
        cycles=3,
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == [(0, 2)]


def test_one_preemptor_that_cannot_succeed_does_not_end_its_queues_turn() -> None:
    """kube-batch: the first group without a solution was the last of its queue in a session."""
    came = outcome(
        node("n1", 8),
        taker("a", deserved={"cpu": 4}),
        taker("b", deserved={"cpu": 4}),
        *(one for n in range(8) for one in running(f"b-{n}", 1, queue="b", grace="5s")),
        group("too-large", 5, queue="a"),
        group("first", 2, queue="a"),
        group("second", 2, queue="a"),
        config=ALL,
        cycles=1,
    )
    assert sorted(pledged(came)[0][1]) == ["default/first", "default/second"]
    assert len(evicted(came)[0][1]) == 4
