"""Complaints about admission in kube-batch, Volcano and Kueue, as small worlds without the
fault.

docs/faults.md names these tests, and others, complaint by complaint.
"""

from __future__ import annotations

from tests.sim.test_evictions import ALL, pledged, running
from tests.sim.test_peers_faults import HIGH, labelled, task
from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    created,
    evicted,
    group,
    node,
    outcome,
    phases,
    queue,
    quota,
    reasons,
    requeued,
    taker,
    timeline,
)


def test_a_waiting_group_preempts_before_it_has_any_pod() -> None:
    """Volcano refuses the group at its enqueue, and a group without pods preempts no other."""
    came = outcome(
        node("n1", 4),
        HIGH,
        *running("low", 4, grace="10s"),
        group("hi", 2, priorityClassName="high"),
        config=ALL,
    )
    assert pledged(came)[0][0] == 0
    assert created(came) == [(10, ["default/hi-t-0", "default/hi-t-1"])]
    assert bound(came) == [(10, {"default/hi-t-0": "n1", "default/hi-t-1": "n1"})]


def test_a_waiting_group_reclaims_although_the_cluster_is_full() -> None:
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        queue("one"),
        taker("two"),
        *running("array", 4, queue="one", minMember=1, grace="5s"),
        *running("more", 4, on="n2", queue="one", minMember=1, grace="5s"),
        group("new", 1, queue="two"),
        config=ALL,
    )
    assert evicted(came) == [(0, [("default/array-t-3", "Reclaimed")])]
    assert (5, ["default/new"]) in admitted(came)


def test_many_in_queue_groups_do_not_delay_a_more_important_one() -> None:
    """Their reservations, which they cannot use, fill the cluster's ledger."""
    came = outcome(
        labelled("n1", 2, disk="hdd"),
        labelled("n2", 2, disk="ssd"),
        HIGH,
        *running("works", 2, priorityClassName="high"),
        *(
            group(
                f"low-{number}",
                tasks=task({"cpu": 1}, nodeSelector={"disk": "hdd"}),
                status={"phase": "InQueue", "reservedAt": 0},
            )
            for number in range(2)
        ),
        group("hi", tasks=task({"cpu": 2}, nodeSelector={"disk": "ssd"}), priorityClassName="high"),
        config=ALL,
        cycles=3,
    )
    assert requeued(came) == [(0, [("default/low-0", "Preempted"), ("default/low-1", "Preempted")])]
    assert bound(came) == [(0, {"default/hi-t-0": "n2"})]
    assert evicted(came) == [], "none of them has a pod on a node"


def of_small_ones(strategy: str) -> list[Manifest]:
    """Return a world in which a small group comes every ten seconds, after a group that needs
    everything.
    """
    small = [
        {"at": f"{10 * n}s", "apply": group(f"s{n}", 2, queue="q", runtime="20s")}
        for n in range(1, 10)
    ]
    return [
        node("n1", 4),
        queue("q", strategy={"type": strategy}),
        group("first", 2, queue="q", runtime="20s"),
        group("second", 2, queue="q", runtime="30s"),
        timeline(
            {"at": "1s", "apply": group("big", 4, queue="q", runtime="10s")},
            *small,
        ),
    ]


def test_under_strict_fifo_a_stream_of_small_groups_does_not_starve_a_big_one() -> None:
    came = outcome(*of_small_ones("StrictFIFO"), config=ALL)
    assert admitted(came)[:3] == [
        (0, ["default/first", "default/second"]),
        (30, ["default/big"]),
        (40, ["default/s1", "default/s2"]),
    ]


def test_best_effort_fifo_lets_small_groups_pass_until_the_stream_ends() -> None:
    """BestEffortFIFO is meant to do so; StrictFIFO is the alternative."""
    came = outcome(*of_small_ones("BestEffortFIFO"), config=ALL)
    assert admitted(came)[1] == (20, ["default/s1"])
    assert admitted(came)[-1] == (120, ["default/big"])


def test_a_group_that_fits_no_node_now_holds_no_quota() -> None:
    """Two nodes have a cpu free each, and the group needs two on one."""
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        queue("q", capability={"cpu": 4}),
        *running("a", 1, queue="q"),
        *running("b", 1, on="n2", queue="q"),
        group("stuck", 1, 2, queue="q"),
        group("small", 2, 1, queue="q"),
        config=ALL,
        cycles=6,
    )
    assert admitted(came) == [(0, ["default/small"])]
    assert reasons(came, "stuck")[0] == "WaitingForQuota"


