"""Gangs within one rack: what `spec.topology` requires, and what it prefers."""

from __future__ import annotations

import random

import pytest

from tests.effort import usually
from tests.sim.test_nodes_at_admission import START, occupied
from tests.sim.worlds import (
    Manifest,
    WorldOutcome,
    applies,
    evicted,
    group,
    manifest,
    node,
    of,
    outcome,
    outcome_until,
    priority,
    queue,
    reasons,
    starts,
    timeline,
)

WITHIN_ONE = {"rack": "required"}


def racked(name: str, cpu: int = 4, **labels: str) -> Manifest:
    """Return a node whose rack is the first letter of its name."""
    labels = {"rack": name[0], **labels}
    return manifest("Node", name, {"resources": {"cpu": cpu}}, metadata={"labels": labels})


def places(came: WorldOutcome, name: str) -> list[str]:
    """Return the nodes on which the pods of a group were placed last, in order."""
    found = {pod: on for cycle in came.cycles for pod, on in cycle.bound.items()}
    return sorted(on for pod, on in found.items() if pod.startswith(f"default/{name}-"))


TWO_RACKS = (racked("a1"), racked("a2"), racked("b1"), racked("b2"))


def test_a_gang_starts_within_one_rack_although_the_emptiest_nodes_are_in_two() -> None:
    world = (
        *TWO_RACKS,
        *occupied("a1", 1, 600),
        *occupied("b1", 1, 600),
        group("gang", 2, 3, runtime="10s", created=1),
    )
    assert places(outcome(*world), "gang") == ["a2", "b2"]
    within = group("gang", 2, 3, runtime="10s", created=1, topology=WITHIN_ONE)
    assert places(outcome(*world[:-1], within), "gang") == ["a1", "a2"]


def test_the_fullest_rack_that_takes_the_gang_is_chosen() -> None:
    world = (
        *TWO_RACKS,
        *occupied("b1", 1, 600),
        group("gang", 2, 3, runtime="10s", created=1, topology=WITHIN_ONE),
    )
    assert places(outcome(*world), "gang") == ["b1", "b2"]


def test_a_gang_that_fits_only_across_racks_waits_for_one_rack() -> None:
    world = (
        *TWO_RACKS,
        *occupied("a1", 4, 600),
        *occupied("b1", 4, 60),
        group("gang", 2, 4, runtime="10s", created=1, topology=WITHIN_ONE),
        group("single", 1, 4, runtime="10s", created=2),
    )
    came = outcome_until(START, *world)
    assert [one.message for one in of(came, "gang").reasons] == ["no rack takes its whole gang now"]
    came = outcome(*world)
    assert places(came, "gang") == ["b1", "b2"]
    assert starts(came)["gang-t-0"] == 60
    assert starts(came)["single-t-0"] == 0


def test_a_gang_that_no_rack_takes_even_when_empty_says_so() -> None:
    came = outcome(*TWO_RACKS, group("gang", 3, 4, created=1, topology=WITHIN_ONE))
    (reason,) = of(came, "gang").reasons
    assert (reason.reason, reason.message) == (
        "ExceedsCapacity",
        "not even empty nodes take it: 3 pods do not fit together on empty nodes within one rack",
    )


def test_nodes_without_the_label_are_not_used() -> None:
    world = (racked("a1"), node("n1"), node("n2"))
    came = outcome(*world, group("gang", 2, 4, created=1, topology=WITHIN_ONE))
    assert reasons(came, "gang") == ["ExceedsCapacity"]
    came = outcome(node("n1"), group("gang", 1, 4, created=1, topology=WITHIN_ONE))
    assert [one.message for one in of(came, "gang").reasons] == [
        "not even empty nodes take it: no node has the label rack"
    ]


def test_a_gang_that_prefers_a_rack_takes_one_if_it_can_and_several_otherwise() -> None:
    prefers = group("gang", 2, 4, runtime="10s", created=1, topology={"rack": "preferred"})
    world = (*TWO_RACKS, *occupied("a1", 1, 600))
    assert places(outcome(*world, prefers), "gang") == ["b1", "b2"]
    came = outcome(*world, *occupied("b1", 1, 600), prefers)
    assert places(came, "gang") == ["a2", "b2"]
    assert starts(came)["gang-t-0"] == 0


def test_a_rack_is_preferred_within_the_zone_that_is_required() -> None:
    nodes = (
        racked("a1", zone="north"),
        racked("b1", zone="north"),
        racked("c1", zone="south"),
        racked("c2", zone="south"),
    )
    topology = {"zone": "required", "rack": "preferred"}
    gang = group("gang", 2, 4, runtime="10s", created=1, topology=topology)
    # The north is tried first, being equal; no rack of it takes the gang.
    assert places(outcome(*nodes, *occupied("c1", 1, 600), gang), "gang") == ["a1", "b1"]
    assert places(outcome(*nodes, *occupied("a1", 1, 600), gang), "gang") == ["c1", "c2"]


def test_victims_are_taken_in_the_rack_in_which_they_suffice() -> None:
    """Rack a has more free, but nothing there may be evicted."""
    low, high = priority("low", 1), priority("high", 10)
    world = (
        low,
        high,
        *TWO_RACKS,
        group("old", 2, 4, created=1, priorityClassName="low", topology=WITHIN_ONE),
        group("own", 1, 4, created=1, priorityClassName="high"),
        timeline(
            applies(
                10,
                group("gang", 2, 4, runtime="10s", priorityClassName="high", topology=WITHIN_ONE),
            )
        ),
    )
    came = outcome(*world)
    assert places(came, "own") == ["a1"]
    assert [pod for _, all_of_them in evicted(came) for pod, _ in all_of_them] == [
        "default/old-t-0",
        "default/old-t-1",
    ]
    assert places(came, "gang") == ["b1", "b2"]


