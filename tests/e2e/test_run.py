"""Tests of `batchq run`: its exit codes, what it prints, and what it leaves behind."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, phase, until
from tests.unit.test_example_mandelbrot import check_picture

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
    full, small = "WIDTH, HEIGHT = 640, 480", "WIDTH, HEIGHT = 160, 120"
    for script in example.parent.glob("mandelbrot_*.py"):
        machine.file(script.name, script.read_text().replace(full, small))
    done = machine.batchq("run", str(machine.file("picture.yaml", text)), "--down")
    assert "mandelbrot           Completed  4/4" in done.stdout
    assert "Written: out/mandelbrot.png" in done.stdout
    for tile in range(1, 5):
        assert f"tile {tile} of 4: 30 of 30 rows\n" in done.stdout
    check_picture((machine.root / "out" / "mandelbrot.png").read_bytes(), 160, 120)
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
    # On a busy machine, it may not run yet.
    assert re.search(r"not ended after 2s; still active: long \(\w+\)", done.stderr)
    assert "`batchq cancel long` ends them" in done.stderr
    stack.batchq("cancel", "long")


def test_the_exit_code_of_a_cancelled_group_is_11(stack: Machine) -> None:
    process = stack.start("run", pod(stack, "unwanted", "sleep 60"))
    with stack.client() as client:
        until(lambda: "unwanted: Running" in stack.output_of(process), what="it runs")
        client.cancel("unwanted")
    assert process.wait(timeout=90) == 11


def test_ctrl_c_names_what_keeps_running(stack: Machine) -> None:
    process = stack.start("run", pod(stack, "patient", "sleep 60"))
    until(lambda: "patient: Running" in stack.output_of(process), what="it runs")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90) == 130
    result = stack.output_of(process)
    assert "interrupted; still active: patient (Running)" in result
    assert "`batchq cancel patient` ends them" in result
    assert "`batchq down` stops them" in result
    with stack.client() as client:
        assert phase(client, "patient") == "Running"
        client.cancel("patient")
        client.wait(["patient"], timeout_s=60)


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


def test_a_command_shows_both_streams_of_its_pod_and_ends_with_its_exit_code(
    stack: Machine,
) -> None:
    script = "echo to stdout; echo to stderr >&2; exit 7"
    done = stack.batchq("run", "--name", "both", "--", "sh", "-c", script, exits=7)
    assert done.stdout == "to stdout\n"
    assert "to stderr\n" in done.stderr
    assert "podgroup default/both Failed" in done.stderr


def test_lines_of_several_pods_begin_with_their_index_and_the_highest_exit_code_counts(
    stack: Machine,
) -> None:
    # The first pod fails, which stops the others, only after these have printed their line.
    script = (
        "echo pod $BATCHQ_INDEX; touch printed-$BATCHQ_INDEX; test $BATCHQ_INDEX = 0 || sleep 60;"
        " until test -e printed-1 -a -e printed-2; do sleep 0.05; done; exit 4"
    )
    words = ("--name", "three", "-N", "3", "--cpus", "100m")
    done = stack.batchq("run", *words, "--", "sh", "-c", script, exits=4)
    assert set(done.stdout.splitlines()) == {"0: pod 0", "1: pod 1", "2: pod 2"}


def test_a_signal_that_ends_the_pod_counts_as_in_a_shell(stack: Machine) -> None:
    stack.batchq("run", "--no-keep", "--", "sh", "-c", "kill -TERM $$", exits=143)


def test_one_ctrl_c_asks_and_two_within_a_second_cancel_the_group(stack: Machine) -> None:
    script = "echo begun; exec sleep 60"
    process = stack.start("run", "--name", "asked", "--", "sh", "-c", script)
    with stack.client() as client:
        until(lambda: "Submitted asked" in stack.output_of(process), what="it is submitted")
        until(lambda: phase(client, "asked") == "Running", what="it runs")
        process.send_signal(signal.SIGINT)
        until(lambda: "Ctrl-C again" in stack.output_of(process), what="it asks")
        asked = "PodGroup default/asked is Running; Ctrl-C again within a second cancels it"
        assert asked in stack.output_of(process)
        assert phase(client, "asked") == "Running"
        sent = 1

        def is_cancelled() -> bool:
            nonlocal sent
            # A second one that comes late asks again.
            if stack.output_of(process).count("Ctrl-C again") == sent:
                process.send_signal(signal.SIGINT)
                sent += 1
            return phase(client, "asked") == "Cancelled"

        until(is_cancelled, what="it is cancelled")
    assert process.wait(timeout=90) == 130
    assert "PodGroup default/asked cancelled" in stack.output_of(process)


def test_a_command_whose_terminal_goes_away_is_cancelled(stack: Machine) -> None:
    process = stack.start("run", "--name", "hung-up", "--", "sleep", "60")
    with stack.client() as client:
        until(lambda: "Submitted hung-up" in stack.output_of(process), what="it is submitted")
        until(lambda: phase(client, "hung-up") == "Running", what="it runs")
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=90) == 129
        assert phase(client, "hung-up") == "Cancelled"


def test_a_command_whose_reader_goes_away_is_cancelled(stack: Machine) -> None:
    script = "while :; do echo more; sleep 0.1; done"
    process = stack.piped("run", "--name", "unread", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "more\n"
    process.stdout.close()
    assert process.wait(timeout=90) == 1
    with stack.client() as client:
        assert phase(client, "unread") == "Cancelled"


def test_a_timeout_leaves_the_command_to_itself(stack: Machine) -> None:
    words = ("--name", "slow", "--timeout", "2s", "--", "sleep", "60")
    done = stack.batchq("run", *words, exits=124)
    assert "not ended after 2s; PodGroup default/slow keeps running" in done.stderr
    stack.batchq("cancel", "slow")
