"""Admission checks the nodes: a group that fits none of them holds nothing, and waits in line."""

from __future__ import annotations

import pytest

from tests.sim.test_evictions import running
from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    applies,
    bound,
    check,
    group,
    manifest,
    node,
    of,
    outcome,
    outcome_until,
    phases,
    pod,
    priority,
    queue,
    reasons,
    requeued,
    starts,
    task,
    timeline,
)

#: Later than the creation of all groups: it is second 0 of these worlds.
START = 10


def occupied(on: str, cpu: int, seconds: int) -> list[Manifest]:
    """Return one pod that has run on a node since the start, and ends after this many seconds."""
    name = f"on-{on}"
    held = group(
        name, 1, cpu, runtime=f"{seconds}s", walltime=f"{seconds}s", created=0,
        status={"phase": "Running", "startedAt": START},
    )  # fmt: skip
    return [held, pod(f"{name}-t-0", name, phase="Running", node=on, startedAt=START)]


def test_a_pod_that_fits_neither_node_leaves_their_free_resources_to_others() -> None:
    """One cpu is free on each node: the sum is enough for `large`, but no node has it."""
    world = (
        node("n1", 2),
        node("n2", 2),
        *occupied("n1", 1, 600),
        *occupied("n2", 1, 600),
        group("large", 1, 2, runtime="10s", created=1),
        *(group(f"small-{place:02}", runtime="10s", created=2) for place in range(20)),
    )
    came = outcome(*world)
    begun = starts(came)
    assert [begun[f"small-{place:02}-t-0"] for place in range(20)] == [
        10 * (place // 2) for place in range(20)
    ]
    assert begun["large-t-0"] == 600
    assert requeued(came) == []
    at_once = outcome_until(0, *world)
    assert phases(at_once)["large"] == "Pending"
    assert reasons(at_once, "large") == ["WaitingForResources"]


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_a_whole_node_group_is_not_requeued_while_it_waits_for_a_node(strategy: str) -> None:
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        queue("default", strategy={"type": strategy}),
        *occupied("n1", 1, 1000),
        *occupied("n2", 1, 1200),
        group("whole", 1, 4, runtime="60s", walltime="60s", created=1),
    )
    assert requeued(came) == []
    assert admitted(came) == [(1000, ["default/whole"])]
    assert starts(came) == {"whole-t-0": 1000}


def test_younger_groups_end_before_the_whole_node_group_they_pass_or_leave_its_node() -> None:
    """n1 is free at 100: a group that ends by then passes, and one that does not may only use
    n2.
    """
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        queue("default", strategy={"type": "Backfill"}),
        *occupied("n1", 1, 100),
        *occupied("n2", 1, 1000),
        group("whole", 1, 4, runtime="60s", walltime="60s", created=1),
        *(
            group(f"long-{k}", runtime="500s", walltime="500s", created=2)
            for k in range(4)
        ),
        *(group(f"short-{k}", runtime="90s", walltime="90s", created=3) for k in range(3)),
    )  # fmt: skip
    begun = starts(came)
    assert begun["whole-t-0"] == 100
    assert [begun[f"long-{k}-t-0"] for k in range(3)] == [0, 0, 0]
    assert [begun[f"short-{k}-t-0"] for k in range(3)] == [0, 0, 0]


def test_a_whole_node_group_starts_despite_a_stream_of_small_ones() -> None:
    """It is first in its queue and lacks only a node, so a node is held for it."""
    came = outcome(
        node("n1", 2),
        node("n2", 2),
        group("large", 1, 2, runtime="10s", created=2),
        *(
            group(f"small-{place:03}", runtime=f"{20 + place % 7}s", created=1 if place < 4 else 3)
            for place in range(120)
        ),
    )
    assert starts(came)["large-t-0"] <= 150 + 26
    assert set(phases(came).values()) == {"Completed"}


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_the_head_of_a_strict_queue_starts_despite_a_stream_of_another_queues_groups(
    strategy: str,
) -> None:
    """Its queue deserves less than it asks for, and the ends of the others are unknown: it has no
    reservation in time or capacity. Nodes are held for it.
    """
    came = outcome(
        *(node(f"n{place}", 4) for place in range(5)),
        queue("lab", strategy={"type": strategy}, deserved={"cpu": 1}),
        queue("default", capability={"cpu": 3}),
        *(
            group(f"small-{place:03}", runtime=f"{20 + place % 7}s", created=1 if place < 3 else 3)
            for place in range(90)
        ),
        timeline(applies(5, group("large", 4, 4, queue="lab", runtime="10s", walltime="10s"))),
        config="fairness: {halfLife: off}",
    )
    assert starts(came)["large-t-0"] <= 5 + 150 + 26
    assert set(phases(came).values()) == {"Completed"}


