"""Reservations in time also name nodes: backfilled groups leave the head the nodes that it waits
for.

Nodes have four cpus each. Each running group is described with its node, and ends by its walltime.
"""

from __future__ import annotations

import pytest

from tests.sim.test_backfill import CONSERVATIVE, EASY, NO_EVICTIONS, ahead, job, starts
from tests.sim.test_evictions import running
from tests.sim.worlds import (
    Manifest,
    applies,
    bound,
    group,
    node,
    outcome,
    pod,
    priority,
    timeline,
)


def where(*manifests: Manifest) -> dict[str, tuple[int, str]]:
    """Return when each pod is bound, and to which node, in a world that is played to its end."""
    came = outcome(*manifests, config=NO_EVICTIONS)
    return {
        name.removeprefix("default/").removesuffix("-t-0"): (at, on)
        for at, pods in bound(came)
        for name, on in pods.items()
    }


def nodes(count: int) -> list[Manifest]:
    return [node(f"n{place}", 4) for place in range(1, count + 1)]


def held(name: str, cpu: int, on: str, until_s: int) -> list[Manifest]:
    """Return a group that runs on one node until its walltime."""
    return running(name, 1, cpu=cpu, on=on, walltime=f"{until_s}s", grace="0s")


def test_a_group_is_backfilled_to_a_node_that_the_head_does_not_wait_for() -> None:
    """n1 has most free cpus, and is the head's at 100 s; the sums have capacity for both then."""
    world = [EASY, *nodes(2), *held("r", 2, "n1", 100), *held("s", 3, "n2", 1_000)]
    came = where(*world, job("head", 4, 50), job("f", 1, 500))
    assert came == {"f": (0, "n2"), "head": (100, "n1")}


def test_a_group_that_fits_only_the_heads_node_must_end_in_time() -> None:
    """At 100 s six cpus are free, but only n1 has four together: the head's."""
    world = [EASY, *nodes(3), *held("r", 2, "n1", 100), *held("u", 1, "n2", 100)]
    world += [*held("s", 3, "n2", 1_000), *held("t", 3, "n3", 1_000)]
    assert ahead(*world, job("head", 4, 50), job("f", 2, 101)) == []
    assert ahead(*world, job("head", 4, 50), job("f", 2, 100)) == ["f"]


def test_a_head_of_whole_nodes_starts_when_enough_nodes_are_empty() -> None:
    """The sums have eight cpus at 100 s; two nodes are empty at 300 s."""
    world = [EASY, *nodes(3), *held("r", 4, "n1", 100), *held("s", 3, "n2", 300)]
    world += held("t", 1, "n3", 1_000)
    head = group("head", 2, 4, walltime="50s")
    assert ahead(*world, head, job("f", 1, 301)) == ["f"]
    assert ahead(*world, head, job("f", 3, 1_000)) == ["f"]
    assert ahead(*world, head, job("f", 3, 300), job("g", 1, 300)) == ["f", "g"]
    assert ahead(*world, head, job("f", 3, 300), job("g", 1, 301)) == ["f"]


def test_a_head_that_fits_no_node_until_an_end_without_walltime_is_strict() -> None:
    world = [EASY, *nodes(2), *running("r", 1, on="n1"), *running("s", 1, on="n2")]
    world += held("t", 3, "n1", 100)
    assert ahead(*world, job("head", 4, 50), job("f", 1, 10)) == []


def test_with_reservations_for_all_each_group_has_nodes_of_its_own() -> None:
    """`a` gets n1 at 100 s, `b` gets n2 at 200 s; one cpu is free on each until then."""
    world = [CONSERVATIVE, *nodes(2), *held("r", 3, "n1", 100), *held("s", 3, "n2", 200)]
    world += [job("a", 4, 150), job("b", 4, 50)]
    assert ahead(*world, job("f", 1, 100), job("g", 1, 200)) == ["f", "g"]
    assert where(*world, job("f", 1, 200)) == {"f": (0, "n2"), "a": (100, "n1"), "b": (200, "n2")}
    assert ahead(*world, job("f", 1, 201)) == []


def test_a_running_array_grows_only_on_nodes_that_the_head_does_not_wait_for() -> None:
    """The head gets n1 at 100 s; a pod of the array takes 500 s."""
    array = group(
        "a", 3, 1, minMember=1, walltime="500s", status={"phase": "Running", "reservedAt": 0}
    )
    world = [EASY, *nodes(2), *held("r", 2, "n1", 100), *held("s", 2, "n2", 1_000)]
    world += [job("head", 4, 50), array]
    world += [pod("a-t-0", "a", 0, phase="Running", node="n2", startedAt=0)]
    came = outcome(*world, cycles=1, config=NO_EVICTIONS)
    assert bound(came) == [(0, {"default/a-t-1": "n2"})]


@pytest.mark.parametrize("policy", [EASY, CONSERVATIVE], ids=["EASY", "conservative"])
@pytest.mark.parametrize(("cpus", "f_at"), [(1, 2), (2, 5_600)], ids=["it fits", "it does not"])
def test_a_group_goes_ahead_of_a_head_whose_own_former_pod_still_stops(
    policy: Manifest, cpus: int, f_at: int
) -> None:
    """`r` is suspended and resumed, and cannot start beside its former pod, which stops until
    600 s.
    """
    world = [
        *(node("n1", 2), policy),
        *running("r", 1, walltime="5000s", runtime="5000s", grace="600s"),
        timeline(
            {"at": "0s", "suspend": "default/r"},
            {"at": "1s", "resume": "default/r"},
            applies(2, job("f", cpus, 60)),
        ),
    ]
    assert starts(*world) == {"r": 600, "f": f_at}


@pytest.mark.parametrize("policy", [EASY, CONSERVATIVE], ids=["EASY", "conservative"])
@pytest.mark.parametrize("claimant_s", [300, 700])
def test_groups_go_ahead_beside_a_preemption_however_short_the_preemptor_runs(
    policy: Manifest, claimant_s: int
) -> None:
    """`x` gets n1 when its victim has stopped, at 600 s; only `f` can use n2."""
    world = [
        *(node("n1", 1), node("n2", 1), policy, priority("high", 10)),
        *running("r", 1, walltime="5000s", runtime="5000s", grace="600s"),
        job("x", 1, claimant_s, priorityClassName="high"),
        job("f", 1, 60),
    ]
    for one in world:
        if one["kind"] == "PodGroup" and one["metadata"]["name"] in ("r", "x"):
            one["spec"]["tasks"][0]["template"]["excludeNodes"] = ["n2"]
    assert starts(*world, config="") == {"f": 0, "x": 600, "r": 600 + claimant_s}