def test_resources_that_a_group_does_not_request_do_not_prevent_its_admission() -> None:
    came = outcome(
        node("n1", 8, gpu=1),
        queue("q", capability={"cpu": 8, "gpu": 1}),
        *running("trains", 1, queue="q", tasks=task({"cpu": 1, "gpu": 1})),
        group("names-none", 4, queue="q"),
        group("names-zero", queue="q", tasks=task({"cpu": 1, "gpu": 0})),
        config=ALL,
    )
    assert admitted(came) == [(0, ["default/names-none", "default/names-zero"])]


def test_a_queue_that_deserves_nothing_uses_idle_resources() -> None:
    came = outcome(node("n1", 4), queue("q", weight=0), group("all", 4, queue="q"), config=ALL)
    assert phases(came) == {"all": "Running"}
    assert came.queues["q"].deserved["cpu"] == "0"


def test_a_finished_group_holds_nothing() -> None:
    done = {"phase": "Completed", "reservedAt": 0}
    came = outcome(
        node("n1", 4),
        queue("q", capability={"cpu": 4}, maxPodGroups=1),
        group("done", 4, queue="q", minResources={"cpu": 4}, status=done),
        group("next", 4, queue="q"),
        config=ALL,
    )
    assert admitted(came) == [(0, ["default/next"])]


def test_a_group_refused_by_one_plugin_is_charged_by_none() -> None:
    """`refused` is within its namespace's quota, and above what is left to its queue."""
    came = outcome(
        node("n1", 8),
        quota("default", cpu=5),
        queue("q", capability={"cpu": 4}),
        *running("works", 1, queue="q"),
        group("refused", 4, queue="q"),
        group("next", 3, queue="q"),
        config=ALL,
    )
    assert admitted(came) == [(0, ["default/next"])]


def test_a_group_without_min_resources_is_admitted_by_the_requests_of_its_pods() -> None:
    """Volcano admits a group without minResources whatever it will need."""
    came = outcome(node("n1", 4), group("first", 3), group("second", 3), config=ALL)
    assert admitted(came) == [(0, ["default/first"])]
    assert reasons(came, "second") == ["WaitingForResources"]


def test_resources_that_evicted_pods_still_hold_go_to_no_other_group() -> None:
    """Kueue gives the quota to the next workload while the former processes still run."""
    came = outcome(
        node("n1", 4),
        HIGH,
        *running("low", 4, grace="20s"),
        timeline(
            {"at": "5s", "suspend": "default/low"},
            {"at": "6s", "apply": group("next", 4, priorityClassName="high")},
        ),
        config=ALL,
    )
    assert evicted(came) == [(5, [(f"default/low-t-{n}", "Suspended") for n in range(4)])]
    assert (25, ["default/next"]) in admitted(came)


def test_a_group_that_does_not_recover_releases_everything_and_comes_again() -> None:
    """Kueue stopped such a workload, and still counted its quota."""
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        queue("q", capability={"cpu": 4}),
        group("broken", 2, 2, queue="q"),
        group("next", 2, 1, queue="q", runtime="60s"),
        timeline({"at": "10s", "failNode": "n1"}, {"at": "400s", "recoverNode": "n1"}),
        config=ALL,
    )
    assert requeued(came) == [(310, [("default/broken", "RecoveryTimeout")])]
    assert admitted(came) == [
        (0, ["default/broken"]),
        (340, ["default/next"]),
        (400, ["default/broken"]),
    ]
    assert phases(came) == {"broken": "Running", "next": "Completed"}


def test_a_thousandth_of_a_cpu_too_many_is_too_many() -> None:
    """kube-batch lets 4009m fit into 4000m, and 1002m four times."""
    came = outcome(
        node("n1", 4),
        group("one", 1, "4001m"),
        group("four", 4, "1001m"),
        group("exact", 4, "1000m"),
        config=ALL,
    )
    assert admitted(came) == [(0, ["default/exact"])]
    assert reasons(came, "four") == ["ExceedsCapacity"]
