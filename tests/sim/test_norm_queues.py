"""Rules of queues, each in the smallest world that shows it.

The docstring states the rule under test; the numbers are derived from it by hand.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.worlds import (
    Manifest,
    admitted,
    applies,
    bound,
    evicted,
    group,
    manifest,
    node,
    outcome,
    phases,
    pod,
    priority,
    queue,
    reasons,
    refusal,
    requeued,
    starts,
    taker,
    timeline,
)

WITHOUT_EVICTIONS = "actions: [enqueue, allocate]"
WITH_EVICTIONS = "actions: [enqueue, allocate, reclaim, preempt]"
STRICT = {"type": "StrictFIFO"}


def running(
    name: str, pods: int, *, replicas: int = 0, cpu: Any = 1, **more: Any
) -> list[Manifest]:
    """Return a group with this many pods that run on n1 since the instant 0."""
    status = {"phase": "Running", "reservedAt": 0}
    one = group(name, replicas or pods, cpu, status=status, **more)
    each = [
        pod(f"{name}-t-{index}", name, index, phase="Running", node="n1", startedAt=0)
        for index in range(pods)
    ]
    return [one, *each]


def external(name: str, cpu: int, **more: Any) -> Manifest:
    """Return a group that stays InQueue until a consumer claims it."""
    return group(name, cpu=cpu, controller="external", minResources={"cpu": cpu}, **more)


def came_of(*manifests: Manifest, **how: Any) -> WorldOutcome:
    return outcome(*manifests, **{"config": WITHOUT_EVICTIONS, **how})


def deserved(came: WorldOutcome, resource: str = "cpu") -> dict[str, str | None]:
    every = {name: item.deserved[resource] for name, item in came.queues.items()}
    return {name: amount for name, amount in every.items() if name != "default"}


def in_order(came: WorldOutcome) -> list[str]:
    """Return the admitted groups, in the order of the decisions."""
    each = [name for _, names in admitted(came) for name in names]
    return [name.removeprefix("default/") for name in each]


def binds(came: WorldOutcome) -> list[str]:
    """Return the bound pods, in the order of the decisions."""
    return [name.removeprefix("default/") for _, pods in bound(came) for name in pods]


def test_shares_fill_by_weight_and_fractions_round_down() -> None:
    """Where `deserved` is silent: water-filling by weight among siblings; fractions round down."""
    asks = [group(f"g{name}", 1, "10m", queue=name) for name in "abc"]
    came = came_of(node("n1", "10m"), queue("a"), queue("b", weight=2), queue("c", weight=4), *asks)
    assert deserved(came) == {"a": "1m", "b": "2m", "c": "5m"}


def test_each_share_is_capped_by_demand_and_capability_and_the_others_share_the_rest() -> None:
    """Each capped by its demand and capability."""
    came = came_of(
        node("n1", 12),
        *(queue("modest"), queue("capped", capability={"cpu": 3}), queue("greedy")),
        group("m", 1, 1, queue="modest"),
        *(group("c1", 1, 3, queue="capped"), group("c2", 1, 3, queue="capped")),
        group("g", 1, 12, queue="greedy"),
    )
    assert deserved(came) == {"modest": "1", "capped": "3", "greedy": "8"}


def test_a_guarantee_is_a_floor_of_the_share_even_without_demand() -> None:
    """Water-filling … with guarantee as floor."""
    came = came_of(
        node("n1", 10),
        *(queue("a", guarantee={"cpu": 6}), queue("b")),
        *(group("b1", 1, 4, queue="b"), group("b2", 1, 4, queue="b")),
    )
    assert deserved(came) == {"a": "6", "b": "4"}


def test_silent_children_share_what_stating_siblings_leave_level_by_level() -> None:
    """Over what the parent deserves less what siblings state."""
    came = came_of(
        node("n1", 10),
        *(queue("p", deserved={"cpu": 6}), queue("other")),
        *(queue("stated", parent="p", deserved={"cpu": 2}),),
        *(queue("x", parent="p"), queue("y", parent="p", weight=3)),
        *(
            group("gx", 1, 9, queue="x"),
            group("gy", 1, 9, queue="y"),
            group("go", 1, 9, queue="other"),
        ),
    )
    assert deserved(came) == {"p": "6", "other": "4", "stated": "2", "x": "1", "y": "3"}


def test_a_cordoned_node_adds_to_no_deserved_share_but_counts_for_admission() -> None:
    """The root: ready, uncordoned nodes. Rule 4: ready resources."""
    cordoned = manifest("Node", "n2", {"resources": {"cpu": 4}, "unschedulable": True})
    unready = manifest("Node", "n3", {"resources": {"cpu": 4}}, status={"ready": False})
    came = came_of(
        *(node("n1", 4), cordoned, unready, queue("a")),
        *(group("fits", 1, 4, queue="a"), group("too-large", 5, 1, queue="a")),
    )
    assert deserved(came) == {"a": "4"}
    assert came.podgroups["default/too-large"].reasons[0].message == (
        "needs cpu 5, and the cluster has 4 free (4 of 8 in use)"
    )


def test_groups_out_of_line_add_no_demand() -> None:
    """Demand: ledger + in-line Pending reservations: gated, suspended, impossible ones are not."""
    came = came_of(
        node("n1", 10),
        *(queue("a"), queue("b")),
        *(group("a1", 1, 1, queue="a"), group("waits", 1, 10, queue="b")),
        group("gated", 1, 5, queue="a", schedulingGates=[{"name": "x"}]),
        group("suspended", 1, 5, queue="a", suspend=True),
        group("impossible", 1, 11, queue="a"),
    )
    assert deserved(came) == {"a": "1", "b": "9"}


def test_terminating_pods_are_still_in_the_ledger_and_so_in_the_demand() -> None:
    """*live*: … or terminating, whatever the group's phase, until the process has ended."""
    came = came_of(
        node("n1", 10),
        *(queue("a"), queue("b"), group("a1", 1, 4, queue="a", grace="1000s")),
        *(group("b1", 1, 6, queue="b"), group("b2", 1, 6, queue="b")),
        timeline({"at": "10s", "suspend": "default/a1"}),
        cycles=5,
    )
    assert phases(came)["a1"] == "Pending"
    assert deserved(came) == {"a": "4", "b": "6"}
    assert came.queues["a"].allocated["cpu"] == "4"


