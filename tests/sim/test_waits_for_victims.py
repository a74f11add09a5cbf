"""A preemptor waits only for pods that still end."""

from __future__ import annotations

from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    applies,
    check,
    cordoned,
    evicted,
    group,
    node,
    outcome,
    phases,
    pledged,
    pod,
    priority,
    queue,
    quota,
    requeued,
    reserved,
    starts,
    story,
    taker,
    task,
    timeline,
)


def test_a_preemptor_does_not_wait_for_itself_once_its_former_pods_have_ended() -> None:
    """Suspended and resumed, it preempts groups that took its place, while one of its own pods is
    in its grace period until 40. The others' pods have stopped by 25.
    """
    came = outcome(
        node("n1", 6),
        queue("a", deserved={"cpu": 6}, preemption={"reclaim": "Any"}),
        queue("b", deserved={"cpu": 0}),
        group(
            "preemptor", queue="a", created=0,
            tasks=[_task("quick", grace="0s"), _task("slow", grace="30s")],
        ),
        group("borrower", 6, queue="b", minMember=1, grace="5s", created=0),
        timeline(
            {"at": "10s", "suspend": "default/preemptor"},
            {"at": "20s", "resume": "default/preemptor"},
        ),
    )  # fmt: skip
    assert [when for when, who in admitted(came) if "default/preemptor" in who] == [0, 40]
    taken = [pod for when, pods in evicted(came) if when == 20 for pod, _ in pods]
    assert sorted(taken) == ["default/borrower-t-2", "default/borrower-t-3"]
    assert phases(came)["preemptor"] == "Completed"


def _task(name: str, *, grace: str) -> Manifest:
    template: Manifest = {
        "requests": {"cpu": 2},
        "terminationGrace": grace,
        "annotations": {"batchq/runtime": "100s"},
    }
    return {"name": name, "replicas": 1, "template": template}


def test_an_array_that_is_evicted_whole_preempts_for_no_more_pods_in_that_session() -> None:
    """`owner` evicts it; a moment later its third pod would have fitted n2."""
    running = {"phase": "Running", "startedAt": 0}
    on = {"phase": "Running", "startedAt": 0}
    came = outcome(
        node("n1", 4),
        node("n2", 6),
        taker("a", deserved={"cpu": 8}),
        taker("b", deserved={"cpu": 0}, preemption={"borrowing": 100}),
        taker("c", deserved={"cpu": 0}),
        group("array", 3, 2, queue="b", minMember=1, created=0, status=running),
        pod("array-t-0", "array", 0, node="n1", **on),
        pod("array-t-1", "array", 1, node="n1", **on),
        group("owner", 2, 3, queue="a", minMember=1, created=1, status=running),
        pod("owner-t-0", "owner", 0, node="n2", **on),
        group("other", queue="c", created=2, status=running),
        pod("other-t-0", "other", 0, node="n2", **on),
        config="actions: reclaim, enqueue, allocate",
        cycles=4,
    )
    assert story(came)[:3] == [
        "0 requeued array Reclaimed",
        "0 evicted array-t-0 Reclaimed, array-t-1 Reclaimed",
        "0 pledged array-t-1, array-t-0 to owner",
    ]
    assert not [line for line in story(came) if line.startswith("0 bound")]
    assert "30 bound owner-t-1" in story(came)


def test_a_preemptor_out_of_line_reserves_only_its_pledge() -> None:
    """The namespace's quota falls below the used amount, so `small` waits out of line, and its
    queue has no demand. With its request, its parent would deserve a cpu more, and `wide` would
    hold no more than its queue deserves of that: there is nothing to reclaim.
    """
    came = outcome(
        node("n1", 5),
        queue("lab"),
        queue("a", parent="lab", weight=2),
        taker("b", parent="lab", guarantee={"cpu": 1}, admissionChecks=["late"]),
        check("late", preemptionPolicy="AfterCheckPassedOrOnDemand"),
        group("wide", 2, 2, queue="a", minMember=1, runtime="60s"),
        timeline(
            applies(5, quota("default", cpu=3)),
            applies(10, group("small", queue="b", runtime="10s")),
            answers(70, "small", "late", True),
        ),
        config="actions: [enqueue, allocate, reclaim]",
    )
    assert reserved(came) == [(0, ["default/wide"]), (60, ["default/small"])]
    assert pledged(came) == []
    assert starts(came)["small-t-0"] == 70


