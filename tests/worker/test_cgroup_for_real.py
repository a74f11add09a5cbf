"""Tests of pods in their own cgroups, on machines where this user may create them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node
from batchq.worker.agent.leftovers import sweep
from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.node_resources import ProcessBounds
from batchq.worker.workhorse.process import start
from tests.daemon.waiting import until
from tests.worker.cgroups import a_real_cgroup
from tests.worker.stage import Stage, is_alive

pytestmark = pytest.mark.e2e

PATH = {"PATH": os.environ["PATH"]}
#: One process stays in the group; one leaves the session, the group and the environment.
ESCAPE = "env -i setsid sleep 601 & echo $!; wait"


@pytest.fixture
def cgroup() -> Iterator[PodCgroup]:
    with a_real_cgroup() as base:
        pod = PodCgroup(base / "pod-test-u-1-0-1")
        pod.make(None)
        yield pod


def _run(cgroup: PodCgroup, script: str) -> tuple[int, int]:
    """Start a command in the cgroup and kill its leader; return its group and the pid it
    printed.
    """
    command = start(["sh", "-c", script], PATH, "", bounds=ProcessBounds(cgroup=cgroup))
    stdout = next(fd for fd, name in command.outputs.items() if name == "stdout")
    output: list[bytes] = []
    until(lambda: bool(output.extend(command.read(stdout)) or output))
    escaped = int(b"".join(output))
    until(lambda: {command.group, escaped} <= set(cgroup.pids()) and _is_own_session(escaped))
    command.send(signal.SIGKILL)
    until(lambda: command.reap() is not None)
    command.close()
    return command.group, escaped


def _is_own_session(pid: int) -> bool:
    return os.getsid(pid) == pid


def test_processes_that_escape_a_command_are_in_its_cgroup_and_end_with_it(
    cgroup: PodCgroup,
) -> None:
    _, escaped = _run(cgroup, ESCAPE)
    assert cgroup.pids() == [escaped]
    assert cgroup.end(10.0) == []
    assert not is_alive(escaped)
    assert not cgroup.path.exists()


def test_a_cgroup_that_the_pod_made_below_its_own_is_removed_as_well(cgroup: PodCgroup) -> None:
    inner = cgroup.path / "inner"
    inner.mkdir()
    _, escaped = _run(
        cgroup, f"env -i setsid sleep 601 & echo $! >{inner}/cgroup.procs; echo $!; wait"
    )
    assert cgroup.pids() == [escaped]
    assert cgroup.end(10.0) == []
    assert not is_alive(escaped)
    assert not cgroup.path.exists()


def test_the_guard_of_a_killed_work_horse_kills_processes_that_escaped_the_group(
    cgroup: PodCgroup,
) -> None:
    horse = subprocess.Popen(
        [sys.executable, "-m", "tests.worker.a_horse", str(cgroup.path), ESCAPE],
        stdout=subprocess.PIPE,
    )
    assert horse.stdout is not None
    escaped = int(horse.stdout.readline())
    until(lambda: escaped in cgroup.pids() and _is_own_session(escaped))
    horse.kill()
    horse.wait()
    horse.stdout.close()
    until(lambda: not is_alive(escaped))
    until(lambda: cgroup.pids() == [])


def test_the_next_agent_sweeps_processes_that_only_their_cgroup_identifies(
    cgroup: PodCgroup, tmp_path: Path
) -> None:
    _, escaped = _run(cgroup, ESCAPE)
    assert sweep(tmp_path, [], [cgroup]) == []
    assert not is_alive(escaped)
    assert not cgroup.path.exists()


def test_an_agent_in_a_delegated_cgroup_holds_a_pod_to_its_request(stage: Stage) -> None:
    with a_real_cgroup(controller="memory") as base:
        stage.start_agent(within=base, enforce="cgroup")
        node = stage.store.get("Node", "n1")
        assert isinstance(node, Node)
        assert node.metadata.annotations["batchq/memory-limit"] == "cgroup"
        (greedy,) = stage.bind(
            sys.executable, "-c", "bytearray(200 << 20)", requests={"memory": 64 << 20}
        )
        (modest,) = stage.bind(
            sys.executable, "-c", "bytearray(8 << 20)", requests={"memory": 64 << 20}
        )
        status = stage.ended(greedy).status
        assert (status.phase, status.signal) == (PodPhase.FAILED, 9)
        assert "killed: used more than its memory request of 64Mi" in status.message
        assert stage.ended(modest).status.phase == PodPhase.SUCCEEDED
        assert list(base.glob("pod-*")) == []
        stage.close()
