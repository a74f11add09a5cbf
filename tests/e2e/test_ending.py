"""Tests of interrupted stops with real commands: what is printed, and what is left."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.e2e.machine import Machine, until

pytestmark = pytest.mark.e2e

STUBBORN = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: stubborn}
spec:
  tasks:
    - name: main
      template:
        command: [sh, -c, "trap '' TERM; echo up; while :; do sleep 0.1; done"]
        requests: {cpu: 100m}
"""


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def test_a_run_interrupted_twice_names_what_is_left_and_down_now_ends_it(
    machine: Machine,
) -> None:
    machine.up(agents=1)
    process = machine.start("run", str(machine.file("stubborn.yaml", STUBBORN)), "--down")
    with machine.client() as client:
        until(lambda: "stubborn" in machine.output_of(process))
        until(lambda: any("up" in line.text for line in client.logs("stubborn")))
    interrupt(process)
    until(lambda: "may run on for" in machine.output_of(process))
    interrupt(process)
    assert process.wait(timeout=90) == 130
    result = machine.output_of(process)
    assert "error: interrupted while stopping; still running: server, scheduler, " in result
    assert "hint: `batchq down` continues, `batchq down --now` does not wait for pods" in result
    done = machine.batchq("down", "--now", within_s=40)
    server, scheduler, busy, idle = done.stdout.splitlines()[1:]
    assert [line.split()[1] for line in (server, scheduler, busy)] == ["ended"] * 3
    # Nothing ran on that node, so its agent has ended or is about to.
    assert "not running" in idle or idle.split()[1] == "ended"