def test_pods_of_admitted_groups_beyond_the_promise_add_demand() -> None:
    """What admitted groups' ungated pods without a node ask for beyond their promise."""
    came = came_of(
        node("n1", 8),
        *(queue("a", weight=3), queue("b")),
        *(group(f"g{name}", 20, minMember=1, queue=name) for name in "ab"),
        config="actions: [enqueue]",
        cycles=1,
    )
    assert deserved(came) == {"a": "6", "b": "2"}


def test_the_share_is_the_largest_ratio_and_infinite_without_a_deserved_amount() -> None:
    """Share = max of ledger/deserved …; x/0 = ∞; 1 if there is none; rounded to six places."""
    came = came_of(
        node("n1", 10),
        *(queue("third", deserved={"cpu": 3}), queue("nothing", weight=0), queue("idle")),
        queue("unused", deserved={"cpu": 1}),
        *(group("t", 1, 1, queue="third"), group("n", 1, 1, queue="nothing")),
    )
    shares = {name: item.share for name, item in came.queues.items() if name != "default"}
    assert shares == {"third": 0.333333, "nothing": "inf", "idle": 1.0, "unused": 0.0}


def test_queues_are_compared_level_by_level_from_the_root() -> None:
    """In a tree level by level from the root: an idle queue waits if its parent holds much."""
    came = came_of(
        node("n1", 10),
        *(queue("p", deserved={"cpu": 4}), queue("r", deserved={"cpu": 6})),
        *(queue("p1", parent="p"), queue("p2", parent="p"), queue("r1", parent="r")),
        *(*running("in-p2", 3, queue="p2"), *running("in-r1", 3, queue="r1")),
        *(group(f"r-{place}", queue="r1") for place in (1, 2, 3)),
        *(group(f"p-{place}", queue="p1") for place in (1, 2)),
    )
    assert in_order(came) == ["r-1", "r-2", "p-1", "r-3"]


