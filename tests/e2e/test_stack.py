"""Tests of the main path on real processes, from submission to completion; and of two tenants."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.api.transaction import count_of
from batchq.client import Client
from batchq.daemon import detached
from tests.e2e.machine import Machine, group, kill, phase, pods_of, until

EXAMPLES = Path(__file__).parents[2] / "conf" / "examples"

HELLO = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: hello}
spec:
  tasks:
    - name: main
      replicas: 2
      template:
        command: [sh, -c, 'echo "hello from $BATCHQ_INDEX of $BATCHQ_REPLICAS"']
        requests: {cpu: 100m}
"""


def test_a_group_is_submitted_admitted_run_and_finished(stack: Machine) -> None:
    stack.submit(HELLO)
    with stack.client() as client:
        [result] = client.wait(["hello"], timeout_s=90)
        assert (str(result.phase), result.exit_code) == ("Completed", 0)
        assert group(client, "hello").status.admission == 1
        assert [count_of(pod.status.attempt) for pod in pods_of(client, "hello")] == [1, 1]
        words = [line.text for line in client.logs("hello")]
        assert words == ["hello from 0 of 2", "hello from 1 of 2"]
        answer = [event.reason for event in client.events(kind="PodGroup", key="default/hello")]
        # Pods this short may end before a session sees them run.
        assert [word for word in answer if word != "Running"][-3:] == [
            "Admitted",
            "Bound",
            "Completed",
        ]


def test_up_starts_nothing_that_runs_already(stack: Machine) -> None:
    before = stack.batchq("up", "--agents", "2", "--no-api").stdout
    assert before == stack.batchq("up", "--agents", "2", "--no-api").stdout
    assert before.count("running") == 4


def test_up_says_which_options_a_running_scheduler_was_not_started_with(machine: Machine) -> None:
    up = ("up", "--agents", "0", "--no-api")
    machine.batchq(*up, "--config", str(machine.quick))
    same = machine.batchq(*up, "--config", str(machine.quick))
    assert same.stderr == ""
    other = machine.file("other.yaml", machine.quick.read_text())
    assert machine.batchq(*up, "--config", str(other)).stderr == (
        "The scheduler was running already: --config takes effect after `batchq down`\n"
    )
    assert machine.batchq(*up).stderr == ""


def test_up_restarts_dead_processes(machine: Machine) -> None:
    machine.up(agents=1)
    [path] = machine.home.run.glob("agent-*.json")
    record = detached.read_record(path)
    assert record is not None
    kill(record.pid)
    answer = machine.batchq("up", "--agents", "1", "--no-api").stdout.splitlines()[1:]
    assert [line.split()[1] for line in answer] == ["running", "running", "started"]
    machine.submit(HELLO)
    with machine.client() as client:
        [result] = client.wait(["hello"], timeout_s=90)
        assert str(result.phase) == "Completed"


def test_down_and_up_keep_the_data_and_print_what_they_did(machine: Machine) -> None:
    assert machine.batchq("down").stderr == "There was nothing to stop\n"
    machine.up(agents=1)
    machine.submit(HELLO)
    with machine.client() as client:
        client.wait(["hello"], timeout_s=90)
    assert machine.batchq("down").stdout.count("ended") == 3
    machine.up()
    with machine.client() as client:
        assert phase(client, "hello") == "Completed"
    kept = machine.batchq("down", "--keep-server").stdout
    assert [line.split()[1] for line in kept.splitlines()[1:]] == ["running", "ended"]


def test_the_second_gang_of_a_tenant_has_no_pods_until_the_first_has_ended(stack: Machine) -> None:
    # The first gang runs until the file is gone, however slow the machine is.
    held = stack.file("held", "")
    steps = 'for step in 1 2 3; do sleep 1; echo "step $step of 3"; done'
    example = (EXAMPLES / "two-tenants.yaml").read_text()
    assert steps in example
    stack.submit(example.replace(steps, f"while [ -e {held} ]; do sleep 0.1; done", 1))
    with stack.client() as client:
        until(lambda: phase(client, "blue/blue-1") == "Running", what="blue-1 runs")
        until(lambda: _waits_for_quota(client, "blue/blue-2"), what="blue-2 waits for its quota")
        assert pods_of(client, "blue/blue-2") == []
        numbers = (
            "needs cpu 400m, and the quota of namespace blue has 100m free (400m of 500m in use)"
        )
        # Until all agents are ready, nodes are another reason.
        assert numbers in [blocker.message for blocker in client.why("blue/blue-2").reasons]
        answer = stack.batchq("describe", "blue-2", "-n", "blue").stdout
        assert numbers in answer
        held.unlink()

        results = client.wait(
            ["blue/blue-1", "blue/blue-2", "red/red-1", "red/red-2"], timeout_s=90
        )
        assert [str(result.phase) for result in results] == ["Completed"] * 4
        for first, second in (("blue/blue-1", "blue/blue-2"), ("red/red-1", "red/red-2")):
            ended = max(pod.status.finished_at or 0 for pod in pods_of(client, first))
            # Pods do not exist before the admission.
            assert (group(client, second).status.in_queue_at or 0) >= ended


def _waits_for_quota(client: Client, name: str) -> bool:
    reasons = [str(verdict.reason) for verdict in group(client, name).status.reasons]
    return phase(client, name) == "Pending" and reasons == ["WaitingForQuota"]


def test_a_wrong_configuration_starts_nothing(machine: Machine) -> None:
    wrong = machine.file("wrong.yaml", "actions: [enqueue, alocate]\n")
    done = machine.batchq("up", "--config", str(wrong), exits=1)
    assert done.stderr == (
        f"error: {wrong}, line 1: actions[1]: there is no action 'alocate';"
        " known: allocate, backfill, enqueue, preempt, reclaim; did you mean 'allocate'?\n"
    )
    assert not machine.home.root.exists()


@pytest.mark.parametrize("command", ["scheduler", "worker"])
def test_a_daemon_exits_with_0_on_sigterm(stack: Machine, command: str) -> None:
    process = stack.start(command, *(["--name", "passing"] if command == "worker" else []))
    started = "scheduler.starts" if command == "scheduler" else "agent started"
    until(lambda: started in stack.output_of(process), what=started)
    process.terminate()
    assert process.wait(timeout=90) == 0
