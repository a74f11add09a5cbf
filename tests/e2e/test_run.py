"""Tests of `batchq run`: its exit codes, what it prints, and what it leaves behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, phase, until

POD = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {{name: {name}}}
spec:
  tasks:
    - name: main
      template:
        command: [sh, -c, '{script}']
        requests: {{cpu: 100m}}
        terminationGrace: 1s
"""


def pod(stack: Machine, name: str, script: str) -> str:
    """Write a file with a group of one pod, and return its path."""
    return str(stack.file(f"{name}.yaml", POD.format(name=name, script=script)))


def test_the_mandelbrot_example_draws_its_picture_from_nothing(machine: Machine) -> None:
    example = Path(__file__).parents[2] / "conf" / "examples" / "mandelbrot.yaml"
    text = example.read_text().replace(
        "command: [", "env: {MANDELBROT_OUT: out}\n        command: ["
    )
    for script in example.parent.glob("mandelbrot_*.py"):
        machine.file(script.name, script.read_text())
    done = machine.batchq("run", str(machine.file("picture.yaml", text)), "--down")
    assert "mandelbrot           Completed  4/4" in done.stdout
    assert "Written: out/mandelbrot.png" in done.stdout
    assert (machine.root / "out" / "mandelbrot.png").read_bytes().startswith(b"\x89PNG")
    assert "Started server, scheduler" in done.stderr
    assert machine.batchq("down").stderr == "There was nothing to stop\n"


@pytest.mark.parametrize(
    ("options", "script", "code"),
    [
        ([], "exit 0", 0),
        ([], "exit 3", 10),
        (["--exit-code"], "exit 3", 3),
        (["--exit-code"], "exit 0", 0),
        (["--exit-code"], "kill -TERM $$", 143),
    ],
)
def test_the_exit_code_is_that_of_the_groups_or_of_the_pod_with_exit_code(
    stack: Machine, options: list[str], script: str, code: int
) -> None:
    stack.batchq("run", pod(stack, "ends", script), *options, exits=code)


def test_a_second_run_takes_a_fresh_name_and_collects_its_own_logs(stack: Machine) -> None:
    file = pod(stack, "again", "echo from $BATCHQ_GROUP")
    first, second = stack.batchq("run", file), stack.batchq("run", file)
    assert "again-main-0:  from again\n" in first.stdout
    assert "again-2-main-0:  from again-2\n" in second.stdout
    assert "again exists already: the new group is again-2\n" in second.stderr
    [logs] = [line for line in second.stdout.splitlines() if line.startswith("Logs of 1 pod: ")]
    folder = Path(logs.removeprefix("Logs of 1 pod: "))
    assert (folder / "again-2-main-0.log").read_text() == "from again-2\n"


def test_no_keep_leaves_no_group(stack: Machine) -> None:
    stack.batchq("run", pod(stack, "fleeting", "true"), "--no-keep")
    with stack.client() as client:
        names = [group.metadata.name for group in client.list("PodGroup")]
    assert "fleeting" not in names


def test_a_timeout_names_what_keeps_running(stack: Machine) -> None:
    file = pod(stack, "long", "sleep 60")
    done = stack.batchq("run", file, "--timeout", "2s", exits=124)
    assert "not ended after 2s; still active: long (Running)" in done.stderr
    assert "`batchq cancel long` ends them" in done.stderr
    stack.batchq("cancel", "long")


def test_the_exit_code_of_a_cancelled_group_is_11(stack: Machine) -> None:
    process = stack.start("run", pod(stack, "unwanted", "sleep 60"))
    with stack.client() as client:
        until(lambda: "unwanted: Running" in stack.output_of(process), what="it runs")
        client.cancel("unwanted")
    assert process.wait(timeout=30) == 11


def test_ctrl_c_names_what_keeps_running(stack: Machine) -> None:
    process = stack.start("run", pod(stack, "patient", "sleep 60"))
    until(lambda: "patient: Running" in stack.output_of(process), what="it runs")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    result = stack.output_of(process)
    assert "interrupted; still active: patient (Running)" in result
    assert "`batchq cancel patient` ends them" in result
    assert "`batchq down` stops them" in result
    with stack.client() as client:
        assert phase(client, "patient") == "Running"
        client.cancel("patient")
        client.wait(["patient"], timeout_s=20)


def test_ctrl_c_while_the_stack_starts_leaves_nothing(machine: Machine) -> None:
    process = machine.start("run", pod(machine, "never", "true"))
    until(lambda: "Starting the embedded server" in machine.output_of(process), what="it starts")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "what was started is stopped again" in machine.output_of(process)
    assert machine.batchq("down").stderr == "There was nothing to stop\n"


def test_a_wrong_file_is_reported_before_anything_is_started(machine: Machine) -> None:
    file = machine.file("wrong.yaml", "apiVersion: batchq/v1\nkind: PodGroop\n")
    done = machine.batchq("run", str(file), exits=1)
    assert "did you mean 'PodGroup'?" in done.stderr
    assert not machine.home.root.exists()