def test_a_preemptor_keeps_its_victims_while_its_own_former_pods_end() -> None:
    """One pod of `back` has succeeded, so that it lacks none to be Running; but it starts no other
    before the pod of its former admission has ended, at 54. It used to drop its pledge and make it
    again.
    """
    came = outcome(
        priority("mid", 5),
        priority("high", 10),
        node("n1", 30),
        queue("a", strategy={"type": "Backfill"}, deserved={"cpu": 10}),
        queue("b", strategy={"type": "Backfill"}, deserved={"cpu": 10}),
        group("low", 4, 4, queue="b", grace="0s", runtime="60s", created=0),
        timeline(
            applies(10, group(
                "back", queue="b", minMember=1, priorityClassName="mid",
                tasks=[task("one", 1, 1, "5s"), task("two", 1, 4, "30s", grace="30s")],
            )),
            applies(16, group("wide", 3, 3, queue="a", runtime="5s", priorityClassName="mid")),
            {"at": "24s", "suspend": "default/back"},
            applies(25, group("busy", 4, 2, queue="a", runtime="30s", priorityClassName="high")),
            {"at": "37s", "resume": "default/back"},
        ),
    )  # fmt: skip
    assert [when for when, who in admitted(came) if "default/back" in who] == [10, 54]
    assert set(phases(came).values()) == {"Completed"}


def test_a_victim_that_is_spared_keeps_its_places_on_nodes() -> None:
    """Both groups that wait for their check hold a cpu of the two that a pod of `grows` asks for.
    Only one of them used to be evicted, and reserved again: the pod never started.
    """
    came = outcome(
        node("n1", 4),
        cordoned("n2", 2),
        taker("a", deserved={"cpu": 4}),
        queue("b", deserved={"cpu": 0}, admissionChecks=["late"]),
        check("late"),
        group("here", queue="b", created=0),
        group("there", queue="b", created=0),
        timeline(applies(5, group("grows", 2, 2, queue="a", minMember=1, runtime="20s"))),
        config="actions: [enqueue, allocate, reclaim]",
    )
    assert requeued(came)[0] == (5, [("default/here", "Reclaimed"), ("default/there", "Reclaimed")])
    assert starts(came)["grows-t-1"] == 5


def test_capacity_that_the_next_pod_of_a_group_inherits_from_an_ending_one_is_counted_once() -> (
    None
):
    """`mine-small-0` starts at second 0, five later than `mine-big-0`, whose walltime ends at 5.
    The promise for the next pod used to be counted in addition: 11 cpus of 8.
    """
    running = {"phase": "Running", "startedAt": 5}
    came = outcome(
        node("n1", 4),
        cordoned("n2", 4),
        taker("a", deserved={"cpu": 8}),
        queue("b", deserved={"cpu": 0}),
        group(
            "mine", queue="a", minMember=1, walltime="10s", created=0, status=running,
            tasks=[task("big", 2, 3, grace="5s"), task("small", 1, 1)],
        ),
        pod("mine-big-0", "mine", task="big", phase="Running", node="n1", startedAt=0),
        group("theirs", 2, 2, queue="b", minMember=1, created=0, status=running),
        *(pod(f"theirs-t-{k}", "theirs", k, phase="Running", node="n2", startedAt=5)
          for k in range(2)),
        cycles=8,
    )  # fmt: skip
    assert starts(came)["mine-big-1"] == 10


def test_two_preemptors_of_one_ending_group_do_not_both_count_on_its_place() -> None:
    """From 5 on both pods of `old` end, one for `first`, and `second` fits. `third` fits once the
    other pod has ended, but the queue has no place for a fourth group before all of `old` has
    ended. It was pledged one: four groups of three, which the store refused in each session.
    """
    preemptors = [
        group(name, queue="q", priorityClassName="high", runtime="10s")
        for name in ("first", "second", "third")
    ]
    came = outcome(
        priority("high", 10),
        check("late", preemptionPolicy="AfterCheckPassedOrOnDemand"),
        node("n1", 3),
        queue("q", maxPodGroups=3, admissionChecks=["late"]),
        group("old", 2, queue="q", grace="5s", walltime="5s", created=0,
              status={"phase": "Running", "startedAt": 0}),
        group("brief", queue="q", runtime="5s", created=0,
              status={"phase": "Running", "startedAt": 0}),
        timeline(*(applies(2, one) for one in preemptors)),
        cycles=12,
    )  # fmt: skip
    assert reserved(came) == [
        (2, ["default/first"]),
        (5, ["default/second"]),
        (10, ["default/third"]),
    ]


