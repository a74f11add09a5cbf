"""Tests of a failover: the primary dies, sentinels choose another, and work continues there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.diary import Diary, command
from tests.e2e.machine import QUICK_AGENT, Machine, phase, until
from tests.harness.sentinels import ReplicatedServer

#: Leases longer than a failover, so that running pods continue.
PATIENT = """
schedulePeriod: 200ms
nodeTimeout: 12s
podLease: 10s
backoffFirst: 100ms
"""


@pytest.fixture
def watched() -> Iterator[ReplicatedServer]:
    """A primary that is killed later, its replica, and three sentinels."""
    with ReplicatedServer() as made:
        yield made


@pytest.fixture
def machine(watched: ReplicatedServer) -> Iterator[Machine]:
    """A machine whose server is the one that the sentinels name."""
    with Machine(url=watched.url) as made:
        yield made


def gang(name: str, diary: Path, tenths: int) -> str:
    """Return two pods of one cpu each."""
    template = {"command": command(diary, tenths), "requests": {"cpu": 1}, "terminationGrace": "1s"}
    task = {"name": "main", "replicas": 2, "template": template}
    return yaml.safe_dump(
        {
            "apiVersion": "batchq/v1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"retry": {"limit": 2, "backoff": "100ms"}, "tasks": [task]},
        }
    )


def epoch(machine: Machine) -> int:
    """Return the leader's epoch, as the server knows it."""
    with machine.store() as store:
        leader = store.leader()
        assert leader is not None
        return leader.epoch


def test_work_continues_at_the_new_primary(watched: ReplicatedServer, machine: Machine) -> None:
    diary = machine.root / "diary"
    patient = machine.file("patient.yaml", PATIENT)
    started = machine.batchq("up", "--no-api", "--agents", "0", "--config", str(patient))
    assert "server" not in started.stdout.split(), "none of its own is started"
    machine.start("worker", "--name", "n1", "--resources", "cpu=4", *QUICK_AGENT, "--lease", "10s")
    machine.submit(gang("early", diary, 80))
    until(lambda: len(Diary(diary).count("alive")) == 2, what="both pods run")
    before = watched.primary()
    epoch_before = epoch(machine)
    waiting = machine.start("wait", "early", "--timeout", "60s")
    # Each of its two connections to the primary has asked two of the sentinels.
    until(lambda: machine.is_connected(waiting, sockets=6), what="it is connected")

    watched.kill(before)
    after = watched.await_failover(before)

    with machine.client() as client:
        later = machine.root / "later"
        machine.submit(gang("late", later, 5))
        until(lambda: phase(client, "late") == "Completed", what="late is completed")
        until(lambda: phase(client, "early") == "Completed", what="early is completed")
    assert waiting.wait(timeout=90) == 0
    assert after != before
    assert epoch(machine) > epoch_before
    for one in (diary, later):
        read = Diary(one)
        assert read.overlaps() == []
        assert read.count("start") == {0: 1, 1: 1}
        assert read.count("end") == {0: 1, 1: 1}
