"""Preempt and reclaim on real processes: who has to go is told, has its grace, and comes back."""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time
from itertools import chain

import pytest
from msgspec.structs import replace

from tests.e2e.evicting import FOR_EVER, Cluster, two_queues
from tests.e2e.machine import Machine, group, kill, phase, until
from tests.swarm.diary import Run, twice_at_once
from tests.swarm.load import Design

LOW = Design(
    name="low", kind="gang", replicas=4, min_member=4, tenths=30, manner="saves", grace="10s"
)
HIGH = Design(name="high", kind="gang", replicas=4, min_member=4, tenths=10, priority="high")
#: As important as the claimant, later, and content with any room for a pod.
LATE = replace(HIGH, name="late", kind="array", min_member=1, tenths=5)

EVEN = two_queues(*["{deserved: {cpu: 2}, preemption: {reclaim: Any}}"] * 2)
ARRAY = Design(name="array", kind="array", queue="b", tenths=20, manner="saves", grace="10s")


def flat(runs: list[list[Run]]) -> list[Run]:
    return list(chain.from_iterable(runs))


def last_of(runs: list[Run]) -> float:
    return max(run.last_at for run in runs)


def first_of(runs: list[Run]) -> float:
    return min(run.began_at for run in runs)


def at_once(runs: list[Run]) -> int:
    """The most that ran at any instant."""
    return max(sum(run.began_at <= at.began_at <= run.last_at for run in runs) for at in runs)


# --- Within a queue -------------------------------------------------------------------------------


def test_a_more_important_gang_takes_the_room_and_the_victims_save_and_come_back(
    machine: Machine,
) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        cluster.submit(LOW)
        cluster.begins("low", 4)
        cluster.submit(replace(HIGH, tenths=FOR_EVER))
        until(lambda: cluster.is_promised("high"), what="room is promised to the gang")
        assert phase(cluster.client, "high") == "Pending"
        cluster.begins("high", 4)

        saved = [runs[0] for runs in cluster.runs_of("low")]
        assert [(run.told, run.end) for run in saved] == [("Preempted", "saved")] * 4
        assert last_of(saved) < first_of(flat(cluster.runs_of("high")))

        told = "made room for default/high of queue default, priority 10"
        assert f"Preempted: {told}" in machine.batchq("describe", "low").stdout
        listed = json.loads(machine.batchq("jobs", "-o", "json").stdout)["items"]
        low = next(row for row in listed if row["name"] == "low")
        assert (low["phase"], low["finishReason"]) == ("Pending", "Preempted")
        assert (low["evicted"]["reason"], low["evicted"]["message"]) == ("Preempted", told)
        assert (low["evictions"]["groups"], low["evictions"]["pods"]) == (1, 4)

        events = cluster.client.events(kind="PodGroup", key="default/high")
        pledged = [event.message for event in events if event.reason == "Pledged"]
        assert pledged == ["pledged the resources of 4 victims (preempt)"]

        cluster.client.cancel("high")
        cluster.completed("low")
        second = [runs[1] for runs in cluster.runs_of("low")]
        assert [(run.after, run.end) for run in second] == [("Preempted", "done")] * 4
        assert [len(runs) for runs in cluster.runs_of("low")] == [2] * 4
        assert twice_at_once(cluster.runs()) == []
        assert group(cluster.client, "low").status.admission == 2


def test_a_victim_that_ignores_sigterm_is_killed_after_its_grace_and_its_claimant_starts_then(
    machine: Machine,
) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.submit(
            replace(LOW, replicas=2, min_member=2, tenths=120, manner="stubborn", grace="10s")
        )
        cluster.begins("low", 2)
        asked_at = time.monotonic()
        cluster.submit(replace(HIGH, replicas=2, min_member=2))
        until(lambda: cluster.is_promised("high"), what="room is promised to the gang")
        assert (
            "WaitingForPreemption: waits until default/low-main-0, default/low-main-1 have stopped"
            " for it"
        ) in machine.batchq("jobs").stdout
        assert (
            "waits for 2 pods of default/low to stop" in machine.batchq("describe", "high").stdout
        )
        cluster.completed("high", "low")
        killed = [runs[0] for runs in cluster.runs_of("low")]
        assert [run.end for run in killed] == ["", ""]
        assert last_of(killed) - asked_at >= 9.5, "the grace was theirs"
        assert last_of(killed) < first_of(flat(cluster.runs_of("high")))
        assert twice_at_once(cluster.runs()) == []


# --- Between queues -------------------------------------------------------------------------------


