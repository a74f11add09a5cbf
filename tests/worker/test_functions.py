"""Tests of pods that are functions, on a real server with a real agent."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.store.redis import RedisStore
from tests.daemon.waiting import until
from tests.harness.server import Server
from tests.worker.stage import WITHIN_S, Stage, members

pytestmark = pytest.mark.e2e

TASKS = """
import os, pathlib, signal, subprocess, sys, threading

def double(number):
    print("doubling", number)
    return 2 * number

def place():
    return int(os.environ["BATCHQ_INDEX"])

def fail():
    raise ValueError("no such thing")

def family(*, stubborn=False):
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    print("up")
    while True:
        threading.Event().wait(1)

def polite():
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    print("up")
    while not stopped.wait(0.05):
        pass
    return pathlib.Path(os.environ["BATCHQ_STOP_FILE"]).read_text().strip()

def until_there(path):
    print("up")
    while not os.path.exists(path):
        threading.Event().wait(0.05)
    return {"found": path}
"""


@pytest.fixture
def folder(stage: Stage) -> Path:
    """A folder with a module of functions."""
    (stage.home / "code").mkdir()
    (stage.home / "code" / "tasks.py").write_text(TASKS)
    return stage.home / "code"


def call(stage: Stage, folder: Path, name: str, *args: Any, **template: Any) -> list[Pod]:
    """Bind pods that call a function of that module."""
    kwargs = template.pop("kwargs", {})
    return stage.bind(
        function=f"tasks:{name}",
        args=tuple(msgspec.Raw(json.dumps(one).encode()) for one in args),
        kwargs={key: msgspec.Raw(json.dumps(one).encode()) for key, one in kwargs.items()},
        working_dir=str(folder),
        **template,
    )


def result(stage: Stage, pod: Pod) -> bytes | None:
    """Return a pod's result in the store."""
    return stage.store.read_result(pod.status.node, pod.metadata.uid, pod.status.attempt)


def test_a_function_succeeds_with_its_result_and_its_output(stage: Stage, folder: Path) -> None:
    stage.start_agent()
    (pod,) = call(stage, folder, "double", 21)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.message) == (PodPhase.SUCCEEDED, 0, "")
    assert result(stage, pod) == b"42"
    assert stage.output(pod) == "doubling 21\n"
    until(lambda: stage.run_of(pod) is None, within_s=WITHIN_S)


def test_each_pod_of_an_array_has_its_own_result(stage: Stage, folder: Path) -> None:
    stage.start_agent()
    pods = call(stage, folder, "place", replicas=3)
    assert {stage.ended(pod).status.phase for pod in pods} == {PodPhase.SUCCEEDED}
    assert [result(stage, pod) for pod in pods] == [b"0", b"1", b"2"]


def test_an_exception_is_the_pods_message_and_its_traceback_is_in_the_output(
    stage: Stage, folder: Path
) -> None:
    stage.start_agent()
    (pod,) = call(stage, folder, "fail")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, 1)
    assert (status.message, status.failures) == ("ValueError: no such thing", 1)
    said = stage.output(pod, "stderr")
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("ValueError: no such thing\n")
    assert result(stage, pod) is None


def test_a_module_is_found_by_the_python_path_of_the_template(stage: Stage, folder: Path) -> None:
    stage.start_agent()
    (pod,) = stage.bind(
        function="tasks:double", args=(msgspec.Raw(b"1"),), env={"PYTHONPATH": str(folder)}
    )
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert result(stage, pod) == b"2"


def test_a_function_cannot_start_in_a_missing_folder(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind(function="tasks:double", working_dir="/no/such")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, 126)
    assert status.message == "workingDir /no/such is not a directory on this node"


def test_arguments_are_not_shown_in_a_list_of_processes(stage: Stage, folder: Path) -> None:
    stage.start_agent()
    (pod,) = call(stage, folder, "until_there", "/a/secret")
    group = stage.started(pod, saying="up")
    shown = " ".join(psutil.Process(group).cmdline())
    assert shown.endswith("batchq/worker/workhorse/callee.py")
    assert "secret" not in shown
    assert "/a/secret" not in psutil.Process(group).environ().values()


def test_processes_that_a_stopped_function_started_end_with_it(stage: Stage, folder: Path) -> None:
    stage.start_agent()
    (pod,) = call(stage, folder, "family")
    group = stage.started(pod, saying="up")
    assert len(members(group)) == 2
    stage.stop(pod, "Preempted")
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.signal) == (PodPhase.EVICTED, "Preempted", 15)
    assert members(group) == []
    assert result(stage, pod) is None


def test_a_function_that_ignores_sigterm_is_killed_after_its_grace(
    stage: Stage, folder: Path
) -> None:
    stage.start_agent()
    (pod,) = call(stage, folder, "family", kwargs={"stubborn": True}, termination_grace=500)
    group = stage.started(pod, saying="up")
    stage.stop(pod, "Reclaimed")
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.signal) == (PodPhase.EVICTED, "Reclaimed", 9)
    assert members(group) == []


def test_the_return_value_of_a_stopped_function_is_not_kept(stage: Stage, folder: Path) -> None:
    stage.start_agent()
    (pod,) = call(stage, folder, "polite")
    stage.started(pod, saying="up")
    stage.stop(pod, "Preempted")
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.exit_code) == (PodPhase.EVICTED, "Preempted", 0)
    assert result(stage, pod) is None


class TestWithoutAServer:
    """Tests in which a function returns while the server is unavailable."""

    @pytest.fixture
    def server(self) -> Iterator[Server]:
        """A server that writes everything to disk, and can be stopped and started."""
        with Server("--appendonly", "yes", "--appendfsync", "always") as made:
            yield made

    @pytest.fixture
    def stage(self, server: Server, tmp_path: Path) -> Iterator[Stage]:
        """A stage on that server."""
        store = RedisStore(server.url)
        made = Stage(store, tmp_path)
        yield made
        made.close()
        store.close()

    def a_pod_that_returned_in_an_outage(self, stage: Stage, server: Server, folder: Path) -> Pod:
        """Return a pod whose function has returned during an outage."""
        flag = stage.home / "flag"
        (pod,) = call(stage, folder, "until_there", str(flag))
        stage.started(pod, saying="up")
        server.stop()
        flag.touch()
        until(
            lambda: (run := stage.run_of(pod)) is not None and run.outcome is not None,
            within_s=WITHIN_S,
        )
        run = stage.run_of(pod)
        assert run is not None
        assert json.loads(run.result or b"") == {"found": str(flag)}
        return pod

    def test_the_result_is_sent_with_the_end(
        self, stage: Stage, server: Server, folder: Path
    ) -> None:
        stage.start_agent()
        pod = self.a_pod_that_returned_in_an_outage(stage, server, folder)
        server.start()
        assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
        assert json.loads(result(stage, pod) or b"") == {"found": str(stage.home / "flag")}

    def test_the_next_agent_sends_the_result_that_the_work_horse_could_not(
        self, stage: Stage, server: Server, folder: Path
    ) -> None:
        agent = stage.start_agent(drain_timeout_s=0)
        pod = self.a_pod_that_returned_in_an_outage(stage, server, folder)
        # Two signals stop the agent at once.
        agent.send_signal(signal.SIGTERM)
        agent.send_signal(signal.SIGINT)
        assert agent.wait(timeout=WITHIN_S) == 0
        server.start()
        assert result(stage, pod) is None
        stage.start_agent()
        assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
        assert json.loads(result(stage, pod) or b"") == {"found": str(stage.home / "flag")}
        until(lambda: stage.run_of(pod) is None, within_s=WITHIN_S)
