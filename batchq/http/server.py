"""The API as a process: where it listens, with or without TLS, from its start to its end.

No authority vouches for a certificate that the API makes for itself. So invitations contain its
digest, and clients accept no other certificate, not even one that an authority has signed. It does
not expire, because every client would have to log in again for another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import re
import socket
import ssl
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from uvicorn.config import Config

from batchq.api.access import Visibility
from batchq.client import Client
from batchq.client.access_control import Delegate
from batchq.client.node_users import NodeRegistrar
from batchq.errors import Conflict, InvalidInput
from batchq.http.application import ApiApplication, ApiSettings
from batchq.http.calls import GroupTable
from batchq.http.connections import (
    BoundedProtocol,
    BoundedServer,
    most_connections,
)
from batchq.http.identities import AgentAccounts, SocketAccounts, account_of
from batchq.identity_provider import OidcSettings
from batchq.paths import LONGEST_SOCKET_PATH_BYTES, read_private
from batchq.system import structlog

if TYPE_CHECKING:
    from batchq.http.id_tokens import IdTokens

_log = structlog.get_logger()

_BACKLOG = 256
_KEEP_ALIVE_S = 5
#: How long answers under way may take when the API ends.
_GRACE_S = 5
_UNIX = "unix:"


class ListenAddress(Struct, frozen=True, kw_only=True):
    """Where to listen: a socket's path, or host and port (0: a free one)."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Parse `unix:PATH` or `HOST:PORT`; an IPv6 address is in brackets. Raises InvalidInput."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if path and len(os.fsencode(path)) <= LONGEST_SOCKET_PATH_BYTES:
            return ListenAddress(path=str(Path(path).absolute()))
    else:
        host, colon, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
        if colon and host and is_port and (is_bracketed or ":" not in host):
            return ListenAddress(host=host[1:-1] if is_bracketed else host, port=int(port))
    raise InvalidInput(
        f"--listen: expected unix:PATH or HOST:PORT, found {text[:120]!r}",
        hint=f"as in unix:/run/batchq/api.sock (a path of at most {LONGEST_SOCKET_PATH_BYTES}"
        " bytes), 127.0.0.1:8443 or [::1]:8443",
    )


class ServeOptions(Struct, frozen=True, kw_only=True):
    """How to serve. `certificate` and `key` are files in PEM; both or none."""

    listen: tuple[ListenAddress, ...]
    certificate: Path | None = None
    key: Path | None = None
    #: Whether clients recognise the certificate by its digest.
    is_pinned: bool = False
    behind_proxy: bool = False
    names: tuple[str, ...] = ()
    #: Accounts under which agents of this machine run pods.
    agent_uids: frozenset[int] = frozenset()
    #: Whether pods that run under the account of the API are of the person whose account it is.
    is_one_account: bool = False
    visibility: Visibility = Visibility.OPEN
    #: The socket of `batchq registrar`.
    registrar: Path | None = None
    #: The identity provider to trust.
    oidc: OidcSettings | None = None


def check_options(options: ServeOptions) -> None:
    """Raise InvalidInput for what would be unsafe, or could not work."""
    if (options.certificate is None) != (options.key is None):
        raise InvalidInput(
            "TLS needs both a certificate and its key, and one of them was given",
            hint="as in --tls-cert api.pem --tls-key api.key",
        )
    is_secured = options.certificate is not None or options.behind_proxy
    for address in options.listen:
        if not address.is_loopback and not is_secured:
            raise InvalidInput(
                f"--listen {address}: other machines could read tokens on the way, because there"
                " is no TLS",
                hint="give --tls-cert and --tls-key, or --self-signed; or listen on a unix socket"
                " or 127.0.0.1; or say --behind-proxy if a proxy in front speaks TLS",
            )
    if os.getuid() in options.agent_uids:
        raise InvalidInput(
            f"account {account_of(os.getuid()).name} runs this API, and was named as one that runs"
            " pods",
            hint="run the API under an account of its own: its account is operator",
        )


def _check_account(options: ServeOptions, agents: AgentAccounts) -> None:
    """Raise InvalidInput if pods of this machine would be this account on a socket."""
    has_socket = any(address.path for address in options.listen)
    if options.is_one_account or not has_socket:
        return
    agents.look()
    if agents.trouble and not options.agent_uids:
        raise InvalidInput(
            f"the kernel does not say which accounts run agents of this machine ({agents.trouble}),"
            " so their pods could be operators on the socket",
            hint="name these accounts with --agent-user; or say --one-account, if all that runs"
            " under this account is one person's",
        )
    if os.getuid() in agents:
        raise InvalidInput(
            f"account {account_of(os.getuid()).name} runs this API, and also an agent of this"
            " machine: on the socket, its pods would be operators",
            hint="run the API under an account of its own; or say --one-account, if all that runs"
            " under this account is one person's",
        )


