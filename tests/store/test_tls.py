"""`rediss://` to a server behind TLS, and the errors when the handshake fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.errors import InvalidInput, StoreUnavailable
from batchq.store.redis import open_store
from batchq.store.urls import trouble
from tests.cli.conftest import run
from tests.harness.server import Server
from tests.harness.tls import AUTHORITY, CERTIFICATES, tls_in_front_of


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between tries: waiting does not help here."""
    monkeypatch.setattr("batchq.store.link.FIRST_DELAY_S", 0)


def refusal(url: str) -> tuple[str, str]:
    """Return what opening a store says after the server's address, and its hint."""
    with pytest.raises(StoreUnavailable) as caught:
        open_store(url)
    return caught.value.message.partition("/0 ")[2], caught.value.hint


def test_a_server_is_used_over_tls_by_a_name_or_an_address_of_its_certificate(
    server: Server,
) -> None:
    with tls_in_front_of(Path(server.socket)) as port:
        for host in ("localhost", "127.0.0.1"):
            url = f"rediss://{host}:{port}/0?ssl_ca_certs={AUTHORITY}"
            open_store(url).close()
            assert run("queues", url=url).code == 0


def test_a_client_shows_its_certificate_where_one_is_asked_for(server: Server) -> None:
    pair = f"ssl_certfile={CERTIFICATES}/server.crt&ssl_keyfile={CERTIFICATES}/server.key"
    with tls_in_front_of(Path(server.socket), asks_for_certificates=True) as port:
        open_store(f"rediss://localhost:{port}/0?ssl_ca_certs={AUTHORITY}&{pair}").close()
        said, hint = refusal(f"rediss://localhost:{port}/0?ssl_ca_certs={AUTHORITY}")
    assert said in (
        "asks for a TLS certificate of the client, or refuses it",
        # The connection may end before the reason can be read.
        "ends the connection during the TLS handshake",
    )
    assert "ssl_certfile" in hint


@pytest.mark.parametrize(
    ("certificate", "options", "said"),
    [
        (
            "server",
            "",
            "shows a TLS certificate of an authority unknown to this machine",
        ),
        (
            "elsewhere",
            f"?ssl_ca_certs={AUTHORITY}",
            "shows a TLS certificate that is for another host",
        ),
        (
            "expired",
            f"?ssl_ca_certs={AUTHORITY}",
            "shows a TLS certificate that has expired",
        ),
        (
            "server",
            (
                f"?ssl_ca_certs={AUTHORITY}&ssl_certfile={CERTIFICATES}/server.crt"
                f"&ssl_keyfile={CERTIFICATES}/elsewhere.key"
            ),
            "was not asked: the key in ssl_keyfile does not match the certificate in ssl_certfile",
        ),
        (
            "server",
            f"?ssl_ca_certs={__file__}",
            "was not asked: a file named in the URL contains no certificate or key in PEM",
        ),
    ],
)
def test_a_certificate_error_is_one_clear_sentence(
    server: Server, certificate: str, options: str, said: str
) -> None:
    with tls_in_front_of(Path(server.socket), certificate=certificate) as port:
        result, hint = refusal(f"rediss://localhost:{port}/0{options}")
    assert result == said
    assert hint
    assert "_ssl.c" not in result + hint


def test_a_url_can_turn_the_certificate_check_off(server: Server) -> None:
    with tls_in_front_of(Path(server.socket), certificate="expired") as port:
        open_store(f"rediss://localhost:{port}/0?ssl_cert_reqs=none").close()


def test_the_error_without_tls_to_a_tls_server_names_the_remedy(server: Server) -> None:
    with tls_in_front_of(Path(server.socket)) as port:
        result, hint = refusal(f"redis://localhost:{port}/0")
    assert result.startswith("cannot be reached: ")
    assert hint == "check that it runs, and the URL: with TLS, it begins with rediss://"


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_missing_file_is_named_by_its_option(option: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(f"rediss://localhost:1/0?{option}=/nowhere/hunter2")
    assert caught.value.message == (
        f"the server's URL: the file of {option} cannot be read: No such file or directory"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "does not speak TLS"),
        (
            (
                "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet"
                " valid (_ssl.c:1006)"
            ),
            "shows a TLS certificate that is not valid yet",
        ),
        (
            "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)",
            "does not know the authority of the client's TLS certificate",
        ),
        ("[SSL: NO_PROTOCOLS_AVAILABLE] no protocols available", "fails the TLS handshake"),
    ],
)
def test_errors_of_openssl_are_translated(text: str, said: str) -> None:
    result = trouble(text)
    assert result is not None
    assert result[0] == said


def test_errors_other_than_tls_are_not_translated() -> None:
    assert trouble("Error 111 connecting to localhost:1. Connection refused.") is None
