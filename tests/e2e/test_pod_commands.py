"""Commands in running pods: what they see, what passes, and what ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import psutil
import pytest
import redis

from batchq.daemon import embedded_server
from batchq.worker.host.node_resources import runtime_labels
from tests.e2e.machine import LONG_LEASE, PATIENT, Machine, kill, phase, until
from tests.effort import sample
from tests.harness import fork_server
from tests.http.api_process import RunningApi

#: No other program on this machine sleeps for so many seconds, not even one of a parallel test.
UNIQUE = str(10_000_000 + os.getpid())
CONTAINMENTS = ("cgroup", "pid-namespace", "subreaper")


@pytest.fixture(scope="module")
def stack() -> Iterator[Machine]:
    """A machine with one agent, and a pod that runs there, also while the machine is busy."""
    with Machine() as made:
        made.up(config=made.file("patient.yaml", PATIENT))
        made.agent("n1", options=LONG_LEASE)
        run_pod(made, "host", "sleep 600")
        yield made


@pytest.fixture(params=["redis", "api"])
def door(request: pytest.FixtureRequest, stack: Machine) -> Iterator[dict[str, str]]:
    """Return the variables with which commands use the Redis server, or the API."""
    if request.param == "redis":
        yield {}
        return
    with RunningApi(stack.url) as api:
        yield {"BATCHQ_SERVER": f"unix:{api.socket}", "BATCHQ_REDIS_URL": "unix:///nowhere.sock"}


def run_pod(machine: Machine, name: str, script: str, *options: str) -> None:
    """Submit a pod and wait until it runs."""
    words = ("--name", name, "--cpus", "100m", "--grace", "1s", *options)
    machine.batchq("submit", *words, "--", "sh", "-c", script)
    machine.batchq("wait", name, "--for", "running", "--timeout", "60s")


def execute(
    machine: Machine, door: dict[str, str], *words: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run `batchq exec` in a pod, with this input."""
    return fork_server.run_with_input(
        [sys.executable, "-P", "-m", "batchq.cli", "exec", *words],
        given,
        env=machine.environ | door,
        cwd=machine.root,
        timeout=90,
    )


