"""Doors: the account behind a socket, requests that a web page has caused, and odd paths."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from batchq.cli.main import main
from batchq.client.access_control import Actor, Delegate
from tests.client.stage import Stage
from tests.e2e.test_two_users import as_other_user, public_python
from tests.harness.server import Server
from tests.http.api_process import ApiProcess, Caller, RunningApi
from tests.http.manifests import groups_of, manifest

DEFAULT = groups_of("default")


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::2]"]
)
def test_a_rebound_name_reaches_nothing(api: Caller, host: str) -> None:
    refused = api("GET", "/v1/groups", Host=host)
    assert (refused.status, refused.data["code"]) == (421, "UnknownHost")


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1:1", "[::1]", "LocalHost"])
def test_names_of_this_machine_are_answered(api: Caller, host: str) -> None:
    assert api("GET", "/v1/groups", Host=host).status == 200


def test_a_name_of_the_api_is_answered(server: Server, stage: Stage) -> None:
    with RunningApi(server.url, names=("hpc.example",)) as running:
        assert running.caller()("GET", "/v1/groups", Host="hpc.example").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:8000"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
def test_a_page_of_another_site_submits_nothing(api: Caller, headers: dict[str, str]) -> None:
    refused = api("POST", DEFAULT, manifest("train"), **headers)
    assert (refused.status, refused.data["code"]) == (403, "Forbidden")
    assert api("GET", f"{DEFAULT}/train").status == 404


def test_a_form_is_no_submission(api: Caller) -> None:
    body = json.dumps(manifest("train")).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert api("POST", DEFAULT, body, Content_Type=kind).status == 415
    assert api("GET", f"{DEFAULT}/train").status == 404


@pytest.mark.parametrize(
    "path",
    [
        f"{DEFAULT}/a%2Flogs",
        f"{DEFAULT}/..%2f..",
        f"{DEFAULT}/../groups/a",
        f"{DEFAULT}/%2e%2e/groups",
        "/v1//namespaces/default/groups/a",
        f"{DEFAULT}/a%00",
        f"{DEFAULT}/a%5Cb",
    ],
)
def test_a_path_that_a_proxy_could_read_otherwise_is_refused(api: Caller, path: str) -> None:
    assert api("GET", path).status in (400, 404)
    assert b"words of" not in api("GET", path).body


def test_a_port_refuses_a_caller_without_a_token(running_api: RunningApi) -> None:
    caller = Caller(running_api.socket, running_api.port)
    with socket.create_connection(("127.0.0.1", running_api.port), 10) as connection:
        connection.sendall(
            b"GET /v1/groups HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        answer = connection.makefile("rb").read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b'www-authenticate: Bearer realm="batchq"' in head
    assert json.loads(body)["detail"] == "expected a token"
    assert caller("GET", "/v1/groups").status == 200


def test_headers_do_not_change_the_caller(api: Caller) -> None:
    me = api("GET", "/v1/me").data
    claims = {"X_Forwarded_User": "bob", "X_Remote_User": "bob", "X_Forwarded_For": "127.0.0.1"}
    assert api("GET", "/v1/me", **claims).data == me
    assert [role["role"] for role in me["roles"]] == ["operator", "admin"]


ASK = """
import http.client, socket, sys
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])
connection = Connection("localhost")
connection.request("GET", sys.argv[2], headers=dict(word.split("=") for word in sys.argv[3:]))
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("behind_proxy", [True, False])
def test_only_a_proxys_own_word_of_an_address_counts(
    server: Server, stage: Stage, behind_proxy: bool
) -> None:
    with RunningApi(server.url, behind_proxy=behind_proxy) as api, Delegate(server.url) as delegate:
        actor = Actor(user="root@host", via="redis")
        caller = api.caller(delegate.access.create_token("eve", actor).text)
        # The caller has written all but the last address, which the proxy appends.
        forwarded = {"X_Forwarded_For": "10.0.0.1, 203.0.113.9", "X_Real_IP": "10.0.0.1"}
        assert caller("POST", groups_of("default"), manifest("mine"), **forwarded).status == 403
        [*_, last] = delegate.access.audit(10)
    assert last.record.address == ("203.0.113.9" if behind_proxy else "127.0.0.1")


def test_another_account_is_itself_and_has_no_rights_of_ours(server: Server, stage: Stage) -> None:
    stage.client.submit(manifest("train"))
    python = public_python()
    with ApiProcess(server.url) as process:
        assert process.caller()("GET", "/v1/groups").status == 200
        ask = [python, "-c", ASK, str(process.socket)]
        me = as_other_user([*ask, "/v1/me"], "").stdout
        status, _, body = me.partition(" ")
        assert (status, json.loads(body)["roles"]) == ("200", [])
        assert json.loads(body)["user"] == "nobody"
        for path in ("/v1/groups", f"{DEFAULT}/train", f"{DEFAULT}/missing"):
            refused = as_other_user([*ask, path], "").stdout
            assert refused.startswith("403 ")
            assert "user nobody has no role" in refused
        in_our_name = ("Batchq-As=root", "Batchq-Reason=curious")
        for path in ("/v1/me", "/v1/groups"):
            refused = as_other_user([*ask, path, *in_our_name], "").stdout
            assert refused.startswith("403 ")
            assert "user nobody may not impersonate users" in refused


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_account_that_runs_pods_is_refused_on_the_socket(server: Server) -> None:
    python = public_python()
    with ApiProcess(server.url, "--agent-user", "nobody") as process:
        ask = [python, "-c", ASK, str(process.socket), "/v1/me"]
        refused = as_other_user(ask, "").stdout
    assert refused.startswith("401 ")
    assert "account nobody runs pods" in refused


def run_api(*words: str) -> str:
    """Return the error of `batchq api` with these options."""
    result = CliRunner().invoke(main, ["api", *words], catch_exceptions=False)
    assert result.exit_code in (1, 8)
    return result.stderr


def test_an_address_of_other_machines_needs_tls(tmp_path: Path) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0", "hpc.example:8443"):
        assert "there is no TLS" in run_api("--listen", address)
    only_one = run_api("--listen", "127.0.0.1:0", "--tls-cert", str(tmp_path / "a.pem"))
    assert "both a certificate and its key" in only_one


@pytest.mark.parametrize(
    "text", ["8443", "unix:", "host", "127.0.0.1:99999", "::1:80", "unix:" + "x" * 108]
)
def test_a_wrong_address_is_refused_in_a_sentence(text: str) -> None:
    assert "expected unix:PATH or HOST:PORT" in run_api("--listen", text)


def test_an_api_does_not_run_under_an_agents_account() -> None:
    refused = run_api("--listen", "127.0.0.1:0", "--agent-user", str(os.getuid()))
    assert "was named as one that runs pods" in refused


def test_a_second_api_does_not_take_the_socket_of_a_running_one(
    server: Server, running_api: RunningApi
) -> None:
    assert "another process listens on" in run_api(
        "--listen", f"unix:{running_api.socket}", "--one-account"
    )
    assert running_api.caller()("GET", "/livez").status == 200


def test_a_socket_that_a_killed_api_left_is_replaced(server: Server) -> None:
    with ApiProcess(server.url) as process:
        assert process.process is not None
        process.process.kill()
        process.process.wait()
        assert process.socket.is_socket()
        with process:
            assert process.caller()("GET", "/livez").status == 200
        assert process.process.returncode == 0
        assert not process.socket.exists()
