"""Tests of the process that guards all pods of an agent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.processes import await_death
from batchq.worker.workhorse.guard import Guard, GuardPost
from tests.daemon.waiting import until


@pytest.fixture
def post() -> Iterator[GuardPost]:
    made = GuardPost()
    yield made
    made.close()
    os.kill(made.pid, signal.SIGCONT)
    os.waitpid(made.pid, 0)


@pytest.fixture
def group() -> Iterator[subprocess.Popen[bytes]]:
    """A command in its own process group."""
    with subprocess.Popen(["sleep", "600"], process_group=0) as command:
        yield command
        command.kill()


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Recorder(GuardPost):
    """A guard post that only keeps the pipe of the pod, so that its messages can be read."""

    def __init__(self) -> None:
        self.read_end = -1

    def enrol(self, read_end: int, cgroup: PodCgroup | None) -> bool:
        self.read_end = os.dup(read_end)
        return True


def test_the_guard_hears_only_of_later_instants() -> None:
    recorder = _Recorder()
    guard = Guard(post=recorder)
    for at_ms in (5_000, 5_000, 4_000, 6_000):
        guard.allow_until(at_ms)
    assert os.read(recorder.read_end, 100) == b"until 5000\nuntil 6000\n"
    guard.dismiss()
    os.close(recorder.read_end)


def test_the_guard_finds_its_first_instant_in_the_pipe_that_it_is_given() -> None:
    class Reader(_Recorder):
        said = b""

        def enrol(self, read_end: int, cgroup: PodCgroup | None) -> bool:
            self.said = os.read(read_end, 100)
            return super().enrol(read_end, cgroup)

    reader = Reader()
    guard = Guard(post=reader, until_ms=5_000)
    assert reader.said == b"until 5000\n"
    guard.dismiss()
    os.close(reader.read_end)


def test_a_lock_is_held_until_the_last_pod_has_ended() -> None:
    name, post = f"\0lock-of-{os.getpid()}", GuardPost()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        lock.bind(name)
        assert post.hold(lock)
    guard = Guard(post=post)
    post.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as again:
        with pytest.raises(OSError, match="Address already in use"):
            again.bind(name)
        guard.dismiss()
        os.waitpid(post.pid, 0)
        again.bind(name)


def has_ended(command: subprocess.Popen[bytes]) -> bool:
    return command.poll() is not None


def test_a_group_ends_when_its_work_horse_is_killed(
    post: GuardPost, group: subprocess.Popen[bytes]
) -> None:
    read_end, write_end = os.pipe()
    horse = os.fork()
    if horse == 0:
        Guard(post=post).watch_over(group.pid)
        os.write(write_end, b"watched")
        signal.pause()
    # If a work-horse is killed before it names the group, the agent has to end the group.
    assert os.read(read_end, 7) == b"watched"
    assert not has_ended(group)
    os.kill(horse, signal.SIGKILL)
    os.waitpid(horse, 0)
    until(lambda: has_ended(group))
    os.close(read_end)
    os.close(write_end)


def test_a_group_is_killed_when_its_time_is_over(
    post: GuardPost, group: subprocess.Popen[bytes]
) -> None:
    guard = Guard(post=post)
    # The guard reads all instants at once, however late they are sent.
    os.kill(post.pid, signal.SIGSTOP)
    guard.allow_until(now_ms() + 200)
    guard.watch_over(group.pid)
    until_ms = now_ms() + 600
    guard.allow_until(until_ms)
    os.kill(post.pid, signal.SIGCONT)
    await_death([group.pid], 0.4)
    assert not has_ended(group) or now_ms() >= until_ms
    until(lambda: has_ended(group))
    guard.dismiss()


def test_a_group_whose_time_is_over_is_killed_as_soon_as_it_starts(
    post: GuardPost, group: subprocess.Popen[bytes]
) -> None:
    guard = Guard(post=post)
    guard.allow_until(now_ms() - 1)
    guard.watch_over(group.pid)
    until(lambda: has_ended(group))
    guard.dismiss()


def test_a_dismissed_guard_leaves_the_group_alone(group: subprocess.Popen[bytes]) -> None:
    post = GuardPost()
    guard = Guard(post=post)
    guard.watch_over(group.pid)
    guard.dismiss()
    guard.dismiss()
    guard.watch_over(group.pid)
    # The guarding process ends once it has read all messages and guards no pod.
    post.close()
    assert os.waitpid(post.pid, 0)[1] == 0
    assert not has_ended(group)


def test_the_guarding_process_lives_while_it_has_a_pod_to_guard(
    group: subprocess.Popen[bytes],
) -> None:
    post = GuardPost()
    guard = Guard(post=post)
    guard.watch_over(group.pid)
    post.close()
    assert os.waitpid(post.pid, os.WNOHANG) == (0, 0)
    guard.dismiss()
    assert os.waitpid(post.pid, 0)[1] == 0
    assert not has_ended(group)


def test_a_pod_gets_its_own_guard_if_the_guarding_process_is_dead(
    group: subprocess.Popen[bytes],
) -> None:
    post = GuardPost()
    os.kill(post.pid, signal.SIGKILL)
    os.waitpid(post.pid, 0)
    guard = Guard(post=post)
    guard.allow_until(now_ms() + 100)
    guard.watch_over(group.pid)
    until(lambda: has_ended(group))
    guard.dismiss()
    post.close()


def an_hour_from_now() -> int:
    return now_ms() + 3_600_000


@pytest.fixture
def next_group() -> Iterator[subprocess.Popen[bytes]]:
    """The command of the next pod."""
    with subprocess.Popen(["sleep", "600"], process_group=0) as command:
        yield command
        command.kill()


def test_the_next_pod_of_a_work_horse_is_guarded_and_the_former_is_left_alone(
    post: GuardPost,
    group: subprocess.Popen[bytes],
    next_group: subprocess.Popen[bytes],
) -> None:
    former = Guard(post=post, until_ms=now_ms() + 1_000)
    former.watch_over(group.pid)
    former.dismiss()
    guard = Guard(post=post, until_ms=now_ms() + 1_000)
    guard.watch_over(next_group.pid)
    until(lambda: has_ended(next_group))
    guard.dismiss()
    assert not has_ended(group)


def test_a_pod_is_given_more_time_without_waking_the_guard(
    post: GuardPost, group: subprocess.Popen[bytes], next_group: subprocess.Popen[bytes]
) -> None:
    guard, first_ms = Guard(post=post, until_ms=now_ms() + 1_000), now_ms() + 1_000
    guard.watch_over(group.pid)
    guard.allow_until(an_hour_from_now())
    # This group ends after the guard has looked at both.
    other = Guard(post=post, until_ms=first_ms + 100)
    other.watch_over(next_group.pid)
    until(lambda: has_ended(next_group))
    assert not has_ended(group)
    guard.dismiss()
    other.dismiss()


def test_no_group_is_killed_when_a_work_horse_ends_after_its_last_pod(
    post: GuardPost, group: subprocess.Popen[bytes], next_group: subprocess.Popen[bytes]
) -> None:
    horse = os.fork()
    if horse == 0:
        guard = Guard(post=post, until_ms=now_ms() + 100)
        guard.watch_over(group.pid)
        guard.dismiss()
        os._exit(0)
    os.waitpid(horse, 0)
    guard = Guard(post=post, until_ms=now_ms() + 200)
    guard.watch_over(next_group.pid)
    until(lambda: has_ended(next_group))
    guard.dismiss()
    assert not has_ended(group)


def test_the_next_pod_gets_its_own_guard_if_the_guarding_process_has_died_meanwhile(
    group: subprocess.Popen[bytes],
) -> None:
    post = GuardPost()
    Guard(post=post, until_ms=an_hour_from_now()).dismiss()
    os.kill(post.pid, signal.SIGKILL)
    os.waitpid(post.pid, 0)
    guard = Guard(post=post, until_ms=now_ms() + 100)
    guard.watch_over(group.pid)
    until(lambda: has_ended(group))
    guard.dismiss()
    post.close()


def test_a_pod_whose_time_is_over_before_that_of_the_former_is_killed_in_time(
    post: GuardPost, group: subprocess.Popen[bytes]
) -> None:
    former = Guard(post=post, until_ms=an_hour_from_now())
    # The guard reads no more of this pipe for an hour.
    await_death([group.pid], 0.2)
    former.dismiss()
    guard = Guard(post=post, until_ms=now_ms() + 100)
    guard.watch_over(group.pid)
    until(lambda: has_ended(group))
    guard.dismiss()


def test_a_pipe_serves_only_pods_of_one_cgroup_and_thirty_of_them(tmp_path: Path) -> None:
    read_ends: list[int] = []

    class Keeper(_Recorder):
        def enrol(self, read_end: int, cgroup: PodCgroup | None) -> bool:
            read_ends.append(os.dup(read_end))
            return True

    keeper = Keeper()
    for _ in range(31):
        Guard(post=keeper, until_ms=5_000).dismiss()
    assert len(read_ends) == 2
    Guard(PodCgroup(tmp_path), post=keeper, until_ms=5_000).dismiss()
    assert len(read_ends) == 3
    for descriptor in read_ends:
        os.close(descriptor)