def test_elastic_pods_go_to_the_queue_with_the_lowest_share_computed_again_after_each() -> None:
    """After all gangs, elastic pods: the queue with the lowest share first."""
    came = came_of(
        node("n1", 10),
        *(queue("p", deserved={"cpu": 6}), queue("r", deserved={"cpu": 4})),
        *(queue("p1", parent="p"), queue("p2", parent="p"), queue("r1", parent="r")),
        *(group(name, 20, minMember=1, queue=name) for name in ("p1", "p2", "r1")),
    )
    gangs = ["r1-t-0", "p1-t-0", "p2-t-0"]
    more = ["r1-t-1", "p1-t-1", "p2-t-1", "r1-t-2", "p1-t-2", "r1-t-3", "p2-t-2"]
    assert binds(came) == gangs + more


def test_the_lower_uid_of_heads_equally_old_comes_first() -> None:
    """Every order ends in (queue time, uid); uids that are places compare as numbers."""
    for stamps in ((10, "1", 5, "2"), (5, "10", 5, "9")):
        of_b, of_a = stamps[:2], stamps[2:]
        heads = [
            group(f"g{name}", queue=name, created=at, uid=uid)
            for name, (at, uid) in (("b", of_b), ("a", of_a))
        ]
        came = came_of(node("n1", 1), queue("b"), queue("a"), *heads)
        assert in_order(came) == ["ga"]


def test_the_order_of_the_documents_does_not_matter() -> None:
    """The same snapshot gives the same decisions in the same order."""
    tree: list[tuple[str, Manifest]] = [
        ("p", {"deserved": {"cpu": 6}}),
        ("p1", {"parent": "p", "strategy": STRICT}),
        ("p2", {"parent": "p", "guarantee": {"cpu": 1}}),
        ("r", {"weight": 2}),
    ]
    asks = [("p1", 3, 3), ("p2", 9, 1), ("r", 9, 2), ("p1", 4, 4), ("r", 2, 2)]
    world = [node("n1", 6), node("n2", 5)]
    for place, (name, spec) in enumerate(tree):
        stamp = {"creationTimestamp": 0, "uid": f"q{place}"}
        world.append(manifest("Queue", name, spec, metadata=stamp))
    for place, (name, pods, least) in enumerate(asks):
        more: dict[str, Any] = {"queue": name, "uid": f"u{place}", "created": 0}
        world.append(group(f"g{place}", pods, minMember=least, **more))
    first = came_of(*world)
    assert in_order(first) == ["g0", "g2", "g4", "g1"]
    for seed in range(5):
        shuffled = random.Random(seed).sample(world, len(world))
        again = came_of(*shuffled)
        assert [cycle.bound for cycle in again.cycles] == [cycle.bound for cycle in first.cycles]
        assert again.queues == first.queues


def test_a_group_that_could_never_fit_beside_its_siblings_guarantees_exceeds_the_quota() -> None:
    """1. capability of its queue and every ancestor, less siblings' guarantees."""
    came = came_of(
        node("n1", 20),
        *(queue("p", capability={"cpu": 8}), queue("a", parent="p")),
        queue("b", parent="p", guarantee={"cpu": 5}),
        *(group("a3", 1, 3, queue="a"), group("a4", 1, 4, queue="a"), group("b5", 1, 5, queue="b")),
    )
    assert phases(came) == {"a3": "Running", "a4": "Pending", "b5": "Running"}
    assert reasons(came, "a4") == ["ExceedsMaxQuota"]