def test_the_first_of_two_gangs_with_equal_requests_starts_when_its_nodes_are_free() -> None:
    """Both have nodes held for them from 150 on; n1 and n2 are free at 210, n3 later."""
    came = outcome(
        *(node(f"n{place}", 4) for place in (1, 2, 3)),
        queue("lab"),
        *occupied("n1", 1, 200),
        *occupied("n2", 1, 210),
        *occupied("n3", 1, 400),
        group("first", 2, 4, runtime="50s", created=1),
        group("second", 2, 4, queue="lab", runtime="50s", created=2),
    )
    assert starts(came) == {
        "first-t-0": 210, "first-t-1": 210, "second-t-0": 260, "second-t-1": 260
    }  # fmt: skip


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_an_array_larger_than_its_queues_reduced_capability_delays_no_group(
    strategy: str,
) -> None:
    """The capability is cut while the array runs: its next pod asks for more than that."""
    limits = {"strategy": {"type": strategy}}
    came = outcome(
        node("n1", 4),
        queue("q", **limits),
        group("array", 3, 3, runtime="10s", minMember=1, queue="q", created=0),
        timeline(
            applies(5, queue("q", **limits, capability={"cpu": 2})),
            applies(15, group("small", runtime="10s", queue="q")),
            applies(40, queue("q", **limits)),
        ),
    )
    assert starts(came) == {"array-t-0": 0, "small-t-0": 15, "array-t-1": 40, "array-t-2": 50}


@pytest.mark.parametrize("overcommit", ["1.0", "1.5"])
def test_no_group_waits_behind_a_head_that_is_too_large_for_the_present_nodes(
    overcommit: str,
) -> None:
    """n1 is away: `small` passes `head`, which asks for more than n2 has."""
    came = outcome_until(
        10,
        node("n1", 8),
        node("n2", 2),
        queue("default", strategy={"type": "StrictFIFO"}),
        timeline(
            {"at": "1s", "failNode": "n1"},
            applies(5, group("head", 1, 7, runtime="10s")),
            applies(6, group("small", 1, 1, runtime="10s")),
        ),
        config=f"overcommit: {overcommit}",
    )
    assert starts(came) == {"small-t-0": 6}
    assert reasons(came, "head") == ["WaitingForResources"]


def test_places_are_chosen_again_when_their_node_has_become_too_small() -> None:
    """Three of the four pods have places on n1, which fits two once it is made smaller."""
    came = outcome(
        node("n1", 7),
        node("n2", 4),
        check("leave"),
        queue("q", admissionChecks=["leave"]),
        group("gang", 4, 2, runtime="10s", queue="q"),
        timeline(applies(5, node("n1", 4)), answers(10, "gang", "leave", "True")),
    )
    assert [sorted(pods.values()) for _, pods in bound(came)] == [["n1", "n1", "n2", "n2"]]
    assert set(starts(came).values()) == {10}


def test_a_gang_that_empty_nodes_no_longer_fit_holds_none_of_them() -> None:
    """`wide` has waited long for n1 when n2 is lost, without which it cannot start at all; n3 fits
    neither group.
    """
    came = outcome_until(
        400,
        node("n1", 5),
        node("n2", 4),
        manifest(
            "Node",
            "n3",
            {"resources": {"cpu": 8}, "taints": [{"key": "dear", "effect": "NoSchedule"}]},
        ),
        *occupied("n1", 2, 1000),
        group("wide", 2, 4, runtime="10s", created=1),
        timeline(
            {"at": "200s", "failNode": "n2"}, applies(210, group("small", 1, 2, runtime="10s"))
        ),
    )
    assert starts(came) == {"small-t-0": 210}
    assert reasons(came, "wide") == ["WaitingForResources"]


def test_a_gang_that_has_waited_long_starts_although_a_smaller_one_was_refused_before() -> None:
    """The places of `reserved` are free at 200, and enough for either gang."""
    came = outcome_until(
        300,
        node("n1", 2),
        node("n2", 3),
        manifest(
            "Node",
            "n3",
            {"resources": {"cpu": 8}, "taints": [{"key": "dear", "effect": "NoSchedule"}]},
        ),
        check("leave", unknownTimeout="200s", retryDelayMinutes=60),
        queue("a", strategy={"type": "StrictFIFO"}),
        queue("asks", admissionChecks=["leave"]),
        group("reserved", 1, 3, queue="asks", created=0),
        timeline(
            applies(5, group("four", 4, runtime="10s")),
            applies(6, group("three", 3, queue="a", runtime="10s")),
        ),
    )
    begun = starts(came)
    assert {begun[f"four-t-{k}"] for k in range(4)} == {200}
    assert {begun[f"three-t-{k}"] for k in range(3)} == {210}


