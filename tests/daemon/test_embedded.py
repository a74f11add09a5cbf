"""The embedded server: started once, shared, stopped, and started again."""

from __future__ import annotations

import os
import signal
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from batchq.daemon import detached
from batchq.daemon import embedded_server as embedded
from batchq.daemon.detached import ProcessFate
from batchq.daemon.embedded_server import (
    ask,
    ensure_server,
    find_binary,
    running_server,
    stop_server,
)
from batchq.errors import Conflict, InvalidInput, StoreUnavailable
from batchq.paths import Home, default_url, read_password
from tests.daemon.waiting import until
from tests.harness.ports import free_port


def kill(home: Home, pid: int) -> None:
    """Kill the server and wait until it is gone."""
    record = detached.read_record(embedded.record_path(home))
    assert record is not None
    assert record.pid == pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: not detached.is_running(record))


def write_program(path: Path, *lines: str) -> str:
    """Write an executable shell script."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def test_the_server_starts_answers_and_is_closed_to_others(home: Home) -> None:
    server = ensure_server(home)
    assert server.started
    assert server.url == default_url(home)
    assert ask(home.socket, "PING") == "+PONG"
    assert stat.S_IMODE(home.socket.stat().st_mode) == 0o700
    assert server.port == 0


def test_the_server_persists_writes_and_refuses_them_rather_than_forget(home: Home) -> None:
    ensure_server(home)
    result = ask(home.socket, "INFO persistence") + ask(home.socket, "INFO memory")
    assert "aof_enabled:1" in result
    assert "maxmemory_policy:noeviction" in result


def test_a_second_call_finds_the_first_ones_server(home: Home) -> None:
    first = ensure_server(home)
    second = ensure_server(home)
    assert (first.started, second.started) == (True, False)
    assert first.pid == second.pid


def test_simultaneous_calls_share_one_server(home: Home) -> None:
    with ThreadPoolExecutor(6) as pool:
        servers = list(pool.map(lambda _: ensure_server(home), range(6)))
    assert len({server.pid for server in servers}) == 1
    assert sum(server.started for server in servers) == 1


def test_two_homes_have_two_servers(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    try:
        assert ensure_server(home).pid != ensure_server(other).pid
    finally:
        stop_server(other)


def test_stopped_and_started_again_it_still_knows(home: Home) -> None:
    ensure_server(home)
    ask(home.socket, "SET kept yes")
    assert stop_server(home) is ProcessFate.ENDED
    assert running_server(home) is None
    assert not home.socket.exists()
    ensure_server(home)
    assert ask(home.socket, "GET kept") == "yes"


def test_killed_and_started_again_it_still_knows(home: Home) -> None:
    first = ensure_server(home)
    ask(home.socket, "SET kept yes")
    kill(home, first.pid)
    assert running_server(home) is None
    second = ensure_server(home)
    assert second.started
    assert second.pid != first.pid
    assert ask(home.socket, "GET kept") == "yes"


def test_stopping_what_does_not_run_is_no_error(home: Home) -> None:
    assert stop_server(home) is ProcessFate.ABSENT
    kill(home, ensure_server(home).pid)
    assert stop_server(home) is ProcessFate.ABSENT
    assert stop_server(home) is ProcessFate.ABSENT


def test_a_server_that_hangs_is_killed_in_the_end(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_ASK_S", 0.05)
    monkeypatch.setattr(embedded, "_DYING_S", 0.5)
    server = ensure_server(home)
    os.kill(server.pid, signal.SIGSTOP)
    assert stop_server(home, within_s=0.1) is ProcessFate.KILLED


def test_a_server_that_does_not_answer_is_not_doubled(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_ASK_S", 0.05)
    server = ensure_server(home)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match=r"has not answered for \d+ s"):
            ensure_server(home, within_s=0.1)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert ensure_server(home).pid == server.pid


def test_a_pid_that_another_process_has_now_is_not_killed(home: Home) -> None:
    server = ensure_server(home)
    record = detached.read_record(embedded.record_path(home))
    assert record is not None
    kill(home, server.pid)
    stranger = detached.spawn(
        ["/bin/sleep", "60"], log=home.logs / "stranger.log", environ=os.environ
    )
    try:
        claimed = detached.Record(
            name="server", pid=stranger, birth=record.birth, log="", started_at=0
        )
        detached.write_record(embedded.record_path(home), claimed)
        assert stop_server(home) is ProcessFate.ABSENT
        assert detached.birth_of(stranger) is not None
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)


def test_a_lost_record_is_written_again(home: Home) -> None:
    server = ensure_server(home)
    embedded.record_path(home).unlink()
    ensure_server(home)
    record = detached.read_record(embedded.record_path(home))
    assert record is not None
    assert record.pid == server.pid
    assert detached.is_running(record)


def test_the_server_listens_on_a_port_where_one_is_asked_for(home: Home) -> None:
    port = free_port()
    assert ensure_server(home, port=port).port == port
    password = read_password(home)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"PING\r\nAUTH {password}\r\nPING\r\n".encode())
        with connection.makefile("rb") as replies:
            assert [replies.readline() for _ in range(3)] == [
                b"-NOAUTH Authentication required.\r\n",
                b"+OK\r\n",
                b"+PONG\r\n",
            ]


def test_its_password_is_made_once_kept_for_this_user_and_asked_for_ever_after(home: Home) -> None:
    port = free_port()
    ensure_server(home)
    assert not home.password.exists()
    stop_server(home)
    ensure_server(home, port=port)
    password = read_password(home)
    assert len(password) == 64
    assert stat.S_IMODE(home.password.stat().st_mode) == 0o600
    assert stop_server(home) is ProcessFate.ENDED
    server = ensure_server(home)
    assert (server.port, read_password(home)) == (0, password)
    assert server.url == f"unix://:{password}@{home.socket}"
    assert ask(home.socket, "PING") == "-NOAUTH Authentication required."


def test_a_deleted_password_is_replaced_at_the_next_start_with_a_port(home: Home) -> None:
    port = free_port()
    ensure_server(home, port=port)
    former = read_password(home)
    stop_server(home)
    home.password.unlink()
    ensure_server(home, port=port)
    assert read_password(home) not in ("", former)
    assert ask(home.socket, f"AUTH {former}").startswith("-WRONGPASS")
    assert ask(home.socket, f"AUTH {read_password(home)}") == "+OK"


def test_the_password_is_in_no_command_line_and_no_other_file(home: Home) -> None:
    server = ensure_server(home, port=free_port())
    password = read_password(home)
    assert password not in " ".join(psutil.Process(server.pid).cmdline())
    files = [path for path in home.root.rglob("*") if path.is_file()]
    holding = [path for path in files if password.encode() in path.read_bytes()]
    assert holding == [home.password]


def test_a_lost_password_is_named_and_the_server_can_be_stopped(home: Home) -> None:
    port = free_port()
    ensure_server(home, port=port)
    home.password.unlink()
    with pytest.raises(StoreUnavailable, match=r"asks for a password that is not in .*/password"):
        ensure_server(home)
    assert stop_server(home) is ProcessFate.ENDED
    assert ensure_server(home, port=port).started


@pytest.mark.parametrize("text", ["", "two words", "ü", "x\r\n\0"])
def test_an_invalid_password_file_is_named(home: Home, text: str) -> None:
    home.prepare()
    home.password.write_text(text)
    with pytest.raises(InvalidInput, match=r"run/password: expected one line, the password of"):
        ensure_server(home)


def test_a_port_in_use_is_named(home: Home) -> None:
    port = free_port()
    in_use = f"port {port} of 127.0.0.1 is in use by another"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Conflict, match=in_use):
        ensure_server(home, port=port)
    assert ensure_server(home, port=port).port == port


def test_a_running_server_does_not_get_a_port_later(home: Home) -> None:
    ensure_server(home)
    with pytest.raises(Conflict, match="already runs without port 7777"):
        ensure_server(home, port=7777)


def test_a_port_that_does_not_exist_is_refused(home: Home) -> None:
    with pytest.raises(InvalidInput, match="port 70000 does not exist"):
        ensure_server(home, port=70000)


def test_a_missing_server_program_is_reported_with_a_hint(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "_bundled", lambda: None)
    with pytest.raises(StoreUnavailable, match="no Redis or Valkey server was found") as caught:
        ensure_server(home)
    assert "apt install redis-server" in caught.value.hint


def test_a_program_that_is_too_old_is_passed_over(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_program(tmp_path / "redis-server", "echo Redis server v=5.0.14 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path))
    bundled = embedded._bundled()
    assert find_binary(home).path == bundled
    monkeypatch.setattr(embedded, "_bundled", lambda: None)
    with pytest.raises(StoreUnavailable, match=rf"{old} is version 5\.0\.14; 6\.2 or later"):
        find_binary(home)


def test_a_program_on_the_path_comes_before_the_bundled_one(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = write_program(tmp_path / "valkey-server", "echo Valkey server v=8.0.1 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary(home).path == newer


def test_the_program_that_wrote_the_data_stays_the_first_choice(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_server(home)
    written_by = (home.data / "written-by").read_text()
    write_program(tmp_path / "valkey-server", "echo Valkey server v=99.0.0 sha=0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_binary(home).path == written_by


def test_a_program_that_dies_at_its_start_is_quoted(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(
        tmp_path / "valkey-server",
        '[ "$1" = --version ] && { echo v=9.9.9; exit 0; }',
        "echo the disk is made of cheese",
        "exit 3",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StoreUnavailable, match="with exit code 3: the disk is made of cheese"):
        ensure_server(home)
    monkeypatch.undo()
    assert ensure_server(home).started


def test_a_home_with_a_very_long_path_works(tmp_path: Path) -> None:
    long = Home(tmp_path / ("x" * 120) / ("y" * 120))
    try:
        ensure_server(long)
        assert ask(long.socket, "PING") == "+PONG"
    finally:
        assert stop_server(long) is ProcessFate.ENDED
