"""Which groups are backfilled past a head, by the kind of group and the nodes that fit its pods."""

from __future__ import annotations

import pytest

from tests.sim.test_backfill import CONSERVATIVE, EASY, NO_EVICTIONS, ahead, job, starts
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
    pod,
    priority,
    queue,
    quota,
    reserved,
    timeline,
)
from tests.sim.worlds import starts as pods_start

FILLED = [node("n1", 4), EASY, *running("r", 3, walltime="100s")]


def array(name: str, pods: int, wall_s: int) -> Manifest:
    return group(name, pods, 1, minMember=1, walltime=f"{wall_s}s")


def test_an_array_is_backfilled_if_its_first_pod_ends_before_the_head_starts() -> None:
    """Its second pod is in line again, and starts before the head if it ends early enough, too."""
    assert ahead(*FILLED, job("head", 4, 50), array("f", 2, 101)) == []
    assert ahead(*FILLED, job("head", 4, 50), array("f", 2, 100)) == ["f"]
    sweep = group("f", 3, 1, minMember=1, walltime="40s", runtime="40s")
    world = [node("n1", 4), EASY, *running("r", 3, walltime="100s", runtime="100s")]
    came = outcome(*world, job("head", 4, 50), sweep, config=NO_EVICTIONS)
    assert pods_start(came) == {"f-t-0": 0, "f-t-1": 40, "head-t-0": 100, "f-t-2": 150}


def test_an_array_with_retries_is_not_backfilled_where_the_head_will_start() -> None:
    """A failed pod may run again, for another walltime."""
    retried = group("f", 2, 1, minMember=1, walltime="10s", retry={"limit": 1})
    assert ahead(*FILLED, job("head", 4, 50), retried) == []
    assert ahead(*FILLED, job("head", 3, 50), retried) == ["f"]


def test_an_array_is_backfilled_into_the_capacity_beside_the_head() -> None:
    assert ahead(*FILLED, job("head", 3, 50), array("f", 2, 10)) == ["f"]


def test_a_running_array_releases_capacity_pod_by_pod() -> None:
    """Two of three pods have started 40 s before: these end in 60 s, the third in 100 s."""
    world = [
        node("n1", 4),
        EASY,
        group("a", 3, minMember=1, walltime="100s", status={"phase": "Running", "reservedAt": 0}),
        pod("a-t-0", "a", 0, phase="Running", node="n1", startedAt=0),
        pod("a-t-1", "a", 1, phase="Running", node="n1", startedAt=0),
        pod("a-t-2", "a", 2, phase="Running", node="n1", startedAt=40),
    ]
    assert ahead(*world, job("head", 3, 50), job("f", 1, 61)) == []
    assert ahead(*world, job("head", 3, 50), job("f", 1, 60)) == ["f"]
    assert ahead(*world, job("head", 4, 50), job("f", 1, 100)) == ["f"]


def test_an_array_with_pending_pods_holds_nothing_once_its_running_pods_have_ended() -> None:
    """Three of five pods run until 100 s; the head is more important than the other two."""
    world = [
        node("n1", 4),
        EASY,
        group("a", 5, minMember=1, walltime="100s", status={"phase": "Running", "reservedAt": 0}),
        *(pod(f"a-t-{at}", "a", at, phase="Running", node="n1", startedAt=0) for at in range(3)),
    ]
    high, first = priority("high", 1), {"priorityClassName": "high"}
    assert ahead(*world, high, job("head", 4, 50, **first), job("f", 1, 101, **first)) == []
    assert ahead(*world, high, job("head", 4, 50, **first), job("f", 1, 100, **first)) == ["f"]
    assert ahead(*world, high, job("head", 3, 50, **first), job("f", 1, 100, **first)) == ["f"]


def test_an_array_that_waits_for_its_checks_is_expected_to_end_its_walltime_from_now() -> None:
    """Its pods take 20 s from its admission on, so `f` ends before the head can start, and both of
    its own pods end by then.
    """
    array = group("a", 2, 1, queue="p", minMember=1, walltime="20s", runtime="20s")
    came = outcome(
        node("n1", 4),
        EASY,
        check("slow"),
        queue("p", admissionChecks=["slow"]),
        array,
        timeline(
            applies(5, job("head", 4, 10)),
            applies(6, job("f", 1, 10)),
            answers(30, "a", "slow", True),
        ),
        config=NO_EVICTIONS,
    )
    assert pods_start(came) == {"f-t-0": 6, "a-t-0": 30, "a-t-1": 30, "head-t-0": 50}


