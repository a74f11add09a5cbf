"""A forked process of batchq does what a started one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.daemon.waiting import until
from tests.harness import fork_server

BATCHQ = [sys.executable, "-P", "-m", "batchq.cli"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has CLONE_PARENT")


@pytest.fixture(autouse=True)
def is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "IS_ON", True)


@pytest.mark.parametrize(
    "words",
    [["version"], ["nonsense"], ["--redis-url", "unix:///no/such", "jobs", "-o", "json"]],
    ids=" ".join,
)
def test_a_forked_command_ends_and_prints_as_a_started_one(words: list[str]) -> None:
    forked, started = (
        fork_server.run(kind, [*BATCHQ, *words], timeout=120)
        for kind in (fork_server.Process, subprocess.Popen)
    )
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr == started.stderr


def test_a_fork_finds_the_packages_that_its_environment_names(tmp_path: Path) -> None:
    file, info = tmp_path / "scheduler.yaml", tmp_path / "site" / "other-1.0.dist-info"
    file.write_text("actions: [nonsense]\n")
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[batchq.actions]\nanother = other:Another\n")
    words = [*BATCHQ, "config", "check", str(file)]
    named = [
        fork_server.run(fork_server.Process, words, timeout=120, env=environ).stderr
        for environ in (
            {**os.environ, "PYTHONPATH": str(tmp_path / "site")},
            {**os.environ, "PYTHONPATH": ""},
        )
    ]
    assert ["another" in text for text in named] == [True, False]
    assert all("there is no action 'nonsense'" in text for text in named)


def test_a_forked_scheduler_is_a_child_with_its_environment_and_ends_on_sigterm(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    environ = {"BATCHQ_HOME": str(tmp_path), "BATCHQ_REDIS_URL": "unix:///no/such", "PATH": ""}
    with log.open("w") as output:
        scheduler = fork_server.Process([*BATCHQ, "scheduler"], stderr=output, env=environ)
    assert psutil.Process(scheduler.pid).ppid() == psutil.Process().pid
    until(lambda: "the server at unix:///no/such is not running" in log.read_text())
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(timeout=60) == 0


def test_threads_that_fork_at_once_get_their_own_processes() -> None:
    def error_of(word: str) -> str:
        return fork_server.run(fork_server.Process, [*BATCHQ, word], timeout=120).stderr

    words = [f"nonsense-{place}" for place in range(8)]
    with ThreadPoolExecutor(len(words)) as threads:
        errors = list(threads.map(error_of, words))
    assert all(word in error for word, error in zip(words, errors, strict=True))


def test_a_fork_has_its_session_and_its_blocked_signals_once_it_is_returned() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        forked = fork_server.Process(
            [*BATCHQ, "version"], stdout=subprocess.DEVNULL, start_new_session=True
        )
        assert os.getsid(forked.pid) == forked.pid
        status = Path(f"/proc/{forked.pid}/status").read_text()
        assert f"SigBlk:\t{1 << (signal.SIGUSR1 - 1):016x}\n" in status
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert forked.wait(timeout=60) == 0


def test_a_fork_has_no_other_descriptors_than_those_given() -> None:
    forked = fork_server.Process(
        [*BATCHQ, "--redis-url", "unix:///no/such", "jobs"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with suppress(FileNotFoundError):  # a process that has ended has none
        links = [str(link.readlink()) for link in Path(f"/proc/{forked.pid}/fd").iterdir()]
        assert [link for link in links if "socket" in link] == []
    assert forked.wait(timeout=60) == 9
