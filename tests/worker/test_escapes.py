"""Tests of pods that try to outlive their end: it is reported only when no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node, Pod
from batchq.store.liveness import SLOW_ANSWER_MS, leases_of
from batchq.worker.host.cgroup import mark_of, own_cgroup, pod_cgroups
from tests.daemon.waiting import until
from tests.effort import grid
from tests.worker import escape_artist
from tests.worker.stage import WITHIN_S, Stage, is_alive

pytestmark = pytest.mark.e2e

#: Every machine grants the last one, so each kind is tried with it.
MODES = ("cgroup", "pid-namespace", "subreaper")
KINDS = ("forks", "double-fork", "holds-output", "sibling", "reaper", "namespace")


@pytest.fixture(autouse=True)
def no_cgroups_left(tmp_path: Path) -> Iterator[None]:
    """Remove the cgroups of a killed agent, which would otherwise be left to the next one."""
    yield
    base = own_cgroup()
    if isinstance(base, Path):
        for one in pod_cgroups(base, mark_of(tmp_path / "run" / "n1")):
            assert one.end(10.0) == []


def start_agent(stage: Stage, containment: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Start an agent with this containment; skip if the machine does not grant it."""
    agent = stage.launch_agent(containment=containment, **settings)
    until(lambda: agent.poll() is not None or stage.is_served_by("n1", agent), within_s=WITHIN_S)
    if agent.returncode is not None:
        said = stage.log_text().splitlines()[-1]
        assert said.startswith(f"--containment {containment}: ")
        pytest.skip(said)
    assert node_of(stage).metadata.labels["batchq/containment"] == containment
    return agent


def escape(stage: Stage, kind: str) -> tuple[Pod, Path]:
    """Start a pod that tries to escape; return it and the file to which its processes write the
    time.
    """
    file = stage.home / f"lives-{kind}"
    # In an empty environment, so that no variable identifies it.
    artist = [sys.executable, "-I", "-S", escape_artist.__file__, kind, str(file)]
    (pod,) = stage.bind("env", "-i", *artist)
    return pod, file


def last_seen_alive(file: Path) -> int:
    said = file.read_text().split()
    return int(said[-1]) if said else 0


def assert_ended_before(file: Path, ended_at: int | None) -> None:
    """Check that no process wrote after the pod's end, and that none writes now."""
    size = file.stat().st_size
    threading.Event().wait(0.3)
    assert file.stat().st_size == size
    assert ended_at is not None
    # The end is a time of the server's clock, which a busy machine knows this exactly.
    assert last_seen_alive(file) <= ended_at + SLOW_ANSWER_MS // 2


@pytest.mark.parametrize(
    ("kind", "containment"),
    dict.fromkeys([*product(KINDS, ["subreaper"]), *grid(KINDS, MODES)]),
)
def test_no_process_of_a_pod_lives_when_its_end_is_reported(
    stage: Stage, kind: str, containment: str
) -> None:
    start_agent(stage, containment)
    pod, file = escape(stage, kind)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.SUCCEEDED, 0)
    assert_ended_before(file, status.finished_at)
    assert stage.store.ledger().get("node:n1", {}) == {}


@pytest.mark.parametrize("containment", MODES)
def test_a_pod_that_traces_its_parents_cannot_keep_them_from_ending_it(
    stage: Stage, containment: str
) -> None:
    """A traced process ends for its tracer first, and this tracer never collects it."""
    start_agent(stage, containment)
    pod, file = escape(stage, "traces")
    status = stage.ended(pod).status
    # The work-horse ends it, or the agent, if its check happens to run while the pod lives.
    assert (status.phase, status.exit_code, status.reason) in (
        (PodPhase.SUCCEEDED, 0, ""),
        (PodPhase.EVICTED, None, "NodeLost"),
    )
    assert_ended_before(file, status.finished_at)
    assert_traced(stage, pod)


def assert_traced(stage: Stage, pod: Pod) -> None:
    if int(stage.output(pod)) < 2:
        pytest.skip("this machine lets no process trace another one of its user")


@pytest.mark.parametrize("containment", ["cgroup", "subreaper"])
def test_a_pod_that_traces_work_horse_and_guard_is_ended(stage: Stage, containment: str) -> None:
    agent = start_agent(stage, containment, lease_ms=6000)
    guard = guard_of(agent)
    pod, file = escape(stage, "traces-on")
    stage.started(pod, saying="\n")
    assert_traced(stage, pod)
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
    assert_ended_before(file, status.finished_at)
    assert "pod killed that traces batchq" in stage.log_text()
    assert is_alive(guard)
    (next_pod,) = stage.bind("true")
    assert stage.ended(next_pod).status.phase == PodPhase.SUCCEEDED