def test_an_elastic_group_is_backfilled_and_grows_while_that_delays_no_group() -> None:
    """Its third pod ends with it, before the head starts."""
    elastic = group("f", 3, 1, minMember=2, walltime="50s")
    world = [node("n1", 6), EASY, *running("r", 3, walltime="100s"), job("head", 6, 50), elastic]
    came = outcome(*world, cycles=3, config=NO_EVICTIONS)
    assert bound(came) == [(0, dict.fromkeys([f"default/f-t-{index}" for index in range(3)], "n1"))]


def test_min_resources_are_the_amount_that_is_reserved() -> None:
    greedy = group("f", 1, 1, minResources={"cpu": 2}, walltime="50s")
    modest = group("f", 1, 1, minResources={"cpu": 1}, walltime="50s")
    world = [node("n1", 5), EASY, *running("r", 3, walltime="100s"), *running("ever", 1)]
    assert ahead(*world, job("head", 4, 50), greedy) == []
    assert ahead(*world, job("head", 4, 50), modest) == ["f"]


def test_an_external_group_is_backfilled_by_its_queues_limit_and_needs_no_node() -> None:
    limited = queue("default", strategy={"type": "Backfill"}, capability={"cpu": 4})
    outside = group("f", 1, 1, controller="external", minResources={"cpu": 1}, walltime="100s")
    head = group("head", 1, 4, controller="external", minResources={"cpu": 4}, walltime="50s")
    world = [node("n1", 3), limited, *running("r", 3, walltime="100s")]
    assert ahead(*world, head, outside) == ["f"]


def test_an_external_group_that_would_delay_the_head_waits() -> None:
    limited = queue("default", strategy={"type": "Backfill"}, capability={"cpu": 4})
    outside = group("f", 1, 1, controller="external", minResources={"cpu": 1}, walltime="101s")
    head = group("head", 1, 4, controller="external", minResources={"cpu": 4}, walltime="50s")
    world = [node("n1", 3), limited, *running("r", 3, walltime="100s")]
    assert ahead(*world, head, outside) == []


def test_an_external_group_does_not_use_the_clusters_capacity() -> None:
    """The charge of an external group does not use the nodes: the head waits for `r` alone."""
    outside = group(
        "e",
        1,
        4,
        controller="external",
        minResources={"cpu": 4},
        status={"phase": "Running", "reservedAt": 0},
    )
    assert ahead(*FILLED, outside, job("head", 4, 50), job("f", 1, 100)) == ["f"]


@pytest.mark.parametrize(("wall_s", "expected"), [(30, [(10, ["default/f"])]), (31, [])])
def test_a_pod_that_is_asked_to_stop_ends_with_its_grace_period(
    wall_s: int, expected: list[tuple[int, list[str]]]
) -> None:
    """After its suspension `r` has thirty seconds; its walltime would end much later."""
    came = outcome(
        node("n1", 4),
        EASY,
        *running("r", 3, walltime="1000s", grace="30s"),
        timeline(
            applies(10, job("head", 4, 50)),
            applies(10, job("f", 1, wall_s)),
            {"at": "10s", "suspend": "default/r"},
        ),
        config=NO_EVICTIONS,
    )
    assert [one for one in admitted(came) if one[0] < 40] == expected
    assert (40, ["default/head"]) in admitted(came)


def test_an_admitted_group_without_running_pods_ends_its_walltime_from_now() -> None:
    """`i` fits no node at present, and keeps its reservation."""
    world = [
        node("n1", 4),
        node("n2", 4),
        EASY,
        *running("r1", 2, on="n1"),
        *running("r2", 2, on="n2"),
        group("i", 1, 3, walltime="100s", status={"phase": "InQueue", "reservedAt": 0}),
    ]
    head = group("head", 2, 2, walltime="50s")
    assert ahead(*world, head, job("f", 1, 101)) == []
    assert ahead(*world, head, job("f", 1, 100)) == ["f"]


def test_a_group_admitted_in_the_same_session_ends_its_walltime_from_now() -> None:
    """This session's enqueue admits `first`; the head waits for its end."""
    world = [node("n1", 4), EASY, job("first", 3, 100), job("head", 4, 50)]
    assert ahead(*world, job("f", 1, 101)) == ["first"]
    assert ahead(*world, job("f", 1, 100)) == ["first", "f"]


