"""Preemptors, victims, preempt, reclaim, pledges and hygiene: the rules one by one, as worlds.

Each test is named after its rule; the expected outcome was derived before the world was played.
Times are seconds; the default grace period is 30.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.sim.test_evictions import ALL, pledged
from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    evicted,
    group,
    manifest,
    node,
    outcome,
    phases,
    pod,
    priority,
    quota,
    reasons,
    requeued,
    taker,
    timeline,
)

CLASSES = [priority(*one) for one in (("low", -1), ("mid", 5), ("high", 10), ("top", 20))]
HI: Manifest = {"priorityClassName": "high"}


def runs(
    name: str,
    pods: int = 1,
    cpu: Any = 1,
    *,
    on: str = "n1",
    since: int | list[int] = 0,
    prio: str = "",
    tasks: list[Manifest] | None = None,
    **more: Any,
) -> list[Manifest]:
    """Return a group whose pods all run, since one instant or each since its own."""
    spec = {**more, **({"priorityClassName": prio} if prio else {})}
    if tasks is not None:
        spec["tasks"] = tasks
    parts = [("t", pods)] if tasks is None else [(one["name"], one["replicas"]) for one in tasks]
    each = []
    for task, count in parts:
        for index in range(count):
            at = since if isinstance(since, int) else since[index]
            status: Manifest = {"phase": "Running", "node": on, "startedAt": at}
            one = pod(f"{name}-{task}-{index}", name, index, task=task, **status)
            one["metadata"]["namespace"] = more.get("namespace", "default")
            each.append(one)
    return [group(name, pods, cpu, status={"phase": "Running", "reservedAt": 0}, **spec), *each]


def stopping(name: str, pods: int) -> list[Manifest]:
    """Return a group that was evicted before the story begins; its pods still stop."""
    status: Manifest = {"phase": "Running", "node": "n1", "startedAt": 0, "terminating": True}
    return [group(name, pods), *(pod(f"{name}-t-{i}", name, i, **status) for i in range(pods))]


def task(name: str, replicas: int, cpu: int = 1, prio: int | None = None, **more: Any) -> Manifest:
    template: Manifest = {"requests": {"cpu": cpu}}
    if prio is not None:
        template["priority"] = prio
    return {"name": name, "replicas": replicas, "template": template, **more}


def asks(name: str, requests: Manifest, **spec: Any) -> Manifest:
    """Return a group of one pod that asks for more than cpu."""
    template = {"requests": requests}
    return group(name, tasks=[{"name": "t", "replicas": 1, "template": template}], **spec)


def ones(prefix: str, count: int, **more: Any) -> list[Manifest]:
    """Return this many groups of one pod of one cpu."""
    return [one for index in range(count) for one in runs(f"{prefix}{index}", **more)]


def halves(deserved: int = 4, **policy: Any) -> list[Manifest]:
    """Return queues a and b that deserve the same."""
    mine = {"preemption": policy} if policy else {}
    return [taker("a", deserved={"cpu": deserved}, **mine), taker("b", deserved={"cpu": deserved})]


def play(*manifests: Manifest, config: str = ALL, cycles: int | None = 40) -> WorldOutcome:
    return outcome(*CLASSES, *manifests, config=config, cycles=cycles)


def gone(*manifests: Manifest, config: str = ALL) -> list[str]:
    """Return the pods that the first session evicts, in alphabetical order."""
    (cycle,) = play(*manifests, config=config, cycles=1).cycles
    return sorted(item.pod.removeprefix("default/") for item in cycle.evicted)


def test_pods_beyond_min_member_of_an_equal_group_go_before_a_less_important_group() -> None:
    elastic = runs("elastic", 3, minMember=2, prio="high")
    assert gone(node("n1", 4), *elastic, *runs("low"), group("hi", **HI)) == ["elastic-t-2"]


def test_pods_beyond_min_member_of_a_more_important_group_stay() -> None:
    elastic = runs("elastic", 3, minMember=2, prio="top")
    assert gone(node("n1", 4), *elastic, *runs("low"), group("hi", **HI)) == ["low-t-0"]


def test_a_task_keeps_the_pods_that_its_gang_needs() -> None:
    tasks = [task("a", 2, minAvailable=2), task("b", 2)]
    elastic = runs("elastic", minMember=2, tasks=tasks)
    assert gone(node("n1", 4), *elastic, group("hi", 2, **HI)) == ["elastic-b-0", "elastic-b-1"]


def test_the_priority_of_pods_orders_the_pods_of_one_group() -> None:
    elastic = runs("elastic", minMember=2, tasks=[task("a", 2, prio=9), task("b", 2, prio=5)])
    assert gone(node("n1", 4), *elastic, group("hi", 2, **HI)) == ["elastic-b-0", "elastic-b-1"]


def test_victims_are_compared_by_the_groups_priority_whatever_its_pods_state() -> None:
    low = runs("low", tasks=[task("t", 2, prio=100)])
    assert gone(node("n1", 2), *low, group("hi", **HI)) == ["low-t-0", "low-t-1"]


def test_pods_beyond_the_gang_go_lowest_priority_first_then_youngest_start() -> None:
    old = runs("x", 3, minMember=1, since=[0, 0, 50])
    assert gone(
        node("n1", 6), *old, *runs("y", 3, minMember=1, since=[0, 0, 40]), group("hi", 2, **HI)
    ) == ["x-t-2", "y-t-2"]
    assert gone(
        node("n1", 6), *old, *runs("y", 3, minMember=1, prio="low"), group("hi", 2, **HI)
    ) == ["y-t-1", "y-t-2"]


def test_equal_victims_leave_in_order_of_uid_numeric_for_places_in_the_file() -> None:
    eleven = [one for index in range(11) for one in runs(f"g{99 - index}")]
    assert gone(node("n1", 11), *eleven, group("hi", **HI)) == ["g99-t-0"]
    assert gone(node("n1", 2), *runs("b", uid="u2"), *runs("a", uid="u1"), group("hi", **HI)) == [
        "a-t-0"
    ]


def test_victims_not_needed_are_spared_the_last_chosen_first() -> None:
    """Chosen youngest first: 1, 2 and 3, but 4 are needed; the 2 can stay."""
    victims = [runs(name, 1, cpu, since=40 - 10 * cpu) for cpu, name in enumerate("abcd", 1)]
    world = [one for victim in victims for one in victim]
    assert gone(node("n1", 10), *world, group("hi", 1, 4, **HI)) == ["a-t-0", "c-t-0"]


def test_a_pod_beyond_the_gang_is_spared_when_a_whole_group_is_evicted_anyway() -> None:
    elastic, whole = runs("elastic", 3, minMember=2), runs("whole", 1, 3, since=9)
    assert gone(node("n1", 6), *elastic, *whole, group("hi", 1, 3, **HI)) == ["whole-t-0"]


def test_the_queue_with_the_largest_share_gives_first_and_shares_change_with_each_victim() -> None:
    queues = [taker(name, deserved={"cpu": 4}) for name in "abc"]
    borrowers = [*ones("b", 7, queue="b", since=10), *ones("c", 5, queue="c", since=20)]
    assert gone(node("n1", 12), *queues, *borrowers, group("in", 4, queue="a")) == [
        "b0-t-0",
        "b1-t-0",
        "b2-t-0",
        "c0-t-0",
    ]


def test_the_lowest_priority_goes_before_the_largest_share() -> None:
    queues = [taker(name, deserved={"cpu": 4}) for name in "abc"]
    borrowers = [*ones("b", 7, queue="b"), *ones("c", 5, queue="c", prio="low")]
    assert gone(node("n1", 12), *queues, *borrowers, group("in", 1, queue="a")) == ["c0-t-0"]


def test_shares_are_compared_level_by_level_from_the_root() -> None:
    """x has three times what it deserves, its parent 6/5; d has 7/4, as its parent."""
    queues = [
        taker("t1", deserved={"cpu": 5}),
        taker("t2", deserved={"cpu": 4}),
        taker("x", parent="t1", deserved={"cpu": 2}),
        taker("d", parent="t2", deserved={"cpu": 4}),
        taker("a", deserved={"cpu": 2}),
    ]
    borrowers = [*ones("x", 6, queue="x", since=9), *ones("d", 7, queue="d")]
    assert gone(node("n1", 13), *queues, *borrowers, group("in", 1, queue="a")) == ["d0-t-0"]


def test_admissions_of_this_session_are_undone_despite_eviction_budget_and_min_runtime() -> None:
    came = play(
        node("n1", 8),
        *halves(),
        *runs("b0", queue="b"),
        group("first", 7, queue="a"),
        group("lender", 3, queue="b"),
        config=f"{ALL}\nminRuntime: 2m\nevictionBudget: {{pods: 1, window: 60s}}",
    )
    assert (evicted(came), pledged(came), requeued(came)) == ([], [], [])
    assert admitted(came) == [(0, ["default/lender"])]
    assert phases(came) == {"b0": "Running", "first": "Pending", "lender": "Running"}


def test_terminating_pods_count_before_any_eviction() -> None:
    elastic = runs("elastic", 2, minMember=1)
    assert gone(node("n1", 4), *stopping("gone", 2), *elastic, group("hi", 2, **HI)) == []


def test_two_preemptors_divide_the_terminating_pods() -> None:
    world = [*stopping("gone", 4), group("h1", 2, **HI), group("h2", 2, **HI)]
    came = play(node("n1", 4), *world)
    assert evicted(came) == []
    assert admitted(came)[0] == (30, ["default/h1", "default/h2"])


def test_victims_pledged_to_another_preemptor_do_not_count() -> None:
    came = play(
        node("n1", 4),
        *runs("l1", 2, since=9),
        *runs("l2", 2),
        group("h1", 2, **HI),
        timeline({"at": "5s", "apply": group("h2", 2, **HI)}),
    )
    assert evicted(came) == [
        (0, [("default/l1-t-0", "Preempted"), ("default/l1-t-1", "Preempted")]),
        (5, [("default/l2-t-0", "Preempted"), ("default/l2-t-1", "Preempted")]),
    ]
    assert admitted(came) == [(30, ["default/h1"]), (35, ["default/h2"])]


def test_one_large_victim_serves_two_preemptors_and_a_second_is_spared() -> None:
    came = play(
        node("n1", 6),
        *runs("large", 4, since=9),
        *runs("spared", 2),
        group("h1", 2, **HI),
        group("h2", 2, **HI),
    )
    assert [sorted(pod for pod, _ in pods) for _, pods in evicted(came)] == [
        [f"default/large-t-{index}" for index in range(4)]
    ]
    assert admitted(came) == [(30, ["default/h1", "default/h2"])]


def test_a_preemptor_refused_by_its_namespaces_quota_preempts_in_that_namespace() -> None:
    came = play(
        node("n1", 8),
        quota("team", cpu=2),
        *runs("own", 2, namespace="team"),
        *runs("younger", 2, since=9),
        group("hi", 2, namespace="team", **HI),
    )
    assert [item.pod for item in came.cycles[0].evicted] == ["team/own-t-0", "team/own-t-1"]
    assert admitted(came)[0] == (30, ["team/hi"])


def test_in_a_namespace_without_its_victims_a_preemptor_counts_in_full() -> None:
    came = play(
        node("n1", 4),
        quota("team", cpu=4),
        *runs("low", 4),
        group("hi", 1, 2, namespace="team", **HI),
        timeline(
            *({"at": "5s", "apply": node(f"small-{place}", 1)} for place in range(8)),
            {"at": "5s", "apply": group("three", 3, namespace="team")},
            {"at": "6s", "apply": group("two", 2, namespace="team")},
        ),
    )
    assert admitted(came)[:2] == [(6, ["team/two"]), (30, ["team/hi"])]
    assert reasons(came, "three", "team") == ["WaitingForQuota"]


@pytest.mark.parametrize(
    ("policy", "others", "goes"),
    [
        ({}, 3, ["l-t-0", "l-t-1", "l-t-2", "l-t-3"]),
        ({}, 4, []),
        ({"borrowing": 0}, 4, []),
    ],
    ids=["the fifth is idle", "the fifth is another queue's", "which lends nothing"],
)
def test_capacity_that_a_preemptor_borrows_beside_its_own_victims_must_be_idle(
    policy: Manifest, others: int, goes: list[str]
) -> None:
    """Its queue deserves 4, and its own groups hold all of these; it asks for 5."""
    mine = taker("q", deserved={"cpu": 4}, **({"preemption": policy} if policy else {}))
    held = [*runs("l", 4, queue="q"), *runs("o", others, queue="b")]
    world = [mine, taker("b", deserved={"cpu": 4}), *held]
    assert gone(node("n1", 8), *world, group("hi", 5, queue="q", **HI)) == goes


def test_a_victim_without_a_process_frees_its_capacity_at_once() -> None:
    waits = group("waits", 1, 2, status={"phase": "InQueue", "reservedAt": 0})
    others = [*runs("x", prio="top"), *runs("y", on="n2", prio="top")]
    came = play(node("n1", 2), node("n2", 2), *others, waits, group("hi", 2, **HI))
    assert evicted(came) == []
    assert requeued(came)[0] == (0, [("default/waits", "Preempted")])
    assert admitted(came)[0] == (0, ["default/hi"])


def test_an_action_completes_its_victims_by_those_that_the_other_could_take() -> None:
    own, others = runs("own", 2, queue="a", prio="low"), runs("b0", 6, queue="b", minMember=4)
    went = gone(node("n1", 8), *halves(), *own, *others, group("hi", 4, queue="a", **HI))
    assert [name.partition("-t-")[0] for name in went] == ["b0", "b0", "own", "own"]


@pytest.mark.parametrize(
    ("victim", "goes"),
    [
        ({}, []),
        ({"minMember": 1}, []),
        ({"minMember": 2}, ["b0-t-6", "b0-t-7"]),
        ({"minMember": 1, "prio": "low"}, ["b0-t-6", "b0-t-7"]),
    ],
    ids=["equal gang", "equal array", "equal elastic", "lower array"],
)
def test_a_queue_that_reclaims_by_lower_priority_spares_equals(
    victim: dict[str, Any], goes: list[str]
) -> None:
    borrower = runs("b0", 8, queue="b", **victim)
    lenders = halves(reclaim="LowerPriority")
    assert gone(node("n1", 8), *lenders, *borrower, group("in", 2, queue="a")) == goes


@pytest.mark.parametrize(
    ("most", "goes"), [("Never", []), (-1, []), (0, [f"b1-t-{index}" for index in range(4)])]
)
def test_while_borrowing_victims_are_at_most_the_threshold(most: Any, goes: list[str]) -> None:
    """The younger of b's groups is above it; c is idle."""
    queues = [*halves(borrowing=most), taker("c", deserved={"cpu": 4})]
    held = [*runs("a0", 4, queue="a", prio="top"), *runs("b1", 4, queue="b")]
    younger = runs("b2", 4, queue="b", prio="mid", since=9)
    world = [*queues, *held, *younger, group("hi", 4, queue="a", **HI)]
    assert gone(node("n1", 12), *world) == goes