def test_borrowers_leave_unused_guarantees_of_siblings_free() -> None:
    """3. also with Σ over n's siblings of max(0, guarantee − ledger) added."""
    came = came_of(
        node("n1", 10),
        *(queue("a"), queue("b", guarantee={"cpu": 4}), *running("in-b", 1, queue="b")),
        *(group("a1", 1, 4, queue="a"), group("a2", 1, 2, queue="a"), group("a3", 1, 1, queue="a")),
        group("elastic", 9, queue="a", minMember=1),
    )
    assert in_order(came) == ["a1", "a2"]
    assert reasons(came, "a3") == ["WaitingForResources"]


def test_within_its_own_guarantee_a_queue_ignores_those_of_others() -> None:
    """In a dimension in which ledger(n) + r exceeds guarantee(n): only there."""
    came = came_of(
        node("n1", 10, memory=10),
        *(queue("a", guarantee={"cpu": 3}), queue("b", guarantee={"cpu": 7, "memory": 4})),
        *(*running("x", 4, queue="default"), group("a1", 1, 3, queue="a")),
        group("a2", 1, 1, queue="a"),
    )
    assert in_order(came) == ["a1"]
    assert reasons(came, "a2") == ["WaitingForResources"]


def test_within_the_guarantee_of_its_parent_a_queue_ignores_what_that_guarantees_below() -> None:
    """Since n2 is lost at 5, queue o leaves 1 of the 4 cpus that are guaranteed to lab. The queue
    that asks first gets it: lab stays within its guarantee, with the 2 that are its child's, too.
    """
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        queue("lab", guarantee={"cpu": 4}),
        queue("own", parent="lab", guarantee={"cpu": 2}),
        queue("other", parent="lab"),
        queue("o"),
        *running("uses", 3, queue="o"),
        timeline({"at": "5s", "failNode": "n2"}, applies(10, group("asks", queue="other"))),
    )
    assert (10, ["default/asks"]) in admitted(came)
    assert phases(came)["asks"] == "Running"


def test_elastic_pods_leave_guarantees_free_too_and_stay_within_every_ancestor() -> None:
    """Every bind beyond the promise re-checks rules 2–4."""
    came = came_of(
        node("n1", 20),
        *(queue("p", capability={"cpu": 5}, overcommit=1.5), queue("a", parent="p")),
        queue("b", parent="p", guarantee={"cpu": 2}),
        group("elastic", 20, queue="a", minMember=1),
    )
    assert binds(came) == [f"elastic-t-{place}" for place in range(5)]


def test_groups_count_for_max_pod_groups_until_their_processes_have_ended() -> None:
    """`maxPodGroups` (groups with a reservation or a charge), of ancestors too."""
    came = came_of(
        node("n1", 10),
        *(queue("p", maxPodGroups=1), queue("a", parent="p"), queue("b", parent="p")),
        *(group("first", queue="a", grace="30s"), group("second", queue="b")),
        timeline({"at": "10s", "suspend": "default/first"}),
    )
    assert admitted(came) == [(0, ["default/first"]), (40, ["default/second"])]


def test_an_external_group_is_bound_by_the_root_only_where_that_states_a_capability() -> None:
    """The root queue binds them only by a stated `capability`; left out of rule 4's ledger."""
    kept = queue("b", guarantee={"cpu": 1})
    free = came_of(node("n1", 4), kept, external("e", 50), group("g", 1, 3), cycles=1)
    assert in_order(free) == ["e", "g"]
    stated = came_of(
        *(node("n1", 4), queue("root", capability={"cpu": 20}), queue("a")),
        *(queue("b", guarantee={"cpu": 8}), external("e13", 13, queue="a")),
        external("e12", 12, queue="a"),
        cycles=1,
    )
    assert in_order(stated) == ["e12"]
    assert reasons(stated, "e13") == ["ExceedsMaxQuota"]