def test_a_pod_that_fits_all_nodes_together_but_no_single_one_is_not_admitted() -> None:
    world = [
        node("n1", 2),
        node("n2", 2),
        EASY,
        *running("r1", 1, on="n1", walltime="100s"),
        *running("r2", 1, on="n2", walltime="100s"),
        group("head", 2, 2, walltime="50s"),
    ]
    came = outcome(*world, job("wide", 2, 50), job("f", 1, 50), cycles=1, config=NO_EVICTIONS)
    assert admitted(came) == [(0, ["default/f"])]
    assert of(came, "wide").phase == "Pending"


def test_a_gang_is_backfilled_whole_or_not_at_all() -> None:
    """One of its two pods would fit; smaller pods with the same total of cpus do."""
    world = [
        node("n1", 4),
        node("n2", 2),
        EASY,
        *running("r1", 1, on="n1", walltime="100s"),
        *running("r2", 1, on="n2", walltime="100s"),
        group("head", 3, 2, walltime="50s"),
    ]
    assert ahead(*world, group("f", 2, 2, walltime="50s")) == []
    assert ahead(*world, group("f", 4, 1, walltime="50s")) == ["f"]


def test_a_node_that_a_group_may_not_use_is_no_capacity_for_it() -> None:
    picky = group(
        "f",
        tasks=[
            {
                "name": "t",
                "replicas": 1,
                "template": {"requests": {"cpu": 1}, "nodeSelector": {"disk": "ssd"}},
            }
        ],
        walltime="10s",
    )
    other = manifest("Node", "n2", {"resources": {"cpu": 1}}, metadata={"labels": {"disk": "ssd"}})
    full = running("s", 1, on="n2")
    world = [node("n1", 4), other, EASY, *full, *running("r", 3, walltime="100s")]
    assert ahead(*world, job("head", 4, 50), picky) == []


def test_with_overcommit_only_what_a_node_takes_is_backfilled() -> None:
    """The ledger has capacity for both; the node has one cpu."""
    config = f"{NO_EVICTIONS}\novercommit: 1.5"
    behind = [group("head", 4, 1, walltime="50s"), job("f", 1, 100), job("g", 1, 100)]
    assert ahead(*FILLED, *behind, config=config) == ["f"]


def test_a_nodes_limit_of_pods_counts_too() -> None:
    """Two of the node's three places for pods are taken, and the head asks for all of them."""
    world = [node("n1", 10, pods=3), EASY, *running("r", 2, walltime="100s")]
    assert ahead(*world, group("head", 3, 1, walltime="50s"), job("f", 1, 101)) == []
    assert ahead(*world, group("head", 3, 1, walltime="50s"), job("f", 1, 100)) == ["f"]


OUT_OF_LINE: dict[str, Manifest] = {
    "a group with a gate": job("out", 1, 10, schedulingGates=[{"name": "later"}]),
    "a suspended group": job("out", 1, 10, suspend=True),
    "a group that backs off": job("out", 1, 10, status={"backoffUntil": 500}),
    "a group that depends on another": job("out", 1, 10, dependsOn=[{"name": "head"}]),
    "a group that could never fit": job("out", 40, 10),
}


@pytest.mark.parametrize("case", OUT_OF_LINE)
@pytest.mark.parametrize("line", [EASY, CONSERVATIVE], ids=["EASY", "conservative"])
def test_a_group_out_of_line_is_not_backfilled_and_delays_no_other(
    case: str, line: Manifest
) -> None:
    world = [node("n1", 4), line, *running("r", 3, walltime="100s"), job("head", 4, 50)]
    assert ahead(*world, OUT_OF_LINE[case], job("f", 1, 10)) == ["f"]


@pytest.mark.parametrize("line", [EASY, CONSERVATIVE], ids=["EASY", "conservative"])
def test_a_group_that_only_its_namespace_refuses_has_no_reservation(line: Manifest) -> None:
    world = [node("n1", 4), line, quota("red", cpu=0), *running("r", 3, walltime="100s")]
    behind = [job("out", 1, 10, namespace="red"), job("f", 1, 10)]
    assert ahead(*world, job("head", 4, 50), *behind) == ["f"]


def test_backfill_respects_the_quota_of_a_namespace() -> None:
    world = [node("n1", 6), EASY, quota("red", cpu=1), *running("r", 3, walltime="100s")]
    behind = [job("a", 1, 10, namespace="red"), job("b", 1, 10, namespace="red"), job("f", 1, 10)]
    assert ahead(*world, job("head", 6, 50), *behind) == ["red/a", "f"]


