"""A running stack reloads valid and invalid configurations while it works.

The tests install a third-party package with two actions and two plugins. In every session, each
action records the plugins that were asked and the settings in effect, so that a session with half
of a configuration would be noticed.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from batchq.cli.main import main
from batchq.client import Client
from batchq.daemon import detached, stack
from batchq.daemon.detached import Record
from batchq.daemon.embedded_server import ensure_server
from batchq.daemon.reload import ask_to_reload
from batchq.daemon.stack import UpOptions
from batchq.errors import NotFound
from batchq.paths import HOME_VARIABLE, URL_VARIABLE, Home, default_url
from batchq.store.redis import open_store
from batchq.store.schedulers import read_config_text
from tests.daemon.waiting import catches, until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SMALL = "cpu=4,memory=256Mi"

WITNESS = """
import os

class _Says:
    def group_order(self, session, group):
        return self.name

class One(_Says):
    name = "one"

class Two(_Says):
    name = "two"

class _Notes:
    def execute(self, session):
        for group in list(session.groups.values())[:1]:
            said = "+".join(key for key in session.group_key(group) if key in ("one", "two"))
            line = f"{self.name} {said} {session.settings.in_queue_timeout_ms}\\n"
            with open(os.environ["WITNESS"], "a") as file:
                file.write(line)

class NoteOne(_Notes):
    name = "note-one"

class NoteTwo(_Notes):
    name = "note-two"
"""
ENTRY_POINTS = """
[batchq.actions]
note-one = witness:NoteOne
note-two = witness:NoteTwo
[batchq.plugins]
one = witness:One
two = witness:Two
"""
FIRST = """
actions: [enqueue, allocate, note-one]
schedulePeriod: 50ms
inQueueTimeout: 101s
plugins: {multiPoint: {enabled: [one]}}
"""
SECOND = """
actions: [note-two, enqueue, allocate]
schedulePeriod: 60ms
inQueueTimeout: 102s
plugins: {multiPoint: {enabled: [two]}}
"""
WRONG = SECOND.replace("enqueue", "enqeue")

#: The notes of a session for each complete configuration.
WHOLE_FIRST = "note-one one 101000"
WHOLE_SECOND = "note-two two 102000"


class Notes:
    """The notes that the sessions have written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Install the third-party package for every process that this test starts."""
    site = tmp_path / "site"
    info = site / "witness-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "witness.py").write_text(WITNESS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: witness\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    # `up` itself checks the file too.
    monkeypatch.syspath_prepend(str(site))
    path = os.pathsep.join((str(site), str(ROOT), str(ROOT / "actions")))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("WITNESS", str(tmp_path / "notes"))
    return Notes(tmp_path / "notes")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "scheduler.yaml"
    path.write_text(FIRST)
    return path


@pytest.fixture(autouse=True)
def _own_server(monkeypatch: pytest.MonkeyPatch, home: Home) -> Iterator[None]:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    path = os.pathsep.join((str(ROOT), str(ROOT / "actions")))
    monkeypatch.setenv("PYTHONPATH", path)
    yield
    stack.down(home, now=True, drained_within_s=10)


def replace(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def scheduler_of(home: Home) -> Record:
    record = stack.running_scheduler(home)
    assert record is not None
    return record


def said(home: Home, word: str) -> int:
    """Return how often the scheduler's log has the word."""
    return (home.logs / "scheduler.log").read_text().count(word)


def reasons(client: Client) -> list[str]:
    return [event.reason for event in client.events(kind="Scheduler")]