TREE = [
    taker("t1", deserved={"cpu": 6}),
    taker("t2", deserved={"cpu": 6}),
    taker("a", parent="t1", deserved={"cpu": 3}),
    taker("b", parent="t1", deserved={"cpu": 3}),
    taker("c", parent="t2", deserved={"cpu": 6}),
]


def test_under_an_ancestor_within_deserved_a_borrower_is_a_victim_for_its_siblings_only() -> None:
    borrower = ones("a", 6, queue="a")
    outside = [*runs("x", 6), group("in", 6, queue="c")]
    assert gone(node("n1", 12), *TREE, *borrower, *outside) == [f"x-t-{i}" for i in range(6)]
    assert gone(node("n1", 6), *TREE, *borrower, group("in", 3, queue="b")) == [
        "a0-t-0",
        "a1-t-0",
        "a2-t-0",
    ]


def test_once_a_sibling_has_given_way_the_parent_may_reclaim_from_other_queues() -> None:
    """While b holds 4, t1 would end above what it deserves, so no pod of c may be taken."""
    queues = [
        taker("t1", deserved={"cpu": 6}),
        taker("a", parent="t1", deserved={"cpu": 6}),
        taker("b", parent="t1", deserved={"cpu": 0}),
        taker("c", deserved={"cpu": 2}),
    ]
    world = [*queues, *runs("b0", 4, queue="b"), *ones("c", 4, queue="c")]
    found = gone(node("n1", 8), *world, group("in", 6, queue="a"))
    assert found == [*(f"b0-t-{i}" for i in range(4)), "c0-t-0", "c1-t-0"]


