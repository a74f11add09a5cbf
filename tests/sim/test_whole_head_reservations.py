"""A head reservation covers all that the head asks for, or nothing."""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    applies,
    evicted,
    group,
    node,
    opens,
    outcome,
    phases,
    pod,
    priority,
    queue,
    starts,
    taker,
    task,
    timeline,
)


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_a_head_above_its_share_starts_once_and_leaves_nothing_idle_meanwhile(
    strategy: str,
) -> None:
    """`wide` asks for six of eight cpus, and its queue deserves four: its turn comes when the first
    of the others end, and no part of its request is kept idle for longer than that.
    """
    came = outcome(
        node("n1", 8),
        queue("a", strategy={"type": strategy}),
        queue("b"),
        *(group(f"b-{k:03}", runtime="10s", walltime="10s", queue="b", created=0)
          for k in range(60)),
        timeline(applies(5, group("wide", 1, 6, runtime="20s", walltime="20s", queue="a"))),
    )  # fmt: skip
    begun = starts(came)
    assert set(phases(came).values()) == {"Completed"}
    assert begun["wide-t-0"] == 10
    # 60 jobs of 10 s and one of 6 cpus for 20 s fill 8 cpus for 90 s: the last begin at 80.
    assert max(begun.values()) == 80


def test_a_head_starts_beside_an_array_whose_only_pod_is_being_stopped() -> None:
    """At 10 two cpus are free, and the pod of the array holds the third until its grace period
    ends. The head reservation keeps the next pod from starting beside it.
    """
    came = outcome(
        node("n1", 3),
        queue("arrays"),
        queue("heads", strategy={"type": "StrictFIFO"}),
        *occupies("array", 2, 1, queue="arrays", minMember=1, walltime="10s", grace="30s"),
        *occupies("busy", 1, 2, queue="arrays", runtime="10s"),
        group("head", 1, 2, runtime="20s", queue="heads"),
    )
    assert starts(came) == {"head-t-0": 10, "array-t-1": 30}


def test_a_queue_gets_its_guarantee_beside_a_head_that_asks_for_more_than_that_leaves() -> None:
    """While n1 is away, four cpus are left, all guaranteed to `sure`: what `wide` lacks is not
    merely in use, so it has no reservation.
    """
    status = {"phase": "Running", "startedAt": 0}
    came = outcome(
        node("n1", 8),
        node("n2", 4),
        queue("sure", guarantee={"cpu": 4}),
        queue("heads", strategy={"type": "StrictFIFO"}, deserved={"cpu": 4}),
        group("busy", 1, 1, runtime="100s", queue="sure", created=0, status=status),
        pod("busy-t-0", "busy", phase="Running", node="n2", startedAt=0),
        timeline(
            {"at": "1s", "failNode": "n1"},
            applies(5, group("wide", 2, 2, runtime="10s", queue="heads")),
            applies(6, group("own", 1, 1, runtime="10s", queue="sure")),
            {"at": "60s", "recoverNode": "n1"},
        ),
    )
    assert starts(came) == {"own-t-0": 6, "wide-t-0": 60, "wide-t-1": 60}


def occupies(name: str, pods: int, cpu: int, on: str = "n1", **spec: object) -> list[Manifest]:
    """Return a group whose first pod runs since the start."""
    status = {"phase": "Running", "startedAt": 0}
    held = group(name, pods, cpu, status=status, created=0, **spec)
    return [held, pod(f"{name}-t-0", name, phase="Running", node=on, startedAt=0)]


def test_pods_before_the_head_of_their_queue_start_despite_reservations_behind_them() -> None:
    """From 5 on a pod of `more` fits n1, and comes before `small`, which has a reservation; because
    of that `wide` waits, too, which would take all that is free. Each kept the others from
    starting: none started before 20.
    """
    easy = {"type": "Backfill"}
    came = outcome(
        priority("high", 10),
        node("n1", 8, pods=5),
        node("n2", 4),
        queue("a", weight=2, strategy=easy),
        queue("b", strategy=easy),
        group(
            "more",
            queue="a",
            tasks=[
                {**task("one", 4, 1, "20s"), "minAvailable": 1},
                {**task("two", 2, 2, "5s"), "minAvailable": 1},
            ],
            minMember=3,
            priorityClassName="high",
        ),
        group("long", 2, 4, queue="b", runtime="20s", minMember=1, priorityClassName="high"),
        group("small", 1, 2, queue="a", runtime="20s", schedulingGates=[{"name": "own"}]),
        timeline(opens(1, "small", "own"), applies(4, group("wide", 4, queue="b", runtime="5s"))),
    )
    assert starts(came)["more-two-1"] == 5


