"""Bad input: one sentence each, the right exit code, and nothing half-applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import a_group, a_task
from tests.cli.bad_functions import FUNCTIONS
from tests.cli.bad_input import TABLE, Bad
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage
from tests.harness.server import Server


@pytest.fixture
def furnished(stage: Stage) -> Stage:
    """A finished group, a running one, and a waiting one."""
    client = stage.client
    client.submit(a_group("ended", tasks=(a_task(command=("true",)),)))
    stage.run("ended")
    client.submit(a_group("running", tasks=(a_task(command=("true",)),)))
    stage.turn()
    stage.start("running")
    client.submit(a_group("waiting", tasks=(a_task(command=("true",)),), suspend=True))
    stage.turn()
    return stage


@pytest.mark.parametrize(
    "bad", [*TABLE, *FUNCTIONS], ids=[bad.what for bad in (*TABLE, *FUNCTIONS)]
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    furnished: Stage, batchq: Batchq, tmp_path: Path, bad: Bad
) -> None:
    file = tmp_path / "bad.yaml"
    content = bad.content
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = furnished.names()
    done = batchq(*(word.replace("{file}", str(file)) for word in bad.words))
    error, *hint = done.err.splitlines()
    assert done.code == bad.code, done
    assert error.startswith("error: ")
    assert bad.message.replace("{file}", str(file)) in error
    assert len(error) < 600, "a sentence, not a page"
    assert [line.partition(":")[0] for line in hint] in ([], ["hint"])
    assert done.out == ""
    assert furnished.names() == before


def test_the_table_has_more_than_thirty_kinds_of_bad_input() -> None:
    assert len({bad.what for bad in TABLE}) > 30


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        (
            "http://localhost:6379",
            1,
            "the server's URL is malformed: it does not begin with one of",
        ),
        ("localhost", 1, "the server's URL is malformed: it does not begin with one of"),
        ("redis://localhost:99999", 1, "the port is not from 1 to 65535"),
        ("redis://localhost/none", 1, "the database is not a number"),
        ("unix://", 1, "the path of the socket is missing"),
        ("redis://127.0.0.1:1/0", 9, "the server at redis://127.0.0.1:1/0 is not running"),
        ("unix:///nowhere/s.sock", 9, "the server at unix:///nowhere/s.sock is not running"),
        ("redis://:secret@127.0.0.1:1", 9, "the server at redis://***@127.0.0.1:1 is not running"),
    ],
)
def test_the_message_about_a_wrong_url_hides_its_secrets(url: str, code: int, message: str) -> None:
    done = run("jobs", url=url)
    assert done.code == code, done
    assert message in done.err
    assert "secret" not in done.err
    assert len(done.err.splitlines()) <= 2


def test_a_wrong_password_is_reported() -> None:
    with Server("--requirepass", "right") as server:
        done = run("jobs", url=server.url.replace("unix://", "unix://:wrong@"))
        assert done.code == 9
        assert "refuses the user name or password" in done.err
        assert "wrong@" not in done.err
        assert run("jobs", url=server.url).err.splitlines() == [
            f"error: the server at {server.url} asks for a password",
            "hint: put it into the URL: redis://:PASSWORD@host:6379/0",
        ]


def test_a_read_only_replica_is_reported() -> None:
    with Server("--replicaof", "127.0.0.1", "1") as server:
        done = run("submit", "--", "true", url=server.url)
        assert done.code == 9
        assert "is a read-only replica" in done.err


def test_a_full_server_is_reported() -> None:
    with Server("--maxmemory", "1mb", "--maxmemory-policy", "noeviction") as server:
        done = run("submit", "--", "true", url=server.url)
        assert done.code == 9
        assert "refuses writes: its maxmemory is used up" in done.err
