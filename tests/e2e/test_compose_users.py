"""Tests of the users that docker-compose.yml creates: the same script, on a server of its own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from batchq.api.node_report import Leaves
from batchq.errors import StoreUnavailable
from batchq.store.redis import RedisStore, open_store
from tests.harness.server import Server
from tests.tidy.source import ROOT
from tests.tidy.test_compose import ROLES, SERVICES

SCRIPT = ROOT / "conf" / "acl" / "users.sh"


class Users:
    """A folder with users, as the service `users` leaves it, and a server that uses them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("server", *ROLES):
            (folder / name).mkdir()
        command = folder / "batchq"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m batchq.cli "$@"\n')
        command.chmod(0o755)
        self.make()
        self.server = Server("--aclfile", str(folder / "server" / "users.acl"))

    def make(self) -> None:
        words = SERVICES["users"]["command"][1:]
        environ = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        subprocess.run(
            ["sh", str(SCRIPT), str(self.folder), *words], env=environ, check=True, timeout=120
        )

    def url_of(self, name: str) -> str:
        """Return the URL in a user's file, with the address of this server."""
        written = (self.folder / name / "url").read_text().strip()
        assert written.startswith("redis://")
        assert written.endswith("@valkey:6379/0")
        return f"unix://{written[len('redis://') : -len('@valkey:6379/0')]}@{self.server.socket}"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    made = Users(tmp_path_factory.mktemp("users"))
    with made.server:
        yield made


@pytest.fixture
def opened(users: Users) -> Iterator[dict[str, RedisStore]]:
    stores = {name: open_store(users.url_of(name)) for name in ROLES}
    yield stores
    for store in stores.values():
        store.close()


def test_a_client_without_a_password_is_refused(users: Users) -> None:
    client = redis.Redis(unix_socket_path=str(users.server.socket))
    with client, pytest.raises(redis.AuthenticationError):
        client.get("{bq}:revision")


def test_the_healthcheck_may_ping_the_server_and_do_nothing_else(users: Users) -> None:
    words = SERVICES["valkey"]["healthcheck"]["test"]
    user, password = words[words.index("--user") + 1], words[words.index("--pass") + 1]
    path = str(users.server.socket)
    with redis.Redis(unix_socket_path=path, username=user, password=password) as client:
        assert client.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("{bq}:revision")


def test_each_user_may_do_what_its_role_requires(opened: dict[str, RedisStore]) -> None:
    assert opened["scheduler"].lead("me", 10_000) is not None
    assert opened["client"].link.user == "operator-client"
    assert [opened[name].link.user for name in ("node-1", "node-2")] == [
        "worker-node-1",
        "worker-node-2",
    ]
    opened["node-1"].beat("node-1", "run")


@pytest.mark.parametrize("name", [name for name in ROLES if name != "scheduler"])
def test_only_the_scheduler_leads(opened: dict[str, RedisStore], name: str) -> None:
    opened["scheduler"].lead("me", 10_000)
    with pytest.raises(StoreUnavailable, match="does not permit"):
        opened[name].lead("other", 10_000)


def test_a_node_cannot_report_for_another(opened: dict[str, RedisStore]) -> None:
    opened["node-1"].report_queues.post("node-1", Leaves(agent="a"))
    with pytest.raises(StoreUnavailable, match="does not permit"):
        opened["node-1"].report_queues.post("node-2", Leaves(agent="a"))


def test_only_the_owner_can_read_a_password_and_a_second_run_keeps_it(users: Users) -> None:
    before = {name: (users.folder / name / "url").read_text() for name in ROLES}
    acl = (users.folder / "server" / "users.acl").read_text()
    users.make()
    assert {name: (users.folder / name / "url").read_text() for name in ROLES} == before
    assert (users.folder / "server" / "users.acl").read_text() == acl
    assert len(set(before.values())) == len(ROLES)
    for name in ROLES:
        for file in ("url", "password"):
            mode = stat.S_IMODE((users.folder / name / file).stat().st_mode)
            assert mode == 0o600
        secret = (users.folder / name / "password").read_text()
        assert len(secret) == 64
        assert secret not in acl
