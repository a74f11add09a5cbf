"""The certificate that an API makes for itself, and its digest, by which clients recognise it.

No authority vouches for it. So clients are told the digest with their invitation, and accept no
other certificate, whoever has signed it. It does not end, since another one would take a new login
of every client.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from batchq.errors import InvalidInput
from batchq.paths import read_private

_CERTIFICATE = re.compile(
    "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.ASCII | re.DOTALL
)
#: What RFC 5280 calls no well-defined end.
_NO_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_CLOCKS_DIFFER = timedelta(days=1)


def own_certificate(path: Path, names: Sequence[str]) -> Path:
    """Return the file with the API's own certificate and its key, which only this user may read;
    make it for these host names and addresses if there is none. Raises InvalidInput.
    """
    if not path.exists():
        content = _made(names)
        try:
            # Its mode is 0600 from the beginning, whatever the umask.
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                # Of two processes, the second one uses the certificate of the first.
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, path)
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
    # Refuses a file whose key others may read.
    read_private(path, what="key")
    return path


def digest_of_certificate(path: Path) -> str:
    """Return the SHA-256 of the first certificate of a file. Raises InvalidInput."""
    found = _CERTIFICATE.search(path.read_text(encoding="ascii", errors="replace"))
    try:
        if found is None:
            raise ValueError("there is none in it")
        content = ssl.PEM_cert_to_DER_cert(found[0])
        if not content:
            raise ValueError("it is empty")
        return hashlib.sha256(content).hexdigest()
    except ValueError as error:
        raise InvalidInput(
            f"the certificate in {path}: {error}",
            hint="remove the file to make another one; then every client has to log in again",
        ) from None


def _made(names: Sequence[str]) -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError:
        raise InvalidInput(
            "--self-signed needs the package cryptography, which is not installed",
            hint="pip install 'batchq[http,oidc]'; or make a certificate, and use --tls-cert",
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "batchq api")])
    alternatives: list[x509.GeneralName] = []
    for one in dict.fromkeys(names):
        try:
            alternatives.append(x509.IPAddress(ip_address(one.strip("[]"))))
        except ValueError:
            alternatives.append(x509.DNSName(one))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCKS_DIFFER)
        .not_valid_after(_NO_END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
