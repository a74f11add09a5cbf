"""Tests of `batchq replay`: a log becomes real processes, each exactly once, and nothing is
left.
"""

from __future__ import annotations

import csv
import json
import signal
from typing import Any

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Object, Pod, PodGroup
from batchq.client import Client
from batchq.lab.replay import LiveReplay, ReplayPlan
from batchq.lab.traces import read_swf
from tests.e2e.machine import Machine, until
from tests.harness.traces import real_log

#: Number, submit time, run time and processors of jobs on a machine with four processors.
JOBS = [
    (1, 0, 40, 4),
    (2, 10, 30, 2),
    (3, 10, 20, 2),
    (4, 15, 10, 1),
    (5, 20, 60, 3),
    (6, 90, 5, 4),
]


def log_text(jobs: list[tuple[int, int, int, int]], processors: int = 4) -> str:
    """Return a log in the Standard Workload Format."""
    lines = [
        f"{number} {submit} -1 {run} {size} -1 -1 {size} {2 * run} -1 1 1 1 -1 1 -1 -1 -1"
        for number, submit, run, size in jobs
    ]
    return "\n".join([f"; MaxProcs: {processors}", *lines, ""])


def test_every_job_of_a_small_log_finishes_exactly_once(machine: Machine) -> None:
    log = machine.file("small.swf", log_text(JOBS))

    done = machine.batchq("replay", str(log), "--jobs", "6", "--speed", "40", "-o", "json")

    report = json.loads(done.stdout)
    assert (report["jobs"], report["finishedExactlyOnce"], report["problems"]) == (6, 6, [])
    assert report["processors"] == 4
    assert "Still running: server, scheduler. `batchq down` stops them" in done.stderr
    # Job 1 uses the whole machine for 40 s, so job 2 waits for 30 s at least.
    assert report["meanWaitS"] >= (30 + 30 + 25) / 6
    assert report["makespanS"] >= 100
    assert 0 < report["utilisation"] <= (160 + 60 + 40 + 10 + 180 + 20) / (4 * 100)
    with machine.client() as client:
        assert list(client.list("Node")) == []
        assert list(client.list("PodGroup")) == []
        assert [queue.metadata.name for queue in client.list("Queue")] == ["default"]
    assert not list(machine.home.run.glob("*replay*"))


def test_ctrl_c_cancels_the_rest(machine: Machine) -> None:
    log = machine.file("long.swf", log_text([(1, 0, 9000, 4), (2, 5, 9000, 4), (3, 8000, 1, 1)]))
    process = machine.start("replay", str(log), "--speed", "100")
    until(lambda: "3 jobs for 1 × 4 processors" in machine.output_of(process), what="it begins")
    with machine.client() as client:
        until(lambda: any(_runs(pod) for pod in client.list("Pod")), what="a pod runs")
        until(lambda: len(client.list("PodGroup")) == 2, what="the second is submitted")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=90) == 130
        message = "interrupted after 2 of 3 jobs were submitted: 2 of them were cancelled"
        assert message in machine.output_of(process)
        assert list(client.list("PodGroup")) == []
        assert list(client.list("Node")) == []


class PressedAtSubmit(Client):
    """A client that gets Ctrl-C after the server took the second group, before it sees the
    answer.
    """

    def submit(self, *what: Any, **fields: Any) -> PodGroup:
        group = super().submit(*what, **fields)
        if len(self.list("PodGroup")) == 2:
            raise KeyboardInterrupt
        return group


def test_a_group_the_server_took_counts_as_submitted_whenever_ctrl_c_comes(
    machine: Machine,
) -> None:
    log = machine.file("three.swf", log_text([(1, 0, 900, 4), (2, 0, 900, 4), (3, 800, 1, 1)]))
    machine.up()
    plan = ReplayPlan(
        name="replay-pressed",
        trace=read_swf(log),
        speed=10.0,
        nodes=1,
        queue="replay-pressed",
        journal=machine.home.run / "journal",
    )
    with PressedAtSubmit(machine.url) as client:
        live = LiveReplay(client, plan, own_queue=True, tell=lambda standing: None)
        with pytest.raises(KeyboardInterrupt):
            live.run(machine.home, machine.url)
        assert (live.submitted, live.cancelled) == (2, 2)
        assert live.clear() == ""


def _runs(item: Object) -> bool:
    return isinstance(item, Pod) and item.status.phase == PodPhase.RUNNING


def test_a_file_that_is_not_a_log_starts_nothing(machine: Machine) -> None:
    log = machine.file("no.swf", "; MaxProcs: 4\nthis is prose\n")
    done = machine.batchq("replay", str(log), exits=1)
    assert done.stderr == (
        f"error: {log}, line 2: expected 18 numbers (Standard Workload Format), found 3\n"
    )
    assert not machine.home.root.exists()


def test_starts_are_written_in_seconds_of_the_log(machine: Machine) -> None:
    log = machine.file("small.swf", log_text([(7, 1000, 20, 4), (9, 1010, 10, 4)]))
    path = machine.root / "starts.csv"
    machine.batchq("replay", str(log), "--speed", "20", "--policy", "fcfs", "--starts", str(path))
    first, second = csv.DictReader(path.read_text().splitlines())
    assert [(row["job"], row["submit"]) for row in (first, second)] == [
        ("7", "1000"),
        ("9", "1010"),
    ]
    # A second here is 20 in the log, and a busy machine may need many of them.
    assert 1000 <= float(first["start"]) < 1000 + 60 * 20
    # The first one uses the machine for 20 s at least.
    assert float(second["start"]) >= float(first["start"]) + 20


def test_jobs_start_in_the_simulators_order_if_the_machine_keeps_up(machine: Machine) -> None:
    # 15 of these 20 jobs wait, and 5 start before others that were submitted earlier.
    log = real_log("KTH-SP2-1996-2")
    slice_of_it = ("--skip", "11756", "--jobs", "20", "--speed", "1800")
    done = machine.batchq(
        "replay", str(log), *slice_of_it, "--policy", "easy", "--against", "simulate", "-o", "json"
    )
    report = json.loads(done.stdout)
    against = report["against"]
    assert (report["jobs"], report["finishedExactlyOnce"]) == (20, 20)
    assert (against["jobs"], against["causes"]["open"]) == (20, 0)
    # Of the 159 pairs, those are not counted whose jobs happen to start at the same instant here.
    assert 150 <= against["pairs"] <= 159
    # If a process needs half a second to start, one may overtake another.
    if against["latencyMs"] < 500:
        found = (against["same"], against["tau"], against["differing"])
        assert found == (against["pairs"], 1.0, [])


# The test before it replays a made-up log in the same way.
@pytest.mark.slow
def test_a_slice_of_a_real_log_finishes_exactly_once(machine: Machine) -> None:
    log = real_log("lublin_256")
    done = machine.batchq("replay", str(log), "--jobs", "40", "--speed", "8000", "-o", "json")
    report = json.loads(done.stdout)
    assert (report["jobs"], report["finishedExactlyOnce"]) == (40, 40)