class ApiServer:
    """An API that listens from its creation on, and answers in `run`.

    Raises InvalidInput for unsafe options and for places where it cannot listen, and Conflict if
    another process listens there.
    """

    def __init__(
        self,
        options: ServeOptions,
        connect: Callable[[], Delegate],
        why: Callable[[Client, str], object],
        table: GroupTable,
    ) -> None:
        agents = AgentAccounts(options.agent_uids)
        check_options(options)
        secured = _tls_context(options) is not None
        _check_account(options, agents)
        #: The digest by which clients recognise the certificate; "" if an authority vouches for it.
        self.pin = ""
        if options.is_pinned and options.certificate is not None:
            self.pin = digest_of_certificate(options.certificate)
        hosts = [_host_name(address) for address in options.listen if address.host]
        settings = ApiSettings(
            accounts=SocketAccounts(
                server_uid=os.getuid(), agents=agents, is_one_account=options.is_one_account
            ),
            names=(*options.names, *hosts),
            visibility=options.visibility,
            behind_proxy=options.behind_proxy,
            registrar=None if options.registrar is None else NodeRegistrar(options.registrar),
            id_tokens=None if options.oidc is None else _id_tokens(options.oidc),
            certificate=self.pin,
        )
        self._options = options
        self._undo = ExitStack()
        with ExitStack() as undo:
            self._sockets = [_listening(address, undo) for address in options.listen]
            self._undo = undo.pop_all()
        self._application = ApiApplication(settings, connect, why, table)
        config = Config(
            self._application,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
        )
        # Strangers' malformed requests must not fill the log.
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        listening = [(one, secured and one.family != socket.AF_UNIX) for one in self._sockets]
        self._server = BoundedServer(
            config,
            listening,
            most_connections=most_connections(),
            before_shutdown=self._application.end_streams,
        )

    @property
    def urls(self) -> Sequence[str]:
        """Where it listens, with the ports that the kernel chose."""
        scheme = "https" if self._options.certificate is not None else "http"
        found = []
        for address, one in zip(self._options.listen, self._sockets, strict=True):
            if address.path:
                found.append(str(address))
            else:
                port = one.getsockname()[1]
                place = ListenAddress(host=address.host, port=port)
                found.append(f"{scheme}://{place}")
        return found

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM, or until `stop`; then close the sockets."""
        try:
            self.serve()
        finally:
            self.close()

    def serve(self) -> None:
        """Answer until SIGINT or SIGTERM, or until `stop`. The sockets stay open."""
        asyncio.run(self._run())

    def close(self) -> None:
        """Close the sockets, and remove those of the file system."""
        self._undo.close()

    def stop(self) -> None:
        """End `run` from another thread."""
        self._server.should_exit = True

    async def _run(self) -> None:
        for url in self.urls:
            _log.info("api.listens", url=url)
        if self.pin:
            _log.info("api.certificate", sha256=self.pin, file=str(self._options.certificate))
        self._application.start()
        try:
            await self._server.serve()
        finally:
            await self._application.close()
            _log.info("api.ended")


def _id_tokens(settings: OidcSettings) -> IdTokens:
    try:
        from batchq.http.id_tokens import IdTokens
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jwt", "cryptography"):
            raise
        raise InvalidInput(
            f"--oidc-issuer needs the package {error.name}, which is not installed",
            hint="pip install 'batchq[http,oidc]'",
        ) from None
    return IdTokens(settings)


def _host_name(address: ListenAddress) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host


def _tls_context(options: ServeOptions) -> ssl.SSLContext | None:
    """Load the certificate, to refuse it in a sentence. Raises InvalidInput."""
    if options.certificate is None or options.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if options.key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidInput(
                f"--tls-key {options.key}: other users may read this key",
                hint=f"chmod 600 {options.key}",
            )
        context.load_cert_chain(options.certificate, options.key, password=_no_password)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(
            f"--tls-cert {options.certificate}, --tls-key {options.key}: {why}",
            hint="expected a certificate and its key without a password, both in PEM",
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")


def _listening(address: ListenAddress, undo: ExitStack) -> socket.socket:
    """Return a socket that listens there. Raises InvalidInput, Conflict."""
    try:
        if address.path:
            return _unix_socket(Path(address.path), undo)
        [(family, *_, place), *_] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.create_server(place, family=family, backlog=_BACKLOG)
        undo.callback(listening.close)
    except OSError as error:
        # `create_server` appends the address to its message.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise InvalidInput(f"cannot listen on {address}: {why}") from error
    return listening


def _unix_socket(path: Path, undo: ExitStack) -> socket.socket:
    """Bind a socket that every user of the machine may connect to: the kernel names each of them.

    A socket that a killed process has left is replaced.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    undo.callback(listening.close)
    if path.is_socket():
        if _answers(path):
            raise Conflict(
                f"another process listens on {_UNIX}{path}",
                hint="choose another path, or end that process",
            )
        path.unlink()
    listening.bind(str(path))
    made = path.stat()
    undo.callback(_remove, path, made)
    path.chmod(0o666)
    listening.listen(_BACKLOG)
    return listening


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(3.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _remove(path: Path, made: os.stat_result) -> None:
    """Remove our socket, but not one that another process has made in its place."""
    try:
        found = path.stat()
        if (found.st_ino, found.st_dev) == (made.st_ino, made.st_dev):
            path.unlink()
    except FileNotFoundError:
        pass


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
    if path.is_symlink() and not path.exists():
        raise InvalidInput(
            f"{path} is a symbolic link to a file that does not exist",
            hint="remove the link, to make a certificate there; or make the file that it names",
        )
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
            if not one.isascii():
                raise InvalidInput(
                    f"--name {one}: a certificate has names of ASCII letters only",
                    hint="give the name as browsers send it, as in xn--exmple-cua.org",
                ) from None
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