def test_a_strict_heads_reservation_is_all_or_nothing() -> None:
    """R, whole, where it stays within its queue's deserved; and nothing otherwise."""

    def past(asks: int, half_life: str) -> list[str]:
        came = came_of(
            node("n1", 10),
            *(queue("s", strategy=STRICT, deserved={"cpu": 6}), queue("b", deserved={"cpu": 4})),
            *(*running("rs", 2, queue="s"), *running("rb", 5, queue="b")),
            *(group("head", 1, asks, queue="s"), group("b1", queue="b"), group("b2", queue="b")),
            timeline({"at": "20s", "apply": group("late", queue="b")}),
            config=f"{WITHOUT_EVICTIONS}\nfairness: {{halfLife: {half_life}}}",
        )
        return in_order(came)

    assert past(4, "off") == []
    assert past(5, "off") == ["b1", "b2", "late"]
    # A queue that has used less than its due gets a head reservation all the same, from its turn
    # on.
    assert past(5, "7d") == ["b1", "b2"]


@pytest.mark.parametrize(
    ("ends", "passes"),
    [({"walltime": "100s"}, []), ({"walltime": "300s"}, ["b1"]), ({}, ["b1"])],
    ids=["before the head starts", "after it", "at an unknown time"],
)
def test_capacity_that_a_queue_returns_before_its_head_starts_counts(
    ends: dict[str, str], passes: list[str]
) -> None:
    """With what its queue will still hold when it starts. At 200 s there are nine of ten."""
    came = came_of(
        node("n1", 10),
        *(queue("s", strategy=STRICT, deserved={"cpu": 6}), queue("b", deserved={"cpu": 4})),
        *(*running("rs", 1, queue="s", **ends), *running("rb", 6, queue="b", walltime="200s")),
        *(group("head", 1, 6, queue="s"), group("b1", queue="b")),
        cycles=1,
    )
    assert in_order(came) == passes


def test_elastic_binds_of_other_queues_leave_a_strict_heads_reservation_free() -> None:
    """Groups and elastic binds of queues tried after it are tested as if that were charged."""

    def grows(asks: int) -> list[str]:
        came = came_of(
            node("n1", 10),
            *(queue("s", strategy=STRICT, deserved={"cpu": 6}), queue("b", deserved={"cpu": 4})),
            *running("el", 5, replicas=7, minMember=1, queue="b"),
            group("head", 1, asks, queue="s"),
        )
        return binds(came)

    assert grows(6) == []
    assert grows(7) == ["el-t-5", "el-t-6"]


def test_a_strict_head_refused_by_its_own_queue_has_no_reservation() -> None:
    """Refused for cluster or ancestor resources."""
    came = came_of(
        node("n1", 10),
        queue("s", strategy=STRICT, deserved={"cpu": 6}, capability={"cpu": 6}),
        *(queue("b", deserved={"cpu": 1}), *running("rs", 4, queue="s")),
        *(*running("rb", 1, queue="b"), group("head", 1, 4, queue="s")),
        group("b1", 1, 5, queue="b"),
    )
    assert in_order(came) == ["b1"]


