"""Tests of function processes that are forked from a standby interpreter."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from batchq.api.objects import PodTemplate
from batchq.worker.host.node_resources import UNBOUNDED, ProcessBounds
from batchq.worker.host.processes import child_pids, kill_children
from batchq.worker.workhorse.process import CALLEE, Fork, Program
from batchq.worker.workhorse.run_file import PodOutcome
from batchq.worker.workhorse.standby import Functions, Standby
from tests.daemon.waiting import until

TASKS = """
import atexit, os, resource, signal, sys, threading

def seen():
    folder, environment = os.getcwd(), dict(os.environ)
    group = os.getpgid(0) == os.getsid(0) == os.getpid()
    held = sorted(int(one) for one in os.listdir("/proc/self/fd"))
    return [folder, environment, group, held[:3], sys.path[0], sys.argv, "ctypes" in sys.modules]

def text_of_environment():
    return sorted(map(repr, os.environ.items()))

def late(path):
    kept = open(path, "w")
    sys.modules["kept"] = kept
    kept.write("written ")
    atexit.register(lambda: kept.write("and at exit"))

def limit():
    return resource.getrlimit(resource.RLIMIT_DATA)

def leave():
    sys.exit(7)

def vanish():
    os.kill(os.getpid(), signal.SIGKILL)
