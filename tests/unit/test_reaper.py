"""A test run leaves no process behind, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.waiting import until
from tests.worker.stage import is_alive

#: Starts a process in a session of its own, as `batchq up` does, and prints its pid.
_RUN = """
import subprocess, sys
from tests.harness import reaper
waiting = reaper.start()
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(left.pid, flush=True)
sys.stdin.readline()
reaper.end(waiting)
"""


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_a_process_that_a_run_has_left_ends_with_the_run(ends_by: signal.Signals | None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert is_alive(pid)
        if ends_by is not None:
            os.kill(run.pid, ends_by)
        run.stdin.close()
    until(lambda: not is_alive(pid))


_TEST = """
import threading
def test_that_never_ends(running_server):
    print("server", running_server.pid, flush=True)
    threading.Event().wait()
"""


def test_the_server_of_a_killed_pytest_ends(tmp_path: Path) -> None:
    file = tmp_path / "test_never.py"
    file.write_text(_TEST)
    words = ["-m", "pytest", "-sq", "-c", os.devnull, "-p", "tests.conftest", str(file)]
    # It must not be taken for a worker of this run.
    environ = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environ
    ) as run:
        assert run.stdout is not None
        pid = next(int(line.split()[1]) for line in run.stdout if line.startswith("server "))
        assert is_alive(pid)
        run.kill()
    until(lambda: not is_alive(pid))
