"""Pledges that end before their victims, and victims that are chosen again."""

from __future__ import annotations

from tests.sim.test_charges_of_running_groups import task_of
from tests.sim.test_evictions import ALL, running
from tests.sim.test_pledges_pass_on import CLASSES, LATE, claims, pods_of, runs
from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    applies,
    bound,
    evicted,
    group,
    manifest,
    node,
    outcome,
    outcome_until,
    phases,
    pledged,
    pod,
    priority,
    queue,
    quota,
    requeued,
    starts,
    taker,
    timeline,
)

#: Admitted before, without a node.
IN_QUEUE = {"phase": "InQueue", "reservedAt": 0, "admission": 1}
AWAY = "its pledged capacity on n1 is lost or cordoned: waits until 1970-01-01T00:01:10Z"


def cordoned(name: str, cpu: int = 4) -> Manifest:
    return manifest("Node", name, {"resources": {"cpu": cpu}, "unschedulable": True})


def test_a_preemptor_does_not_wait_beside_free_capacity() -> None:
    """Its victims have a minute to stop; a node joins after five seconds."""
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low", grace="60s"),
        timeline(applies(5, claims("hi", 4, "high")), applies(10, node("n2", 4))),
    )
    assert bound(came)[0] == (10, {f"default/hi-t-{index}": "n2" for index in range(4)})


def test_a_preemptor_takes_free_capacity_despite_a_head_reservation() -> None:
    """`wide` waits as the head of its queue; the capacity that is free at 10 is the preemptor's."""
    came = outcome(
        *CLASSES,
        node("n1", 4),
        node("n2", 4),
        queue("lab", strategy={"type": "StrictFIFO"}, deserved={"cpu": 8}),
        *runs("low", grace="60s"),
        *running("other", 4, queue="lab", on="n2"),
        timeline(
            applies(5, claims("hi", 4, "high")),
            applies(7, group("wide", 4, queue="lab")),
            applies(10, node("n3", 4)),
        ),
    )
    assert bound(came)[0] == (10, {f"default/hi-t-{index}": "n3" for index in range(4)})


def test_capacity_released_by_others_victims_is_counted_on_despite_a_head_reservation() -> None:
    """`first` waits for its check and takes all of `wide`, though half would suffice: `second`
    takes no more. The head of `lab` has reserved both nodes.
    """
    came = outcome_until(
        0,
        *CLASSES,
        LATE,
        node("n0", 4),
        node("n1", 6, pods=2),
        queue("default", capability={"cpu": 6}, admissionChecks=["late"]),
        queue("lab", strategy={"type": "StrictFIFO"}),
        *running("wide", 4, on="n0"),
        *running("small", 1, 2, on="n1"),
        group("first", 4, 2, minMember=1, priorityClassName="high"),
        group("second", 1, 2, priorityClassName="high"),
        group("head", 2, 1, queue="lab"),
    )
    assert pledged(came) == [(0, {"default/first": [f"default/wide-t-{k}" for k in range(4)]})]
    assert phases(came)["second"] == "Pending"


def test_victims_not_evicted_yet_are_spared_when_their_preemptor_fits_without_them() -> None:
    came = outcome(
        *CLASSES,
        LATE,
        node("n1", 4),
        queue("q", admissionChecks=["late"]),
        *runs("low", queue="q"),
        timeline(applies(5, claims("hi", 4, "high", queue="q")), applies(10, node("n2", 4))),
        cycles=12,
    )
    assert pledged(came)[0] == (5, {"default/hi": pods_of("low")})
    assert evicted(came) == []
    assert phases(came)["low"] == "Running"


def test_free_capacity_goes_to_a_group_in_line_before_the_preemptor() -> None:
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low", grace="60s"),
        timeline(
            applies(5, claims("hi", 4, "high")),
            applies(10, node("n2", 4)),
            applies(10, claims("urgent", 4, "top")),
        ),
    )
    starts = {name: at for at, names in reversed(admitted(came)) for name in names}
    assert (starts["default/urgent"], starts["default/hi"]) == (10, 30)


