"""Tests of work-horses that run several pods one after the other."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from batchq.api.exec_session import ExecCommand, ExecRequest, session_of
from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.store.exec_channels import post_request
from tests.daemon.waiting import until
from tests.worker.stage import NODE, WITHIN_S, Stage, is_alive, kill

pytestmark = pytest.mark.e2e

PARENT = ("sh", "-c", "echo $PPID $MINE; ls /proc/$PPID/fd | wc -l")


@pytest.fixture
def short_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle work-horses wait as long as a busy machine may need for the next order."""
    monkeypatch.setenv("A_TEST_AGENT_LINGERS", "4000")


@pytest.fixture
def long_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle work-horses not end before the test does."""
    monkeypatch.setenv("A_TEST_AGENT_LINGERS", "600000")


def run_pod_to_its_end(stage: Stage, *command: str, **template: object) -> tuple[Pod, list[str]]:
    """Run a pod that succeeds; return it and the words it printed."""
    (pod,) = stage.bind(*command, **template)  # type: ignore[arg-type]  # fields of a template
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    return pod, stage.output(pod).split()


@pytest.mark.usefixtures("short_idleness")
def test_consecutive_pods_share_one_work_horse_which_then_ends(stage: Stage) -> None:
    stage.start_agent(slots=1)
    pods = stage.bind(*PARENT, replicas=16)
    assert {stage.ended(pod).status.phase for pod in pods} == {PodPhase.SUCCEEDED}
    printed = [stage.output(pod).split() for pod in pods]
    assert len({horse for horse, _ in printed}) == 1
    # No descriptor of a former pod stays open; a slow pod also has a connection to the server.
    held = [int(descriptors) for _, descriptors in printed]
    assert max(held) - min(held) <= 6, held
    until(lambda: not is_alive(int(printed[0][0])), within_s=WITHIN_S)


@pytest.mark.usefixtures("long_idleness")
def test_the_next_pod_does_not_see_the_environment_of_the_one_before(stage: Stage) -> None:
    stage.start_agent(slots=1)
    _, first = run_pod_to_its_end(stage, *PARENT, env={"MINE": "secret"})
    _, second = run_pod_to_its_end(stage, *PARENT)
    assert (len(first), first[1]) == (3, "secret")
    assert len(second) == 2


def test_killing_an_idle_work_horse_loses_no_pod(stage: Stage) -> None:
    stage.start_agent(slots=1)
    _, (horse, _) = run_pod_to_its_end(stage, *PARENT)
    if is_alive(int(horse)):
        kill(int(horse))
    _, (other, _) = run_pod_to_its_end(stage, *PARENT)
    assert other != horse


@pytest.mark.usefixtures("long_idleness")
def test_killing_a_work_horse_with_an_unread_order_loses_no_pod(stage: Stage) -> None:
    stage.start_agent(slots=1)
    _, (horse, _) = run_pod_to_its_end(stage, *PARENT)
    # It is idle, and the next pod is sent to it.
    os.kill(int(horse), signal.SIGSTOP)
    (pod,) = stage.bind(*PARENT)
    until(lambda: stage.now(pod).status.phase == PodPhase.RUNNING)
    kill(int(horse))
    ended = stage.ended(pod)
    assert (ended.status.phase, ended.status.attempt) == (PodPhase.SUCCEEDED, pod.status.attempt)
    other, _ = stage.output(pod).split()
    assert other != horse


@pytest.mark.usefixtures("long_idleness")
def test_a_work_horse_that_dies_with_an_unread_command_does_not_run_its_pod_again(
    stage: Stage, tmp_path: Path
) -> None:
    stage.start_agent(slots=1)
    _, (horse, _) = run_pod_to_its_end(stage, *PARENT)
    begun = tmp_path / "begun"
    (pod,) = stage.bind("sh", "-c", f"echo . >> {begun}; exec sleep 600")
    stage.started(pod)
    assert stage.horse_of(pod) == int(horse)
    until(begun.exists)
    os.kill(int(horse), signal.SIGSTOP)
    session = session_of("0" * 64, "ana", "g")
    running = stage.now(pod)
    request = ExecRequest(
        session=session,
        pod=running.metadata.uid,
        attempt=running.status.attempt,
        command=ExecCommand(command=("true",)),
    )
    assert post_request(stage.store.link, NODE, request)
    until(lambda: stage.store.link.ask(lambda client: client.keys(f"exec:*{session}")))
    kill(int(horse))
    assert stage.ended(pod).status.reason == "NodeLost"
    # The agent has collected the work-horse, so a second start would have begun by now.
    run_pod_to_its_end(stage, "true")
    assert begun.read_text() == ".\n"


def test_a_killed_work_horse_loses_only_the_pod_that_it_runs(stage: Stage) -> None:
    stage.start_agent(slots=1)
    done, _ = run_pod_to_its_end(stage, "true")
    (pod,) = stage.bind("sleep", "600")
    stage.started(pod)
    kill(stage.horse_of(pod))
    assert stage.ended(pod).status.reason == "NodeLost"
    assert stage.now(done).status.phase == PodPhase.SUCCEEDED
    run_pod_to_its_end(stage, "true")


@pytest.mark.usefixtures("long_idleness")
def test_a_drained_agent_does_not_wait_for_idle_work_horses(stage: Stage) -> None:
    agent = stage.start_agent(slots=1)
    run_pod_to_its_end(stage, "true")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=WITHIN_S) == 0


@pytest.mark.usefixtures("short_idleness")
def test_further_functions_are_forked_from_an_interpreter_that_ends_with_the_work_horse(
    stage: Stage, tmp_path: Path
) -> None:
    stage.start_agent(slots=1)
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "who.py").write_text(
        "import os\ndef whose():\n"
        "    print(os.getppid(), os.environ['BATCHQ_POD_UID'])\n"
        "    return os.environ['BATCHQ_POD_UID']\n"
    )
    pods = stage.bind(function="who:whose", working_dir=str(folder), replicas=4)
    assert {stage.ended(pod).status.phase for pod in pods} == {PodPhase.SUCCEEDED}
    printed = [stage.output(pod).split() for pod in pods]
    assert [uid for _, uid in printed] == [pod.metadata.uid for pod in pods]
    parents = {int(parent) for parent, _ in printed}
    # The first pod is a child of the work-horse, the others of the standby interpreter.
    assert len(parents) == 2
    until(lambda: not any(is_alive(pid) for pid in parents), within_s=WITHIN_S)
    below = psutil.Process(os.getpid()).children(recursive=True)
    assert not any("callee" in _command_line(one) for one in below)


def _command_line(process: psutil.Process) -> str:
    """Return a process's command line; "" if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
