"""Tests of a machine's server that dies, is paused or comes back older: pods continue or run
again.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from batchq.api.transaction import count_of, generation_of
from batchq.daemon import detached, embedded_server
from tests.e2e.diary import Diary, command
from tests.e2e.machine import Machine, group, phase, pods_of, until

pytestmark = pytest.mark.e2e

#: Twice the quick lease: without an answer for this long, a work-horse would end its pod.
AWAY_S = 4.0
TENTHS = 70
#: A lease whose renewals are more than half a second apart, and a longer pause.
SLOW_LEASE, SLOWLY_AWAY_S, SLOW_TENTHS = ("--lease", "6s"), 7.0, 100
SETTLED_WITHIN_S = 60.0


class Stage:
    """A server, a scheduler and an agent of one machine, and pods that keep a diary."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.diary = Diary(machine.root / "diary")
        machine.up()

    def submit(self, name: str = "long", *, first: str = "", tenths: int = TENTHS) -> None:
        """Submit one pod that takes a while, and runs the shell command `first` as it starts."""
        diary = command(self.machine.root / "diary", tenths)
        template = {
            "command": ["sh", "-c", f'{first}\nexec "$@"', "sh", *diary],
            "requests": {"cpu": 1},
            "terminationGrace": "1s",
        }
        manifest = {
            "apiVersion": "batchq/v1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"tasks": [{"name": "main", "template": template}]},
        }
        self.machine.submit(yaml.safe_dump(manifest))

    def words(self, word: str) -> int:
        """Return how often the pod has written a word."""
        return sum(Diary(self.machine.root / "diary").count(word).values())

    def story(self) -> str:
        """Return the events of the group, which say why its pod has run how often."""
        return self.machine.batchq("events", "long").stdout

    def server_pid(self) -> int:
        record = detached.read_record(embedded_server.record_path(self.machine.home))
        assert record is not None
        return record.pid

    def kill_server(self) -> None:
        """Kill the server as a power cut would, except that its page cache survives."""
        record = detached.read_record(embedded_server.record_path(self.machine.home))
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        assert detached.await_end([record], patience_s=60)

    def start_server(self) -> None:
        """Start the server with its files."""
        embedded_server.ensure_server(self.machine.home)

    def files(self) -> Path:
        """Return the folder with what the server has written so far."""
        return self.machine.home.data / "appendonlydir"

    def assert_completes_once_more(self) -> None:
        """Wait for the end, and check that the pod never ran twice at once."""
        with self.machine.client() as client:
            until(lambda: phase(client, "long") == "Completed", within_s=SETTLED_WITHIN_S)
        assert Diary(self.machine.root / "diary").overlaps() == []


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Machine() as machine:
        yield Stage(machine)


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_a_pod_continues_while_the_server_of_its_machine_is_dead_for_longer_than_a_lease(
    stage: Stage,
) -> None:
    stage.machine.agent("n1")
    stage.submit()
    until(lambda: stage.words("alive") > 3)
    stage.kill_server()
    wait(AWAY_S)
    stage.start_server()
    stage.assert_completes_once_more()
    assert (stage.words("start"), stage.words("end")) == (1, 1), stage.story()


def test_a_pod_continues_while_the_server_of_its_machine_is_paused_for_longer_than_a_lease(
    stage: Stage,
) -> None:
    stage.machine.agent("n1")
    stage.submit()
    until(lambda: stage.words("alive") > 3)
    os.kill(stage.server_pid(), signal.SIGSTOP)
    wait(AWAY_S)
    os.kill(stage.server_pid(), signal.SIGCONT)
    stage.assert_completes_once_more()
    assert (stage.words("start"), stage.words("end")) == (1, 1), stage.story()


def test_a_pod_continues_while_the_server_of_its_machine_is_paused_from_the_pods_start_on(
    stage: Stage,
) -> None:
    stage.machine.agent("n1", options=SLOW_LEASE)
    server = stage.server_pid()
    # Before the agent has renewed any lease, as a rule; and only once.
    paused = stage.machine.root / "paused"
    stage.submit(first=f"mkdir {paused} && kill -STOP {server}", tenths=SLOW_TENTHS)
    until(lambda: stage.words("alive") > 3)
    wait(SLOWLY_AWAY_S)
    os.kill(server, signal.SIGCONT)
    stage.assert_completes_once_more()
    assert (stage.words("start"), stage.words("end")) == (1, 1), stage.story()


def test_a_server_that_has_forgotten_the_bind_lets_the_pod_run_again_and_not_twice_at_once(
    stage: Stage,
) -> None:
    stage.submit()
    older = stage.machine.root / "older"
    shutil.copytree(stage.files(), older)
    # Two nodes: the other one is free for the pod whose bind was forgotten. Their leases are long
    # enough that a busy machine costs no further attempt.
    for node in ("n1", "n2"):
        stage.machine.agent(node, "cpu=1", options=("--lease", "5s"))
    until(lambda: stage.words("alive") > 3)
    with stage.machine.client() as client:
        [before] = pods_of(client, "long")
    stage.kill_server()
    shutil.rmtree(stage.files())
    shutil.copytree(older, stage.files())
    stage.start_server()
    stage.assert_completes_once_more()
    assert (stage.words("start"), stage.words("end")) == (2, 1), stage.story()
    with stage.machine.client() as client:
        [after] = pods_of(client, "long")
        assert group(client, "long").status.admission == 1
    assert before.metadata.uid == after.metadata.uid
    assert count_of(before.status.attempt) == count_of(after.status.attempt) == 1
    assert generation_of(before.status.attempt) < generation_of(after.status.attempt)