def test_free_capacity_goes_to_the_preemptor_before_a_group_behind_it() -> None:
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low", grace="60s"),
        timeline(
            applies(5, claims("hi", 4, "high")),
            applies(10, node("n2", 4)),
            applies(10, claims("later", 4)),
        ),
    )
    starts = {name: at for at, names in reversed(admitted(came)) for name in names}
    assert (starts["default/hi"], starts["default/later"]) == (10, 30)


def test_when_a_node_is_cordoned_other_victims_are_evicted_at_once() -> None:
    """The capacity that the first victims release there is of no use any more."""
    came = outcome(
        *CLASSES,
        node("n1", 4),
        node("n2", 4),
        *runs("low"),
        *runs("other", on="n2", priorityClassName="mid"),
        timeline(applies(5, claims("hi", 4, "high")), applies(10, cordoned("n1"))),
        cycles=20,
    )
    assert pledged(came) == [
        (5, {"default/hi": pods_of("low")}),
        (10, {"default/hi": pods_of("other")}),
    ]
    assert (40, {f"default/hi-t-{index}": "n2" for index in range(4)}) in bound(came)


def test_a_preemptor_whose_node_returns_starts_before_later_groups() -> None:
    """Its victims were evicted for it, and an agent is started again within seconds."""
    came = outcome(
        *CLASSES,
        node("n1", 2),
        node("n2", 2),
        *runs("low", 2, on="n1"),
        *runs("quick", 2, on="n2", grace="5s"),
        timeline(
            applies(5, claims("hi", 4, "high")),
            {"at": "7s", "failNode": "n2"},
            applies(8, claims("late", 1, "high")),
            {"at": "40s", "recoverNode": "n2"},
        ),
    )
    assert pledged(came) == [(5, {"default/hi": [*pods_of("low", 2), *pods_of("quick", 2)]})]
    assert admitted(came)[:2] == [(40, ["default/hi"]), (60, ["default/late", "default/low"])]


def test_a_preemptor_names_the_node_that_it_waits_for() -> None:
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low", grace="5s"),
        timeline(applies(5, claims("hi", 4, "high")), {"at": "8s", "failNode": "n1"}),
        cycles=4,
    )
    result = [(one.reason, one.message) for one in came.podgroups["default/hi"].reasons]
    assert ("WaitingForResources", AWAY) in result


def test_a_preemptor_whose_only_node_is_lost_gives_up_once_its_pledge_expires() -> None:
    """It returns to its place in line without a back-off, and preempts again when a node is
    ready.
    """
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low"),
        timeline(
            applies(5, claims("hi", 4, "high")),
            {"at": "10s", "failNode": "n1"},
            {"at": "100s", "recoverNode": "n1"},
        ),
    )
    assert (95, [("default/hi", "NodeLost")]) in requeued(came)
    assert admitted(came)[0] == (100, ["default/hi"])


def test_a_gang_of_a_stopped_queue_evicts_no_others_when_its_node_is_cordoned() -> None:
    """It was admitted before, and had less important groups on n1 evicted."""
    came = outcome(
        *CLASSES,
        queue("q"),
        node("n1", 4),
        node("n2", 4),
        *runs("low", queue="q"),
        *runs("other", on="n2", priorityClassName="mid", queue="q"),
        group("hi", 4, priorityClassName="high", queue="q", status=IN_QUEUE),
        timeline(applies(5, queue("q", stopPolicy="Hold")), applies(10, cordoned("n1"))),
        cycles=20,
    )
    assert pledged(came) == [(0, {"default/hi": pods_of("low")})]
    assert [at for at, _ in evicted(came)] == [0]