def test_a_gang_holds_nodes_while_the_eviction_budget_delays_its_eviction() -> None:
    """Both gangs have waited long. The nodes that `wide` holds leave none for `other` to hold,
    which would prevent the eviction that `wide` has to delay.
    """
    urgent = {"priorityClassName": "high", "queue": "q"}
    came = outcome_until(
        700,
        node("n1", 4),
        node("n2", 4),
        priority("high", 10),
        queue("q", strategy={"type": "StrictFIFO"}),
        group("evicted", 1, 2, queue="q", grace="0s", created=0),
        group("victim", 1, 2, queue="q", grace="0s", created=1),
        timeline(
            applies(5, group("first", 1, 4, runtime="10s", **urgent)),
            applies(5, group("wide", 2, 3, runtime="10s", **urgent)),
            applies(7, group("other", 2, 3, priorityClassName="high")),
        ),
        config="evictionBudget: {pods: 1}\n",
    )
    begun = starts(came)
    assert begun["first-t-0"] == 5
    assert (begun["wide-t-0"], begun["wide-t-1"]) == (605, 605)


def test_pods_without_gpus_leave_the_gpu_node_to_the_other_pods_of_their_gang() -> None:
    came = outcome(
        node("n1", 3),
        node("n2", 4, gpu=3),
        node("n3", 4),
        node("n4", 3),
        group("mixed", tasks=[task("cpus", 3, 3), task("gpus", 3, 1, gpu=1)]),
    )
    placed = dict(bound(came))[0]
    assert {placed[f"default/mixed-gpus-{index}"] for index in range(3)} == {"n2"}


def test_a_group_that_waits_for_its_own_former_pod_holds_no_node() -> None:
    """`r` is suspended and resumed; its former pod stops until 600 s. After half of inQueueTimeout,
    at 150 s, two of the four cpus are still for the others.
    """
    came = outcome(
        node("n1", 4),
        *running("r", 1, 2, runtime="5000s", grace="600s"),
        timeline({"at": "0s", "suspend": "default/r"}, {"at": "1s", "resume": "default/r"}),
        *(group(f"f{place}", 1, 1, runtime="60s") for place in range(12)),
    )
    assert [at for at, names in admitted(came) for _ in names] == [
        *(0, 0, 60, 60, 120, 120, 180, 180, 240, 240, 300, 300),
        600,
    ]


def test_a_gang_that_nodes_take_only_in_part_is_told_which_pod_finds_none() -> None:
    """Three cpus are free on each node: two pods of the gang find a place, and the third none."""
    came = outcome(
        *(node("n1", 4), node("n2", 4)),
        *running("a", 1, on="n1"),
        *running("b", 1, on="n2"),
        group("g", 3, 2),
    )
    assert of(came, "g").reasons[0].message == (
        "nodes cannot take its gang now; no node takes a pod that asks for cpu 2, and the most cpu"
        " that one node has free is 1, on n2, beside 2 other pods of its gang"
    )


def only_on(name: str, cpu: int) -> Manifest:
    one = task("t", 1, cpu)
    one["template"]["nodes"] = [name]
    return one


def test_a_pod_that_names_its_node_is_told_what_that_node_has_free() -> None:
    came = outcome(
        *(node("n1", 8), node("n2", 8)),
        *running("a", 7, on="n1"),
        *running("b", 1, on="n2"),
        group("g", tasks=[only_on("n1", 8)]),
    )
    assert of(came, "g").reasons[0].message == (
        "nodes cannot take its pod now; no node takes a pod that asks for cpu 8, and the most cpu"
        " that is free on a node it may use is 1, on n1"
    )
    free = outcome(
        *(node("n1", 8), node("n2", 8)),
        *running("a", 7, on="n1"),
        group("g", tasks=[only_on("n1", 8)]),
    )
    assert of(free, "g").reasons[0].message == (
        "task t: 0/2 nodes fit: 1 insufficient cpu, 1 not among the nodes that it names; a pod"
        " needs cpu 8, and the most that is free on a node it may use is 1, on n1"
    )


def test_a_pod_that_names_a_node_too_small_for_it_is_told_the_size_of_that_node() -> None:
    came = outcome(
        *(node("n1", 4), node("n2", 6), node("n3", 6)), group("g", tasks=[only_on("n1", 7)])
    )
    assert of(came, "g").reasons[0].message == (
        "not even empty nodes take it: task t: 0/3 nodes fit: 1 insufficient cpu, 2 not among the"
        " nodes that it names; a pod needs cpu 7, and the largest node that it may use has 4"
    )


def test_several_nodes_do_not_match_a_selector_and_one_does_not() -> None:
    gpu = task("t", 1, 1)
    gpu["template"]["nodeSelector"] = {"pool": "gpu"}
    nodes = [node(f"n{place}", 4) for place in range(4)]
    for count, refusal in ((4, "4 do not match"), (1, "1 does not match")):
        [reason] = of(outcome(*nodes[:count], group("g", tasks=[gpu])), "g").reasons
        assert f"0/{count} nodes fit: {refusal} the node selector" in reason.message