def test_a_lender_takes_back_what_it_lent_and_the_borrower_goes_on_with_the_rest(
    machine: Machine,
) -> None:
    with Cluster(machine, EVEN) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        cluster.submit(replace(ARRAY, replicas=8, tenths=50))
        cluster.begins("array", 4)
        cluster.submit(replace(HIGH, queue="a", priority="", replicas=2, min_member=2, tenths=30))
        cluster.completed("high", "array")

        sent_back = [runs[0] for runs in cluster.runs_of("array") if runs[0].told]
        assert [(run.told, run.end) for run in sent_back] == [("Reclaimed", "saved")] * 2
        assert last_of(sent_back) < first_of(flat(cluster.runs_of("high")))
        ends = sorted([run.end for run in runs] for runs in cluster.runs_of("array"))
        assert ends == [["done"]] * 6 + [["saved", "done"]] * 2
        assert twice_at_once(cluster.runs()) == []
        # The array itself never left, and what it lost is no failure of its pods.
        assert group(cluster.client, "array").status.admission == 1
        spent = cluster.spent("array")
        assert (spent.groups, spent.pods) == (0, 2)
        assert cluster.spent("high").pods == 0


def evicted_pods(cluster: Cluster) -> int:
    return cluster.spent("array").pods + cluster.spent("other").pods


def leave_each_other_alone(cluster: Cluster, *, for_s: float) -> None:
    """One array has everything; the other comes, and has its half. Then nobody is evicted, while
    pods end and are replaced.
    """
    cluster.submit(replace(ARRAY, replicas=2_000))
    cluster.begins("array", 4)
    cluster.submit(replace(ARRAY, name="other", queue="a", replicas=2_000))
    cluster.begins("other", 2)
    assert evicted_pods(cluster) == 2, "so queues end even, and at once"
    began = len(cluster.runs())

    never = threading.Event()
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert evicted_pods(cluster) == 2
        never.wait(0.5)

    held = [len(cluster.held(name)) for name in ("array", "other")]
    assert max(held) <= 2, "each has its half"
    new = len(cluster.runs()) - began
    assert new >= for_s / 2, "pods end all the time, and others take their place"
    told = [run.told for run in flat(list(cluster.runs().values())) if run.told]
    assert told == ["Reclaimed"] * len(told)
    assert len(told) <= 2
    assert twice_at_once(cluster.runs()) == []
    print(f"{for_s:.0f} s: {new} pods began, 2 evictions, all of them at first")  # noqa: T201


@pytest.mark.parametrize(
    "for_s", [30.0, pytest.param(300.0, marks=pytest.mark.slow)], ids=["30s", "5min"]
)
def test_two_equal_queues_that_want_everything_evict_nobody_once_they_are_even(
    machine: Machine, for_s: float
) -> None:
    # The watch that ends a test that hangs is set back: this one takes its time.
    faulthandler.dump_traceback_later(for_s + 300, exit=True, file=sys.__stderr__)
    with Cluster(machine, two_queues(*["{preemption: {reclaim: Any}}"] * 2)) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        leave_each_other_alone(cluster, for_s=for_s)


# --- While a pledge stands ------------------------------------------------------------------------


def stopping(cluster: Cluster) -> None:
    """low and quick run and are told to stop for high, which waits. quick's room is free soon, and
    late comes, and would like to have it.
    """
    two = replace(LOW, replicas=2, min_member=2, tenths=FOR_EVER)
    cluster.submit(replace(two, manner="stubborn", grace="8s"))
    cluster.submit(replace(two, name="quick"))
    cluster.begins("low", 2)
    cluster.begins("quick", 2)
    cluster.submit(HIGH)
    until(lambda: cluster.is_promised("high"), what="room is promised to the gang")
    cluster.submit(LATE)


def kept_to(cluster: Cluster) -> None:
    """What was promised is: both end, high starts, and late only when that has had its turn."""
    cluster.completed("high", "late")
    high, late = flat(cluster.runs_of("high")), flat(cluster.runs_of("late"))
    former = [runs[0] for name in ("low", "quick") for runs in cluster.runs_of(name)]
    assert len(former) == 4
    assert last_of(former) < first_of(high)
    began = max(run.began_at for run in high)
    assert began < first_of(late), "nobody else has the room before all of the gang does"
    assert at_once(flat(list(cluster.runs().values()))) == 4
    assert [run.end for run in high] == ["done"] * 4
    assert twice_at_once(cluster.runs()) == []
    # Those who made way come back, in their turn.
    for name in ("low", "quick"):
        cluster.resumes(name)
        assert cluster.spent(name).groups == 1
    assert not cluster.is_promised("high")


def test_a_follower_keeps_what_the_leader_has_promised(machine: Machine) -> None:
    with Cluster(machine, schedulers=2) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        cluster.kill_leader()
        kept_to(cluster)


def test_a_scheduler_that_is_started_again_keeps_what_was_promised(machine: Machine) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        cluster.kill_leader()
        cluster.start_scheduler()
        kept_to(cluster)


def test_a_server_that_is_started_again_keeps_what_was_promised(machine: Machine) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        cluster.kill_server()
        kept_to(cluster)


def test_victims_whose_agent_dies_while_they_stop_have_ended(machine: Machine) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        kill(cluster.agents["n2"].pid)
        cluster.agent("n2")
        kept_to(cluster)