def test_a_preemptor_counts_beside_a_finished_group_of_its_queue_whose_pods_still_end() -> None:
    """`more` waits for the last pod of `done`, and for one of `lends`. While both are charged for
    the same two cpus, its queue seemed to ask for no more than these: it dropped its pledge, and
    made it again.
    """
    came = outcome(
        check("late", preemptionPolicy="AfterCheckPassedOrOnDemand"),
        node("n1", 10),
        taker("a", admissionChecks=["late"]),
        queue("b", deserved={"cpu": 1}),
        queue("c", reclaimable=False),
        group("fills", 1, 6, queue="c", namespace="red", created=0,
              status={"phase": "Running", "startedAt": 0}),
        group("done", 1, 2, queue="a", walltime="5s", grace="5s", created=0,
              status={"phase": "Running", "startedAt": 0}),
        group("lends", 2, queue="b", minMember=1, runtime="60s", created=0,
              status={"phase": "Running", "startedAt": 0}),
        timeline(
            applies(2, quota("default", cpu=3)),
            applies(3, group("more", 1, 2, queue="a", runtime="5s")),
            answers(20, "more", "late", "True"),
        ),
        cycles=20,
    )  # fmt: skip
    assert pledged(came)[0] == (5, {"default/more": ["default/lends-t-1", "default/done-t-0"]})
    assert admitted(came)[-1] == (50, ["default/more"])


def test_a_preemptor_keeps_its_victims_although_those_of_others_release_enough() -> None:
    """`first` reclaims four cpus, and needs two. `second` would fit beside it, but `small` has
    reserved a cpu of that: `second` takes its place, and two pods of `lends`. It dropped those for
    the victims of others, and took them again when `small` had reserved once more.
    """
    running = {"phase": "Running", "startedAt": 0}
    came = outcome(
        priority("high", 10),
        check("late", preemptionPolicy="AfterCheckPassedOrOnDemand"),
        node("n1", 8),
        queue("a"),
        queue("b", admissionChecks=["late"]),
        group("gives", 4, queue="a", grace="30s", created=0, status=running),
        group("lends", 3, queue="b", minMember=1, created=0, status=running),
        timeline(
            applies(10, group("first", 1, 2, queue="a", priorityClassName="high")),
            applies(12, group("second", 1, 3, queue="b", priorityClassName="high")),
            applies(12, group("small", queue="b")),
        ),
        cycles=20,
    )
    assert pledged(came)[1] == (12, {"default/second": ["default/lends-t-2", "default/lends-t-1"]})
    assert [when for when, _ in evicted(came)] == [10]


def test_a_preemptor_keeps_its_pledge_whatever_other_queues_start_meanwhile() -> None:
    """A cpu is left to `sure` when `low` is evicted for `high`, which asks for as much. At 5
    `small` takes it, because `lab` holds more than its guarantee: at 30 `high` lost its
    reservation, and `low` had been evicted in vain.
    """
    came = outcome(
        priority("high", 10),
        node("n1", 7),
        queue("lab", guarantee={"cpu": 2}),
        queue("sure", parent="lab", guarantee={"cpu": 1}),
        queue("a", parent="lab"),
        queue("b", parent="lab"),
        queue("other"),
        *_runs("low", queue="a", grace="30s"),
        *_runs("steady", queue="b"),
        *_runs("busy", queue="other"),
        group("high", 1, 2, queue="a", priorityClassName="high", created=0),
        timeline(applies(5, group("small", queue="other"))),
    )
    assert evicted(came) == [(0, [("default/low-t-0", "Preempted")])]
    assert starts(came) == {"small-t-0": 5, "high-t-0": 30}


def _runs(name: str, **spec: object) -> list[Manifest]:
    """Return a group of one pod of two cpus that runs on n1 since the start."""
    status = {"phase": "Running", "startedAt": 0}
    held = group(name, 1, 2, status=status, created=0, **spec)
    return [held, pod(f"{name}-t-0", name, phase="Running", node="n1", startedAt=0)]


def test_no_pod_is_evicted_for_a_group_whose_queue_has_just_been_held() -> None:
    """If reclaim comes before enqueue, the verdict of `waits` from the session before is a lack of
    resources. The others are unprotected from 5 on.
    """
    came = outcome(
        node("n1", 4),
        taker("a", deserved={"cpu": 4}),
        queue("b", deserved={"cpu": 0}),
        *_runs("lends", queue="b"),
        *_runs("gives", queue="b"),
        group("waits", 1, 2, queue="a", created=0),
        timeline({"at": "5s", "suspend": "default/waits"}),
        config="actions: [reclaim, enqueue, allocate]\nminRuntime: 5s",
    )
    assert evicted(came) == []