def test_two_preemptors_do_not_wait_for_each_other_over_one_array() -> None:
    """The queue may then hold 2 groups: the array's place is free only when all of it has ended,
    and half of it is pledged to another preemptor already.
    """
    came = outcome(
        *CLASSES,
        node("n1", 4),
        queue("q", maxPodGroups=3),
        *runs("array", minMember=1, queue="q"),
        timeline(
            applies(6, group("one", 1, 2, runtime="20s", priorityClassName="high", queue="q")),
            applies(7, queue("q", maxPodGroups=2)),
            applies(8, group("two", 1, 2, runtime="20s", priorityClassName="high", queue="q")),
        ),
    )
    assert sum(cycle.time == 8 for cycle in came.cycles) < 4
    assert [name for _, names in admitted(came) for name in names][:2] == [
        "default/one",
        "default/two",
    ]
    assert phases(came) == {"array": "Running", "one": "Completed", "two": "Completed"}


def test_a_preemptor_beyond_max_pod_groups_evicts_a_whole_group() -> None:
    """Two cpus are idle; the array is evicted with all of its pods, and not one by one."""
    came = outcome(
        *CLASSES,
        node("n1", 6),
        queue("q", maxPodGroups=1),
        *runs("array", minMember=1, queue="q"),
        group("in", 1, 1, priorityClassName="high", queue="q"),
        cycles=1,
    )
    assert requeued(came) == [(0, [("default/array", "Preempted")])]
    assert sorted(name for _, gone in evicted(came) for name, _ in gone) == pods_of("array")


def test_the_place_of_a_group_is_released_with_its_last_pod_once_its_gang_has_ended() -> None:
    """Two of its three pods have ended: with the third, the only place of the queue is free."""
    came = outcome(
        *CLASSES,
        node("n1", 6),
        queue("q", maxPodGroups=1),
        group(
            "in",
            minMember=2,
            queue="q",
            tasks=[
                task_of("quick", 1, runtime="10s", replicas=2),
                task_of("slow", 1, runtime="100s"),
            ],
        ),
        timeline(applies(20, group("hi", runtime="20s", priorityClassName="high", queue="q"))),
    )
    assert evicted(came) == [(20, [("default/in-slow-0", "Preempted")])]
    assert starts(came) == {"in-quick-0": 0, "in-quick-1": 0, "in-slow-0": 70, "hi-t-0": 50}
    assert phases(came) == {"in": "Completed", "hi": "Completed"}


def test_a_preemptor_that_its_namespaces_quota_no_longer_fits_loses_its_reservation() -> None:
    """The quota is cut while the victims stop, which hold more than that until they have ended."""
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low", grace="20s"),
        timeline(applies(5, claims("hi", 4, "high")), applies(10, quota("default", cpu=1))),
        cycles=12,
    )
    assert requeued(came)[1:] == [(25, [("default/hi", "CapacityCut")])]


def test_a_preemptor_that_can_take_other_victims_stays_reserved_when_a_node_is_lost() -> None:
    """Beside its victims it adds no charge, so its removal would not make the rest fit."""
    came = outcome(
        *CLASSES,
        LATE,
        queue("q", admissionChecks=["late"]),
        node("n1", 2),
        node("n2", 3),
        *runs("low", 2, queue="q"),
        *runs("other", 3, queue="q", on="n2"),
        claims("hi", 2, "high", queue="q"),
        timeline({"at": "10s", "failNode": "n2"}, answers(50, "hi", "late", "True")),
        cycles=12,
    )
    assert pledged(came)[:2] == [
        (0, {"default/hi": pods_of("low", 2)}),
        (10, {"default/hi": [*reversed(pods_of("low", 2)), "default/other"]}),
    ]
    assert requeued(came)[0] == (50, [("default/low", "Preempted"), ("default/other", "Preempted")])