def test_no_pod_is_evicted_for_one_that_fits_into_a_head_reservation() -> None:
    """One cpu is free, and `head`, in a queue that reclaims nothing, waits for two. Three pods were
    evicted for one more of `grows`, so that the reservation of `head` was left beside it.
    """
    came = outcome(
        node("n1", 6),
        taker("a", deserved={"cpu": 3}),
        queue("b", deserved={"cpu": 1}),
        queue("c", deserved={"cpu": 2}, strategy={"type": "StrictFIFO"}),
        *occupies("grows", 2, 1, queue="a", minMember=1),
        *occupies("here", 2, 1, queue="b", minMember=1, runtime="30s"),
        pod("here-t-1", "here", 1, phase="Running", node="n1", startedAt=0),
        *occupies("there", 2, 1, queue="b", minMember=1, runtime="20s"),
        pod("there-t-1", "there", 1, phase="Running", node="n1", startedAt=0),
        group("head", 1, 2, queue="c", created=0),
        config="actions: [enqueue, reclaim, allocate]",
    )
    assert evicted(came) == []
    assert starts(came) == {"head-t-0": 20, "grows-t-1": 20}


def test_a_pod_with_victims_leaves_a_head_reservation_free() -> None:
    """A pod of `lends` ends for one of `grows` by 60. `head` waits for the cpu that is free from 10
    on and the one that is free from 20 on: the first of these went to `grows`.
    """
    came = outcome(
        node("n1", 6),
        taker("a", deserved={"cpu": 2}),
        queue("b", deserved={"cpu": 2}),
        queue("c", deserved={"cpu": 2}, strategy={"type": "StrictFIFO"}),
        *occupies("grows", 2, 1, queue="a", minMember=1),
        *occupies("lends", 3, 1, queue="b", minMember=1, grace="60s"),
        *(pod(f"lends-t-{k}", "lends", k, phase="Running", node="n1", startedAt=0)
          for k in (1, 2)),
        group("one", queue="c", created=0, runtime="10s"),
        group("other", queue="c", created=0, runtime="20s"),
        timeline(applies(5, group("head", 1, 2, queue="c", runtime="50s"))),
        cycles=12,
    )  # fmt: skip
    assert evicted(came) == [(0, [("default/lends-t-2", "Reclaimed")])]
    begun = starts(came)
    assert (begun["head-t-0"], begun["grows-t-1"]) == (20, 60)


def test_pods_that_keep_back_a_group_of_their_queue_start_despite_a_later_reservation() -> None:
    """`small` is tried as if the next pods of `grows` were bound, and these fit beside no head.
    Then five cpus were reserved for `head`, of the four that are free: neither of them started.
    """
    came = outcome(
        priority("high", 10),
        node("n1", 10),
        taker("a", deserved={"cpu": 10}),
        queue("b", deserved={"cpu": 9}, strategy={"type": "StrictFIFO"}),
        *occupies("grows", 3, 2, queue="a", minMember=1, priorityClassName="high"),
        *occupies("busy", 1, 4, queue="b"),
        group("small", queue="a", created=0),
        group("head", 1, 5, queue="b", created=0),
    )
    assert starts(came) == {"grows-t-1": 0, "grows-t-2": 0}


def test_a_small_pod_within_deserved_starts_on_capacity_reserved_against_larger_ones() -> None:
    """The cpu that `busy` releases is reserved against borrowers. One more pod of `small` takes its
    queue to the four cpus that it deserves, and one of `large` would take it beyond.
    """
    came = outcome(
        node("n1", 4),
        node("n2", 1),
        priority("high", 10),
        queue("heads", deserved={"cpu": 2}),
        queue("arrays", deserved={"cpu": 4}),
        queue("others"),
        *occupies("small", 2, 1, minMember=1, queue="arrays", priorityClassName="high"),
        *occupies("large", 2, 2, minMember=1, queue="arrays", priorityClassName="high"),
        *occupies("busy", 1, 1, queue="others", runtime="10s"),
        *occupies("full", 1, 1, on="n2", queue="others"),
        group("behind", queue="arrays", created=0),
        group("head", 1, 2, queue="heads", created=0),
    )
    assert starts(came) == {"small-t-1": 10}