def test_pods_beyond_the_gang_stay_in_the_rack_of_the_gang() -> None:
    world = (
        *TWO_RACKS,
        *occupied("a1", 4, 600),
        *occupied("b1", 4, 60),
        *occupied("b2", 1, 600),
        group("many", 3, 3, runtime="100s", created=1, minMember=1, topology=WITHIN_ONE),
    )
    came = outcome(*world)
    assert places(came, "many") == ["b1", "b2", "b2"]
    begun = starts(came)
    assert (begun["many-t-0"], begun["many-t-1"], begun["many-t-2"]) == (0, 60, 100)


def test_a_gang_whose_rack_is_lost_starts_in_another_one() -> None:
    world = (
        racked("a1"),
        racked("b1"),
        group("gang", 2, 2, created=1, topology=WITHIN_ONE),
        timeline({"at": "30s", "failNode": "a1"}),
    )
    came = outcome(*world)
    assert places(came, "gang") == ["b1", "b1"]


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_the_rack_for_which_a_head_waits_is_not_filled_by_others(strategy: str) -> None:
    world = (
        queue("default", strategy={"type": strategy}),
        *TWO_RACKS,
        *occupied("a1", 4, 50),
        *occupied("b1", 4, 600),
        *occupied("b2", 4, 600),
        group("gang", 2, 4, runtime="10s", walltime="10s", created=1, topology=WITHIN_ONE),
        *(
            group(f"short-{place}", 1, 4, runtime="40s", walltime="40s", created=2)
            for place in range(3)
        ),
    )
    came = outcome(*world)
    assert places(came, "gang") == ["a1", "a2"]
    assert starts(came)["gang-t-0"] == 50
    assert starts(came)["short-0-t-0"] == (0 if strategy == "Backfill" else 60)


def test_a_head_waits_for_the_rack_in_which_it_can_start_first() -> None:
    """One node of rack a is free, but the other one is not for an hour."""
    world = (
        queue("default", strategy={"type": "Backfill"}),
        *TWO_RACKS,
        *occupied("a1", 4, 3600),
        *occupied("b1", 4, 20),
        *occupied("b2", 4, 30),
        group("gang", 2, 4, runtime="10s", walltime="10s", created=1, topology=WITHIN_ONE),
        group("long", 1, 4, runtime="100s", walltime="100s", created=2),
    )
    begun = starts(outcome(*world))
    assert (begun["gang-t-0"], begun["gang-t-1"], begun["long-t-0"]) == (30, 30, 0)


@pytest.mark.parametrize("config", ["actions: [allocate]", "overcommit: 1.5"])
def test_a_rack_that_an_admission_has_chosen_blindly_is_left_while_it_has_no_pods(
    config: str,
) -> None:
    world = (
        *TWO_RACKS,
        *occupied("a1", 4, 40),
        *occupied("b1", 4, 600),
        group("gang", 2, 4, runtime="10s", created=1, topology=WITHIN_ONE),
    )
    came = outcome(*world, config=config)
    assert places(came, "gang") == ["a1", "a2"]
    assert starts(came)["gang-t-0"] == 40


def test_pods_stay_in_their_rack_where_nothing_reserves() -> None:
    world = (
        racked("a1", 1),
        racked("b1", 1),
        group("many", 3, 1, runtime="50s", created=1, minMember=1, topology=WITHIN_ONE),
        timeline(applies(20, racked("c1")), applies(20, racked("c2"))),
    )
    came = outcome(*world, config="actions: [allocate]")
    assert len(set(places(came, "many"))) == 1


@pytest.mark.parametrize("seed", range(usually(12, 40)))
def test_no_gang_is_ever_split_and_all_that_fit_run(seed: int) -> None:
    """Random gangs, arrays and singles, with priorities, on three racks of unequal nodes."""
    dice = random.Random(seed)
    strategy = dice.choice(["BestEffortFIFO", "StrictFIFO", "Backfill"])
    nodes = [racked(f"{rack}{n}", dice.choice([2, 4])) for rack in "abc" for n in range(1, 4)]
    groups = []
    for place in range(14):
        pods = dice.randint(1, 4)
        spec = {
            "runtime": f"{dice.randint(1, 60)}s",
            "walltime": "60s",
            "grace": "0s",
            "priorityClassName": dice.choice(["low", "high"]),
            "topology": dice.choice([{}, WITHIN_ONE, WITHIN_ONE, {"rack": "preferred"}]),
            "minMember": dice.choice([pods, pods, 1]),
        }
        groups.append(applies(dice.randint(0, 60), group(f"g{place:02}", pods, 1, **spec)))
    groups.sort(key=lambda step: int(step["at"][:-1]))
    came = outcome(
        priority("low", 1),
        priority("high", 2),
        queue("default", strategy={"type": strategy}),
        *nodes,
        timeline(*groups),
    )
    assert {one.phase for one in came.podgroups.values()} == {"Completed"}
    for step in groups:
        if step["apply"]["spec"]["topology"] == WITHIN_ONE:
            name = step["apply"]["metadata"]["name"]
            assert len({on[0] for on in places(came, name)}) == 1, name