def test_a_pod_started_at_an_instant_is_evicted_at_the_next_one_at_the_earliest() -> None:
    """Arrays of four queues reclaim from one that holds nearly all, pod by pod."""
    weights = {"a": 2, "b": 2, "c": 3, "d": 1}
    queues = [
        queue(name, weight=weight, preemption={"reclaim": "Any"})
        for name, weight in weights.items()
    ]
    nodes = [*["n3"] * 6, *["n2"] * 2, *["n1"] * 4]
    starts = [2, 0, 3, 0, 1, 0, 3, 1, 3, 0, 1, 0]
    holds = [
        pod(f"b-0-t-{index}", "b-0", index, phase="Running", node=on, startedAt=at)
        for index, (on, at) in enumerate(zip(nodes, starts, strict=True))
    ]
    runs_since = {"phase": "Running", "startedAt": 0}
    came = outcome(
        node("n1", 5),
        node("n2", 2),
        node("n3", 6),
        *queues,
        group("b-0", 13, minMember=1, queue="b", grace="0s", status=runs_since),
        *holds,
        group("b-1", 13, minMember=1, queue="b", grace="0s"),
        group("c-0", 13, minMember=1, queue="c", grace="5s"),
        group("c-1", 13, minMember=1, queue="c", grace="1s", status=runs_since),
        pod("c-1-t-0", "c-1", phase="Running", node="n1", startedAt=1),
        group("c-2", 13, minMember=1, queue="c", grace="5s"),
        group("a-0", 13, minMember=1, queue="a", grace="5s"),
        group("d-0", 13, minMember=1, queue="d", grace="5s"),
        group("d-1", 13, minMember=1, queue="d", grace="0s"),
        group("d-2", 13, minMember=1, queue="d", grace="0s"),
        cycles=60,
    )
    started = {(at, name) for at, pods in bound(came) for name in pods}
    assert not [
        (at, name) for at, gone in evicted(came) for name, _ in gone if (at, name) in started
    ]


def test_a_preemptor_that_fits_beside_no_guarantee_any_more_gives_its_pledge_up() -> None:
    """n1 becomes smaller while its victims end, and 7 of 10 cpus are not guaranteed to other
    queues. It kept the released capacity until its pledge expired.
    """
    came = outcome(
        priority("high", 10),
        node("n1", 8),
        node("n2", 7),
        queue("a"),
        queue("b", guarantee={"cpu": 3}),
        group("low", 12, 1, queue="a", grace="30s", runtime="600s", created=0),
        timeline(
            applies(10, group("hi", 3, 3, queue="a", priorityClassName="high", runtime="10s")),
            applies(20, node("n1", 3)),
        ),
    )
    assert requeued(came)[1:] == [(40, [("default/hi", "CapacityCut")])]
    assert [when for when, who in admitted(came) if who == ["default/low"]] == [0]


def test_pods_beyond_minmember_get_all_that_was_evicted_for_them_before_a_waiting_gang() -> None:
    """`hi` is charged for both pods that it was promised, and its quota has 2 cpu left. The gang
    fits on n1 and n3 only if one of the two is not started.
    """
    came = outcome(
        *CLASSES,
        node("n1", 9, pods=2),
        node("n2", 2),
        quota("red", cpu=8),
        taker("lab", deserved={"cpu": 6}),
        queue("lender", deserved={"cpu": 0}),
        *running("low", 2, 2, grace="10s", queue="lender"),
        timeline(
            applies(
                5,
                group(
                    "hi", 3, 2, minMember=1, namespace="red", queue="lab", priorityClassName="high",
                    runtime="60s",
                ),
            ),
            applies(6, group("gang", 2, 1, queue="lab", runtime="60s")),
            applies(7, node("n3", 1)),
        ),
        config=ALL,
    )  # fmt: skip
    assert bound(came) == [
        (5, {"red/hi-t-0": "n2"}),
        (15, {"red/hi-t-1": "n1", "red/hi-t-2": "n1"}),
        (65, {"default/gang-t-0": "n2", "default/gang-t-1": "n2"}),
        (75, {"default/low-t-0": "n1", "default/low-t-1": "n1"}),
    ]
