"""The API with TLS: a port for other machines, and certificates that are refused in a sentence."""

from __future__ import annotations

import http.client
import shutil
import ssl
from pathlib import Path

import pytest

from batchq.cli.api import table_of
from batchq.client.access_control import Actor, Delegate
from batchq.errors import InvalidInput
from batchq.http.server import ApiServer, ListenAddress, ServeOptions, check_options
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.harness.tls import AUTHORITY, CERTIFICATES
from tests.http.api_process import ApiProcess, RunningApi


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key of the tests' certificate, closed to other users."""
    copy = tmp_path / "api.key"
    shutil.copy(CERTIFICATES / "server.key", copy)
    copy.chmod(0o600)
    return copy


def test_a_token_is_accepted_over_tls_and_plain_text_is_not(
    server: Server, stage: Stage, key: Path
) -> None:
    certificate = CERTIFICATES / "server.crt"
    with (
        Delegate(server.url) as delegate,
        RunningApi(server.url, certificate=certificate, key=key) as api,
    ):
        token = delegate.access.create_token("alice", Actor(user="root", via="redis")).text
        context = ssl.create_default_context(cafile=AUTHORITY)
        secured = http.client.HTTPSConnection("localhost", api.port, context=context, timeout=60)
        secured.request("GET", "/v1/me", headers={"Authorization": f"Bearer {token}"})
        assert secured.getresponse().status == 200
        secured.close()
        plain = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
        plain.request("GET", "/livez")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()
        # The socket beside it speaks plain HTTP: it does not leave the machine.
        assert api.caller()("GET", "/livez").status == 200


def test_a_certificate_that_cannot_be_used_is_refused_in_a_sentence(
    key: Path, tmp_path: Path
) -> None:
    def refusal(certificate: Path, key: Path) -> str:
        listen = (ListenAddress(host="127.0.0.1", port=0),)
        options = ServeOptions(listen=listen, certificate=certificate, key=key)
        with pytest.raises(InvalidInput) as raised:
            ApiServer(options, lambda: Delegate(None), lambda client, key: None, table_of)
        return raised.value.message

    missing = tmp_path / "missing.crt"
    assert f"--tls-cert {missing}" in refusal(missing, key)
    assert "No such file or directory" in refusal(missing, key)
    assert "mismatch" in refusal(CERTIFICATES / "elsewhere.crt", key).lower()
    key.chmod(0o644)
    assert "other users may read this key" in refusal(CERTIFICATES / "server.crt", key)


def test_behind_a_proxy_any_address_is_accepted() -> None:
    listen = (ListenAddress(host="0.0.0.0", port=0),)
    check_options(ServeOptions(listen=listen, behind_proxy=True))
    with pytest.raises(InvalidInput, match="there is no TLS"):
        check_options(ServeOptions(listen=listen))


def test_an_api_without_its_server_lives_is_not_ready_and_recovers() -> None:
    with Server() as server, ApiProcess(server.url) as process:
        caller = process.caller()
        assert caller("GET", "/readyz").status == 200
        server.stop()
        away = caller("GET", "/readyz")
        assert (away.status, away.headers["content-type"]) == (503, "application/problem+json")
        assert int(away.headers["retry-after"]) > 0
        assert caller("GET", "/livez").status == 200
        groups = caller("GET", "/v1/groups")
        assert (groups.status, groups.data["exit"]) == (503, 9)
        # Users of the API cannot start its server, and must not start one of their own.
        assert groups.data["hint"].endswith("if this lasts, tell the API's operator")
        server.start()
        assert caller("GET", "/readyz").status == 200
