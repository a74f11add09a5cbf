"""Tests of preempt and reclaim on real processes: victims are told, have their grace, and
return.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time
from itertools import chain

import pytest
from msgspec.structs import replace

from tests.e2e.evicting import FOREVER, Cluster, two_queues
from tests.e2e.machine import Machine, group, kill, until
from tests.swarm.diary import Run, twice_at_once
from tests.swarm.load import Design

LOW = Design(
    name="low", kind="gang", replicas=4, min_member=4, tenths=30, manner="saves", grace="10s"
)
HIGH = Design(name="high", kind="gang", replicas=4, min_member=4, tenths=10, priority="high")
#: As important as the preemptor, submitted later, and small enough for any free resources.
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
    """Return the highest number that ran at any instant."""
    return max(sum(run.began_at <= at.began_at <= run.last_at for run in runs) for at in runs)


def test_a_gang_of_higher_priority_preempts_victims_that_save_and_return(
    machine: Machine,
) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        cluster.submit(LOW)
        cluster.await_start("low", 4)
        cluster.submit(replace(HIGH, tenths=FOREVER))
        until(lambda: cluster.is_pending_with_pledge("high"), what="the gang has a pledge")
        cluster.await_start("high", 4)

        saved = [runs[0] for runs in cluster.runs_of("low")]
        assert [(run.stop_reason, run.end) for run in saved] == [("Preempted", "saved")] * 4
        assert last_of(saved) < first_of(flat(cluster.runs_of("high")))

        cause = "made room for default/high of queue default, priority 10"
        assert f"Preempted: {cause}" in machine.batchq("describe", "low").stdout
        listed = json.loads(machine.batchq("jobs", "-o", "json").stdout)["items"]
        low = next(row for row in listed if row["name"] == "low")
        assert (low["phase"], low["finishReason"]) == ("Pending", "Preempted")
        assert (low["evicted"]["reason"], low["evicted"]["message"]) == ("Preempted", cause)
        assert (low["evictions"]["groups"], low["evictions"]["pods"]) == (1, 4)

        events = cluster.client.events(kind="PodGroup", key="default/high")
        pledged = [event.message for event in events if event.reason == "Pledged"]
        assert pledged == ["pledged the resources of 4 victims (preempt)"]

        cluster.client.cancel("high")
        cluster.await_completion("low")
        second = [runs[1] for runs in cluster.runs_of("low")]
        assert [(run.after, run.end) for run in second] == [("Preempted", "done")] * 4
        assert [len(runs) for runs in cluster.runs_of("low")] == [2] * 4
        assert twice_at_once(cluster.runs()) == []
        assert group(cluster.client, "low").status.admission == 2


def test_a_victim_that_ignores_sigterm_is_killed_after_its_grace_and_its_preemptor_starts_then(
    machine: Machine,
) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.submit(
            # Two commands have to answer within the grace, however busy the machine is.
            replace(LOW, replicas=2, min_member=2, tenths=180, manner="stubborn", grace="9s")
        )
        cluster.await_start("low", 2)
        asked_at = time.monotonic()
        cluster.submit(replace(HIGH, replicas=2, min_member=2))
        until(lambda: cluster.has_pledge("high"), what="the gang has a pledge")
        assert (
            "WaitingForPreemption: waits until default/low-main-0, default/low-main-1 have stopped"
            " for it"
        ) in machine.batchq("jobs").stdout
        assert (
            "waits for 2 pods of default/low to stop" in machine.batchq("describe", "high").stdout
        )
        cluster.await_completion("high", "low")
        killed = [runs[0] for runs in cluster.runs_of("low")]
        assert [run.end for run in killed] == ["", ""]
        assert last_of(killed) - asked_at >= 8.5, "the grace was theirs"
        assert last_of(killed) < first_of(flat(cluster.runs_of("high")))
        assert twice_at_once(cluster.runs()) == []


def test_a_lender_reclaims_its_share_and_the_borrower_continues_with_the_rest(
    machine: Machine,
) -> None:
    with Cluster(machine, EVEN) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        cluster.submit(replace(ARRAY, replicas=8, tenths=50))
        cluster.await_start("array", 4)
        cluster.submit(replace(HIGH, queue="a", priority="", replicas=2, min_member=2, tenths=30))
        cluster.await_completion("high", "array")

        sent_back = [runs[0] for runs in cluster.runs_of("array") if runs[0].stop_reason]
        assert [(run.stop_reason, run.end) for run in sent_back] == [("Reclaimed", "saved")] * 2
        assert last_of(sent_back) < first_of(flat(cluster.runs_of("high")))
        ends = sorted([run.end for run in runs] for runs in cluster.runs_of("array"))
        assert ends == [["done"]] * 6 + [["saved", "done"]] * 2
        assert twice_at_once(cluster.runs()) == []
        # The array itself was never evicted, and the evictions of its pods are not failures.
        assert group(cluster.client, "array").status.admission == 1
        spent = cluster.spent("array")
        assert (spent.groups, spent.pods) == (0, 2)
        assert cluster.spent("high").pods == 0


def evicted_pods(cluster: Cluster) -> int:
    return cluster.spent("array").pods + cluster.spent("other").pods


def run_two_even_arrays(cluster: Cluster, *, for_s: float) -> None:
    """Start an array that uses everything, and another that takes its half of it.

    Then no pod is evicted while pods end and are replaced.
    """
    cluster.submit(replace(ARRAY, replicas=2_000))
    cluster.await_start("array", 4)
    cluster.submit(replace(ARRAY, name="other", queue="a", replicas=2_000))
    cluster.await_start("other", 2)
    assert evicted_pods(cluster) == 2, "so queues end even, and at once"
    began = len(cluster.runs())

    never = threading.Event()
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert evicted_pods(cluster) == 2
        never.wait(0.5)

    held = [len(cluster.pods_on_nodes(name)) for name in ("array", "other")]
    assert max(held) <= 2, "each has its half"
    new = len(cluster.runs()) - began
    assert new >= for_s / 2, "pods end all the time, and others take their place"
    stopped = [run.stop_reason for run in flat(list(cluster.runs().values())) if run.stop_reason]
    assert stopped == ["Reclaimed"] * len(stopped)
    assert len(stopped) <= 2
    assert twice_at_once(cluster.runs()) == []
    print(f"{for_s:.0f} s: {new} pods began, 2 evictions, all of them at first")  # noqa: T201


@pytest.mark.parametrize("for_s", [10.0, 300.0], ids=["10s", "5min"])
# tests/sim/test_no_oscillation.py has the same queues for longer, in virtual time.
@pytest.mark.slow
def test_two_equal_queues_that_want_everything_evict_no_group_once_they_are_even(
    machine: Machine, for_s: float
) -> None:
    # Set back the watchdog that ends hanging tests: this test takes its time.
    faulthandler.dump_traceback_later(for_s + 300, exit=True, file=sys.__stderr__)
    with Cluster(machine, two_queues(*["{preemption: {reclaim: Any}}"] * 2)) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        run_two_even_arrays(cluster, for_s=for_s)


def stopping(cluster: Cluster) -> None:
    """Start low and quick, which are then told to stop for the waiting high.

    quick's resources are soon free, and late, which is submitted then, could use them.
    """
    two = replace(LOW, replicas=2, min_member=2, tenths=FOREVER)
    cluster.submit(replace(two, manner="stubborn", grace="8s"))
    cluster.submit(replace(two, name="quick"))
    cluster.await_start("low", 2)
    cluster.await_start("quick", 2)
    cluster.submit(HIGH)
    until(lambda: cluster.has_pledge("high"), what="the gang has a pledge")
    cluster.submit(LATE)


def assert_the_pledge_was_kept(cluster: Cluster) -> None:
    """Check that the pledge was kept: both victims end, high starts, and late only after it."""
    cluster.await_completion("high", "late")
    high, late = flat(cluster.runs_of("high")), flat(cluster.runs_of("late"))
    former = [runs[0] for name in ("low", "quick") for runs in cluster.runs_of(name)]
    assert len(former) == 4
    assert last_of(former) < first_of(high)
    began = max(run.began_at for run in high)
    assert began < first_of(late), "no other group gets resources before the whole gang does"
    assert at_once(flat(list(cluster.runs().values()))) == 4
    assert [run.end for run in high] == ["done"] * 4
    assert twice_at_once(cluster.runs()) == []
    # The victims return later.
    for name in ("low", "quick"):
        cluster.await_restart(name)
        assert cluster.spent(name).groups == 1
    assert not cluster.has_pledge("high")


# A restarted scheduler reads the same records.
@pytest.mark.slow
def test_a_follower_keeps_the_leaders_pledge(machine: Machine) -> None:
    with Cluster(machine, schedulers=2) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        cluster.kill_leader()
        assert_the_pledge_was_kept(cluster)


def test_a_restarted_scheduler_keeps_a_pledge(machine: Machine) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        cluster.kill_leader()
        cluster.start_scheduler()
        assert_the_pledge_was_kept(cluster)


def test_a_restarted_server_keeps_a_pledge(machine: Machine) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        cluster.kill_server()
        assert_the_pledge_was_kept(cluster)


def test_victims_end_if_their_agent_dies_while_they_stop(machine: Machine) -> None:
    with Cluster(machine) as cluster:
        cluster.agent("n1")
        cluster.agent("n2")
        stopping(cluster)
        kill(cluster.agents["n2"].pid)
        cluster.agent("n2")
        assert_the_pledge_was_kept(cluster)
