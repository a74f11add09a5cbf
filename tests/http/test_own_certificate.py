"""The API's own certificate: its digest is in invitations, and no other one is accepted."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from batchq.api.access import parse_binding, parse_token
from batchq.api_session import (
    ApiCredentials,
    ApiSession,
    chosen_credentials,
    split_server,
    split_token,
    with_pin,
)
from batchq.client.access_control import Actor, Delegate
from batchq.client.node_users import JoinRequest, joined
from batchq.errors import BatchqError, InvalidInput, StoreUnavailable
from batchq.http.server import digest_of_certificate, own_certificate
from batchq.paths import Home
from tests.cli.conftest import Ran, run
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.ports import free_port
from tests.harness.server import Server
from tests.harness.tls import AUTHORITY, CERTIFICATES
from tests.http.api_process import ApiProcess, RunningApi

ROOT = Actor(user="root@host", via="redis")
OTHER = "0" * 64


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return own_certificate(tmp_path / "api-certificate.pem", ["localhost"])


@pytest.fixture
def api(server: Server, stage: Stage, certificate: Path) -> Iterator[RunningApi]:
    """An API with its own certificate."""
    options = {"certificate": certificate, "key": certificate, "is_pinned": True}
    with RunningApi(server.url, **options) as running:
        yield running


@pytest.fixture
def invitation(api: RunningApi) -> str:
    """An invitation of alice, who is a viewer."""
    body = {"role": "viewer", "namespace": "ml"}
    return str(api.caller()("POST", "/v1/users/alice/invitations", body).data["invitation"])


@pytest.fixture
def token(server: Server) -> str:
    """A token of alice, who is a viewer."""
    with Delegate(server.url) as delegate:
        delegate.access.grant(parse_binding("user:alice", "viewer", "ml"), ROOT)
        return delegate.access.create_token("alice", ROOT).text


def log_in(address: str, token: str, *words: str) -> Ran:
    return run("login", address, "--token-file", "-", *words, stdin=f"{token}\n")


@contextmanager
def impostor(certificate: Path, key: Path) -> Iterator[tuple[int, list[bytes]]]:
    """A server with another certificate; yield its port and what clients send to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    secured = context.wrap_socket(connection, server_side=True)
                    with secured:
                        heard.append(secured.recv(1000))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield int(listening.getsockname()[1]), heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def test_an_invitation_states_the_certificate_and_the_login_keeps_it(
    api: RunningApi, certificate: Path, invitation: str, home: Home
) -> None:
    text, _, digest = invitation.partition("+")
    assert digest == digest_of_certificate(certificate)
    parts = parse_token(text)
    assert parts is not None
    assert parts.kind == "invitation"
    done = log_in(f"https://localhost:{api.port}", invitation)
    assert done.code == 0, done.err
    assert json.loads(home.credentials.read_bytes())["pin"] == digest
    assert json.loads(run("whoami", "-o", "json").out)["user"] == "alice"
    assert run("jobs").code == 0
    rotated = run("token", "rotate")
    assert (rotated.code, json.loads(home.credentials.read_bytes())["pin"]) == (0, digest)
    assert run("logout").code == 0


def test_a_token_needs_the_digest_in_the_address(
    api: RunningApi, certificate: Path, token: str, home: Home
) -> None:
    address = f"https://localhost:{api.port}"
    refused = log_in(address, token)
    assert refused.code == 9
    assert "cannot be verified: self-signed certificate" in refused.err
    assert f"{address}#sha256:DIGEST" in refused.err
    assert not home.credentials.exists()
    done = log_in(f"{address}#sha256:{digest_of_certificate(certificate)}", token)
    assert done.out.startswith(f"alice is logged in to {address}; ")


