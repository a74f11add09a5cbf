"""Tests of starting commands and of reading their output."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchq.api.node_report import PodAttempt
from batchq.worker.host.device_pool import DevicePool, inherited_locks
from batchq.worker.host.node_resources import ProcessBounds
from batchq.worker.workhorse.process import Command, NotStarted, send_to_group, start
from tests.daemon.waiting import until
from tests.worker.test_device_pool import gpus

PATH = {"PATH": os.environ["PATH"]}


@contextmanager
def started(*argv: str) -> Iterator[Command]:
    command = start(argv, PATH, "")
    try:
        yield command
    finally:
        command.send(signal.SIGKILL)
        command.reap()
        command.close()


@pytest.mark.parametrize(
    ("argv", "exit_code", "message"),
    [
        ((), 127, "the template names no command"),
        (("no-such-program",), 127, "command not found: no-such-program"),
        (("/",), 126, "cannot run /: Permission denied"),
        (("a\0b",), 126, "cannot run 'a\\x00b': embedded null byte"),
    ],
)
def test_a_command_that_cannot_start_reports_why(
    argv: tuple[str, ...], exit_code: int, message: str
) -> None:
    with pytest.raises(NotStarted) as refused:
        start(argv, PATH, "")
    outcome = refused.value.outcome
    assert (outcome.exit_code, outcome.message) == (exit_code, message)


def test_a_script_without_an_interpreter_line_cannot_start(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    with pytest.raises(NotStarted) as refused:
        start([str(script)], PATH, "")
    assert refused.value.outcome.exit_code == 126
    assert "neither a program nor a script" in refused.value.outcome.message


def test_a_command_keeps_the_locks_of_its_devices_while_it_lives(
    make_pool: Callable[..., DevicePool],
) -> None:
    devices = gpus(1)
    pool = make_pool(devices)
    pool.take(PodAttempt("a", 1), {"gpu": 1000})
    locks = inherited_locks(pool.locks_of(PodAttempt("a", 1)))

    def standby(*_: object) -> None:
        raise AssertionError("a process of a standby interpreter would not have the locks")

    bounds = ProcessBounds(locks=locks)
    command = start(("sleep", "60"), PATH, "", bounds=bounds, starter=standby)
    pool.close()
    other = make_pool(devices)
    assert other.offer({}) == {}
    command.send(signal.SIGKILL)
    command.reap()
    command.close()
    until(other.lock_released)
    assert other.offer({})["gpu"] == 1000


def locks_of(pool: DevicePool) -> list[socket.socket]:
    found: list[socket.socket] = []

    def share(lock: socket.socket) -> bool:
        found.append(lock)
        return True

    pool.share_locks(share)
    return found


def test_a_lock_that_was_not_inherited_is_not_passed_on(
    make_pool: Callable[..., DevicePool],
) -> None:
    one, other = make_pool(gpus(1)), make_pool(gpus(1))
    [mine], [another] = locks_of(one), locks_of(other)
    [device] = one.devices()
    assert inherited_locks({device.id: mine.fileno()}) == (mine.fileno(),)
    assert inherited_locks({device.id: another.fileno(), "GPU-gone": 10**6}) == ()


def test_a_command_leads_its_own_group_and_session() -> None:
    with started("sleep", "60") as command:
        assert os.getpgid(command.group) == command.group
        assert os.getsid(command.group) == command.group


def test_a_command_receives_signals_that_its_work_horse_ignores() -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with started("sleep", "60") as command:
            command.send(signal.SIGINT)
            assert select.select([command.pidfd], [], [], 60)[0]
    finally:
        signal.signal(signal.SIGINT, former)


def test_output_is_read_in_bounded_parts() -> None:
    with started("yes") as command:
        stdout = next(fd for fd, name in command.outputs.items() if name == "stdout")
        for _ in range(10):
            select.select([stdout], [], [], 60)
            assert 0 < sum(len(part) for part in command.read(stdout)) <= 256 << 10


def test_a_closed_output_is_forgotten() -> None:
    with started("sh", "-c", "exec >&-; sleep 60") as command:
        stdout = next(fd for fd, name in command.outputs.items() if name == "stdout")
        select.select([stdout], [], [], 60)
        assert command.read(stdout) == []
        assert list(command.outputs.values()) == ["stderr"]


def test_a_signal_to_a_dead_group_is_not_an_error() -> None:
    with started("true") as command:
        until(lambda: bool(select.select([command.pidfd], [], [], 0)[0]))
    send_to_group(command.group, signal.SIGKILL)