def test_a_pod_is_evicted_for_the_preemptor_that_took_it_before_its_group_leaves() -> None:
    """`gpu` takes the pod on n1. Then `pair` takes the rest of the array, together with a pod that
    the same session has bound.
    """
    came = outcome(
        node("n1", 1, gpu=1),
        node("n2", 2),
        priority("high", 10),
        taker("a", deserved={"cpu": 2}),
        queue("b"),
        group("array", 3, grace="5s", minMember=1, queue="b", status={"phase": "Running"}),
        pod("array-t-0", "array", 0, phase="Running", node="n2", startedAt=0),
        pod("array-t-1", "array", 1, phase="Running", node="n1", startedAt=0),
        group("gpu", tasks=[task("t", 1, 1, gpu=1)], queue="a"),
        group("pair", 1, 2, queue="b", priorityClassName="high"),
        cycles=1,
    )
    assert {(one.pod, one.by, one.action) for one in came.cycles[0].evicted} == {
        ("default/array-t-0", "default/pair", "preempt"),
        ("default/array-t-1", "default/gpu", "reclaim"),
    }
    assert came.cycles[0].pledged == {
        "default/gpu": ["default/array-t-1"],
        "default/pair": ["default/array-t-0"],
    }


def test_no_pod_is_evicted_for_a_group_that_fits_in_what_has_just_become_free() -> None:
    """Reclaim comes before enqueue, and `large` ends at 10. With `low`, queue a ends at 4 cpus of
    the 3 that it deserves: until then `low` was evicted, and `high` started in free capacity.
    """
    came = outcome(
        priority("high", 10),
        node("n1", 5),
        taker("a", deserved={"cpu": 3}, preemption={"withinQueue": "LowerPriority"}),
        queue("b", deserved={"cpu": 0}),
        queue("c", deserved={"cpu": 0}, reclaimable=False),
        group("low", 1, 1, queue="a"),
        group("lends", 1, 1, queue="b"),
        group("large", 1, 3, queue="c", runtime="10s"),
        timeline(applies(1, group("high", 1, 3, queue="a", priorityClassName="high"))),
        config="actions: [reclaim, preempt, enqueue, allocate]",
    )
    assert evicted(came) == []
    assert starts(came)["high-t-0"] == 10


def test_a_group_that_has_just_started_is_evicted_before_one_of_higher_priority() -> None:
    """At 5 `young` starts, and another session of the same instant looks for victims. It evicted
    `old`, because no group is evicted at the instant at which it starts.
    """
    came = outcome(
        priority("high", 10),
        node("n1", 5),
        taker("a", deserved={"cpu": 4}),
        queue("b", deserved={"cpu": 1}),
        queue("c", deserved={"cpu": 0}),
        group("mine", queue="a"),
        group("old", 1, 2, queue="c", priorityClassName="high"),
        timeline(
            applies(5, group("young", 1, 2, queue="b")),
            applies(5, group("wants", 1, 2, queue="a")),
        ),
        config="actions: [reclaim, enqueue, allocate]",
    )
    assert [pods for _, pods in evicted(came)] == [[("default/young-t-0", "Reclaimed")]]


def test_two_preemptors_do_not_share_what_is_guaranteed_to_the_queue_of_their_victims() -> None:
    """Four pods of `lab` stop until 35, and 2 cpus are guaranteed to it. Each preemptor saw the
    pods of the other still use that guarantee, and `own` found no free cpu at 40.
    """
    came = outcome(
        node("n1", 4),
        queue("lab", guarantee={"cpu": 2}),
        taker("a", deserved={"cpu": 2}),
        taker("b", deserved={"cpu": 2}),
        group("ends", 4, queue="lab", grace="30s"),
        group("one", 1, 2, queue="a", created=1),
        group("two", 1, 2, queue="b", created=2),
        timeline(
            {"at": "5s", "suspend": "default/ends"},
            applies(40, group("own", 1, 2, queue="lab")),
        ),
    )
    assert starts(came) == {**{f"ends-t-{n}": 0 for n in range(4)}, "one-t-0": 35, "own-t-0": 40}