@pytest.mark.parametrize(
    ("config", "reclaim", "passes"),
    [
        pytest.param(WITH_EVICTIONS, "Never", ["within"], id="the queue reclaims nothing"),
        pytest.param(
            WITH_EVICTIONS, "LowerPriority", ["within", "low"], id="only from lower priorities"
        ),
        pytest.param(WITHOUT_EVICTIONS, "Any", ["within"], id="without the reclaim action"),
    ],
)
def test_a_best_effort_heads_reservation_binds_borrowers_that_it_could_not_reclaim_from(
    config: str, reclaim: str, passes: list[str]
) -> None:
    """A BestEffortFIFO head whose own request is within its queue's deserved does the same."""
    came = outcome(
        *(node("n1", 12), priority("low", -5), priority("high", 5)),
        queue("a", deserved={"cpu": 5}, preemption={"reclaim": reclaim}),
        *(queue("b", deserved={"cpu": 3}), queue("c", deserved={"cpu": 2})),
        *running("rb", 8, queue="b", priorityClassName="high"),
        *(group("head", 1, 5, queue="a"), group("within", 1, 2, queue="c")),
        *(group("b1", queue="b"), group("low", queue="b", priorityClassName="low")),
        config=config,
    )
    assert in_order(came) == passes
    assert evicted(came) == []


def test_a_best_effort_head_above_its_queues_deserved_share_has_no_reservation() -> None:
    """Whose own request is within its queue's deserved."""
    came = came_of(
        node("n1", 10),
        *(queue("a", deserved={"cpu": 5}), queue("b", deserved={"cpu": 3})),
        *(*running("rb", 6, queue="b"), group("head", 1, 6, queue="a"), group("b1", queue="b")),
    )
    assert in_order(came) == ["b1"]


def test_a_head_reservation_binds_borrowers_of_unreclaimable_queues_and_not_others() -> None:
    """Against groups that would borrow what it could not, by policy, take back from them."""
    came = outcome(
        node("n1", 10),
        *(taker("a", deserved={"cpu": 5}), queue("b", deserved={"cpu": 3}, reclaimable=False)),
        *(queue("c", weight=0), *running("rb", 6, queue="b"), group("head", 1, 5, queue="a")),
        *(group("b1", queue="b"), group("c1", queue="c")),
        config=WITH_EVICTIONS,
    )
    assert in_order(came) == ["c1"]


def test_a_moved_queue_takes_its_charges_along() -> None:
    """The ledger of a queue is the sum: of all that stands below it now."""
    came = came_of(
        node("n1", 10),
        *(queue("p", capability={"cpu": 5}), queue("a"), queue("p1", parent="p")),
        group("a1", 1, 4, queue="a"),
        timeline(
            {"at": "10s", "apply": queue("a", parent="p")},
            {"at": "20s", "apply": group("two", 1, 2, queue="p1")},
            {"at": "21s", "apply": group("one", 1, 1, queue="p1")},
        ),
    )
    assert admitted(came) == [(0, ["default/a1"]), (21, ["default/one"])]
    assert came.queues["p"].allocated["cpu"] == "5"


def test_when_a_capability_is_cut_in_queue_groups_leave_in_reverse_order_of_line() -> None:
    """When InQueue groups no longer fit, they leave in reverse order of line; Running ones stay."""
    came = came_of(
        *(node("n1", 20), priority("high", 5), queue("p", capability={"cpu": 10})),
        *(queue("a", parent="p"), queue("b", parent="p"), queue("elsewhere")),
        *(group("runs", 1, 4, queue="a"), external("e1", 2, queue="a")),
        external("e2", 2, queue="b"),
        *(
            external("e3", 2, queue="a", priorityClassName="high"),
            external("e4", 2, queue="elsewhere"),
        ),
        timeline({"at": "10s", "apply": queue("p", capability={"cpu": 7})}),
        cycles=4,
    )
    assert requeued(came) == [(10, [("default/e2", "CapacityCut"), ("default/e1", "CapacityCut")])]
    assert phases(came)["runs"] == "Running"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"suspend": "default/head"}, "the head leaves the pending queue"),
        ({"apply": queue("s", strategy=STRICT, deserved={"cpu": 5})}, "less is deserved"),
        ({"apply": queue("s", deserved={"cpu": 6})}, "the strategy is not strict any more"),
        ({"apply": queue("s", strategy=STRICT, deserved={"cpu": 6}, stopPolicy="Hold")}, "stopped"),
    ],
)
def test_a_group_refused_for_a_head_reservation_is_unparked_when_that_ends(
    step: Manifest, why: str
) -> None:
    """Parked: not evaluated again until an event that could change its Verdict."""
    came = came_of(
        node("n1", 10),
        *(queue("s", strategy=STRICT, deserved={"cpu": 6}), queue("b", deserved={"cpu": 4})),
        *(queue("c", weight=0), *running("rb", 3, queue="b"), *running("rc", 2, queue="c")),
        *(group("head", 1, 6, queue="s"), group("b1", queue="b")),
        timeline({"at": "10s", **step}),
    )
    assert admitted(came) == [(10, ["default/b1"])], why


