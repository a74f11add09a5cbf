"""Seeded fault swarms: whatever fails, no group is lost and no pod runs twice at once."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import PodAttempt
from batchq.api.transaction import Charge, Transaction, Write
from batchq.core.quota.ledger import holders_in_store
from batchq.core.session.snapshot import Settings
from batchq.errors import InvariantBroken
from batchq.lab.simulation.world import VirtualClock
from tests.builders import a_group, a_pod, a_running_group, as_charged
from tests.effort import usually
from tests.faults import scenario
from tests.faults.checker import InvariantChecker
from tests.faults.machines import Process
from tests.faults.play import failures_of, play
from tests.faults.seeded_scenarios import scenario_of
from tests.faults.server import Server

SEEDS = usually(50, 150)


@pytest.mark.parametrize("first", range(0, usually(20, 150), 10))
def test_no_seed_breaks_an_invariant_and_all_come_to_rest(first: int) -> None:
    failures = [one for one in failures_of(range(first, first + 10), processes=1) if one]
    assert [f"python -m tests.faults --seed {one.seed}: {one.why}" for one in failures] == []


#: Seeds in which a gang once ran on without one of its pods, or never ended; and some others.
LAUNCHED = (5, 32, 225, 518, 751, *range(1_000, 1_000 + usually(3, 75)))


def test_no_pod_of_a_distributed_job_runs_beside_one_of_another_round() -> None:
    failures = [one for one in failures_of(LAUNCHED, processes=1, launches=True) if one]
    assert [f"{one.seed} --launches: {one.why}" for one in failures] == []


#: Seeds in which pods request GPUs.
WITH_DEVICES = range(2_000, 2_000 + usually(5, 500))


def test_no_device_of_a_machine_is_used_by_two_pods() -> None:
    failures = [one for one in failures_of(WITH_DEVICES, processes=1, devices=True) if one]
    assert [f"{one.seed} --devices: {one.why}" for one in failures] == []


#: Seeds whose agents run beside the server, which is paused: twice at the same time, and others.
BESIDE = (133, 223, 258, *range(3_000, 3_000 + usually(5, 300)))


def test_no_pod_that_has_started_is_lost_while_the_server_beside_it_is_away() -> None:
    failures = [one for one in failures_of(BESIDE, processes=1, beside=True) if one]
    assert [f"{one.seed} --beside: {one.why}" for one in failures] == []


def test_gangs_restart_whole_in_some_seed() -> None:
    assert any("GangRestart" in play(seed, launches=True).stopped for seed in range(10))


def test_every_kind_of_fault_occurs_in_some_seed() -> None:
    met = {
        type(fault)
        for seed in range(SEEDS)
        for beside in (False, True)
        for fault in scenario_of(seed, beside=beside)[0].faults
    }
    assert met == set(get_args(scenario.AnyFault))


def test_groups_preempt_within_a_queue_and_reclaim_between_queues_in_some_seed() -> None:
    met: set[str] = set()
    for seed in range(SEEDS):
        met |= set(play(seed).stopped)
        if {"Preempted", "Reclaimed"} <= met:
            return
    pytest.fail(f"pods of {SEEDS} seeds were told to stop, but only for {sorted(met)}")


def test_a_process_that_outlives_its_pod_is_reported() -> None:
    clock = VirtualClock(0)
    server = Server(clock, witness=lambda _1, _2, _3, commit: commit(), bell=lambda _: None)
    pod = a_pod(a_group("g"), phase=PodPhase.SUCCEEDED, node="n1")
    uid = pod.metadata.uid
    written = Write(kind="Pod", key=uid, value=pod, expect=0)
    server.store.commit([Transaction(subject="default/g", writes=(written,))], request_id="1")
    process = Process(
        attempt=PodAttempt(uid, 1),
        group_uid="g",
        place=("g", "w", 0),
        requests={},
        ends_at=1_000,
        exit_code=0,
        stops_in_ms=0,
    )
    with pytest.raises(InvariantBroken, match="attempt 1 of default/g-w-0 runs on n1, and the pod"):
        InvariantChecker(Settings()).look_at_processes(server, [("n1", process)], 0)


def test_a_group_that_runs_is_soon_shown_as_running() -> None:
    group, pod = as_charged(*a_running_group("g"))
    group = structs.replace(
        group, status=structs.replace(group.status, phase=PodGroupPhase.IN_QUEUE)
    )
    server = Server(
        VirtualClock(0), witness=lambda _1, _2, _3, commit: commit(), bell=lambda _: None
    )
    written = Transaction(
        subject="default/g",
        writes=(
            Write(kind="PodGroup", key="default/g", value=group, expect=0),
            Write(kind="Pod", key=pod.metadata.uid, value=pod, expect=0),
        ),
        charges=tuple(
            Charge(holder=holder, scopes=scopes, amounts=held)
            for holder, (scopes, held) in holders_in_store(group).items()
        ),
    )
    server.store.commit([written], request_id="1")
    checker = InvariantChecker(Settings())
    for _ in range(8):
        # Later than it may wait for its pods.
        checker.look_at_rest(server, 70_000)
    with pytest.raises(InvariantBroken, match="default/g runs, and is shown as InQueue"):
        checker.look_at_rest(server, 70_000)


def test_a_seed_tells_the_same_story_each_time() -> None:
    first: list[str] = []
    second: list[str] = []
    assert play(3, say=first.append) == play(3, say=second.append)
    assert first == second
    assert len(first) > 20