def test_a_pledge_stands_while_what_is_free_is_reserved_for_the_head_of_a_strict_queue() -> None:
    """Two cpus are free and reserved for `head`, which lacks gpus; red may have one group.
    When victims were chosen again, the free cpus counted. Then `wants` lacked only a group's place,
    for which `lends` may not be reclaimed: its pledge ended, and began again without end.
    """
    runs = {"phase": "Running", "startedAt": 0}
    came = outcome(
        node("n1", 6, gpu=2),
        quota("red", podgroups=1),
        check("late", preemptionPolicy="AfterCheckPassedOrOnDemand"),
        taker("a", deserved={"cpu": 4}, admissionChecks=["late"]),
        queue("b", deserved={"cpu": 0}),
        queue("c", deserved={"cpu": 2, "gpu": 2}, strategy={"type": "StrictFIFO"}),
        queue("d", reclaimable=False),
        group("uses", tasks=[task("t", 1, 0, gpu=2)], queue="d", status=runs),
        pod("uses-t-0", "uses", phase="Running", node="n1", startedAt=0),
        group("lends", 1, 4, queue="b", namespace="red", status=runs),
        {
            **pod("lends-t-0", "lends", phase="Running", node="n1", startedAt=0),
            "metadata": {"name": "lends-t-0", "namespace": "red"},
        },
        group("head", tasks=[task("t", 1, 2, gpu=2)], queue="c", created=0),
        group("wants", 1, 2, queue="a", namespace="red", created=1),
        cycles=5,
    )
    assert reserved(came)[0] == (0, ["red/wants"])
    assert "CapacityCut" not in {one.reason for cycle in came.cycles for one in cycle.requeued}


def test_a_group_admitted_without_quota_reserves_only_its_pods_when_it_reclaims_for_one() -> None:
    """Without enqueue, `grows` holds one of the 4 cpus that it states as its least. A pledge of
    another cpu would have charged it for 5, beside what is guaranteed to `lab`, and none was made.
    """
    runs = {"phase": "Running", "startedAt": 0}
    came = outcome(
        node("n1", 6),
        taker("a", deserved={"cpu": 4}),
        queue("b", deserved={"cpu": 0}),
        queue("lab", guarantee={"cpu": 2}),
        group("lends", 3, queue="b", minMember=1, grace="30s", status=runs),
        *(pod(f"lends-t-{n}", "lends", n, node="n1", **runs) for n in range(3)),
        group("grows", 2, 1, queue="a", minMember=1, minResources={"cpu": 4}),
        timeline(applies(5, group("own", 1, 2, queue="lab"))),
        config="actions: [allocate, reclaim]",
    )
    assert evicted(came) == [(0, [("default/lends-t-2", "Reclaimed")])]
    assert starts(came) == {"grows-t-0": 0, "own-t-0": 5, "grows-t-1": 30}


def test_no_pod_is_evicted_for_a_group_that_fits_in_the_pledge_of_a_lower_one() -> None:
    """The pod of `low` has ended for `second`, which waits for its check. That is enough for
    `first`; but queue a held more than it deserves, and reclaim evicted `steady` as well.
    """
    came = outcome(
        priority("high", 10),
        priority("middle", 5),
        node("n1", 6),
        check("slow"),
        taker("a", deserved={"cpu": 2}, admissionChecks=["slow"]),
        queue("b", deserved={"cpu": 0}),
        *_runs("low", queue="a", grace="1s"),
        *_runs("steady", queue="a", priorityClassName="middle"),
        *_runs("lends", queue="b"),
        timeline(
            applies(5, group("second", 1, 2, queue="a", priorityClassName="middle")),
            applies(10, group("first", 1, 2, queue="a", priorityClassName="high")),
        ),
        config="actions: [enqueue, reclaim, preempt, allocate]",
        cycles=12,
    )
    by_ten = [pods for when, pods in evicted(came) if when <= 10]
    assert by_ten == [[("default/low-t-0", "Preempted")]]
    assert (10, ["default/first"]) in reserved(came)


def test_a_pod_gets_what_its_victim_left_although_a_guarantee_was_lent_out_meanwhile() -> None:
    """At 10 `lends` still uses 1 of the 3 cpus that are guaranteed to lab, and so `borrows` fits.
    At 30 those 3 are unused, and 2 are free: grows-t-1 did not start, and `lends` came back.
    """
    runs = {"phase": "Running", "startedAt": 0}
    came = outcome(
        priority("high", 10),
        node("n1", 6),
        taker("a", deserved={"cpu": 2}),
        queue("lab", guarantee={"cpu": 3}, deserved={"cpu": 3}),
        queue("c", deserved={"cpu": 0}),
        group("grows", 2, 1, queue="a", minMember=1, status=runs),
        pod("grows-t-0", "grows", node="n1", **runs),
        group("lends", 1, 1, queue="lab", grace="30s", status=runs),
        pod("lends-t-0", "lends", node="n1", **runs),
        group("ends", 1, 4, queue="lab", runtime="10s", priorityClassName="high", status=runs),
        pod("ends-t-0", "ends", node="n1", **runs),
        timeline(applies(10, group("borrows", 1, 2, queue="c"))),
    )
    assert evicted(came) == [(0, [("default/lends-t-0", "Reclaimed")])]
    assert starts(came) == {"borrows-t-0": 10, "grows-t-1": 30, "lends-t-0": 30}