def test_an_outside_debugger_holds_a_pods_resources_and_not_the_agent(stage: Stage) -> None:
    stage.start_agent(lease_ms=3000)
    (pod,) = stage.bind("sleep", "600")
    stage.started(pod)
    horse = stage.horse_of(pod)
    debug = f"""if True:
        import sys, time
        from tests.worker.escape_artist import trace
        print(trace({{{horse}}}), flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", debug], stdout=subprocess.PIPE) as debugger:
        assert debugger.stdout is not None
        if debugger.stdout.readline() != b"1\n":
            pytest.skip("this machine lets no process trace another one of its user")
        os.kill(horse, signal.SIGKILL)
        until(lambda: not node_of(stage).status.ready, within_s=WITHIN_S)
        assert node_of(stage).status.reason == f"processes of its pods cannot be killed: {horse}"
        assert stage.now(pod).status.phase == PodPhase.RUNNING
        assert stage.store.ledger()["node:n1"] == {"cpu": 1000, "pods": 1000}
        debugger.kill()
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
    until(lambda: node_of(stage).status.ready, within_s=WITHIN_S)


def guard_of(agent: subprocess.Popen[bytes]) -> int:
    """Return the only child of an agent that has not started a pod yet."""
    (guard,) = psutil.Process(agent.pid).children()
    return int(guard.pid)


def test_a_guard_that_was_stopped_ends_with_its_agent(stage: Stage) -> None:
    agent = stage.start_agent()
    guard = guard_of(agent)
    os.kill(guard, signal.SIGSTOP)
    agent.terminate()
    agent.wait(timeout=90)
    assert not is_alive(guard)


def test_a_guard_that_was_stopped_and_lost_its_agent_ends_with_the_next_one(stage: Stage) -> None:
    agent = stage.start_agent()
    guard = guard_of(agent)
    for victim in (guard, agent.pid):
        os.kill(victim, signal.SIGSTOP)
    agent.kill()
    agent.wait(timeout=90)
    assert is_alive(guard)
    successor = stage.start_agent()
    until(lambda: not is_alive(guard))
    assert guard_of(successor) != guard


@pytest.mark.parametrize(
    ("kind", "containment"), grid(["killer", "killer-forks"], ["subreaper", "cgroup"])
)
def test_a_pod_that_kills_guard_agent_and_work_horse_is_ended_by_the_next_agent(
    stage: Stage, kind: str, containment: str
) -> None:
    agent = start_agent(stage, containment)
    pod, file = escape(stage, kind)
    until(file.exists)
    agent.wait(timeout=90)
    lived_until = last_seen_alive(file)
    until(lambda: last_seen_alive(file) > lived_until)
    assert stage.now(pod).status.phase == PodPhase.RUNNING
    start_agent(stage, containment)
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
    assert_ended_before(file, status.finished_at)


def test_a_pod_in_a_pid_namespace_sees_no_process_outside_and_ends_with_its_work_horse(
    stage: Stage,
) -> None:
    agent = start_agent(stage, "pid-namespace")
    pod, file = escape(stage, "killer")
    until(lambda: file.exists() and last_seen_alive(file) > 0)
    (shown,) = stage.bind("sh", "-c", "echo $$ $(ls -d /proc/[0-9]* | wc -l)")
    assert stage.ended(shown).status.phase == PodPhase.SUCCEEDED
    pid, seen = map(int, stage.output(shown).split())
    # The first process, the pod's own, and the processes it starts here.
    assert (pid < 10, seen < 10) == (True, True)
    assert agent.poll() is None
    horse = stage.horse_of(pod)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for victim in (agent.pid, *(child.pid for child in psutil.Process(agent.pid).children())):
            os.kill(victim, signum)
    agent.wait(timeout=90)
    until(lambda: not is_alive(horse))
    until(lambda: has_stopped(file))
    assert stage.now(pod).status.phase == PodPhase.RUNNING
    start_agent(stage, "pid-namespace")
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")


def has_stopped(file: Path) -> bool:
    size = file.stat().st_size
    threading.Event().wait(0.3)
    return file.stat().st_size == size


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup of version 1 whose processes receive no signal while it is frozen."""
    made = FREEZER / f"batchq-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as trouble:
        pytest.skip(f"no process can be kept from being killed here: {trouble}")
    yield made
    (made / "freezer.state").write_text("THAWED")
    until(lambda: (made / "cgroup.procs").read_text() == "")
    made.rmdir()


def test_a_pod_that_cannot_be_killed_keeps_its_resources_and_its_node_takes_no_more(
    stage: Stage, freezer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TEST_AGENT_IS_HASTY", "")
    stage.start_agent(lease_ms=15_000)
    flag = stage.home / "flag"
    (pod,) = stage.bind(
        "sh",
        "-c",
        f"setsid sleep 600 & echo $!; while ! test -e {flag}; do sleep 0.05; done; exit 3",
    )
    stage.started(pod, saying="\n")
    stuck = int(stage.output(pod))
    (freezer / "cgroup.procs").write_text(str(stuck))
    (freezer / "freezer.state").write_text("FROZEN")
    flag.touch()
    until(lambda: not node_of(stage).status.ready, within_s=WITHIN_S)
    assert node_of(stage).status.reason == f"processes of its pods cannot be killed: {stuck}"
    assert "processes cannot be killed" in stage.log_text()
    # The agent has to renew its lease.
    stage.await_renewals(pod, 3)
    assert is_alive(stuck)
    assert stage.now(pod).status.phase == PodPhase.RUNNING
    assert stage.store.ledger()["node:n1"] == {"cpu": 1000, "pods": 1000}
    assert lease_of(stage, pod) > stage.store.now_ms()
    (freezer / "freezer.state").write_text("THAWED")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, 3)
    assert not is_alive(stuck)
    until(lambda: node_of(stage).status.ready, within_s=WITHIN_S)
    assert node_of(stage).status.reason == ""


def node_of(stage: Stage) -> Node:
    node = stage.store.get("Node", "n1")
    assert isinstance(node, Node)
    return node


def lease_of(stage: Stage, pod: Pod) -> int:
    return leases_of(stage.store.alive.read(["n1"]))["n1", pod.metadata.uid, 1]


def test_an_agent_warns_when_it_runs_as_root(stage: Stage) -> None:
    stage.start_agent()
    assert ("agent runs as root" in stage.log_text()) == (os.geteuid() == 0)
