"""What can be wrong with TLS, in words: OpenSSL says it in a language of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batchq.errors import InvalidInput

#: The options of a URL that name files, by redis-py's names.
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

#: What OpenSSL's text holds -> what is said of the server, and what to do. The first that fits.
_TROUBLES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("certificate has expired",),
        "shows a TLS certificate that has expired",
        "renew the server's certificate, or set this machine's clock",
    ),
    (
        ("certificate is not yet valid",),
        "shows a TLS certificate that is not valid yet",
        "set this machine's clock, or replace the server's certificate",
    ),
    (
        ("hostname mismatch", "ip address mismatch", "doesn't match"),
        "shows a TLS certificate that is for another host",
        "write the host into the URL as the certificate names it",
    ),
    (
        ("self-signed certificate", "self signed certificate", "local issuer certificate"),
        "shows a TLS certificate of an authority that this machine does not know",
        "name the authority's file in the URL: rediss://…?ssl_ca_certs=/path/to/ca.crt",
    ),
    (
        ("certificate_verify_failed",),
        "shows a TLS certificate that cannot be verified",
        "see `openssl s_client -connect HOST:PORT`",
    ),
    (
        ("certificate_required", "certificate required", "handshake_failure", "bad_certificate"),
        "asks for a TLS certificate of the client, or refuses it",
        "name it in the URL: rediss://…?ssl_certfile=/path/to/client.crt&ssl_keyfile=/path/to/key",
    ),
    (
        ("unknown_ca", "unknown ca"),
        "does not know the authority of the client's TLS certificate",
        "take one of an authority that the server knows (its tls-ca-cert-file)",
    ),
    (
        ("key_values_mismatch",),
        "was not asked: the key in ssl_keyfile is not that of the certificate in ssl_certfile",
        "name a pair in the URL",
    ),
    (
        ("no_certificate_or_crl_found", "no_start_line", "[ssl] pem lib", "bad_base64_decode"),
        "was not asked: a file that the URL names holds no certificate or key in PEM",
        "see ssl_ca_certs, ssl_certfile and ssl_keyfile",
    ),
    (
        ("wrong_version_number", "record_layer_failure", "packet_length_too_long"),
        "does not speak TLS",
        "write redis:// for a server without TLS, or its TLS port",
    ),
    (
        ("unexpected_eof_while_reading", "violation of protocol"),
        "ends the connection while TLS is agreed on",
        "does it speak TLS at that port, or ask for a certificate of the client (ssl_certfile)?",
    ),
    (
        ("[ssl", "[x509", "ssl:"),
        "does not agree on TLS",
        "see `openssl s_client -connect HOST:PORT`",
    ),
)


def trouble(text: str) -> tuple[str, str] | None:
    """What an error's text says of TLS, and what to do; None if it is about something else."""
    lower = text.lower()
    for phrases, said, hint in _TROUBLES:
        if any(phrase in lower for phrase in phrases):
            return said, hint
    return None


def check_files(options: Mapping[str, str]) -> None:
    """Raises InvalidInput if a file that a URL names cannot be read."""
    for name in FILES:
        if path := options.get(name):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise InvalidInput(
                    f"the server's URL: the file of {name} cannot be read: {error.strerror}",
                    hint="write its whole path, which is the same in every folder",
                ) from None