def test_both_outputs_and_the_exit_code_are_passed_on(stack: Machine, door: dict[str, str]) -> None:
    done = execute(stack, door, "host-main-0", "--", "sh", "-c", "echo out; echo err >&2; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, b"out\n", b"err\n")


def test_a_command_has_the_environment_and_the_folder_of_its_pod(stack: Machine) -> None:
    done = execute(
        stack, {}, "host-main-0", "--", "sh", "-c", 'echo "$BATCHQ_POD $BATCHQ_NODE $PWD"'
    )
    assert done.stdout.decode() == f"host-main-0 n1 {stack.root}\n"


def test_a_command_in_a_pod_with_a_container_has_its_files_and_devices(stack: Machine) -> None:
    if runtime_labels()["batchq/runtime-bwrap"] != "yes":
        pytest.skip("bubblewrap is not installed, or this machine forbids what it needs")
    stack.file("inside", "the mounted file")
    target = stack.root / "target"
    target.touch()
    run_pod(
        stack,
        "contained",
        "sleep 600",
        *("--isolate", "devices", "--mount", f"{stack.root}/inside:{target}:ro"),
    )
    done = execute(stack, {}, "contained-main-0", "--", "sh", "-c", f"cat {target}; ls /dev")
    assert done.returncode == 0
    assert done.stdout.startswith(b"the mounted file")
    assert b"mem\n" not in done.stdout
    stack.batchq("cancel", "contained")


def test_input_of_any_bytes_is_passed_on_whole(stack: Machine, door: dict[str, str]) -> None:
    given = os.urandom(3_000_000)
    assert execute(stack, door, "host-main-0", "--", "cat", given=given).stdout == given


def test_a_command_without_input_finds_it_empty(stack: Machine) -> None:
    done = execute(stack, {}, "--no-stdin", "host-main-0", "--", "cat", given=b"unread")
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_command_that_does_not_exist_ends_as_in_a_shell(stack: Machine) -> None:
    done = execute(stack, {}, "host-main-0", "--", "no-such-program")
    assert done.returncode == 127
    assert done.stderr == b"Pod default/host-main-0: command not found: no-such-program\n"


def test_a_signal_that_ends_a_command_counts_as_in_a_shell(stack: Machine) -> None:
    assert execute(stack, {}, "host-main-0", "--", "sh", "-c", "kill -TERM $$").returncode == 143


def test_commands_run_in_running_pods_only(stack: Machine) -> None:
    stack.batchq("submit", "--name", "ended", "--cpus", "100m", "--wait", "--", "true")
    done = execute(stack, {}, "ended-main-0", "--", "true")
    sentence = (
        b"error: Pod default/ended-main-0 is Succeeded, and commands run in running pods only"
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (8, sentence)


def test_each_command_is_recorded_with_its_user(stack: Machine) -> None:
    execute(stack, {}, "host-main-0", "--", "true", "a secret argument")
    events = stack.batchq("events", "--reason", "CommandStarted").stdout
    assert "runs true in pod host-main-0" in events
    assert "secret" not in events


def test_a_reader_that_does_not_read_holds_the_command_back(stack: Machine) -> None:
    client = redis.Redis.from_url(stack.url)
    former = set(client.keys("exec:*:output:*"))
    words = ("exec", "host-main-0", "--", "sh", "-c", "echo $$; exec yes")
    reader = stack.piped(*words)
    assert reader.stdout is not None
    pid = int(reader.stdout.readline())
    command = psutil.Process(pid)
    [output] = set(client.keys("exec:*:output:*")) - former
    until(lambda: client.xlen(output) > 2, what="it writes")

    def is_held() -> bool:
        before = command.cpu_times()
        return command.status() == psutil.STATUS_SLEEPING and command.cpu_times() == before

    until(is_held, what="it waits")
    # The window, and a few frames without data.
    most = 256 * 1024 + 16 * 1024
    assert sum(len(fields[b"data"]) for _, fields in client.xrange(output)) <= most
    assert client.ttl(output) > 0
    reader.terminate()
    assert reader.wait(90) == 143
    until(lambda: not command.is_running(), what="it is hung up")
    reader.stdout.close()
    client.close()


def test_a_command_whose_output_has_no_reader_any_more_is_hung_up(stack: Machine) -> None:
    words = ("exec", "host-main-0", "--", "sh", "-c", "echo $$; while :; do echo more; done")
    reader = stack.piped(*words)
    assert reader.stdout is not None
    command = psutil.Process(int(reader.stdout.readline()))
    reader.stdout.close()
    assert reader.wait(90) == 1
    until(lambda: not command.is_running(), what="it is hung up")


def test_a_command_ends_with_its_pod(stack: Machine) -> None:
    run_pod(stack, "short", "sleep 600")
    process = stack.start("exec", "--no-stdin", "short-main-0", "--", "sleep", UNIQUE)
    until(lambda: is_running(f"sleep {UNIQUE}"), what="the command runs")
    stack.batchq("cancel", "short")
    assert process.wait(90) == 8
    assert "the command in Pod default/short-main-0 is over: the pod has ended" in (
        stack.output_of(process)
    )


def test_a_command_ends_when_its_user_is_killed(stack: Machine) -> None:
    client = redis.Redis.from_url(stack.url)
    former = set(client.keys("exec:*put:*"))
    reader = stack.piped("exec", "host-main-0", "--", "sh", "-c", "echo $$; exec sleep 600")
    assert reader.stdout is not None
    command = psutil.Process(int(reader.stdout.readline()))
    streams = set(client.keys("exec:*put:*")) - former
    assert len(streams) == 2
    reader.kill()
    reader.wait(60)
    reader.stdout.close()
    until(lambda: not command.is_running(), what="it is hung up")
    until(lambda: not client.exists(*streams), what="its session is removed")
    client.close()
    with stack.client() as client:
        assert phase(client, "host") == "Running"


def test_an_interrupt_goes_to_the_command(stack: Machine) -> None:
    script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    process = stack.piped("exec", "host-main-0", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait(90) == 9
    process.stdout.close()


def test_a_killed_agent_ends_its_commands_and_their_users_hear_of_it(machine: Machine) -> None:
    machine.up()
    agent = machine.agent("n1")
    run_pod(machine, "host", "sleep 600")
    reader = machine.start("exec", "--no-stdin", "host-main-0", "--", "sleep", UNIQUE)
    until(lambda: is_running(f"sleep {UNIQUE}"), what="the command runs")
    kill(agent.pid)
    assert reader.wait(60) in (8, 9)
    said = machine.output_of(reader)
    assert "the command in Pod default/host-main-0 is" in said
    until(lambda: not is_running(f"sleep {UNIQUE}"), what="it has ended")


def is_running(command: str) -> bool:
    """Return whether this very command runs."""
    return any(command_line(process) == command for process in psutil.process_iter())


@pytest.mark.parametrize("containment", sample(CONTAINMENTS, 2))
def test_a_command_is_within_the_containment_of_its_pod(machine: Machine, containment: str) -> None:
    machine.up()
    try:
        agent = machine.agent("n1", options=("--containment", containment))
    except AssertionError:
        pytest.skip(f"this machine does not grant the containment {containment}")
    run_pod(machine, "host", "echo begun; exec sleep 600")
    stays = "setsid sh -c 'touch up; exec sleep 602' & until [ -e up ]; do sleep 0.05; done"
    script = f"cat /proc/self/cgroup; readlink /proc/self/ns/pid; {stays}; exit 3"
    done = execute(machine, {}, "host-main-0", "--", "sh", "-c", script)
    assert done.returncode == 3
    own, sleeper = (below(agent.pid, f"sleep {seconds}") for seconds in (600, 602))
    assert Path(f"/proc/{own.pid}/cgroup").read_text() in done.stdout.decode()
    assert str(Path(f"/proc/{own.pid}/ns/pid").readlink()) in done.stdout.decode()
    machine.batchq("cancel", "host")
    until(lambda: not sleeper.is_running(), what="what it has left ends with the pod")


def below(agent: int, command: str) -> psutil.Process:
    """Return the descendant of an agent that runs this command."""
    [found] = [
        process
        for process in psutil.Process(agent).children(recursive=True)
        if command_line(process) == command
    ]
    return found


def command_line(process: psutil.Process) -> str:
    """Return a process's command; "" if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_shell_has_a_terminal_that_follows_the_users(
    stack: Machine, door: dict[str, str]
) -> None:
    words = ("exec", "--pty", "host-main-0", "--", "sh")
    with stack.terminal(*words, **door) as terminal:
        terminal.type("stty size; tty -s; echo tty=$((42 + $?)) term=$TERM\n")
        terminal.expect("24 80")
        terminal.expect("tty=42 term=xterm")
        assert terminal.attributes() != terminal.before
        terminal.resize_and_interrupt_shell()
        terminal.type("exit 7\n")
        assert terminal.ended() == 7
        assert terminal.attributes() == terminal.before


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_is_whole_after_a_signal(stack: Machine, sent: signal.Signals) -> None:
    with stack.terminal("exec", "--pty", "host-main-0", "--", "sh") as terminal:
        terminal.type("echo ready=$((6 * 7))\n")
        terminal.expect("ready=42")
        terminal.process.send_signal(sent)
        assert terminal.ended() == 128 + sent
        assert terminal.attributes() == terminal.before


@pytest.mark.parametrize("has_api", sample([True, False], 1))
def test_a_shell_continues_after_a_server_was_away_for_seconds(
    machine: Machine, has_api: bool
) -> None:
    machine.up()
    machine.agent("n1", options=("--lease", "60s"))
    run_pod(machine, "host", "sleep 600")
    with ExitStack() as ends:
        words = ("exec", "--pty", "host-main-0", "--", "sh")
        door = {}
        if has_api:
            api = ends.enter_context(RunningApi(machine.url))
            door = {"BATCHQ_SERVER": f"unix:{api.socket}"}
        terminal = ends.enter_context(machine.terminal(*words, **door))
        terminal.type("echo ready=$((6 * 7))\n")
        terminal.expect("ready=42")
        server = embedded_server.running_server(machine.home)
        assert server is not None
        kill(server.pid)
        away_until = monotonic() + 5
        terminal.type("echo typed=$((6 * 8))\n")
        until(lambda: monotonic() > away_until, what="the server has been away")
        embedded_server.ensure_server(machine.home)
        terminal.expect("typed=48")
        terminal.type("exit 7\n")
        assert terminal.ended() == 7


@pytest.mark.parametrize("victim", sample(["agent", "server", "relay"], 2))
def test_a_terminal_is_whole_after_a_kill(machine: Machine, victim: str) -> None:
    machine.up()
    agent = machine.agent("n1")
    run_pod(machine, "host", "sleep 600")
    with machine.terminal("exec", "--pty", "host-main-0", "--", "sh") as terminal:
        terminal.type("echo ready=$((6 * 7))\n")
        terminal.expect("ready=42")
        assert terminal.attributes() != terminal.before
        match victim:
            case "agent":
                kill(agent.pid)
            case "server":
                kill(server_of(machine))
            case _:
                kill(relay_of(agent.pid))
        # The agent says so at once if the relay is killed; the silence of both takes 15 seconds.
        assert terminal.ended(within_s=14 if victim == "relay" else 60) in (8, 9)
        if victim == "server":
            assert "refused; the command in the pod is being hung up" in terminal.shown
        assert terminal.attributes() == terminal.before


def server_of(machine: Machine) -> int:
    """Return the pid of a machine's Redis server."""
    client = redis.Redis.from_url(machine.url)
    try:
        return int(client.info("server")["process_id"])
    finally:
        client.close()


def relay_of(agent: int) -> int:
    """Return the pid of the relay: the agent's child that leads a session and has no child."""
    children = psutil.Process(agent).children()
    [found] = [
        child.pid
        for child in children
        if os.getsid(child.pid) == child.pid and child.num_threads() == 2
    ]
    return found


def test_a_group_stands_for_its_only_running_pod(stack: Machine, door: dict[str, str]) -> None:
    done = execute(stack, door, "host", "--", "sh", "-c", "echo $BATCHQ_POD")
    assert (done.returncode, done.stdout) == (0, b"host-main-0\n")


def test_a_group_with_several_pods_or_none_is_no_pod(stack: Machine) -> None:
    run_pod(stack, "both", "sleep 600", "-N", "2")
    done = execute(stack, {}, "both", "--", "true")
    assert done.returncode == 6
    assert done.stderr.decode().splitlines() == [
        "error: default/both is a PodGroup with several pods: expected the name of one",
        "hint: its running pods: both-main-0, both-main-1",
    ]
    stack.batchq("cancel", "both")
    stack.batchq("submit", "--name", "large", "--cpus", "100", "--", "true")
    done = execute(stack, {}, "large", "--", "true")
    assert done.returncode == 6
    said = done.stderr.decode()
    assert said.startswith("error: PodGroup default/large is Pending, and has no running pod\n")
    stack.batchq("cancel", "large")


def test_a_terminal_is_needed_for_one(stack: Machine) -> None:
    done = execute(stack, {}, "--pty", "host-main-0", "--", "sh")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: --pty needs a terminal, and stdin or stdout is none\n")


def test_attach_shows_what_the_pod_has_said_and_says(stack: Machine) -> None:
    run_pod(stack, "speaker", "echo first; sleep 1; echo last")
    done = stack.batchq("attach", "speaker-main-0")
    assert done.stdout == "first\nlast\n"