def test_stops_of_ancestors_apply_and_draining_requeues_admitted_groups() -> None:
    """Ancestors' checks and stops apply; HoldAndDrain: Pending without a reservation."""
    came = came_of(
        node("n1", 10),
        *(queue("p"), queue("a", parent="p"), group("a1", queue="a", grace="5s")),
        timeline(
            {"at": "10s", "apply": queue("p", stopPolicy="HoldAndDrain")},
            {"at": "20s", "apply": group("a2", queue="a")},
            {"at": "30s", "apply": queue("p", stopPolicy="Hold")},
            {"at": "40s", "apply": queue("p")},
        ),
    )
    assert requeued(came) == [(10, [("default/a1", "QueueStopped")])]
    assert admitted(came) == [(0, ["default/a1"]), (40, ["default/a1", "default/a2"])]


@pytest.mark.parametrize(
    ("queues", "sentence"),
    [
        (
            [queue("a", parent="b"), queue("b", parent="c"), queue("c", parent="a")],
            "Queue a: spec.parent goes in a circle: a -> b -> c -> a",
        ),
        (
            [
                queue("p", deserved={"cpu": 3}),
                queue("m", parent="p"),
                *(queue(name, parent="m", guarantee={"cpu": 2}) for name in "xy"),
            ],
            "Queue p: spec.deserved.cpu: expected at least 4, what the queues below it are",
        ),
    ],
)
def test_queues_that_contradict_each_other_are_refused(
    queues: list[Manifest], sentence: str
) -> None:
    """Children's sums within the parent's stated ones …: bad content for `simulate`."""
    assert sentence in refusal(node("n1", 10), *queues)


@pytest.mark.parametrize("inner", [(), (queue("p"), queue("c", parent="p"))])
def test_between_equal_shares_the_queue_with_the_older_head_is_served(
    inner: tuple[Manifest, ...],
) -> None:
    """Every order ends in (queue time, uid), so no queue waits for ever for an older one."""
    busy = "c" if inner else "a"
    jobs = [group(f"a{at}", 1, 3, queue=busy, runtime="10s") for at in (0, 3, 7, 12, 17)]
    came = came_of(
        *(node("n1", 4), *inner, queue("a"), queue("b")),
        jobs[0],
        timeline(
            *(applies(3, jobs[1]), applies(5, group("b", 1, 3, queue="b", runtime=10))),
            *(applies(at, job) for at, job in zip((7, 12, 17), jobs[2:], strict=True)),
        ),
    )
    assert starts(came) == {
        "a0-t-0": 0,
        "a3-t-0": 10,
        "b-t-0": 20,
        "a7-t-0": 30,
        "a12-t-0": 40,
        "a17-t-0": 50,
    }


def test_heads_are_compared_anew_after_each_turn() -> None:
    """Between equal shares the first group that is still to be tried decides."""
    came = came_of(
        *(node("n1", 4), queue("a"), queue("b")),
        group("a1", queue="a", schedulingGates=[{"name": "g"}]),
        *(group(f"b{place}", queue="b") for place in (1, 2)),
        *(group(f"a{place}", queue="a") for place in (2, 3)),
    )
    assert admitted(came) == [(0, [f"default/{name}" for name in ("b1", "a2", "b2", "a3")])]
