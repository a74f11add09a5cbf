"""Commands that have the input or the terminal of `batchq run`, and allocations."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import STEADY, Machine, kill, phase, pods_of, until
from tests.http.api_process import RunningApi

#: Where the commands of an allocation find batchq.
PATH = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
SMALL = ("--cpus", "100m", "--grace", "1s")


@pytest.fixture(scope="module")
def stack() -> Iterator[Machine]:
    """A machine with two agents."""
    with Machine() as made:
        made.up(agents=2, config=made.file("steady.yaml", STEADY))
        yield made


def test_a_command_gets_the_input_and_its_pod_ends_with_its_exit_code(stack: Machine) -> None:
    given = os.urandom(1_000_000)
    words = ("run", "--name", "reads", *SMALL, "--", "sh", "-c", "cat; exit 7")
    done = stack.fed(*words, given=given, exits=7)
    assert done.stdout == given
    assert b"podgroup default/reads Failed" in done.stderr
    with stack.client() as client:
        [pod] = pods_of(client, "reads")
        assert (pod.status.phase, pod.status.exit_code) == ("Failed", 7)


def test_a_command_over_the_api_gets_the_input(stack: Machine) -> None:
    with RunningApi(stack.url) as api:
        door = {"BATCHQ_SERVER": f"unix:{api.socket}", "BATCHQ_REDIS_URL": "unix:///nowhere.sock"}
        done = stack.fed("run", "--name", "api", *SMALL, "--", "wc", "-c", given=b"12345", **door)
    assert done.stdout.split() == [b"5"]


def test_all_pods_get_the_input_and_the_highest_exit_code_counts(stack: Machine) -> None:
    words = ("run", "--name", "pair", "-N", "2", *SMALL, "--", "sh", "-c")
    done = stack.fed(*words, "cat; sleep $BATCHQ_INDEX; exit 0", given=b"line\n")
    assert sorted(done.stdout.splitlines()) == [b"0: line", b"1: line"]


def test_a_command_that_cannot_start_ends_its_pod(stack: Machine) -> None:
    words = ("run", "--name", "missing", *SMALL, "--", "no-such-program")
    done = stack.fed(*words, given=b"", exits=127)
    assert b"Pod default/missing-main-0: command not found: no-such-program" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--retries", "1"), b"error: --retries applies to groups in the background"),
        (
            ("-N", "33"),
            b"error: a command with an input can run in at most 32 pods",
        ),
    ],
)
def test_options_that_no_input_can_have_are_refused(
    stack: Machine, options: tuple[str, ...], sentence: bytes
) -> None:
    done = stack.fed("run", *options, "--", "cat", given=b"", exits=2)
    assert done.stderr.startswith(sentence)


def run_with_open_input(stack: Machine, name: str, script: str) -> str:
    """Run a pod whose input stays open, and return its name."""
    stack.batchq("submit", "--stdin", "--name", name, *SMALL, "--", "sh", "-c", script)
    stack.batchq("wait", name, "--for", "running")
    return f"{name}-main-0"


def attached_in_turn(stack: Machine, pod: str, *, given: bytes) -> bytes:
    """Attach to a pod as soon as no other terminal is, and return its output from then on."""
    while True:
        done = stack.fed("attach", pod, "--tail", "0", given=given, exits=None)
        if done.returncode != 8:
            return done.stdout


def test_an_open_input_gets_what_is_attached_to_it_one_after_the_other(stack: Machine) -> None:
    script = "read a; echo got $a; read b; echo got $b; read c; echo got $c"
    pod = run_with_open_input(stack, "reader", script)
    with stack.piped("attach", pod, given=subprocess.PIPE) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write("one\n")
        first.stdin.flush()
        assert first.stdout.readline() == "got one\n"
        refused = stack.fed("attach", pod, given=b"lost\n", exits=8)
        assert refused.stderr.decode().splitlines() == [
            f"Waiting for the input of Pod default/{pod}: it is in use",
            f"error: Pod default/{pod}: another terminal is attached to the input of the pod",
            (
                "hint: one that was killed gives it back within 15 seconds; `--no-stdin` shows the"
                " output only"
            ),
        ]
        first.stdin.close()
        # The end of an input ends nothing but the turn of its terminal.
        assert attached_in_turn(stack, pod, given=b"two\nthree\n") == b"got two\ngot three\n"
        assert first.stdout.read() == "got two\ngot three\n"
        assert first.wait(90) == 0


def test_an_input_that_is_not_open_is_refused(stack: Machine) -> None:
    stack.batchq("submit", "--name", "deaf", *SMALL, "--", "sleep", "600")
    stack.batchq("wait", "deaf", "--for", "running")
    done = stack.fed("attach", "deaf-main-0", given=b"lost", exits=2)
    assert done.stderr.startswith(b"error: the input of Pod default/deaf-main-0 is empty")
    stack.batchq("cancel", "deaf")


def test_an_interrupt_leaves_a_pod_with_an_open_input_as_it_is(stack: Machine) -> None:
    pod = run_with_open_input(stack, "left", "echo up; read a; echo got $a")
    with stack.terminal("attach", pod) as terminal:
        terminal.expect("up")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130
        assert f"interrupted; Pod default/{pod} keeps running" in terminal.shown
    assert attached_in_turn(stack, pod, given=b"one\n") == b"got one\n"


def test_a_pod_ends_when_the_command_here_is_killed(stack: Machine) -> None:
    with stack.terminal("run", "--pty", "--name", "lost", *SMALL, "--", "sh") as terminal:
        terminal.type("echo ready=$((6 * 7))\n")
        terminal.expect("ready=42")
        terminal.process.kill()
        with stack.client() as client:
            until(lambda: phase(client, "lost") == "Failed", what="its pod is hung up")
            [pod] = pods_of(client, "lost")
            assert pod.status.signal == signal.SIGHUP


def test_a_shell_on_a_node_is_resized_and_interrupted_and_leaves_the_terminal_whole(
    stack: Machine,
) -> None:
    with stack.terminal("run", "--pty", "--name", "shell", *SMALL, "--", "sh") as terminal:
        terminal.type("stty size; echo in=$BATCHQ_POD\n")
        terminal.expect("24 80")
        terminal.expect("in=shell-main-0")
        terminal.resize_and_interrupt_shell()
        terminal.type("exit 5\n")
        assert terminal.ended() == 5
        assert terminal.attributes() == terminal.before


def test_a_terminal_is_whole_after_its_agent_was_killed(machine: Machine) -> None:
    machine.up()
    agent = machine.agent("n1")
    with machine.terminal("run", "--pty", "--name", "shell", *SMALL, "--", "sh") as terminal:
        terminal.type("printf '\\033[?2004h'; echo ready=$((6 * 7))\n")
        terminal.expect("ready=42")
        kill(agent.pid)
        assert terminal.ended() == 8
        without_reset = "".join(terminal.shown.split("\x1b[?2004l"))
        assert without_reset != terminal.shown
        assert "\nerror: " in without_reset
        assert terminal.attributes() == terminal.before
    with machine.client() as client:
        assert phase(client, "shell") in ("Cancelled", "Failed")


def test_a_terminal_that_goes_away_cancels_its_group(stack: Machine) -> None:
    with stack.terminal("run", "--pty", "--name", "closed", *SMALL, "--", "sh") as terminal:
        terminal.type("echo ready=$((6 * 7))\n")
        terminal.expect("ready=42")
        terminal.process.send_signal(signal.SIGHUP)
        assert terminal.ended() == 129
        assert terminal.attributes() == terminal.before
    with stack.client() as client:
        assert phase(client, "closed") == "Cancelled"


def test_two_interrupts_while_it_waits_cancel_a_group(stack: Machine) -> None:
    words = ("run", "--pty", "--name", "waits", "--cpus", "100", "--", "sh")
    with stack.terminal(*words) as terminal:
        terminal.expect("Submitted waits")
        terminal.process.send_signal(signal.SIGINT)
        with stack.client() as client:

            def is_cancelled() -> bool:
                # A second one that comes late asks again.
                if terminal.has_shown("Ctrl-C again within a second cancels it"):
                    terminal.process.send_signal(signal.SIGINT)
                return phase(client, "waits") == "Cancelled"

            until(is_cancelled, what="it is cancelled")
        assert terminal.ended() == 130
        assert "podgroup default/waits Cancelled (interrupted)" in terminal.shown
        assert "error:" not in terminal.shown


def test_commands_run_in_an_allocation_which_ends_with_its_own(stack: Machine) -> None:
    script = "batchq run -- sh -c 'echo pod $BATCHQ_INDEX'; echo $BATCHQ_POD_NAMES; exit 4"
    words = ("alloc", "--name", "held", "-N", "2", *SMALL, "--", "sh", "-c", script)
    done = stack.fed(*words, given=b"", exits=4, **PATH)
    *said, names = done.stdout.decode().splitlines()
    assert sorted(said) == ["0: pod 0", "1: pod 1"]
    assert names == "held-main-0,held-main-1"
    assert b"Allocated held: 2 pods" in done.stderr
    with stack.client() as client:
        assert phase(client, "held") == "Completed"


def test_the_commands_of_an_allocation_use_the_server_that_its_option_names(
    stack: Machine,
) -> None:
    words = ("alloc", "--name", "named", *SMALL, "--", "sh", "-c", "batchq run -- echo here")
    elsewhere = {"BATCHQ_SERVER": "unix:/nowhere/api.sock", **PATH}
    done = stack.fed("--redis-url", stack.url, *words, given=b"", exits=0, **elsewhere)
    assert done.stdout == b"here\n"


@pytest.mark.parametrize(("ends_with", "code"), [(0, 1), (4, 4)])
def test_an_allocation_that_ends_before_its_command_says_why(
    stack: Machine, ends_with: int, code: int
) -> None:
    name = f"brief{ends_with}"
    file = stack.root / f"{name}.end"
    script = f"until [ -e {file} ]; do sleep 0.1; done; exit {ends_with}"
    words = ("alloc", "--name", name, *SMALL, "--walltime", "5s", "--", "sh", "-c", script)
    process = stack.start(*words)
    until(lambda: "waiting for the command here" in stack.output_of(process), what="it has ended")
    file.touch()
    assert process.wait(60) == code
    said = stack.output_of(process)
    why = "WalltimeExceeded: its walltime of 5s is over"
    assert f"The allocation has ended: {why}; waiting for the command here\n" in said
    assert said.splitlines()[-1] == f"podgroup default/{name} Failed ({why})"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--", "no-such-program"), 127, b"error: command not found: no-such-program\n"),
        (("-N", "33"), 2, b"error: an allocation has at most 32 pods, and -N asks for 33\n"),
    ],
)
def test_an_allocation_that_cannot_be_is_not_submitted(
    stack: Machine, words: tuple[str, ...], code: int, sentence: bytes
) -> None:
    done = stack.fed("alloc", "--name", "never", *words, given=b"", exits=code)
    assert done.stderr.startswith(sentence)


def test_a_step_of_an_allocation_cannot_ask_for_more(stack: Machine) -> None:
    script = "batchq run --cpus 2 -- true"
    words = ("alloc", "--name", "small", *SMALL, "--", "sh", "-c", script)
    done = stack.fed(*words, given=b"", exits=2, **PATH)
    assert b"error: --cpus applies to a group of its own" in done.stderr


def test_a_signal_to_a_step_of_an_allocation_ends_this_step_only(stack: Machine) -> None:
    # The step is ended once its output has come: what is on its way then may be lost.
    output = stack.root / "output"
    step = f"batchq run -- sh -c 'echo begun; sleep 605' >{output} & "
    ends = f"until grep -q begun {output}; do sleep 0.1; done; kill $!; wait"
    ends += "; batchq run -- echo still here"
    words = ("alloc", "--name", "kept", *SMALL, "--", "sh", "-c", step + ends)
    done = stack.fed(*words, given=b"", exits=0, **PATH)
    assert done.stdout.decode().splitlines() == ["still here"]
    with stack.client() as client:
        assert phase(client, "kept") == "Completed"


def test_an_allocation_ends_when_the_command_that_holds_it_is_killed(stack: Machine) -> None:
    pid = stack.root / "command"
    script = f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 604"
    process = stack.start("alloc", "--name", "orphan", *SMALL, "--", "sh", "-c", script)
    until(pid.exists, what="its command runs")
    process.kill()
    process.wait(90)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    with stack.client() as client:
        until(lambda: phase(client, "orphan") == "Failed", what="its pod is hung up")