"""
#: Has a process forked ahead, prints the pids of its descendants, and waits.
_A_HORSE = """
import psutil, signal
from batchq.worker.workhorse.process import CALLEE
from batchq.worker.workhorse.standby import Standby
standby = Standby(CALLEE, {})
standby.fork_ahead()
print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)
signal.pause()
"""
HERE = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "SECRET": "of one pod"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    # The pod may have a module with the name of one that the standby imports.
    (tmp_path / "socket.py").write_text("WHOSE = 'the pod'\n")
    return tmp_path


@pytest.fixture
def before() -> frozenset[int]:
    """The children of this process, which include servers of other tests."""
    return child_pids()


@pytest.fixture
def standby(before: frozenset[int]) -> Iterator[Standby]:
    made = Standby(CALLEE, HERE)
    yield made
    made.close()


def call(
    standby: Standby,
    folder: Path,
    function: str,
    *,
    environment: dict[str, str] | None = None,
    bounds: ProcessBounds = UNBOUNDED,
) -> tuple[PodOutcome, bytes | None]:
    """Call a function through the standby; return its outcome and result."""
    program = Program(PodTemplate(function=function))
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is all that is needed
        out = nowhere.fileno()
        fork = standby.fork(environment or HERE, str(folder), bounds, (program.stdin, out, out))
    assert fork is not None
    wait_status = ended(fork)
    outcome = PodOutcome(exit_code=os.waitstatus_to_exitcode(wait_status))
    return program.resolve(outcome)


def ended(fork: Fork) -> int:
    """Return the wait status of a forked process."""
    pidfd = os.pidfd_open(fork.pid)
    assert select.select([pidfd], [], [], 90)[0]
    os.close(pidfd)
    return fork.reap()


def test_a_forked_function_sees_what_it_would_see_in_a_started_process(
    standby: Standby, folder: Path
) -> None:
    environment = {**HERE, "SECRET": "of another", "MINE": "1"}
    outcome, result = call(standby, folder, "tasks:seen", environment=environment)
    assert outcome == PodOutcome(exit_code=0)
    at, variables, leads, held, first, argv, has_more = json.loads(result or b"")
    assert at == first == str(folder)
    assert variables == environment
    assert (leads, held, argv, has_more) == (True, [0, 1, 2], ["tasks:seen"], False)


def test_a_forked_function_has_the_variables_of_its_own_pod_only(
    before: frozenset[int], folder: Path
) -> None:
    common = {**HERE, "COMMON": "to all pods", "OTHER": "of the agent"}
    standby = Standby(CALLEE, common, common=common)
    try:
        # One is as the standby has it, one has another value, one is missing, and one is new.
        environment = {**HERE, "COMMON": "to all pods", "SECRET": "a=b\nc", "UNUSUAL": "\udcff"}
        result = call(standby, folder, "tasks:text_of_environment", environment=environment)[1]
        assert json.loads(result or b"") == sorted(map(repr, environment.items()))
    finally:
        standby.close()


def test_a_forked_function_has_its_own_place_in_its_group(
    before: frozenset[int], folder: Path
) -> None:
    first = {**HERE, "BATCHQ_TASK": "main", "BATCHQ_INDEX": "0", "BATCHQ_GROUP": "first"}
    standby = Standby(CALLEE, first)
    try:
        assert call(standby, folder, "tasks:seen", environment=first)[0].exit_code == 0
        # One as the first pod has it, another value, and one variable less.
        environment = {**HERE, "BATCHQ_TASK": "main", "BATCHQ_INDEX": "7"}
        result = call(standby, folder, "tasks:text_of_environment", environment=environment)[1]
        assert json.loads(result or b"") == sorted(map(repr, environment.items()))
        shown = [psutil.Process(pid).environ() for pid in child_pids() - before]
        assert ["BATCHQ_GROUP" in one for one in shown] == [False]
    finally:
        standby.close()


def test_a_variable_that_no_process_can_have_is_left_to_the_start(
    standby: Standby, folder: Path
) -> None:
    program = Program(PodTemplate(function="tasks:seen"))
    descriptors = (program.stdin, program.stdin, program.stdin)
    environment = {**HERE, "MINE": "a\0b"}
    assert standby.fork(environment, str(folder), UNBOUNDED, descriptors) is None
    program.close()
    assert call(standby, folder, "tasks:leave")[0].exit_code == 7


def test_a_standby_obeys_a_work_horse_that_was_started_before_an_upgrade(folder: Path) -> None:
    # Such a work-horse has the former version in memory, and starts the file that is there now.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(CALLEE, env={**HERE, "OLD": "1"}, stdin=theirs.fileno())
    theirs.close()
    program = Program(PodTemplate(function="tasks:seen"))
    environment = {**HERE, "MINE": "1"}
    order = {"environment": environment, "folder": str(folder), "memory": 0}
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is all that is needed
            descriptors = [program.stdin, nowhere.fileno(), nowhere.fileno()]
            socket.send_fds(ours, [json.dumps(order).encode()], descriptors)
        _, (pidfd,), _, _ = socket.recv_fds(ours, 64, 1)
        assert select.select([pidfd], [], [], 90)[0]
        os.close(pidfd)
        ours.send(b"?")
        assert ours.recv(64) == b"0"
        outcome, result = program.resolve(PodOutcome(exit_code=0))
        assert outcome.exit_code == 0
        assert json.loads(result or b"")[:2] == [str(folder), environment]
    finally:
        ours.close()
        assert process.wait(90) == 0


def test_a_module_of_the_pod_may_have_the_name_of_one_that_the_standby_needs(
    standby: Standby, folder: Path
) -> None:
    (folder / "asks.py").write_text("import socket\ndef whose():\n    return socket.WHOSE\n")
    assert call(standby, folder, "asks:whose")[1] == b'"the pod"'


def test_the_standby_does_not_show_the_environment_of_a_pod(
    before: frozenset[int], standby: Standby
) -> None:
    # Of this process's children, the standby interpreter.
    shown = [psutil.Process(pid).environ() for pid in child_pids() - before]
    assert len(shown) == 1
    assert "SECRET" not in shown[0]


def test_a_changed_module_is_imported_in_its_new_version(standby: Standby, folder: Path) -> None:
    for number in (1, 22):
        (folder / "changing.py").write_text(f"def number():\n    return {number}\n")
        assert call(standby, folder, "changing:number")[1] == str(number).encode()


def test_output_that_is_buffered_at_exit_is_written(standby: Standby, folder: Path) -> None:
    path = folder / "late.txt"
    (folder / "call.py").write_text(f"import tasks\ndef late():\n    tasks.late({str(path)!r})\n")
    assert call(standby, folder, "call:late")[0].exit_code == 0
    assert path.read_text() == "written and at exit"


@pytest.mark.parametrize(("function", "exit_code"), [("leave", 7), ("vanish", -signal.SIGKILL)])
def test_the_exit_code_of_a_forked_process_is_returned(
    standby: Standby, folder: Path, function: str, exit_code: int
) -> None:
    assert call(standby, folder, f"tasks:{function}")[0].exit_code == exit_code
    assert call(standby, folder, "tasks:limit")[0].exit_code == 0


def test_the_memory_of_a_forked_process_is_limited(standby: Standby, folder: Path) -> None:
    limit = 1 << 30
    bounds = ProcessBounds(memory_bytes=limit)
    assert call(standby, folder, "tasks:limit", bounds=bounds)[1] == b"[%d,%d]" % (limit, limit)
    assert call(standby, folder, "tasks:limit")[1] != b"[%d,%d]" % (limit, limit)


def test_different_start_variables_of_python_need_another_standby(
    standby: Standby, folder: Path
) -> None:
    for name in ("PYTHONPATH", "PYTHONHASHSEED", "LC_ALL", "LD_PRELOAD", "TZ"):
        assert standby.fork({**HERE, name: "x"}, str(folder), UNBOUNDED, (0, 1, 2)) is None


def test_a_killed_standby_forks_no_more_and_is_collected(standby: Standby, folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import threading\ndef sleep():\n    threading.Event().wait(600)\n"
    )
    program = Program(PodTemplate(function="slow:sleep"))
    fork = standby.fork(HERE, str(folder), UNBOUNDED, (program.stdin, 1, 2))
    assert fork is not None
    pidfd = os.pidfd_open(fork.keep[0])
    os.kill(fork.keep[0], signal.SIGKILL)
    os.kill(fork.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 90)[0]
    os.close(pidfd)
    assert fork.keep[0] in child_pids()
    with pytest.raises(ChildProcessError):
        # Without a work-horse that adopts orphans, another process becomes its parent.
        fork.reap()
    assert standby.fork(HERE, str(folder), UNBOUNDED, (program.stdin, 1, 2)) is None
    os.close(program.stdin)


def processes_of(standby: Standby) -> list[psutil.Process]:
    """Return the processes that a standby has forked and that wait for their orders, or run."""
    return psutil.Process(standby._process.pid).children()


def test_a_process_that_was_forked_ahead_runs_the_next_function(
    standby: Standby, folder: Path
) -> None:
    call(standby, folder, "tasks:limit")
    standby.fork_ahead()
    standby.fork_ahead()
    [ahead] = processes_of(standby)
    program = Program(PodTemplate(function="tasks:seen"))
    environment = {**HERE, "SECRET": "of another"}
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is all that is needed
        out = nowhere.fileno()
        fork = standby.fork(environment, str(folder), UNBOUNDED, (program.stdin, out, out))
    assert fork is not None
    assert fork.pid == ahead.pid
    outcome, result = program.resolve(PodOutcome(exit_code=ended(fork)))
    assert outcome.exit_code == 0
    assert json.loads(result or b"")[:2] == [str(folder), environment]


def test_a_process_that_was_forked_ahead_holds_nothing_of_a_pod(
    standby: Standby, folder: Path
) -> None:
    call(standby, folder, "tasks:limit")
    standby.fork_ahead()
    [ahead] = processes_of(standby)
    assert "SECRET" not in ahead.environ()
    assert ahead.cwd() == "/"
    # It opens and closes files of the standard library until it is ready.
    until(lambda: held_by(ahead.pid) == {os.devnull})


def held_by(pid: int) -> set[str]:
    """Return what the descriptors of a process refer to, but for sockets."""
    held = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.add(os.readlink(one))  # noqa: PTH115 - some are no files
    return {one for one in held if not one.startswith("socket:")}


def test_a_process_that_was_forked_ahead_ends_with_its_standby(
    standby: Standby, folder: Path
) -> None:
    standby.fork_ahead()
    [ahead] = processes_of(standby)
    standby.close()
    ahead.wait(90)


def test_a_process_that_was_forked_ahead_ends_when_its_work_horse_is_killed() -> None:
    horse = subprocess.Popen([sys.executable, "-c", _A_HORSE], stdout=subprocess.PIPE, text=True)
    assert horse.stdout is not None
    below = [psutil.Process(int(pid)) for pid in horse.stdout.readline().split()]
    assert len(below) == 2
    horse.kill()
    horse.wait()
    horse.stdout.close()
    for one in below:
        one.wait(90)


def run(functions: Functions, folder: Path) -> Fork | None:
    """Run a function to its end, unless the caller would have to start it; return its process."""
    program = Program(PodTemplate(function="tasks:limit"))
    fork = functions.fork(HERE, str(folder), UNBOUNDED, (program.stdin, 1, 2))
    if fork is not None:
        assert ended(fork) == 0
    program.close()
    return fork


def kill(pid: int) -> None:
    """Kill a process and wait for its end."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 90)[0]
    os.close(pidfd)