@pytest.mark.parametrize("is_trusted", [False, True])
def test_another_certificate_gets_no_byte_of_a_request(
    token: str, tmp_path: Path, certificate: Path, is_trusted: bool
) -> None:
    """Whoever has signed it: a trusted authority changes nothing."""
    other = own_certificate(tmp_path / "other.pem", ["localhost"])
    found, key, words = other, other, []
    if is_trusted:
        found, key = CERTIFICATES / "server.crt", CERTIFICATES / "server.key"
        words = ["--ca-file", str(AUTHORITY)]
    pin = digest_of_certificate(certificate)
    with impostor(found, key) as (port, heard):
        address = f"https://localhost:{port}"
        refused = log_in(f"{address}#sha256:{pin}", token, *words)
        assert (refused.code, refused.err.splitlines()) == (
            9,
            [
                (
                    f"error: the certificate of {address} has the SHA-256"
                    f" {digest_of_certificate(found)}, and {pin} was expected: another one may"
                    " answer in its place"
                ),
                (
                    "hint: if its operator has changed it, ask for the new digest, and log in with"
                    f" `batchq login {address}#sha256:DIGEST`"
                ),
            ],
        )
        with (
            ApiSession(ApiCredentials(server=address, token=token, pin=pin)) as session,
            pytest.raises(StoreUnavailable, match="was expected"),
        ):
            next(session.lines("/v1/groups?watch=true"))
    assert b"".join(heard) == b""


def test_a_digest_does_not_replace_an_authority_that_is_named(
    api: RunningApi, certificate: Path, token: str
) -> None:
    pin = digest_of_certificate(certificate)
    refused = log_in(
        f"https://localhost:{api.port}#sha256:{pin}", token, "--ca-file", str(AUTHORITY)
    )
    assert refused.code == 9
    assert "cannot be verified" in refused.err


def test_a_certificate_that_has_changed_is_refused_by_those_who_are_logged_in(
    server: Server, api: RunningApi, invitation: str, tmp_path: Path, home: Home
) -> None:
    assert log_in(f"https://localhost:{api.port}", invitation).code == 0
    other = own_certificate(tmp_path / "other.pem", ["localhost"])
    with RunningApi(server.url, certificate=other, key=other, is_pinned=True) as changed:
        kept = json.loads(home.credentials.read_bytes())
        address = f"https://localhost:{changed.port}"
        home.credentials.write_text(json.dumps(kept | {"server": address}))
        for words in (("whoami",), ("jobs",), ("logs", "train")):
            refused = run(*words)
            assert (refused.code, "was expected: another one may answer" in refused.err) == (
                9,
                True,
            )


def test_an_agent_that_joins_accepts_the_stated_certificate_only(
    api: RunningApi, certificate: Path, tmp_path: Path, home: Home
) -> None:
    pin = digest_of_certificate(certificate)
    other = own_certificate(tmp_path / "other.pem", ["localhost"])
    token = f"bqj_aaaaaaaaaa_{'x' * 43}_"
    token += hashlib.sha256(f"aaaaaaaaaa_{'x' * 43}".encode()).hexdigest()[:6]
    file = tmp_path / "join"
    file.write_text(f"{token}+{pin}\n")
    with impostor(other, other) as (port, heard):
        away = JoinRequest(node="gpu1", server=f"https://localhost:{port}", token_file=file)
        with pytest.raises(StoreUnavailable, match="was expected: another one may answer"):
            joined(home, away)
    assert b"".join(heard) == b""
    # The API itself is asked, which has no registrar or does not know the token.
    here = JoinRequest(node="gpu1", server=f"https://localhost:{api.port}", token_file=file)
    with pytest.raises(BatchqError, match="this token is unknown"):
        joined(home, here)
    assert json.loads(home.node_credentials.read_bytes())["pin"] == pin


def test_pods_and_programs_have_the_digest_in_the_address(
    api: RunningApi, certificate: Path, token: str, home: Home
) -> None:
    pin = digest_of_certificate(certificate)
    address = with_pin(f"https://localhost:{api.port}", pin)
    environ = {"BATCHQ_SERVER": address, "BATCHQ_TOKEN": token}
    found = chosen_credentials(home, is_redis_chosen=False, environ=environ)
    assert found is not None
    assert (found.server, found.pin) == (f"https://localhost:{api.port}", pin)
    with ApiSession(found) as session:
        assert session.request("GET", "/v1/me")["user"] == "alice"


def test_the_address_of_a_login_has_its_digest_without_it(
    api: RunningApi, invitation: str, home: Home
) -> None:
    address = f"https://localhost:{api.port}"
    assert log_in(address, invitation).code == 0
    found = chosen_credentials(home, is_redis_chosen=False, environ={"BATCHQ_SERVER": address})
    assert found is not None
    assert (found.pin, found.user) == (split_token(invitation)[1], "alice")