def test_no_ancestor_of_a_victim_falls_below_its_guarantee_or_its_childrens_sum() -> None:
    """The younger gang would leave 2 where 3 are guaranteed; the older one leaves 3."""
    queues = [
        taker("a", deserved={"cpu": 4}),
        taker("t", deserved={"cpu": 4}),
        taker("b1", parent="t", deserved={"cpu": 3}, guarantee={"cpu": 3}),
        taker("b2", parent="t", deserved={"cpu": 1}),
    ]
    gangs = [*runs("three", 3, queue="b2", since=9), *runs("two", 2, queue="b2", since=1)]
    world = [*queues, *runs("a0", 3, queue="a"), *gangs, group("in", 1, queue="a")]
    assert gone(node("n1", 8), *world) == ["two-t-0", "two-t-1"]


def test_a_queue_above_deserved_only_in_dimensions_not_lacking_has_no_victims() -> None:
    """b holds too much gpu, and gpus are free; the preemptor lacks cpu."""
    queues = [
        taker("a", deserved={"cpu": 4, "gpu": 4}),
        taker("b", deserved={"cpu": 4, "gpu": 2}),
        taker("c", deserved={"cpu": 0, "gpu": 0}, reclaimable=False),
    ]
    template = {"requests": {"cpu": 1, "gpu": 1}}
    borrower = runs("b0", queue="b", tasks=[{"name": "t", "replicas": 4, "template": template}])
    world = [*queues, *borrower, *runs("c0", 4, queue="c")]
    claim = asks("in", {"cpu": 1, "gpu": 1}, queue="a")
    assert gone(node("n1", 8, gpu=8), *world, claim) == []