class Load:
    """Submits a group every tenth of a second while `until` waits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last_at = 0.0
        self.names: list[str] = []

    def until(self, true: Callable[[], bool]) -> None:
        def submitted() -> bool:
            if time.monotonic() - self._last_at >= 0.1:
                self._last_at = time.monotonic()
                self.names.append(f"load-{len(self.names)}")
                self._client.submit(name=self.names[-1], command=["true"], cpus="100m", mem="1Mi")
            return true()

        until(submitted)


def is_longer(what: Callable[[], list[str]], length: int) -> bool:
    return len(what()) > length


def has_led(log: Path) -> bool:
    """Return whether a scheduler was elected; on a busy machine, a leader may lose its lease."""
    return "leader.elected" in log.read_text()


def digests(log: Path) -> list[tuple[str, str]]:
    """Return (event, digest) of each log line that names a configuration."""
    pattern = re.compile(r"event=(\S+) .*?\bconfig=(\w{8})\b")
    return [(match[1], match[2]) for match in pattern.finditer(log.read_text())]


def test_under_load_no_session_is_lost_and_none_uses_half_of_a_configuration(
    home: Home, path: Path, notes: Notes
) -> None:
    stack.up(home, UpOptions(agents=1, resources=SMALL, config=path))
    record = scheduler_of(home)
    with Client(default_url(home)) as client:
        load = Load(client)
        for text, whole, reason in (
            (SECOND, WHOLE_SECOND, "Reloaded"),
            (WRONG, WHOLE_SECOND, "ReloadFailed"),
            (FIRST, WHOLE_FIRST, "Reloaded"),
            (WRONG, WHOLE_FIRST, "ReloadFailed"),
            (SECOND, WHOLE_SECOND, "Reloaded"),
        ):
            answer = len(reasons(client))
            replace(path, text)
            load.until(partial(is_longer, partial(reasons, client), answer))
            assert reasons(client)[answer:] == [reason]
            # Sessions continue with this configuration alone, and groups submitted now end.
            count = len(notes.lines())
            load.until(partial(is_longer, notes.lines, count + 5))
            assert set(notes.lines()[count + 1 :]) == {whole}
            client.wait(load.names[-1:], timeout_s=60)
        results = client.wait(load.names, timeout_s=120)
        events = client.events(kind="Scheduler")
    wrong = next(event for event in events if event.reason == "ReloadFailed")
    assert len(results) >= 20
    assert {str(result.phase) for result in results} == {"Completed"}
    assert set(notes.lines()) == {WHOLE_FIRST, WHOLE_SECOND}
    in_effect = ""
    for event, digest in digests(home.logs / "scheduler.log"):
        if event in ("scheduler.starts", "config.reloaded"):
            in_effect = digest
        assert digest == in_effect, event
    assert wrong.message == (
        f"{path}, line 2: actions[1]: there is no action 'enqeue'; known: allocate,"
        " backfill, enqueue, note-one, note-two, preempt, reclaim; did you mean 'enqueue'?; the"
        " former configuration stays in effect"
    )
    assert detached.is_running(record)
    assert said(home, "Traceback") == 0


def test_the_effective_configuration_is_published_at_the_start_and_after_each_reload(
    home: Home, path: Path, notes: Notes
) -> None:
    stack.up(home, UpOptions(agents=0, config=path))
    store = open_store(default_url(home))
    until(lambda: "inQueueTimeout: 101s" in (read_config_text(store) or ""))
    replace(path, SECOND)
    until(lambda: "inQueueTimeout: 102s" in (read_config_text(store) or ""))
    assert "note-two" in (read_config_text(store) or "")
    store.close()


def test_a_standby_scheduler_reloads_too_and_publishes_when_it_leads(
    home: Home, path: Path, notes: Notes, tmp_path: Path
) -> None:
    stack.up(home, UpOptions(agents=0, config=path))
    leader = scheduler_of(home)
    other = tmp_path / "other.yaml"
    other.write_text(FIRST)
    environ = {
        **os.environ,
        HOME_VARIABLE: str(home.root),
        URL_VARIABLE: default_url(home),
    }
    log = home.logs / "second.log"
    command = [sys.executable, "-P", "-m", "batchq.cli", "scheduler", "--config", str(other)]
    pid = detached.spawn(command, log=log, environ=environ)
    second = Record(
        name="second", pid=pid, birth=detached.birth_of(pid) or "", log=str(log), started_at=0
    )
    store = open_store(default_url(home))
    try:
        until(lambda: "leader.waiting" in log.read_text())
        other.write_text(SECOND)
        detached.send(second, signal.SIGHUP)
        until(lambda: "config.reloaded" in log.read_text())
        # A standby decides nothing; the leader's configuration counts.
        published = read_config_text(store) or ""
        assert "inQueueTimeout: 101s" in published or has_led(log)
        detached.send(leader, signal.SIGTERM)
        until(lambda: "inQueueTimeout: 102s" in (read_config_text(store) or ""))
    finally:
        store.close()
        detached.end(second, patience_s=60)


def test_a_scheduler_killed_during_a_reload_uses_the_file_after_its_restart(
    home: Home, path: Path, notes: Notes
) -> None:
    options = UpOptions(agents=0, config=path)
    stack.up(home, options)
    record = scheduler_of(home)
    store = open_store(default_url(home))
    until(lambda: "inQueueTimeout: 101s" in (read_config_text(store) or ""))
    replace(path, SECOND)
    detached.send(record, signal.SIGHUP)
    detached.send(record, signal.SIGKILL)
    until(lambda: not detached.is_running(record))
    stack.up(home, options)
    until(lambda: "inQueueTimeout: 102s" in (read_config_text(store) or ""))
    store.close()


def test_a_requested_reload_returns_its_outcome(
    home: Home, path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.up(home, UpOptions(agents=0, config=path))
    with Client(default_url(home)) as client:
        until(lambda: bool(client.schedulers().there))
        unchanged = ask_to_reload(home, client)
        assert (unchanged.reason, unchanged.message) == ("Reloaded", f"{path}: unchanged")
        path.write_text(WRONG)
        wrong = ask_to_reload(home, client)
        assert wrong.reason == "ReloadFailed"
        assert "did you mean 'enqueue'?" in wrong.message
        monkeypatch.setenv(HOME_VARIABLE, str(home.root))
        done = CliRunner().invoke(main, ["config", "reload"])
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"error: {wrong.message}\n"
        path.write_text(FIRST.replace("50ms", "70ms"))
        right = ask_to_reload(home, client)
        # The scheduler may have looked at the file before it was asked.
        assert re.fullmatch(
            rf"{re.escape(str(path))}: (already in effect for \w+: )?schedulePeriod 50ms -> 70ms",
            right.message,
        )
        done = CliRunner().invoke(main, ["config", "reload"])
        assert done.exit_code == 0
        assert done.stdout.startswith(f"{path}: already in effect for ")
        assert done.stdout.endswith(": schedulePeriod 50ms -> 70ms\n")


def test_a_stack_in_the_foreground_passes_the_signal_on(
    home: Home, path: Path, notes: Notes
) -> None:
    report = stack.up(home, UpOptions(agents=0, config=path))
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            stack.hold(home, report)
            exit_code = 0
        finally:
            # The child must not continue with the tests in any case.
            os._exit(exit_code)
    with Client(default_url(home)) as client:
        until(lambda: catches(child, signal.SIGHUP))
        os.kill(child, signal.SIGHUP)
        until(lambda: reasons(client) == ["Reloaded"])
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert stack.running_scheduler(home) is None


def test_a_reload_without_a_scheduler_is_refused(home: Home) -> None:
    home.prepare()
    report = stack.up(home, UpOptions(agents=0))
    with Client(default_url(home)) as client:
        detached.end(scheduler_of(home), patience_s=60)
        with pytest.raises(NotFound, match="no scheduler that `batchq up` has started"):
            ask_to_reload(home, client)
    assert report.running


def test_the_loss_of_its_terminal_ends_it_as_ever_and_a_signal_does_not(home: Home) -> None:
    ensure_server(home)
    child, terminal = pty.fork()
    if child == 0:
        environ = {**os.environ, HOME_VARIABLE: str(home.root), URL_VARIABLE: default_url(home)}
        os.execve(sys.executable, [sys.executable, "-m", "batchq.cli", "scheduler"], environ)
    os.set_blocking(terminal, False)
    said, codes = bytearray(), list[int]()

    def says(word: bytes) -> bool:
        with suppress(BlockingIOError):
            said.extend(os.read(terminal, 4096))
        return word in said

    def ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            codes.append(os.waitstatus_to_exitcode(status))
        return bool(codes)

    try:
        until(lambda: says(b"leader.elected"))
        os.kill(child, signal.SIGHUP)
        until(lambda: says(b"config.unchanged"))
        assert not ended()
        os.close(terminal)
        until(ended)
    finally:
        if not codes:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert codes == [-signal.SIGHUP]
