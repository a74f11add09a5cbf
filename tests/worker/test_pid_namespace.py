"""Tests of pods in a PID namespace: commands, stops and functions work as elsewhere."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec
import psutil
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from tests.daemon.waiting import until
from tests.worker.stage import WITHIN_S, Stage, is_alive, kill
from tests.worker.test_escapes import start_agent

pytestmark = pytest.mark.e2e

TASKS = """
import os, subprocess, sys

def leave(path):
    # One in the background, and one in a session of its own.
    script = f"while :; do echo . >> {path}; sleep 0.01; done"
    subprocess.Popen(["sh", "-c", script])
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    while not os.path.exists(path):
        pass
    return [os.getppid(), os.readlink("/proc/self")]
"""


def ended(stage: Stage, pod: Pod) -> tuple[PodPhase, int | None, str]:
    status = stage.ended(pod).status
    return status.phase, status.exit_code, status.message


def test_commands_end_as_they_do_without_a_namespace(stage: Stage) -> None:
    start_agent(stage, "pid-namespace", slots=1)
    (code,) = stage.bind("sh", "-c", "echo out; echo err >&2; exit 3")
    (missing,) = stage.bind("no-such-program")
    (killed,) = stage.bind("sh", "-c", "kill -11 $$")
    (greedy,) = stage.bind(
        sys.executable, "-c", "bytearray(800 << 20)", requests={"memory": 256 << 20}
    )
    assert ended(stage, code)[:2] == (PodPhase.FAILED, 3)
    assert (stage.output(code), stage.output(code, "stderr")) == ("out\n", "err\n")
    assert ended(stage, missing) == (
        PodPhase.FAILED,
        127,
        "command not found: no-such-program",
    )
    assert stage.ended(killed).status.signal == 11
    assert ended(stage, greedy)[:2] == (PodPhase.FAILED, 1)
    assert "MemoryError" in stage.output(greedy, "stderr")


def test_a_pod_receives_sigterm_and_has_its_grace(stage: Stage) -> None:
    start_agent(stage, "pid-namespace")
    (polite,) = stage.bind(
        "sh",
        "-c",
        "trap 'cat $BATCHQ_STOP_FILE; exit 0' TERM; echo up; while :; do sleep 0.1; done",
    )
    # A command without a handler: as the first process of a namespace it would ignore the signal.
    (plain,) = stage.bind("sh", "-c", "echo up; exec sleep 600")
    for pod in (polite, plain):
        stage.started(pod, saying="up")
        stage.stop(pod)
    assert stage.ended(polite).status.exit_code == 0
    assert stage.output(polite) == "up\nPreempted\n"
    assert stage.ended(plain).status.signal == 15


def test_functions_are_forked_from_one_interpreter_and_leave_no_process(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    # Its work-horse waits for the next pod for as long as a busy machine needs.
    monkeypatch.setenv("A_TEST_AGENT_LINGERS", "600000")
    start_agent(stage, "pid-namespace", slots=1)
    seen = []
    for number in range(3):
        (pod,) = stage.bind(
            function="tasks:leave",
            args=(msgspec.Raw(f'"{tmp_path}/lives-{number}"'.encode()),),
            working_dir=str(tmp_path),
        )
        assert ended(stage, pod) == (PodPhase.SUCCEEDED, 0, "")
        size = (tmp_path / f"lives-{number}").stat().st_size
        threading.Event().wait(0.1)
        seen.append(stage.store.read_result("n1", pod.metadata.uid, 1))
        assert (tmp_path / f"lives-{number}").stat().st_size == size
    # The namespace's first process starts the first function; one standby interpreter the others.
    parents = [int(one.split(b",")[0].strip(b"[")) for one in seen if one is not None]
    assert parents[0] == 1
    assert 1 < parents[1] == parents[2]


def test_a_namespace_whose_first_process_was_killed_is_replaced(stage: Stage) -> None:
    start_agent(stage, "pid-namespace", slots=1)
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    group = stage.started(pod, saying="up")
    horse = stage.horse_of(pod)
    first = psutil.Process(group).ppid()
    assert psutil.Process(first).ppid() == horse
    kill(first)
    assert stage.ended(pod).status.signal == 9
    until(lambda: not is_alive(group), within_s=WITHIN_S)
    (other,) = stage.bind("true")
    assert ended(stage, other)[:2] == (PodPhase.SUCCEEDED, 0)