def test_the_preemptors_queue_ends_within_deserved_in_every_requested_dimension() -> None:
    queues = [taker("a", deserved={"cpu": 4, "gpu": 0}), taker("b", deserved={"cpu": 4, "gpu": 2})]
    world = [node("n1", 8, gpu=2), *queues, *runs("b0", 8, queue="b", minMember=2)]
    assert gone(*world, asks("in", {"cpu": 2, "gpu": 1}, queue="a")) == []
    assert gone(*world, asks("in", {"cpu": 2}, queue="a")) == ["b0-t-6", "b0-t-7"]


def test_not_reclaimable_protects_below_the_common_queue_only() -> None:
    b0, claim = runs("b0", 8, queue="b", minMember=1), group("in", 2, queue="a")
    above = taker("t", deserved={"cpu": 4}, reclaimable=False)
    below = taker("b", parent="t", deserved={"cpu": 4})
    assert gone(node("n1", 8), halves()[0], above, below, *b0, claim) == []
    common = taker("t", reclaimable=False)
    inside = [taker(name, parent="t", deserved={"cpu": 4}) for name in "ab"]
    assert gone(node("n1", 8), common, *inside, *b0, claim) == ["b0-t-6", "b0-t-7"]


def test_pods_beyond_the_gang_take_whole_groups_no_larger_than_their_queues_lack() -> None:
    """The queue lacks 3; the younger gang asks for 4."""
    array = group("array", 4, minMember=1, queue="a", status={"phase": "Running", "reservedAt": 0})
    starts = [array, pod("array-t-0", "array", phase="Running", node="n1", startedAt=0)]
    gangs = [*runs("three", 3, queue="b"), *runs("four", 4, queue="b", since=9)]
    seven = runs("seven", 7, queue="b")
    assert gone(node("n1", 8), *halves(), *starts, *gangs) == [f"three-t-{i}" for i in range(3)]
    assert gone(node("n1", 8), *halves(), *starts, *seven) == []


