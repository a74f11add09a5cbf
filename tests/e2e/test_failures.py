"""Tests of kill -9 of each kind of process: the work finishes, and nothing runs twice at once."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from batchq.daemon import detached
from batchq.daemon import embedded_server as embedded
from tests.e2e.diary import Diary, command
from tests.e2e.machine import (
    LONG_LEASE,
    PATIENT,
    Machine,
    group,
    kill,
    phase,
    pods_of,
    process_group_of_a_pod,
    until,
)
from tests.effort import sample

TENTHS = 25


def gang(diary: Path) -> str:
    """Return two pods of one cpu each, for a machine with two."""
    template = {"command": command(diary, TENTHS), "requests": {"cpu": 1}, "terminationGrace": "1s"}
    task = {"name": "main", "replicas": 2, "template": template}
    manifest = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"retry": {"limit": 2, "backoff": "100ms"}, "tasks": [task]},
    }
    return yaml.safe_dump(manifest)


class Scene:
    """Two pods in the middle of their work, and the processes that can be killed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.diary = machine.root / "diary"
        self._config = machine.file("patient.yaml", PATIENT)
        machine.up(config=self._config)
        self.agent = machine.agent("n1", options=LONG_LEASE)
        machine.submit(gang(self.diary))
        until(lambda: len(Diary(self.diary).count("alive")) == 2, what="both pods run")

    def kill_a_work_horse(self) -> None:
        """Kill the work-horse of one pod; the agent lives on."""
        horse = psutil.Process(process_group_of_a_pod(self.machine, "n1")).parent()
        assert horse is not None
        assert horse.ppid() == self.agent.pid
        kill(horse.pid)

    def kill_the_agent(self) -> None:
        """Kill the agent and start it again, as its supervisor would."""
        kill(self.agent.pid)
        self.agent.wait()
        self.agent = self.machine.agent("n1", options=LONG_LEASE)

    def kill_the_scheduler(self) -> None:
        """Kill the scheduler and start it again."""
        record = detached.read_record(self.machine.home.run / "scheduler.json")
        assert record is not None
        kill(record.pid)
        self.machine.up(config=self._config)

    def kill_the_server(self) -> None:
        """Kill the server and start it again; acknowledged writes are in its file."""
        server = embedded.running_server(self.machine.home)
        assert server is not None
        kill(server.pid)
        self.machine.up(config=self._config)


@pytest.mark.parametrize(
    ("strike", "starts"),
    sample(
        [
            pytest.param(Scene.kill_a_work_horse, {2, 3}, id="a work-horse"),
            pytest.param(Scene.kill_the_agent, {4}, id="the agent"),
            pytest.param(Scene.kill_the_scheduler, {2}, id="the scheduler"),
            pytest.param(Scene.kill_the_server, {2, 3, 4}, id="the server"),
        ],
        2,
    ),
)
def test_the_work_is_finished_once_after_the_death_of(
    machine: Machine, strike: Callable[[Scene], None], starts: set[int]
) -> None:
    scene = Scene(machine)

    strike(scene)

    with machine.client() as client:
        until(lambda: phase(client, "gang") == "Completed", what="Completed")
        diary = Diary(scene.diary)
        assert diary.overlaps() == []
        assert diary.count("end") == {0: 1, 1: 1}
        assert sum(diary.count("start").values()) in starts
        assert group(client, "gang").status.admission == 1
        assert [str(pod.status.phase) for pod in pods_of(client, "gang")] == ["Succeeded"] * 2
    assert_the_ledger_is_even(machine)


def assert_the_ledger_is_even(machine: Machine) -> None:
    """Check that the sums are those of the charges, and that only nodes are charged."""
    with machine.store() as store:
        until(lambda: set(store.ledger()) <= {"capacity"}, what="nothing is held any more")
        recount: dict[str, Counter[str]] = {}
        for scopes, amounts in store.charges().values():
            for scope in scopes:
                recount.setdefault(scope, Counter()).update(amounts)
        assert store.ledger() == {scope: dict(sums) for scope, sums in recount.items()}


def test_a_diary_shows_overlapping_runs(tmp_path: Path) -> None:
    path = tmp_path / "diary"
    path.write_text("0 11 start\n0 12 start\n0 11 alive\n0 12 end\n")
    assert Diary(path).overlaps() == ["entry 2: pod 0, process 11 wrote alive too late"]


def test_a_diary_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "diary"
    subprocess.run(command(path, 1), check=True, env={"BATCHQ_INDEX": "7", "PATH": "/usr/bin:/bin"})
    assert [(index, word) for index, _, word in Diary(path).entries] == [
        (7, "start"),
        (7, "alive"),
        (7, "end"),
    ]
