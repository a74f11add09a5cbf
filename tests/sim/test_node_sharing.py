"""Which pods share a node: exclusive groups, limits of pods on one node, and packing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.scheduler.cycle import Scheduler
from tests.effort import usually
from tests.sim.test_nodes_at_admission import START, occupied
from tests.sim.test_topology import places
from tests.sim.worlds import (
    Manifest,
    applies,
    evicted,
    group,
    node,
    of,
    outcome,
    outcome_until,
    pod,
    priority,
    queue,
    starts,
    taker,
    timeline,
)

THREE = (node("n1"), node("n2"), node("n3"))
LOW, HIGH = priority("low", 1), priority("high", 10)


def alone(name: str, pods: int = 1, cpu: int = 1, **spec: object) -> Manifest:
    """Return a group that shares its nodes with no other."""
    return group(name, pods, cpu, **{"runtime": "10s", "created": 1, "exclusive": True, **spec})


def test_pods_of_an_exclusive_group_share_nodes_with_one_another_only() -> None:
    came = outcome(*THREE, alone("whole", 6), group("other", 4, 1, runtime="5s", created=2))
    assert places(came, "whole") == ["n1", "n1", "n1", "n1", "n2", "n2"]
    assert places(came, "other") == ["n3", "n3", "n3", "n3"]
    begun = starts(came)
    assert (begun["whole-t-5"], begun["other-t-3"]) == (0, 0)


def test_an_exclusive_group_waits_for_an_empty_node() -> None:
    world = (node("n1"), *occupied("n1", 1, 30), alone("whole"))
    came = outcome_until(START, *world)
    assert [one.message for one in of(came, "whole").reasons] == [
        "task t: 0/1 nodes fit: 1 in use by another group"
    ]
    assert starts(outcome(*world))["whole-t-0"] == 30


@pytest.mark.parametrize(
    ("cpu", "edit", "expected"),
    [(2, {"exclusive": True}, ["n1", "n1"]), (1, {"maxPodsPerNode": 1}, ["n1", "n2"])],
)
def test_a_waiting_group_is_placed_by_its_edited_spec(
    cpu: int, edit: dict[str, object], expected: list[str]
) -> None:
    waits = {"suspend": True, "runtime": "10s"}
    came = outcome(
        *THREE[:2],
        *occupied("n2", 1, 30),
        timeline(
            applies(1, group("edited", 2, cpu, **waits)),
            applies(2, group("edited", 2, cpu, **waits, **edit)),
            {"at": "3s", "resume": "default/edited"},
        ),
    )
    assert places(came, "edited") == expected


def test_a_pod_that_asks_for_nothing_keeps_off_too() -> None:
    world = (node("n1"), alone("whole", runtime="20s"), group("free", 1, 0, created=2))
    assert starts(outcome(*world))["free-t-0"] == 20


def test_others_are_told_which_group_holds_the_nodes() -> None:
    world = (
        *THREE[:2],
        alone("whole", 2, 3, runtime="60s"),
        group("other", 1, 2, runtime="5s", created=2),
    )
    came = outcome_until(START, *world)
    (reason,) = of(came, "other").reasons
    assert reason.message == (
        "nodes cannot take its pod now; no node takes a pod that asks for cpu 2, and the most cpu"
        " that one node has free is 0, on n2; 2 nodes are held exclusively by default/whole"
    )


def test_an_exclusive_group_reserves_what_its_pods_request() -> None:
    came = outcome_until(START, node("n1"), alone("whole", runtime="60s"))
    assert came.queues["default"].allocated == {"cpu": "1", "pods": "1"}


def test_a_retried_pod_comes_back_to_a_node_of_its_group() -> None:
    """The other nodes are in use, and the one that the group holds has room for it."""
    world = (
        *THREE[:2],
        alone("whole", 2, 2, runtime="60s", retry={"limit": 1, "backoff": "1s"}, minMember=1),
        *occupied("n2", 1, 600),
        timeline({"at": "20s", "failPod": "default/whole-t-1", "exitCode": 1}),
    )
    came = outcome(*world)
    assert places(came, "whole") == ["n1", "n1"]
    assert starts(came)["whole-t-1"] < 30


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_a_head_gets_its_empty_nodes(strategy: str) -> None:
    """Each small pod that comes would keep one of the nodes in use for longer."""
    small = {"runtime": "40s", "walltime": "40s"}
    world = (
        queue("default", strategy={"type": strategy}),
        *THREE[:2],
        *occupied("n1", 1, 30),
        *occupied("n2", 1, 20),
        alone("whole", 2, 3, walltime="10s"),
        timeline(*(applies(at, group(f"small-{at}", 1, 1, **small)) for at in (1, 11, 21))),
    )
    begun = starts(outcome(*world))
    assert (begun["whole-t-0"], begun["whole-t-1"]) == (30, 30)
    assert begun["small-1-t-0"] == 40


def test_a_short_follower_ends_before_the_head_needs_the_whole_node() -> None:
    world = (
        queue("default", strategy={"type": "Backfill"}),
        node("n1"),
        *occupied("n1", 1, 30),
        alone("whole", walltime="10s"),
        group("short", 1, 1, runtime="20s", walltime="20s", created=2),
        group("long", 1, 1, runtime="50s", walltime="50s", created=2),
    )
    begun = starts(outcome(*world))
    assert (begun["short-t-0"], begun["whole-t-0"], begun["long-t-0"]) == (0, 30, 40)


def test_small_pods_that_keep_coming_do_not_hold_it_up_for_ever() -> None:
    """After half of inQueueTimeout, its node takes no more of them."""
    world = (
        node("n1"),
        alone("whole", created=2),
        *occupied("n1", 1, 25),
        timeline(*(applies(at, group(f"small-{at}", runtime="30s")) for at in range(10, 400, 15))),
    )
    assert 150 < starts(outcome(*world))["whole-t-0"] < 200


def test_victims_empty_a_node_for_it() -> None:
    world = (
        LOW,
        HIGH,
        *THREE[:2],
        group("own", 1, 1, runtime="600s", created=1, priorityClassName="high"),
        *(
            group(f"old-{place}", 1, 1, runtime="600s", created=2, priorityClassName="low")
            for place in range(4)
        ),
        timeline(applies(10, alone("whole", priorityClassName="high"))),
    )
    came = outcome_until(START + 10, *world)
    assert (places(came, "own"), places(came, "old-0")) == (["n1"], ["n2"])
    assert [pod for _, each in evicted(came) for pod, _ in each] == [
        "default/old-0-t-0",
        "default/old-2-t-0",
    ]
    assert places(outcome(*world), "whole") == ["n2"]


def test_a_node_that_cannot_be_emptied_loses_no_pods() -> None:
    world = (
        LOW,
        HIGH,
        node("n1"),
        group("own", 1, 1, runtime="50s", created=1, priorityClassName="high"),
        group("old", 1, 1, runtime="100s", created=2, priorityClassName="low"),
        timeline(applies(10, alone("whole", priorityClassName="high"))),
    )
    came = outcome_until(START + 20, *world)
    assert evicted(came) == []


def test_a_pod_of_higher_priority_takes_the_node_of_an_exclusive_group() -> None:
    world = (
        LOW,
        HIGH,
        node("n1"),
        alone("old", 2, 1, runtime="100s", grace="0s", priorityClassName="low"),
        timeline(applies(10, group("small", 1, 1, runtime="10s", priorityClassName="high"))),
    )
    came = outcome(*world)
    assert [pod for _, each in evicted(came) for pod, _ in each] == [
        "default/old-t-0",
        "default/old-t-1",
    ]
    begun = starts(came)
    assert (begun["small-t-0"], begun["old-t-0"]) == (10, 20)


def test_a_node_stays_held_while_the_last_pod_is_stopping() -> None:
    world = (
        node("n1"),
        alone("old", 1, 1, grace="30s", runtime="100s"),
        group("other", 1, 1, runtime="5s", created=2),
        timeline({"at": "10s", "suspend": "default/old"}),
    )
    assert starts(outcome(*world))["other-t-0"] == 40


def test_pods_that_were_bound_before_an_exclusive_one_stay() -> None:
    """A described world may have both on a node: what runs is not stopped, and nothing is added."""
    runs = {"phase": "Running", "startedAt": START}
    world = (
        node("n1"),
        *occupied("n1", 1, 30),
        alone("whole", 2, 1, runtime="20s", minMember=1, created=0, status=runs),
        pod("whole-t-0", "whole", phase="Running", node="n1", startedAt=START),
        group("other", 1, 1, runtime="5s", created=2),
    )
    begun = starts(outcome(*world))
    assert (begun["whole-t-1"], begun["other-t-0"]) == (30, 20)


def test_a_node_gets_at_most_so_many_pods_of_a_group() -> None:
    came = outcome(
        node("n1", 8),
        node("n2", 2),
        node("n3", 2),
        group("one", 3, 1, runtime="10s", created=1, maxPodsPerNode=1),
        group("two", 3, 1, runtime="10s", created=2, maxPodsPerNode=2),
    )
    assert places(came, "one") == ["n1", "n2", "n3"]
    assert Counter(places(came, "two")).most_common(1)[0][1] <= 2
    assert starts(came)["two-t-2"] == 0


def test_a_gang_that_needs_more_nodes_than_there_are_says_so() -> None:
    came = outcome(*THREE, group("wide", 4, 1, created=1, maxPodsPerNode=1))
    (reason,) = of(came, "wide").reasons
    assert reason.reason == "ExceedsCapacity"
    assert reason.message == (
        "not even empty nodes take it: 4 pods do not fit together on empty nodes with at most 1 pod"
        " each"
    )


def test_pods_beyond_the_gang_wait_for_a_node_without_one() -> None:
    world = (
        *THREE[:2],
        group("wide", 3, 1, runtime="50s", created=1, minMember=2, maxPodsPerNode=1),
    )
    begun = starts(outcome(*world))
    assert (begun["wide-t-0"], begun["wide-t-1"], begun["wide-t-2"]) == (0, 0, 50)


def test_victims_are_taken_on_as_many_nodes_as_a_spread_gang_needs() -> None:
    world = (
        LOW,
        HIGH,
        *THREE[:2],
        group("old", 8, 1, created=1, minMember=1, grace="0s", priorityClassName="low"),
        timeline(
            applies(10, group("wide", 2, 1, priorityClassName="high", maxPodsPerNode=1)),
        ),
    )
    came = outcome_until(START + 10, *world)
    assert places(came, "wide") == ["n1", "n2"]
    assert len([pod for _, each in evicted(came) for pod, _ in each]) == 2


def test_a_packed_gang_uses_few_nodes_and_another_one_the_emptiest() -> None:
    world = (*THREE, *occupied("n1", 2, 600))
    packed = group("gang", 4, 1, runtime="10s", created=1, pack=True)
    assert places(outcome(*world, packed), "gang") == ["n2", "n2", "n2", "n2"]
    came = outcome(*world, group("gang", 4, 1, runtime="10s", created=1))
    assert places(came, "gang") == ["n2", "n2", "n3", "n3"]


def judged(session: Session) -> list[str]:
    """Return what is wrong at the end of a session."""
    there: dict[str, Counter[str]] = {}
    for one in session.groups.values():
        for bound in one.live_pods.values():
            if bound.status.phase in ON_NODE:
                there.setdefault(bound.status.node, Counter())[one.uid] += 1
    wrong = []
    for name, groups in there.items():
        for uid, count in groups.items():
            spec = session.groups[uid].record.spec
            if spec.exclusive and len(groups) > 1:
                wrong.append(f"{session.groups[uid].key} is not alone on {name}")
            if spec.max_pods_per_node is not None and count > spec.max_pods_per_node:
                wrong.append(f"{session.groups[uid].key} has {count} pods on {name}")
    for name, state in session.nodes.by_name.items():
        if any(sharing.exclusive for sharing in state.owners) != any(
            session.groups[uid].record.spec.exclusive for uid in there.get(name, ())
        ):
            wrong.append(f"{name} is not counted as it is held")
    return wrong


def idle_places(session: Session) -> list[str]:
    """Return the waiting groups for whose gang there are places, by counting; none while one has
    waited so long that nodes are held for it.
    """
    waiting = [one for one in session.groups.values() if one.phase == PodGroupPhase.PENDING]
    half = session.settings.in_queue_timeout_ms // 2
    since = [one.status.nodes_lacked_at for one in waiting]
    if any(at is not None and session.now_ms - at > half for at in since):
        return []
    groups: dict[str, set[str]] = {name: set() for name in session.nodes.by_name}
    cpu: Counter[str] = Counter()
    for one in session.groups.values():
        for bound in one.live_pods.values():
            if bound.status.phase in ON_NODE:
                groups[bound.status.node].add(one.uid)
                cpu[bound.status.node] += bound.spec.requests["cpu"]
    exclusive = {one.uid for one in session.groups.values() if one.record.spec.exclusive}
    found = []
    for one in waiting:
        spec, [task] = one.record.spec, one.record.spec.tasks
        places = 0
        for name, state in session.nodes.by_name.items():
            if groups[name] and (spec.exclusive or groups[name] & exclusive):
                continue
            here = (state.total["cpu"] - cpu[name]) // task.template.requests["cpu"]
            places += min(here, spec.max_pods_per_node or here)
        if places >= one.min_member:
            found.append(one.key)
    return found


def described(seed: int, *, simple: bool = False) -> list[Manifest]:
    """Return a world of gangs, arrays and singles of every kind; if it is to be simple, in one
    queue, of one priority, and without losses of nodes.
    """
    dice = random.Random(seed)
    strategies = ["BestEffortFIFO", "StrictFIFO", "Backfill"]
    sizes = [dice.choice([2, 4]) for _ in range(dice.randint(2, 5))]
    steps = []
    for place in range(14):
        pods, cpu = dice.randint(1, 4), dice.choice([1, 1, 2])
        kinds: list[Manifest] = [{}, {"exclusive": True}, {"maxPodsPerNode": 1}, {"pack": True}]
        kinds += [{}, {"exclusive": True, "maxPodsPerNode": 1}, {"maxPodsPerNode": 2}]
        spec = {**dice.choice(kinds), "minMember": dice.choice([pods, pods, 1])}
        most = spec.get("maxPodsPerNode", pods)
        if sum(min(most, size // cpu) for size in sizes[1:]) < spec["minMember"]:
            continue
        spec["runtime"], spec["grace"] = f"{dice.randint(1, 60)}s", dice.choice(["0s", "5s"])
        if not simple:
            spec["priorityClassName"] = dice.choice(["low", "high"])
            spec["queue"] = dice.choice(["default", "other"])
        if dice.random() < 0.7:
            spec["walltime"] = "60s"
        steps.append(applies(dice.randint(0, 60), group(f"g{place:02}", pods, cpu, **spec)))
    if not simple and dice.random() < 0.5:
        lost = dice.randint(5, 60)
        steps += [
            {"at": f"{lost}s", "failNode": "n0"},
            {"at": f"{lost + 60}s", "recoverNode": "n0"},
        ]
    steps.sort(key=lambda step: int(step["at"][:-1]))
    nodes = [node(f"n{place}", size) for place, size in enumerate(sizes)]
    if simple:
        return [*nodes, timeline(*steps)]
    return [
        LOW,
        HIGH,
        queue("default", strategy={"type": dice.choice(strategies)}, deserved={"cpu": 4}),
        taker("other", strategy={"type": dice.choice(strategies)}),
        *nodes,
        timeline(*steps),
    ]


@pytest.mark.parametrize("seed", range(usually(5, 24)))
def test_no_session_breaks_what_a_group_asks_of_its_nodes_and_all_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a scheduler that was restarted and decides without memory."""
    decide, sessions = Scheduler.decide, Counter[str]()

    def watched(
        self: Scheduler, snapshot: Snapshot, now_ms: int, *, writes_status: bool
    ) -> Session:
        if sessions.total() % 4 == 0:
            assert judged(decide(self.without_memory(), snapshot, now_ms)) == []
        session = decide(self, snapshot, now_ms, writes_status=writes_status)
        sessions["all"] += 1
        assert judged(session) == []
        return session

    monkeypatch.setattr(Scheduler, "decide", watched)
    came = outcome(*described(seed))
    assert {one.phase for one in came.podgroups.values()} <= {"Completed", "Failed"}
    assert sessions["all"] > 10


@pytest.mark.parametrize("seed", range(usually(3, 12)))
def test_no_group_waits_at_rest_while_nodes_would_take_its_gang(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, rests = Scheduler.decide, Counter[bool]()

    def watched(
        self: Scheduler, snapshot: Snapshot, now_ms: int, *, writes_status: bool
    ) -> Session:
        session = decide(self, snapshot, now_ms, writes_status=writes_status)
        at_rest = not session.intents
        rests[at_rest] += 1
        assert not at_rest or idle_places(session) == []
        return session

    monkeypatch.setattr(Scheduler, "decide", watched)
    outcome(*described(seed, simple=True))
    assert rests[True] > 5