def test_under_reclaim_the_preemptors_queue_counts_it_in_full_at_once() -> None:
    came = play(
        node("n1", 8), *halves(), *runs("b0", 8, queue="b"), group("in", 3, queue="a"), cycles=1
    )
    a, b = came.queues["a"], came.queues["b"]
    assert (a.allocated["cpu"], a.reserved["cpu"], a.share) == ("0", "3", 0.75)
    assert (b.allocated["cpu"], b.reserved["cpu"], b.share) == ("8", "0", 2.0)


def test_the_preemptor_is_in_queue_when_all_its_victims_have_ended() -> None:
    victims = [*runs("l1", 2, grace="10s"), *runs("l2", 2, grace="40s")]
    came = play(node("n1", 4), *victims, group("hi", 4, **HI))
    assert admitted(came)[0] == (40, ["default/hi"])


def test_idle_capacity_on_the_preemptors_node_is_kept_too() -> None:
    came = play(
        node("n1", 2),
        node("n2", 2),
        *runs("victim"),
        *runs("other", on="n2", prio="top"),
        group("wide", 1, 2, **HI),
        timeline({"at": "5s", "apply": group("late", 1)}),
    )
    assert bound(came) == [(5, {"default/late-t-0": "n2"}), (30, {"default/wide-t-0": "n1"})]