@pytest.mark.parametrize("is_standby_killed", [False, True])
def test_a_function_runs_although_what_was_forked_ahead_for_it_is_killed(
    folder: Path, is_standby_killed: bool
) -> None:
    functions = Functions(CALLEE)
    try:
        assert run(functions, folder) is None
        first = run(functions, folder)
        assert first is not None
        functions.fork_ahead()
        [interpreter] = first.keep
        [ahead] = psutil.Process(interpreter).children()
        kill(interpreter if is_standby_killed else ahead.pid)
        second = run(functions, folder)
        assert second is not None
        assert second.keep != first.keep
    finally:
        functions.close()


def test_nothing_is_forked_ahead_by_a_standby_that_was_killed(folder: Path) -> None:
    functions = Functions(CALLEE)
    try:
        run(functions, folder)
        first = run(functions, folder)
        assert first is not None
        kill(first.keep[0])
        functions.fork_ahead()
        assert run(functions, folder) is not None
    finally:
        functions.close()


def test_the_first_function_of_a_work_horse_is_started_without_a_standby(folder: Path) -> None:
    before, functions = child_pids(), Functions(CALLEE)
    program = Program(PodTemplate(function="tasks:limit"))
    try:
        descriptors = (program.stdin, 1, 2)
        assert functions.fork(HERE, str(folder), UNBOUNDED, descriptors) is None
        assert child_pids() == before
        second = functions.fork(HERE, str(folder), UNBOUNDED, descriptors)
        assert second is not None
        assert ended(second) == 0
        # A standby that does not fit is replaced by another.
        other = functions.fork({**HERE, "TZ": "UTC"}, str(folder), UNBOUNDED, descriptors)
        assert other is not None
        assert other.keep != second.keep
        ended(other)
    finally:
        functions.close()
        os.close(program.stdin)
    # Only of these children: other tests may still use a server.
    assert kill_children(keep=before, within_s=60.0) == []
