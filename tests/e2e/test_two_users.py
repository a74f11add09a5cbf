"""Tests of two Unix users on one machine: the second cannot use anything of the first's `up`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchq.client import Client
from batchq.daemon import detached
from batchq.paths import default_url, read_password
from tests.e2e.machine import Machine, group, until
from tests.harness.ports import free_port

INTRUDER = Path(__file__).with_name("intruder.py")
OTHER_USER = 65534


def public_python() -> str:
    """Return an interpreter that the other user may run."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3", shutil.which("python3") or ""):
        if path and as_other_user([path, "-c", "pass"], "").returncode == 0:
            return path
    pytest.skip("no Python on this machine can be run by another user")


def as_other_user(command: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as another user, in none of our groups."""
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={},
        timeout=60,
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
    )


@pytest.fixture
def shared(machine: Machine) -> Iterator[Machine]:
    """A machine whose home is in a folder that others may enter."""
    yield from _opened(machine)


@pytest.fixture
def shared_by_programs() -> Iterator[Machine]:
    """Likewise, and its processes have command lines of their own, in which passwords might
    show.
    """
    with Machine(commands=subprocess.Popen, programs=subprocess.Popen) as machine:
        yield from _opened(machine)


def _opened(machine: Machine) -> Iterator[Machine]:
    if os.getuid() != 0:
        pytest.skip("only root can become another user: run these tests as root")
    machine.root.chmod(0o755)
    # As `mkdir -p` creates it, for a home that was chosen with BATCHQ_HOME.
    machine.home.root.mkdir(mode=0o777)
    machine.home.root.chmod(0o777)
    yield machine
    machine.batchq("down", "--now")


def pids_of(machine: Machine) -> list[int]:
    """Return the pids of all processes that `up` has started, and of their descendants."""
    records = [detached.read_record(path) for path in machine.home.run.glob("*.json")]
    ours = [psutil.Process(record.pid) for record in records if record is not None]
    return [one.pid for own in ours for one in (own, *own.children(recursive=True))]


def connections_of(pid: int) -> list[Any]:
    """Return the sockets of a process; none if it has ended."""
    try:
        return list(psutil.Process(pid).net_connections(kind="all"))
    except psutil.NoSuchProcess:
        return []


def doors_of(pids: Sequence[int]) -> tuple[set[tuple[str, int]], set[str]]:
    """Return the addresses and the named sockets on which these processes listen."""
    found = [one for pid in pids for one in connections_of(pid)]
    unix = [one for one in found if one.family == socket.AF_UNIX]
    inet = {tuple(one.laddr) for one in found if one.family != socket.AF_UNIX and not one.raddr}
    return inet, {str(one.laddr) for one in unix if one.laddr}


def attack(machine: Machine, pids: Sequence[int], ports: Sequence[int]) -> list[str]:
    """Return what the other user could do."""
    root = machine.home.root
    _, sockets = doors_of(pids)
    doors = {
        "paths": [str(path) for path in [root, *root.rglob("*")]],
        "sockets": sorted(sockets),
        "ports": ports,
        "pids": pids,
    }
    done = as_other_user([public_python(), "-I", str(INTRUDER)], json.dumps(doors))
    if "Permission denied" in done.stderr and str(INTRUDER) in done.stderr:
        source = INTRUDER.read_text()
        done = as_other_user([public_python(), "-I", "-c", source], json.dumps(doors))
    assert done.returncode == 0, done.stderr
    return [str(one) for one in json.loads(done.stdout)]


def up_with_a_pod(machine: Machine, *options: str, api: str = "--no-api") -> str:
    """Start a stack with one running pod, and return what `up` printed."""
    output = machine.batchq(
        "up", api, "--agents", "1", "--resources", "cpu=1,memory=512Mi", *options
    )
    machine.batchq("submit", "--name", "mine", "--", "sleep", "600")
    with Client(default_url(machine.home)) as client:
        until(
            lambda: (
                [str(pod.status.phase) for pod in client.pods(group(client, "mine"))] == ["Running"]
            )
        )
    return output.stderr


def test_a_stack_without_a_port_listens_on_one_socket_only(shared: Machine) -> None:
    up_with_a_pod(shared)
    # A pod runs by the server's records before its process has started.
    until(lambda: len(pids_of(shared)) >= 5)
    pids = pids_of(shared)
    assert doors_of(pids) == (set(), {str(shared.home.socket)})
    assert attack(shared, pids, []) == [f"I am {OTHER_USER}", f"listed {shared.home.root}"]
    assert not shared.home.password.exists()


def test_no_other_user_can_open_the_sockets_of_server_and_api(shared: Machine) -> None:
    up_with_a_pod(shared, api="--api")
    pids = pids_of(shared)
    assert doors_of(pids) == (set(), {str(shared.home.socket), str(shared.home.api_socket)})
    assert attack(shared, pids, []) == [f"I am {OTHER_USER}", f"listed {shared.home.root}"]


def test_a_port_is_useless_without_the_password(shared_by_programs: Machine) -> None:
    port = free_port()
    output = up_with_a_pod(shared_by_programs, "--port", str(port))
    pids = pids_of(shared_by_programs)
    assert (
        f"127.0.0.1:{port} too, and asks for the password in {shared_by_programs.home.password}"
        in output
    )
    assert doors_of(pids) == ({("127.0.0.1", port)}, {str(shared_by_programs.home.socket)})
    assert attack(shared_by_programs, pids, [port]) == [
        f"I am {OTHER_USER}",
        f"listed {shared_by_programs.home.root}",
    ]
    with Client(default_url(shared_by_programs.home)) as client:
        assert [one.metadata.name for one in client.list("PodGroup")] == ["mine"]
        assert str(group(client, "mine").status.phase) == "Running"
    assert shared_by_programs.home.password.stat().st_mode & 0o777 == 0o600
    password = read_password(shared_by_programs.home)
    assert len(password) == 64
    assert password not in output
    assert not [pid for pid in pids if password in " ".join(psutil.Process(pid).cmdline())]


def test_a_user_with_the_password_can_use_the_port(shared: Machine) -> None:
    port = free_port()
    shared.batchq("up", "--no-api", "--agents", "0", "--port", str(port))
    refused = shared.batchq("jobs", url=f"redis://127.0.0.1:{port}", exits=9)
    assert "asks for a password" in refused.stderr
    url = f"redis://:{read_password(shared.home)}@127.0.0.1:{port}"
    assert shared.batchq("queues", "-o", "name", url=url).stdout == "default\n"


def test_any_user_may_read_metrics_and_change_nothing(shared: Machine) -> None:
    port = free_port()
    up_with_a_pod(shared, "--metrics", str(port))
    assert doors_of(pids_of(shared))[0] == {("127.0.0.1", port)}
    ask = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
    url = f"http://127.0.0.1:{port}/metrics"
    read = as_other_user([public_python(), "-c", ask, url], "")
    assert "batchq_groups" in read.stdout
    assert "mine" not in read.stdout
    ask = ask.replace("sys.argv[1]", "r.Request(sys.argv[1], method='POST')")
    assert "405" in as_other_user([public_python(), "-c", ask, url], "").stderr