def test_a_pledge_ends_with_the_reservation_a_minute_after_the_longest_grace_period() -> None:
    """It may not use its node any more, and the new node is taken."""
    zone = {"metadata": {"labels": {"zone": "a"}}}
    template = {"requests": {"cpu": 1}, "nodeSelector": {"zone": "a"}}
    came = play(
        {**node("n1", 4), "metadata": {"name": "n1", "labels": {"zone": "a"}}},
        *runs("low", 4, grace="10s"),
        group("hi", tasks=[{"name": "t", "replicas": 4, "template": template}], **HI),
        timeline(
            {"at": "5s", "apply": node("n1", 4)},
            {"at": "5s", "apply": manifest("Node", "n2", {"resources": {"cpu": 4}}, **zone)},
            {"at": "5s", "apply": group("other", 4, priorityClassName="top")},
        ),
    )
    assert admitted(came) == [(5, ["default/other"]), (10, ["default/hi"]), (70, ["default/low"])]
    assert phases(came) == {"hi": "Pending", "low": "Running", "other": "Running"}


def test_a_preemptor_that_returns_counts_on_pods_that_still_stop() -> None:
    came = play(
        node("n1", 4),
        *runs("low", 4),
        group("hi", 4, **HI),
        timeline({"at": "5s", "suspend": "default/hi"}, {"at": "10s", "resume": "default/hi"}),
    )
    assert [time for time, _ in evicted(came)] == [0]
    assert phases(came) == {"hi": "Running", "low": "Pending"}
    assert [time for time, names in admitted(came) if "default/hi" in names] == [30]


def test_a_decision_beyond_the_budget_waits_until_the_window_is_empty() -> None:
    came = play(
        node("n1", 5),
        *runs("one", since=9, grace="1s"),
        *runs("four", 4, grace="1s"),
        group("first", 1, **HI),
        timeline({"at": "10s", "apply": group("second", 4, **HI)}),
        config=f"{ALL}\nevictionBudget: {{pods: 2, window: 60s}}",
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == [(0, 1), (60, 4)]


def test_an_external_group_preempts_for_a_limit_of_its_queue() -> None:
    external = group(
        "outside", controller="external", tasks=[], minResources={"cpu": 2}, queue="q", **HI
    )
    own = runs("own", 4, queue="q")
    came = play(node("n1", 8), taker("q", capability={"cpu": 4}), *own, external, cycles=6)
    assert [len(pods) for _, pods in evicted(came)] == [4]
    assert admitted(came)[0] == (30, ["default/outside"])
