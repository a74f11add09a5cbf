"""Protection by earlier reclaims: each run that reclaim takes from a group, or from a pod, is at
least twice as long as the last.

Queue `b` borrows from `a`, whose jobs come later and reclaim what it deserves.
"""

from __future__ import annotations

import math
import random

import pytest

from batchq.lab.simulation.report import WorldOutcome
from tests.effort import usually
from tests.sim.worlds import (
    Manifest,
    applies,
    bound,
    evicted,
    finished,
    group,
    node,
    outcome,
    outcome_until,
    priority,
    queue,
    taker,
    timeline,
)

A, B = taker("a", deserved={"cpu": 2}), queue("b", deserved={"cpu": 0})


def taken_at(came: WorldOutcome, name: str) -> list[int]:
    """Return when pods of a group were told to stop."""
    mine = f"default/{name}-"
    return [at for at, pods in evicted(came) for pod, _ in pods if pod.startswith(mine)]


def borrower(runtime: str = "1h", **spec: object) -> Manifest:
    """Return a gang of two pods that borrows both cpus."""
    return group("borrows", 2, queue="b", runtime=runtime, grace="0s", **spec)


def comes(at: int, name: str, pods: int = 2, runtime: str = "5s") -> Manifest:
    """Return a job of the queue that lent them."""
    return applies(at, group(name, pods, queue="a", runtime=runtime))


def test_a_gang_is_reclaimed_again_only_when_it_has_run_for_twice_as_long() -> None:
    """It starts again at 15, 40 and 85, when the others have run for 5 s."""
    came = outcome(
        *(node("n1", 2), A, B, borrower()),
        timeline(comes(10, "first"), comes(16, "second"), comes(45, "third")),
    )
    # Runs of 10 s, 20 s and 40 s; the end of the protection itself starts a session.
    assert taken_at(came, "borrows") == [10, 10, 35, 35, 80, 80]
    assert finished(came)[-1] == (85 + 3600, ["default/borrows"])


def test_a_preemptor_that_waits_for_a_protection_to_end_takes_capacity_freed_before() -> None:
    came = outcome(
        *(node("n1", 2), A, B, borrower(runtime="25s")),
        timeline(comes(20, "first"), comes(26, "second")),
    )
    assert taken_at(came, "borrows") == [20, 20]
    assert (50, {"default/second-t-0": "n1", "default/second-t-1": "n1"}) in bound(came)


def test_each_pod_of_an_array_is_protected_separately() -> None:
    """Pod 1 was reclaimed after 10 s, starts again at 15 and is safe until 35; pod 0 is not."""
    array = group("array", 2, minMember=1, queue="b", runtime="1h", grace="0s")
    came = outcome_until(
        100,
        *(node("n1", 2), taker("a", deserved={"cpu": 1}), B, array),
        timeline(comes(10, "first", 1), comes(16, "second", 1)),
    )
    assert len(evicted(came)) == 2
    assert {pods[0][0] for _, pods in evicted(came)} == {"default/array-t-0", "default/array-t-1"}
    assert [at for at, _ in evicted(came)] == [10, 16]


def test_an_array_gives_no_pod_while_all_are_protected() -> None:
    array = group("array", 2, minMember=1, queue="b", runtime="1h", grace="0s")
    came = outcome_until(
        100,
        *(node("n1", 2), A, B, array),
        timeline(comes(10, "first", 2), comes(16, "second", 1)),
    )
    assert [(at, len(pods)) for at, pods in evicted(came)] == [(10, 2), (35, 1)]


def test_preempt_ignores_the_protection_from_reclaim() -> None:
    urgent = group("urgent", 2, queue="b", priorityClassName="high", runtime="5s")
    came = outcome_until(
        30,
        *(node("n1", 2), priority("high", 10), A, B, borrower()),
        timeline(comes(10, "first"), applies(16, urgent)),
    )
    assert evicted(came)[-1] == (
        16,
        [("default/borrows-t-0", "Preempted"), ("default/borrows-t-1", "Preempted")],
    )


def test_preemption_does_not_protect_from_reclaim() -> None:
    urgent = group("urgent", 2, queue="b", priorityClassName="high", runtime="5s")
    came = outcome(
        *(node("n1", 2), priority("high", 10), A, B, borrower()),
        timeline(applies(10, urgent), comes(20, "first")),
    )
    assert taken_at(came, "borrows") == [10, 10, 20, 20]


def test_stops_and_drains_ignore_the_protection() -> None:
    drained = queue("b", deserved={"cpu": 0}, stopPolicy="HoldAndDrain")
    came = outcome_until(
        30, *(node("n1", 2), A, B, borrower()), timeline(comes(10, "first"), applies(16, drained))
    )
    why = [(at, pods[0][1]) for at, pods in evicted(came)]
    assert why == [(10, "Reclaimed"), (16, "QueueStopped")]


def test_the_protection_survives_a_suspension() -> None:
    """Reclaimed after 10 s, suspended and resumed: it starts again at 20 and is safe until 40."""
    came = outcome(
        *(node("n1", 2), A, B, borrower()),
        timeline(
            comes(10, "first"),
            {"at": "17s", "suspend": "default/borrows"},
            {"at": "20s", "resume": "default/borrows"},
            comes(21, "second"),
        ),
    )
    assert [at for at in taken_at(came, "borrows") if at != 17] == [10, 10, 40, 40]


def test_an_admission_that_has_not_started_is_undone_without_loss() -> None:
    """Both come when `borrows` may start again: this session undoes its own admission."""
    came = outcome(
        *(node("n1", 2), A, B, borrower()), timeline(comes(10, "first"), comes(15, "second"))
    )
    assert taken_at(came, "borrows") == [10, 10]
    assert [pods for at, pods in bound(came) if at == 15] == [
        {"default/second-t-0": "n1", "default/second-t-1": "n1"}
    ]


@pytest.mark.parametrize("seed", range(usually(4, 12)))
def test_no_job_is_reclaimed_more_often_than_its_length_has_binary_digits(seed: int) -> None:
    dice = random.Random(seed)
    length = dice.randint(20, 200)
    array = dice.random() < 0.5
    job = group(
        "borrows",
        4,
        queue="b",
        runtime=f"{length}s",
        grace=f"{dice.randint(0, 5)}s",
        minMember=1 if array else 4,
    )
    # A job of `a` every few seconds, for as long as the other can run at most.
    short = [
        comes(at, f"a{at}", dice.randint(1, 2), runtime=f"{dice.randint(1, 20)}s")
        for at in range(dice.randint(1, 5), 3 * length, dice.randint(5, 30))
    ]
    came = outcome(node("n1", 4), A, B, job, timeline(*short), cycles=5_000)
    assert came.podgroups["default/borrows"].phase == "Completed"
    pods = [pod for _, some in evicted(came) for pod, reason in some if reason == "Reclaimed"]
    most = max((pods.count(pod) for pod in pods), default=0)
    assert most < math.log2(length) + 1


def test_a_stream_of_jobs_reclaims_from_another_ever_more_rarely() -> None:
    """Twenty jobs of 5 s, one every 50 s, reclaim runs of 10, 45, 90, 180, 360 and 720 s."""
    came = outcome(
        *(node("n1", 2), A, B, borrower(runtime="1000s")),
        timeline(*(comes(at, f"a{at}") for at in range(10, 1_000, 50))),
        cycles=5_000,
    )
    assert sorted(set(taken_at(came, "borrows"))) == [10, 60, 155, 345, 725, 1485]