@pytest.mark.parametrize(
    ("address", "text", "sentence"),
    [
        ("https://localhost:1#sha256:abc", "T", "expected #sha256: and 64 hexadecimal digits"),
        (f"https://localhost:1#{OTHER}", "T", "expected #sha256: and 64 hexadecimal digits"),
        (f"https://localhost:1#sha256:{OTHER[:-1]}G", "T", "64 hexadecimal digits"),
        ("https://localhost:1", "T+abc", "64 hexadecimal digits after the '+' of a token, found 3"),
        ("https://localhost:1", f"T+{OTHER}+{OTHER}", "after the '+' of a token, found 129"),
        (f"https://localhost:1#sha256:{'1' * 64}", f"T+{OTHER}", "state different certificates"),
        ("http://localhost:1", f"T+{OTHER}", "has no certificate, and the token states the one"),
        (f"http://localhost:1#sha256:{OTHER}", "T", "expected no user, password or parameters"),
    ],
)
def test_a_digest_that_could_not_be_checked_is_refused_in_a_sentence(
    token: str, address: str, text: str, sentence: str, home: Home
) -> None:
    refused = log_in(address, text.replace("T", token))
    assert (refused.code, sentence in refused.err) == (1, True), refused.err
    assert token not in refused.err
    assert OTHER not in refused.err
    assert not home.credentials.exists()


def test_a_socket_needs_no_certificate(api: RunningApi, invitation: str, home: Home) -> None:
    assert log_in(f"unix:{api.socket}", invitation).code == 0
    assert "pin" not in json.loads(home.credentials.read_bytes())
    assert split_server("unix:/run/a#b") == ("unix:/run/a#b", "")


def test_a_certificate_is_made_once_and_its_key_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "api-certificate.pem"
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(4) as pool:
            names = ["hpc.example", "10.0.0.7", "[::1]"]
            found = list(pool.map(lambda _: own_certificate(path, names).read_bytes(), range(4)))
    finally:
        os.umask(before)
    assert len(set(found)) == 1
    assert own_certificate(path, ["other.example"]).read_bytes() == found[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    path.chmod(0o640)
    with pytest.raises(InvalidInput, match="other users may read the key in it"):
        own_certificate(path, [])


def test_a_file_without_a_certificate_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "api-certificate.pem"
    for content in ("", "-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----\n"):
        path.write_text(content)
        with pytest.raises(InvalidInput, match=f"the certificate in {path}: "):
            digest_of_certificate(path)


def test_the_command_makes_a_certificate_and_logs_its_digest(
    server: Server, stage: Stage, token: str, home: Home
) -> None:
    port = free_port()
    words = ("--self-signed", "--listen", f"0.0.0.0:{port}", "--name", "localhost")
    for _ in range(2):
        # The second start has the same certificate.
        with ApiProcess(server.url, *words) as process:
            # It is logged after the addresses, which `ApiProcess` waits for.
            until(lambda: "sha256=" in process.log.read_text())
            until(lambda: process.log.read_text().endswith("\n"))
            [digest] = set(re.findall("[0-9a-f]{64}", process.log.read_text()))
            done = log_in(f"https://localhost:{port}#sha256:{digest}", token)
            assert done.code == 0, done.err
    assert digest == digest_of_certificate(home.root / "api-certificate.pem")


def test_two_kinds_of_certificates_exclude_each_other(tmp_path: Path) -> None:
    shutil.copy(CERTIFICATES / "server.crt", tmp_path)
    words = ("--self-signed", "--tls-cert", str(tmp_path / "server.crt"))
    refused = run("api", "--listen", "127.0.0.1:0", *words)
    assert "--self-signed and --tls-cert exclude each other" in refused.err


def test_a_name_that_no_certificate_can_have_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--name hpc.exämple: a certificate has names of ASCII"):
        own_certificate(tmp_path / "api.pem", ["hpc.exämple"])
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_nowhere_is_refused_in_a_sentence(tmp_path: Path) -> None:
    link = tmp_path / "api.pem"
    link.symlink_to(tmp_path / "missing.pem")
    with pytest.raises(InvalidInput, match="is a symbolic link to a file that does not exist"):
        own_certificate(link, ["localhost"])
