"""The folder of the state, and the choice of the server."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from batchq.client.connection import target_of
from batchq.daemon import stack
from batchq.errors import InvalidInput
from batchq.paths import Home, default_url, find_home, resolve_url, short_folder


def test_an_explicit_home_comes_before_the_variable(tmp_path: Path) -> None:
    environ = {"BATCHQ_HOME": str(tmp_path / "variable"), "HOME": str(tmp_path)}
    assert find_home(tmp_path / "said", environ=environ).root == tmp_path / "said"
    assert find_home(environ=environ).root == tmp_path / "variable"


def test_without_either_it_is_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("BATCHQ_HOME", raising=False)
    assert find_home().root == tmp_path / ".local" / "state" / "batchq"


def test_an_empty_home_variable_is_looked_up_instead_of_meaning_the_root_folder() -> None:
    root = find_home(environ={"HOME": ""}).root
    assert root.is_absolute()
    assert root != Path("/.local/state/batchq")


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_home("here", environ={}).root == tmp_path / "here"


def test_the_socket_of_a_short_home_lies_in_it() -> None:
    assert Home(Path("/srv/bq")).socket == Path("/srv/bq/run/batchq.sock")


def test_the_socket_of_a_long_home_lies_in_a_short_folder_and_is_always_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = Home(Path("/srv") / ("x" * 200))
    first = long.socket
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/4711")
    monkeypatch.setenv("TMPDIR", "/var/tmp/other")
    assert long.socket == first
    assert first.parent == short_folder()
    assert len(os.fsencode(first)) < 104
    assert Home(Path("/srv") / ("y" * 200)).socket != first


def test_bytes_count_not_characters() -> None:
    assert Home(Path("/srv") / ("ü" * 45)).socket.parent == short_folder()


def test_the_folders_are_for_this_user_alone(home: Home) -> None:
    home.prepare()
    home.prepare()
    assert [f.stat().st_mode & 0o777 for f in (home.root, home.data, home.run, home.logs)] == [
        0o700
    ] * 4


def test_folders_that_were_open_to_others_are_closed(home: Home) -> None:
    home.root.mkdir()
    home.root.chmod(0o777)
    home.data.mkdir()
    home.data.chmod(0o755)
    home.prepare()
    # Others may list a folder that batchq did not create, but change nothing in it.
    assert home.root.stat().st_mode & 0o777 == 0o755
    assert home.data.stat().st_mode & 0o777 == 0o700


def test_a_folder_like_tmp_is_left_as_it_is(home: Home) -> None:
    home.root.mkdir()
    home.root.chmod(0o1777)
    home.prepare()
    assert home.root.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders to another user")
@pytest.mark.parametrize("part", ["root", "data", "run", "logs"])
def test_a_home_of_another_user_is_refused_in_a_sentence(home: Home, part: str) -> None:
    home.prepare()
    folder: Path = getattr(home, part)
    os.chown(folder, 65534, 65534)
    with pytest.raises(InvalidInput, match="it belongs to user 65534, and this is user 0"):
        home.prepare()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders to another user")
def test_no_command_uses_a_socket_in_another_users_folder(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(home.root))
    monkeypatch.delenv("BATCHQ_REDIS_URL", raising=False)
    home.prepare()
    os.chown(home.run, 65534, 65534)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home.socket))
        with pytest.raises(InvalidInput, match="it belongs to user 65534, and this is user 0"):
            target_of(None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_home_closed_to_this_user_is_refused_in_a_sentence(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(home.root))
    monkeypatch.delenv("BATCHQ_REDIS_URL", raising=False)
    home.prepare()
    os.seteuid(65534)
    try:
        with pytest.raises(InvalidInput, match="it is closed to user 0"):
            target_of(None)
        with pytest.raises(InvalidInput, match="it is closed to user 0"):
            stack.down(home)
    finally:
        os.seteuid(0)


def test_no_command_uses_a_socket_in_a_short_folder_that_another_user_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    trap.chmod(0o777)
    monkeypatch.setattr("batchq.paths.short_folder", lambda: trap)
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / ("x" * 120)))
    monkeypatch.delenv("BATCHQ_REDIS_URL", raising=False)
    find_home().socket.touch()
    with pytest.raises(InvalidInput, match="expected a folder of user"):
        target_of(None)


def test_a_home_that_is_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"in .*/file: a part of this path is not"):
        Home(tmp_path / "file").prepare()


def test_a_home_below_a_file_is_refused_in_a_sentence() -> None:
    with pytest.raises(InvalidInput, match="/dev/null/home: a part of this path is not"):
        Home(Path("/dev/null/home")).prepare()


def test_a_short_folder_that_another_user_prepared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    monkeypatch.setattr("batchq.paths.short_folder", lambda: trap)
    with pytest.raises(InvalidInput, match="expected a folder of user"):
        Home(tmp_path / ("x" * 120)).prepare()


def test_an_explicit_url_precedes_the_variable_and_the_own_server() -> None:
    home = Home(Path("/srv/b q"))
    environ = {"BATCHQ_REDIS_URL": "redis://there/0"}
    assert resolve_url("redis://said/0", home, environ=environ) == "redis://said/0"
    assert resolve_url(None, home, environ=environ) == "redis://there/0"
    assert resolve_url(None, home, environ={}) == "unix:///srv/b%20q/run/batchq.sock"
    assert default_url(home) == "unix:///srv/b%20q/run/batchq.sock"


def test_the_url_may_be_in_a_private_file(tmp_path: Path) -> None:
    home, path = Home(Path("/srv")), tmp_path / "url"
    path.write_text("redis://alice:secret@there/0\n")
    environ = {"BATCHQ_REDIS_URL_FILE": str(path)}
    assert resolve_url(None, home, environ=environ) == "redis://alice:secret@there/0"
    environ["BATCHQ_REDIS_URL"] = "redis://other/0"
    assert resolve_url(None, home, environ=environ) == "redis://other/0"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file or directory"),
        (b"", "has 0 words"),
        (b"a secret", "has 2 words"),
        (b"\xff", "it is no text"),
    ],
)
def test_an_invalid_url_file_is_refused_without_quoting_its_content(
    tmp_path: Path, content: bytes | None, found: str
) -> None:
    path = tmp_path / "url"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput) as raised:
        resolve_url(None, Home(tmp_path), environ={"BATCHQ_REDIS_URL_FILE": str(path)})
    assert raised.value.message.startswith(
        "BATCHQ_REDIS_URL_FILE: expected a file of one line, the URL of the server; " + str(path)
    )
    assert raised.value.message.endswith(found)
    assert "secret" not in raised.value.message