def test_a_head_that_its_namespace_refuses_as_well_waits_for_both() -> None:
    """The cluster has capacity at 100 s; the namespace's quota is sufficient at 200 s."""
    world = [
        node("n1", 6),
        EASY,
        quota("red", cpu=4),
        *running("r", 3, walltime="100s"),
        job("q", 1, 200, namespace="red"),
        job("head", 4, 50, namespace="red"),
    ]
    assert ahead(*world, job("f", 2, 200)) == ["red/q", "f"]
    # Beside head, which needs four cpus from 200 s on, two are free.
    assert ahead(*world, job("f", 2, 1000)) == ["red/q", "f"]


CHECKED = queue("default", strategy={"type": "Backfill"}, admissionChecks=["c"])


def test_a_group_with_checks_reserves_only_beside_the_head() -> None:
    """The time of the checks' answers is unknown, and so is the group's end."""
    world = [check("c"), node("n1", 6), CHECKED, *running("r", 3, walltime="100s")]
    behind = [job("head", 4, 50), job("f", 3, 50), job("g", 2, 50)]
    came = outcome(*world, *behind, cycles=1, config=NO_EVICTIONS)
    assert reserved(came) == [(0, ["default/g"])]
    assert admitted(came) == []


def test_a_group_reserved_behind_the_head_starts_when_its_checks_have_passed() -> None:
    world = [check("c"), node("n1", 6), CHECKED, *running("r", 3, walltime="100s")]
    behind = [job("head", 4, 50), job("g", 2, 50)]
    came = outcome(
        *world, *behind, timeline(answers(20, "g", "c", True)), cycles=3, config=NO_EVICTIONS
    )
    assert admitted(came) == [(20, ["default/g"])]
    assert bound(came) == [(20, {"default/g-t-0": "n1"})]


def test_pods_without_requests_of_an_admitted_group_go_wherever_a_place_is_free() -> None:
    """The gang of `f` is backfilled past the head; its other pods are behind the head."""
    empty = [
        {"name": "t", "replicas": 1, "template": {"requests": {"cpu": 1}}},
        {"name": "free", "replicas": 2, "template": {}},
    ]
    elastic = group("f", tasks=empty, minMember=1, walltime="50s")
    world = [node("n1", 4, pods=9), EASY, *running("r", 3, walltime="100s"), job("head", 3, 50)]
    came = outcome(*world, elastic, cycles=2, config=NO_EVICTIONS)
    assert bound(came) == [
        (0, {"default/f-t-0": "n1", "default/f-free-0": "n1", "default/f-free-1": "n1"})
    ]


def test_pods_without_requests_wait_where_every_place_is_taken() -> None:
    empty = [
        {"name": "t", "replicas": 1, "template": {"requests": {"cpu": 1}}},
        {"name": "free", "replicas": 2, "template": {}},
    ]
    elastic = group("f", tasks=empty, minMember=1, walltime="50s")
    world = [node("n1", 4, pods=5), EASY, *running("r", 3, walltime="100s"), job("head", 3, 50)]
    came = outcome(*world, elastic, cycles=1, config=NO_EVICTIONS)
    assert bound(came) == [(0, {"default/f-t-0": "n1", "default/f-free-0": "n1"})]


def test_without_allocate_only_pods_without_requests_are_placed() -> None:
    """A gang of such pods is placed whole or not at all."""
    free = [{"name": "t", "replicas": 2, "template": {}}]
    world = [
        node("n1", 4, pods=3),
        group("a", 1, 1),
        group("b", tasks=free),
        group("c", tasks=free),
    ]
    came = outcome(*world, cycles=1, config="actions: [enqueue, backfill]")
    assert admitted(came) == [(0, ["default/a", "default/b"])]
    assert bound(came) == [(0, {"default/b-t-0": "n1", "default/b-t-1": "n1"})]


def test_no_group_of_a_large_world_starts_twice() -> None:
    """Every group is admitted, and the stage would refuse a second admission."""
    world = [job(f"g{at}", 1 + at % 4, 10 + 7 * at % 50, runs_s=5 + at % 9) for at in range(30)]
    for line in (EASY, CONSERVATIVE):
        assert len(starts(node("n1", 4), line, *world)) == 30
