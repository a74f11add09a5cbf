"""An agent joins with a token, and gets a user of the server for its own node."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from batchq.api.access import digest_of_secret, parse_binding
from batchq.client.access_control import Actor, Delegate
from batchq.client.node_users import (
    JoinRequest,
    NodeRegistrar,
    NodeUserService,
    checked_agents_url,
    joined,
)
from batchq.errors import BatchqError, Conflict, InvalidInput, StoreUnavailable
from batchq.paths import Home
from batchq.store import keys
from batchq.store.redis import RedisStore
from tests.harness.guarded import ADMIN, GuardedServer
from tests.harness.server import Server
from tests.http.api_process import Caller, Got, RunningApi

ROOT = Actor(user="root@host", via="redis")
ONE, TWO = digest_of_secret("one"), digest_of_secret("two")


class RunningRegistrar:
    """A registrar in a thread; a context manager."""

    def __init__(self, server: GuardedServer, path: Path, callers: frozenset[int]) -> None:
        url = server.url_of("registrar")
        self._service = NodeUserService(url, f"unix://{server.socket}", path, callers)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._service.serve, args=(self._stopping,))

    def __enter__(self) -> RunningRegistrar:
        self._service.check()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Site(NamedTuple):
    """A server with users, an API with a registrar, and an operator of that API."""

    server: GuardedServer
    api: RunningApi
    operator: Caller
    folder: Path

    def invite(self, node: str) -> str:
        made = self.operator("POST", f"/v1/nodes/{node}/invitations", {})
        assert made.status == 201, made.body
        return str(made.data["join"])

    def join(self, token: str, node: str, digest: str) -> Got:
        return self.api.caller(token)("PUT", f"/v1/nodes/{node}/user", {"digest": digest})

    def users(self) -> set[str]:
        with self.server.as_user(ADMIN) as admin:
            return set(admin.acl_users())

    def can_log_in(self, user: str, password: str) -> bool:
        client = redis.Redis(
            unix_socket_path=str(self.server.socket), username=user, password=password,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        try:
            return bool(client.ping())
        except redis.exceptions.AuthenticationError:
            return False
        finally:
            client.close()

    def wish(self, node: str, token: str) -> JoinRequest:
        file = self.folder / f"{node}.join"
        file.write_text(f"{token}\n")
        return JoinRequest(node=node, server=f"http://127.0.0.1:{self.api.port}", token_file=file)


@pytest.fixture
def folder() -> Iterator[Path]:
    # The path of a socket is limited, which pytest's folders may exceed.
    with tempfile.TemporaryDirectory(prefix="bq") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="bq") as name, GuardedServer() as server:
        store = RedisStore(server.url_of("scheduler"))
        assert store.link.keep_scripts()
        store.close()
        own = frozenset({os.getuid()})
        path = Path(name) / "registrar"
        with (
            RunningRegistrar(server, path, own),
            RunningApi(server.url_of("api"), registrar=path) as api,
        ):
            with Delegate(server.url_of("api")) as delegate:
                delegate.access.grant(parse_binding("user:eli", "operator", "*"), ROOT)
                delegate.access.grant(parse_binding("user:ana", "admin", "ml"), ROOT)
                token = delegate.access.create_token("eli", ROOT).text
            yield Site(server, api, api.caller(token), Path(name))


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """The site, on which no node has joined and no token is left."""
    yield shared
    shared.operator("DELETE", "/v1/nodes/gpu1/user")
    with shared.server.as_user(ADMIN) as admin:
        admin.delete(keys.alive("gpu1"))


def test_an_agent_that_joins_gets_a_user_for_its_own_node_alone(site: Site, folder: Path) -> None:
    home = Home(folder / "home")
    wish = site.wish("gpu1", site.invite("gpu1"))
    url = joined(home, wish).url
    assert url.startswith("unix://worker-gpu1:")
    assert stat.S_IMODE(home.node_credentials.stat().st_mode) == 0o600
    client = redis.Redis.from_url(url)
    client.hset(keys.alive("gpu1"), "beat", "1")
    for name in (keys.alive("gpu2"), keys.objects("PodGroup"), keys.TOKENS, keys.LEDGER):
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.hset(name, "field", "value")
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.acl_setuser("worker-gpu1", commands=["+@all"])
    client.close()
    # A restart needs neither the file nor the API.
    wish.token_file.unlink()
    assert joined(home, wish).url == url


def test_the_users_outlast_a_restart_of_the_server(site: Site, folder: Path) -> None:
    site.join(site.invite("gpu1"), "gpu1", ONE)
    assert "user worker-gpu1 on" in (site.server.folder / "users.acl").read_text()


def test_a_join_token_is_good_for_one_password(site: Site) -> None:
    token = site.invite("gpu1")
    assert site.join(token, "gpu1", ONE).status == 200
    replayed = site.join(token, "gpu1", TWO)
    assert replayed.status == 403
    assert "has been used already, or was revoked" in replayed.data["detail"]
    assert site.can_log_in("worker-gpu1", "one")
    assert not site.can_log_in("worker-gpu1", "two")
    # The agent that has lost the answer asks again.
    assert site.join(token, "gpu1", ONE).data == {
        "node": "gpu1",
        "user": "worker-gpu1",
        "url": f"unix://{site.server.socket}",
    }
    last = site.operator("GET", "/v1/audit").data["items"]
    assert [(one["user"], one["verb"], one["outcome"]) for one in last[-3:]] == [
        ("eli", "create", "done"),
        ("node:gpu1", "create", "done"),
        ("node:gpu1", "joinNode", "refused"),
    ]
    assert last[-2]["name"] == "user of node gpu1"


def test_two_agents_with_one_token_get_one_user(site: Site) -> None:
    token = site.invite("gpu1")
    found: list[Got] = []
    threads = [
        threading.Thread(
            target=lambda digest=digest: found.append(site.join(token, "gpu1", digest))
        )
        for digest in (ONE, TWO)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got.status for got in found) == [200, 403]
    assert site.can_log_in("worker-gpu1", "one") != site.can_log_in("worker-gpu1", "two")


def test_a_join_token_makes_no_user_for_another_name(site: Site) -> None:
    before = site.users()
    token = site.invite("gpu1")
    for node in ("gpu2", "worker-gpu1", "*", "gpu1%20on", "gpu1%0Auser", "GPU1", "..", "gpu1."):
        assert site.join(token, node, ONE).status in (400, 403, 404)
    assert site.users() == before
    assert site.join(token, "gpu1", ONE).status == 200


def test_paths_with_tricks_make_no_user(site: Site) -> None:
    before = site.users()
    caller = site.api.caller(site.invite("gpu1"))
    for path in (
        "/v1/nodes/gpu1/../gpu2/user",
        "/v1/nodes/gpu1%2fuser",
        "/v1/nodes/gpu2%2f..%2fgpu1/user",
        "/v1/nodes//user",
        "/v1/nodes/gpu1/user/",
    ):
        assert caller("PUT", path, {"digest": ONE}).status in (400, 404, 405)
    assert site.users() == before


def test_a_malformed_digest_uses_nothing_up(site: Site) -> None:
    token = site.invite("gpu1")
    for digest in ("", "one", ONE.upper(), f"{ONE} ~*", f"{ONE[:-1]}\n", ONE * 2):
        assert site.join(token, "gpu1", digest).status == 400
    assert "worker-gpu1" not in site.users()
    assert site.join(token, "gpu1", ONE).status == 200


def test_a_join_token_opens_nothing_else_and_no_other_token_joins(site: Site) -> None:
    joining = site.api.caller(site.invite("gpu1"))
    for method, path in (("GET", "/v1/me"), ("GET", "/v1/nodes"), ("POST", "/v1/invitations")):
        assert joining(method, path).status == 401
    with Delegate(site.server.url_of("api")) as delegate:
        invitation = delegate.access.invite("bob", ROOT).text
        token = delegate.access.create_token("eli", ROOT).text
    for text in (invitation, token):
        assert site.join(text, "gpu1", ONE).status == 401
    socket_caller = site.api.caller()
    assert socket_caller("PUT", "/v1/nodes/gpu1/user", {"digest": ONE}).status == 401


def test_a_join_token_expires(site: Site) -> None:
    with Delegate(site.server.url_of("api")) as delegate:
        made = delegate.access.invite_node("gpu1", ROOT, lasts_ms=1)
    # Delegate and API know the server's clock to half a second each on a busy machine.
    until(lambda: time.time() * 1000 > made.record.expires_at + 1_000)
    refused = site.join(made.text, "gpu1", ONE)
    assert (refused.status, refused.data["detail"].endswith("has expired")) == (401, True)


def test_only_operators_invite_and_revoke(site: Site) -> None:
    with Delegate(site.server.url_of("api")) as delegate:
        ana = site.api.caller(delegate.access.create_token("ana", ROOT).text)
    until(lambda: ana("GET", "/v1/me").data["roles"] != [])
    assert ana("POST", "/v1/nodes/gpu1/invitations", {}).status == 403
    assert ana("DELETE", "/v1/nodes/gpu1/user").status == 403


def test_a_revoked_node_is_cut_off_at_once_and_its_token_does_not_bring_it_back(
    site: Site,
) -> None:
    token = site.invite("gpu1")
    assert site.join(token, "gpu1", ONE).status == 200
    client = redis.Redis(
        unix_socket_path=str(site.server.socket), username="worker-gpu1", password="one",
        single_connection_client=True, retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    assert client.ping()
    done = site.operator("DELETE", "/v1/nodes/gpu1/user")
    assert done.data == {"node": "gpu1", "user": True, "tokens": 1}
    with pytest.raises(redis.exceptions.ConnectionError):
        client.hset(keys.alive("gpu1"), "beat", "1")
    client.close()
    assert not site.can_log_in("worker-gpu1", "one")
    assert site.join(token, "gpu1", ONE).status == 403
    assert "worker-gpu1" not in site.users()
    assert site.operator("DELETE", "/v1/nodes/gpu1/user").status == 404
    unused = site.invite("gpu1")
    assert site.operator("DELETE", "/v1/nodes/gpu1/user").data["tokens"] == 1
    assert site.join(unused, "gpu1", ONE).status == 403
    # Another invitation lets the machine in again.
    assert site.join(site.invite("gpu1"), "gpu1", TWO).status == 200


def test_another_invitation_replaces_the_password(site: Site) -> None:
    assert site.join(site.invite("gpu1"), "gpu1", ONE).status == 200
    assert site.join(site.invite("gpu1"), "gpu1", TWO).status == 200
    assert not site.can_log_in("worker-gpu1", "one")
    assert site.can_log_in("worker-gpu1", "two")


def test_an_agent_whose_answer_was_lost_joins_with_the_password_that_it_kept(
    site: Site, folder: Path
) -> None:
    home = Home(folder / "home")
    wish = site.wish("gpu1", site.invite("gpu1"))
    nowhere = "http://127.0.0.1:1"
    away = JoinRequest(node="gpu1", server=nowhere, token_file=wish.token_file)
    with pytest.raises(StoreUnavailable):
        joined(home, away)
    kept = json.loads(home.node_credentials.read_bytes())
    token = wish.token_file.read_text().strip()
    assert site.join(token, "gpu1", digest_of_secret(kept["password"])).status == 200
    assert kept["password"] in joined(home, wish).url
    assert site.can_log_in("worker-gpu1", kept["password"])


def test_an_agent_that_has_joined_does_not_start_as_another_node(site: Site, folder: Path) -> None:
    home = Home(folder / "home")
    joined(home, site.wish("gpu1", site.invite("gpu1")))
    wish = site.wish("gpu1", site.invite("gpu1"))
    other = JoinRequest(node="gpu2", server=wish.server, token_file=folder / "none")
    with pytest.raises(InvalidInput, match="has joined as node gpu1, and was started as gpu2"):
        joined(home, other)


def test_an_agent_that_was_refused_under_a_wrong_name_joins_under_its_own(
    site: Site, folder: Path
) -> None:
    home = Home(folder / "home")
    wish = site.wish("gpu1", site.invite("gpu1"))
    wrong = JoinRequest(node="gpu2", server=wish.server, token_file=wish.token_file)
    with pytest.raises(BatchqError, match="is for node gpu1, and does not permit joining as"):
        joined(home, wrong)
    assert "worker-gpu1:" in joined(home, wish).url


def test_credentials_that_others_may_read_are_not_used(site: Site, folder: Path) -> None:
    home = Home(folder / "home")
    wish = site.wish("gpu1", site.invite("gpu1"))
    joined(home, wish)
    home.node_credentials.chmod(0o644)
    with pytest.raises(InvalidInput, match="other users may read the secret in it"):
        joined(home, wish)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_refusal_is_understood_though_the_registrar_reads_nothing(
    folder: Path, is_read: bool
) -> None:
    path = folder / "registrar"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def refuse() -> None:
            connection, _ = listening.accept()
            with connection:
                if is_read:
                    connection.recv(1)
                connection.sendall(b'{"error":"it does not serve account 12345"}\n')

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(StoreUnavailable, match="it does not serve account 12345"):
            NodeRegistrar(path).make_user("gpu1", ONE)
        thread.join()


def test_the_registrar_serves_no_other_account_and_no_other_request(
    site: Site, folder: Path
) -> None:
    strangers = folder / "strangers"
    refused = pytest.raises(StoreUnavailable, match="it does not serve account")
    with RunningRegistrar(site.server, strangers, frozenset({12345})), refused:
        NodeRegistrar(strangers).make_user("gpu1", ONE)
    registrar = NodeRegistrar(site.folder / "registrar")
    before = site.users()
    for node in ("*", "gpu1 on", "", "a" * 300, "../gpu1"):
        with pytest.raises(BatchqError, match="node"):
            registrar.make_user(node, ONE)
    for line in (b"", b"{}\n", b"[]\n", b'{"do":"make","node":"gpu1","digest":""}\n', b"x" * 9000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.connect(str(site.folder / "registrar"))
            asking.sendall(line)
            asking.shutdown(socket.SHUT_WR)
            assert b'"error":"' in asking.recv(4096)
    assert site.users() == before
    assert registrar.make_user("gpu1", ONE).user == "worker-gpu1"


def test_a_registrar_listens_once_and_replaces_the_socket_of_a_dead_one(
    site: Site, folder: Path
) -> None:
    with pytest.raises(Conflict, match="another process listens"):
        RunningRegistrar(site.server, site.folder / "registrar", frozenset())
    dead = folder / "dead"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(dead))
    with RunningRegistrar(site.server, dead, frozenset()):
        assert dead.is_socket()
    assert not dead.exists()


def test_a_server_without_an_acl_file_is_refused(server: Server, folder: Path) -> None:
    users = NodeUserService(server.url, server.url, folder / "socket", frozenset())
    with pytest.raises(StoreUnavailable, match="keeps its users in no file"):
        users.check()
    users.close()


def test_the_url_for_agents_has_no_password_and_names_one_server() -> None:
    assert checked_agents_url("rediss://queue.example:6379/0") == "rediss://queue.example:6379/0"
    for url in ("redis://u:secret@queue:6379", "redis+sentinel://a,b/mymaster"):
        with pytest.raises(InvalidInput, match="--agents-url"):
            checked_agents_url(url)


def test_an_api_without_a_registrar_says_so(running_api: RunningApi) -> None:
    answer = running_api.caller()("POST", "/v1/nodes/gpu1/invitations", {})
    assert (answer.status, answer.data["exit"]) == (404, 6)
    assert "has no registrar" in answer.data["detail"]


def test_the_commands_invite_join_and_revoke(site: Site, folder: Path) -> None:
    def batchq(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "batchq.cli", *words],
            env={"BATCHQ_HOME": str(folder / "home"), **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    api = {
        "BATCHQ_SERVER": f"http://127.0.0.1:{site.api.port}",
        "BATCHQ_TOKEN": site.operator.headers()["Authorization"].removeprefix("Bearer "),
    }
    invited = batchq("nodes", "invite", "gpu1", **api)
    assert invited.returncode == 0, invited.stderr
    file = folder / "join"
    file.write_text(invited.stdout)
    words = ("worker", "--name", "gpu1", "--join", str(file), "--api-server", api["BATCHQ_SERVER"])
    agent = subprocess.Popen(
        [sys.executable, "-P", "-m", "batchq.cli", *words, "--beat", "0.2s", "--lease", "1s"],
        env={"BATCHQ_HOME": str(folder / "agent")}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with site.server.as_user(ADMIN) as admin:
            until(lambda: bool(admin.exists(keys.alive("gpu1"))))
            revoked = batchq("nodes", "revoke", "gpu1", **api)
            assert revoked.stdout == "node gpu1 can do nothing more: its user is removed\n"
            admin.delete(keys.alive("gpu1"))
            connected = {one["user"] for one in admin.client_list()}
            assert "worker-gpu1" not in connected
        again = batchq(*words, BATCHQ_HOME=str(folder / "other"))
        assert again.returncode == 9
        assert "has been used already, or was revoked" in again.stderr
    finally:
        agent.kill()
        agent.wait()
    text = file.read_text().strip()
    file.write_text("hunter2\n")
    refused = batchq(*words, BATCHQ_HOME=str(folder / "third"))
    assert (refused.returncode, "hunter2" in refused.stderr) == (1, False)
    assert "expected one join token" in refused.stderr
    assert text not in refused.stderr


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1_200):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("it did not happen")
