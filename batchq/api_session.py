"""A session with the HTTP API: an address, a token, and the file in which they are kept.

The standard library's `http.client` suffices, and only the commands that use it load it.

The ssh door: for an address `ssh://`, HTTP goes through the system's `ssh` to the socket of an API
on another machine. `ssh` runs `batchq connect` there, which copies bytes between its input and
output and the socket. So the caller is the account on that machine, keys and host keys are those of
ssh, and there is no port, certificate or token. The user's `~/.ssh/config` applies; a
`ControlMaster` there saves the time of further connections.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shlex
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit

from batchq import errors
from batchq.errors import BatchqError, InvalidInput, NotFound, StoreUnavailable, printable
from batchq.paths import (
    SERVER_VARIABLE,
    URL_VARIABLE,
    Home,
    find_home,
    read_private,
    write_private,
)

if TYPE_CHECKING:
    import subprocess

T = TypeVar("T")

_TIMEOUT_S = 30.0
#: A stream without news says so every 15 s.
_STREAM_TIMEOUT_S = 60.0
_MOST_BYTES = 64 * 1024 * 1024
#: Of a stream, at a time.
_PART_BYTES = 64 * 1024
#: How long a request waits, in all, for an API that has had too many of them.
_LONGEST_TURN_S = 60.0
#: A connection that was idle for longer is not used again.
_IDLE_S = 3.0
_NDJSON = "application/x-ndjson"
#: The headers of a request in the name of another user, and why; the reason is percent-encoded.
IMPERSONATED, REASON = "Batchq-As", "Batchq-Reason"
_HTTPS_PORT = 443
_TOKEN_VARIABLE = "BATCHQ_TOKEN"  # noqa: S105 - its name
_TOKEN_FILE_VARIABLE = "BATCHQ_TOKEN_FILE"  # noqa: S105 - its name
#: The reason of an SSLError if the other side answers in plain text.
_NO_TLS = "WRONG_VERSION_NUMBER"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ApiCredentials(NamedTuple):
    """The API that a user is logged in to. `authority` is a file of certificates to trust. `pin` is
    the SHA-256 of the only certificate that the API may have; then no authority has to vouch for
    it, unless one is named.

    `impersonated` is the user in whose name requests are made, and `reason` says why; both are of
    one command, and never kept. `expires_at` is when the token ends, in ISO 8601, if its user is to
    be warned before that.
    """

    server: str
    user: str = ""
    token: str = ""
    authority: str = ""
    expires_at: str = ""
    pin: str = ""
    impersonated: str = ""
    reason: str = ""


_KEPT = ("server", "user", "token", "authority", "expires_at", "pin")
#: Begins the digest of a certificate in an address, `https://HOST:PORT#sha256:DIGEST`.
_PIN = "#sha256:"
#: Separates an invitation or a join token from the digest of the API's certificate.
_WITH_PIN = "+"
_DIGEST = re.compile("[0-9a-f]{64}")


def split_server(url: str, *, variable: str = "") -> tuple[str, str]:
    """Return the checked address of an API, and the SHA-256 of its certificate, "" if it is not
    stated: `https://HOST:PORT#sha256:DIGEST`. Raises InvalidInput.
    """
    address, mark, fragment = url.partition("#") if url.startswith("https:") else (url, "", "")
    server = checked_server(address, variable=variable)
    if not mark:
        return server, ""
    pin = f"#{fragment}".removeprefix(_PIN)
    if not _DIGEST.fullmatch(pin):
        # The message does not repeat the text, which may contain a token.
        raise InvalidInput(
            f"{variable or 'the address of the API'}: expected {_PIN} and 64 hexadecimal digits"
            " after it, or nothing",
            hint="the digest of the API's certificate is in the log of `batchq api --self-signed`",
        )
    return server, pin


def with_pin(server: str, pin: str) -> str:
    """Return an address with the digest of the API's certificate, if there is one."""
    return f"{server}{_PIN}{pin}" if pin and server.startswith("https:") else server


def pinned_text(token: str, pin: str) -> str:
    """Return an invitation or a join token together with the digest of the API's certificate."""
    return f"{token}{_WITH_PIN}{pin}" if pin else token


def split_token(text: str) -> tuple[str, str]:
    """Return a token, and the digest of the API's certificate that came with it, or ""; raises
    InvalidInput.
    """
    token, mark, pin = text.partition(_WITH_PIN)
    if mark and not _DIGEST.fullmatch(pin):
        # The message must not show the text.
        raise InvalidInput(
            f"expected 64 hexadecimal digits after the {_WITH_PIN!r} of a token, found {len(pin)}"
            " characters",
            hint="copy it whole",
        )
    return token, pin


def agreed_pin(server: str, *pins: str) -> str:
    """Return the one digest among those given that the certificate of an API must have, if any.

    Raises InvalidInput if they differ, or if the API would have no certificate.
    """
    found = sorted({*pins} - {""})
    if len(found) > 1:
        raise InvalidInput(
            "the address of the API and the token state different certificates",
            hint="one of them is of another API, or of a former certificate: ask for a new one",
        )
    if found and server.startswith("http:"):
        raise InvalidInput(
            f"{server} has no certificate, and the token states the one that the API must have",
            hint="use https://",
        )
    # On a socket and through ssh, the system says who answers.
    return found[0] if found and server.startswith("https:") else ""


def checked_server(url: str, *, variable: str = "") -> str:
    """Return the address of an API: `https://HOST[:PORT]`, `http://` on loopback, `unix:PATH`, or
    `ssh://[USER@]HOST[:PORT][/PATH]`.

    `variable` is the environment variable that contains it. Raises InvalidInput.
    """
    what = variable or "the address of the API"
    if url.startswith("unix:") and len(url) > len("unix:"):
        return f"unix:{Path(url.removeprefix('unix:')).absolute()}"
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0 and _is_one_word(parts.netloc)
    except ValueError:
        parts, is_whole = urlsplit(""), False
    if is_whole and parts.scheme == "ssh":
        return checked_ssh(parts, what)
    if not is_whole or parts.scheme not in ("https", "http") or parts.path not in ("", "/"):
        # The message does not repeat the text, which may contain a token.
        hint = "as in https://hpc.example:8443, ssh://hpc.example or unix:/run/batchq/api.sock"
        if variable == SERVER_VARIABLE:
            hint += f"; unset {variable} to use the server of `batchq login` or the Redis server"
        if parts.scheme.startswith("redis"):
            hint = f"a Redis server is named by {URL_VARIABLE} or --redis-url"
        raise InvalidInput(
            f"{what}: expected https://HOST:PORT, ssh://HOST or unix:PATH", hint=hint
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(
            f"{what}: expected no user, password or parameters in it",
            hint=f"the token is read from {_TOKEN_VARIABLE} or the file {_TOKEN_FILE_VARIABLE}"
            if variable
            else "the token is asked for, or read from --token-file",
        )
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        prefix = f"{variable}: " if variable else ""
        raise InvalidInput(
            f"{prefix}http://{parts.hostname}: others could read the token on the way",
            hint="use https:// or ssh://, or unix:PATH on the API's machine",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _is_one_word(text: str) -> bool:
    return text.isprintable() and " " not in text


class ApiSession:
    """Sends requests to an API over one connection, which is opened when it is needed.

    A context manager. Belongs to one thread.
    """

    def __init__(self, credentials: ApiCredentials) -> None:
        self._credentials = credentials
        self._open: http.client.HTTPConnection | None = None
        self._used_at = 0.0
        #: Whether an answer to the last request has come, be it an error.
        self.has_answered = False

    def __enter__(self) -> ApiSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def request(self, method: str, path: str, document: object = None, *, kind: Any = Any) -> Any:
        """Return the answer to a request, decoded as `kind`; `document` is the request's body.

        Raises the error that the API's problem describes, StoreUnavailable if it does not answer.
        """
        body = None if document is None else json.dumps(document).encode()
        found, status = self._exchange(method, path, body, "application/json")
        return self._checked(found, status, kind)

    def exchange_lines(self, path: str, body: bytes, kind: type[T]) -> Sequence[T]:
        """Send lines of JSON, and return those of the answer, as `kind`; see `request`."""
        found, status = self._exchange("POST", path, body, _NDJSON)
        if status >= HTTPStatus.BAD_REQUEST:
            self._checked(found, status, Any)
        import msgspec

        return msgspec.json.Decoder(kind).decode_lines(found)

    def lines(self, path: str, *, deadline: float | None = None) -> Iterator[bytes]:
        """Yield the lines of a stream of JSON, on a connection of its own; see `request`.

        At the `deadline`, by `monotonic`, the stream ends.
        """
        connection = self._connection()
        try:
            with self._explaining():
                connection.request("GET", path, headers=self._headers(_NDJSON))
                answer = connection.getresponse()
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    self._checked(answer.read(_MOST_BYTES), answer.status, Any)
                # An answer that ends the connection has taken its socket over.
                stream, begun = connection.sock, b""
                while True:
                    left_s = _STREAM_TIMEOUT_S
                    if deadline is not None:
                        left_s = min(left_s, deadline - monotonic())
                    if left_s <= 0:
                        return
                    if stream is not None:
                        stream.settimeout(left_s)
                    try:
                        # Not `readline`: to that, a stream that was cut has ended as it should.
                        data = answer.read1(_PART_BYTES)
                    except TimeoutError:
                        if deadline is not None and monotonic() >= deadline:
                            return
                        raise
                    if not data:
                        yield from filter(None, [begun])
                        return
                    *whole, begun = (begun + data).split(b"\n")
                    yield from whole
        finally:
            connection.close()

    def _exchange(self, method: str, path: str, body: bytes | None, form: str) -> tuple[bytes, int]:
        """Return the body and the status of an answer; wait if the API says so, since it has done
        nothing then.
        """
        until = monotonic() + _LONGEST_TURN_S
        while True:
            found, status, again = self._exchange_once(method, path, body, form)
            pause_s = int(again) if again.isascii() and again.isdigit() else 1
            is_busy = status == HTTPStatus.TOO_MANY_REQUESTS
            if not is_busy or monotonic() + pause_s > until:
                return found, status
            sleep(pause_s)

    def _exchange_once(
        self, method: str, path: str, body: bytes | None, form: str
    ) -> tuple[bytes, int, str]:
        """Return the body and the status of an answer, and when to ask again."""
        self.has_answered = False
        with self._explaining():
            try:
                answer = self._answer(method, path, body, form)
                found = answer.read(_MOST_BYTES)
            except BaseException:  # an interruption, too, leaves an answer half read
                self.close()
                raise
        if answer.will_close or len(found) == _MOST_BYTES:
            self.close()
        self.has_answered = True
        return found, answer.status, answer.headers.get("Retry-After", "")

    def _answer(
        self, method: str, path: str, body: bytes | None, form: str
    ) -> http.client.HTTPResponse:
        headers = self._headers(form)
        if body is not None:
            headers["Content-Type"] = form
        # The server closes a connection that has been idle for some seconds. A request that it did
        # not read could be sent again, but nothing tells whether it was read.
        if self._open is not None and monotonic() - self._used_at > _IDLE_S:
            self.close()
        if self._open is None:
            self._open = self._connection()
        try:
            self._open.request(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError) as error:
            answer = _early_answer(self._open, error)
        else:
            answer = self._open.getresponse()
        self._used_at = monotonic()
        return answer

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        if self._credentials.token:
            headers["Authorization"] = f"Bearer {self._credentials.token}"
        if self._credentials.impersonated:
            headers[IMPERSONATED] = self._credentials.impersonated
            headers[REASON] = quote(self._credentials.reason)
        return headers

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        server = self._credentials.server
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise StoreUnavailable(
                f"the certificate of {server} cannot be verified: {error.verify_message}",
                hint="name the authority's certificate with `batchq login --ca-file FILE`, or the"
                f" digest of the API's own in its address, as {server}{_PIN}DIGEST",
                lasts=True,
            ) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            hint = "is `batchq api` running there?"
            if isinstance(error, http.client.IncompleteRead):
                why = "the connection was cut"
            elif isinstance(error, ssl.SSLError) and error.reason == _NO_TLS:
                why = "it does not speak TLS"
                hint = (
                    "it may speak http without TLS: then use http:// on its own machine, and"
                    " ssh://HOST from others; `batchq api --tls-cert` adds TLS"
                )
            raise StoreUnavailable(
                f"the API at {server} does not answer: {why}", hint=hint
            ) from None

    def _checked(self, body: bytes, status: int, kind: Any) -> Any:
        if kind is not Any and status < HTTPStatus.BAD_REQUEST:
            return self._decoded(body, kind)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise self._no_api() from None
        if status >= HTTPStatus.BAD_REQUEST:
            raise error_of(document, status)
        return document

    def _decoded(self, body: bytes, kind: Any) -> Any:
        # A list of groups as a table needs no types.
        import msgspec

        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            raise StoreUnavailable(
                f"the API at {self._credentials.server} is of another version of batchq",
                hint="use the same version here and there",
                lasts=True,
            ) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise self._no_api() from None

    def _no_api(self) -> StoreUnavailable:
        server = self._credentials.server
        return StoreUnavailable(f"{server} is not an API of batchq", lasts=True)

    def _connection(self) -> http.client.HTTPConnection:
        server = self._credentials.server
        if server.startswith("unix:"):
            return _SocketConnection(server.removeprefix("unix:"))
        if server.startswith("ssh:"):
            return SshConnection(server, timeout_s=_TIMEOUT_S)
        parts = urlsplit(server)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return _WholeRequests(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        authority, pin = self._credentials.authority, self._credentials.pin
        context = ssl.create_default_context(cafile=authority or None)
        port = parts.port or _HTTPS_PORT
        if pin:
            if not authority:
                # The digest is compared instead, before anything is sent.
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            pinned = _PinnedConnection(parts.hostname, port, timeout=_TIMEOUT_S, context=context)
            pinned.pin, pinned.server = pin, server
            return pinned
        return _SecureConnection(parts.hostname, port, timeout=_TIMEOUT_S, context=context)


def _early_answer(
    connection: http.client.HTTPConnection, error: OSError
) -> http.client.HTTPResponse:
    """Return the answer of an API that has refused a request before it was sent whole.

    Raises the error of the sender if there is none.
    """
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException):
        raise error from None


class _WholeRequests(http.client.HTTPConnection):
    """Sends the head of a request together with its body: two messages would wake the API twice,
    and on a busy machine the second one waits for that.
    """

    _has_body = False
    _head = b""

    def request(
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, Any] = MappingProxyType({}),
        *,
        encode_chunked: bool = False,
    ) -> None:
        self._has_body, self._head = isinstance(body, bytes) and bool(body), b""
        super().request(method, url, body, headers, encode_chunked=encode_chunked)

    def send(self, data: Any) -> None:
        if self._has_body and not self._head:
            self._head = data
            return
        data, self._has_body, self._head = self._head + data, False, b""
        super().send(data)


class _SecureConnection(_WholeRequests, http.client.HTTPSConnection):
    pass


class _PinnedConnection(_SecureConnection):
    """Accepts the certificate with a digest, and no other one."""

    pin = ""
    server = ""

    def connect(self) -> None:
        # Commands of other APIs start without them.
        import hashlib
        import hmac

        super().connect()
        certificate = self.sock.getpeercert(binary_form=True) or b""
        found = hashlib.sha256(certificate).hexdigest()
        if not hmac.compare_digest(found, self.pin):
            self.close()
            raise StoreUnavailable(
                f"the certificate of {self.server} has the SHA-256 {found}, and {self.pin} was"
                " expected: another one may answer in its place",
                hint="if its operator has changed it, ask for the new digest, and log in with"
                f" `batchq login {self.server}{_PIN}DIGEST`",
                lasts=True,
            )


class _SocketConnection(_WholeRequests):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


#: Answers after which the same request may succeed later.
_PASSING = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def error_of(problem: Any, status: int = HTTPStatus.BAD_REQUEST) -> BatchqError:
    """Return the error that a problem describes; it keeps its exit code."""
    known = problem if isinstance(problem, dict) else {}
    detail, hint = str(known.get("detail", f"status {status}")), str(known.get("hint", ""))
    kind = getattr(errors, str(known.get("code", "")), None)
    if kind is StoreUnavailable or status in _PASSING:
        return StoreUnavailable(detail, hint=hint)
    if isinstance(kind, type) and issubclass(kind, BatchqError):
        return kind(detail, hint=hint)
    return StoreUnavailable(detail, hint=hint, lasts=True)


def sealed(token: str) -> str:
    """Return the token of a page in the form in which the API takes it."""
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def write_credentials(home: Home, credentials: ApiCredentials) -> Path:
    """Store credentials in a file that only this user may read; return its path.

    Raises InvalidInput if that is not possible.
    """
    home.prepare()
    kept = {name: getattr(credentials, name) for name in _KEPT}
    if not credentials.pin:
        # A former version does not know it.
        del kept["pin"]
    write_private(home.credentials, json.dumps(kept).encode() + b"\n")
    return home.credentials


def read_credentials(home: Home) -> ApiCredentials:
    """Return the stored credentials.

    Raises NotFound if there are none, InvalidInput if other users may read them or they are
    malformed.
    """
    path = home.credentials
    hint = f"chmod 600 {shlex.quote(str(path))}, and log in again with another token"
    try:
        fields = json.loads(read_private(path, what="token", hint=hint))
    except FileNotFoundError:
        raise NotFound("not logged in to an API", hint="see `batchq login --help`") from None
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not _are_credentials(fields):
        raise InvalidInput(f"{path} is malformed", hint="log in again: `batchq login`")
    return ApiCredentials(**fields)


def _are_credentials(fields: dict[str, object]) -> bool:
    is_known = set(fields) <= set(_KEPT)
    return is_known and "server" in fields and all(isinstance(one, str) for one in fields.values())


def chosen_credentials(
    home: Home, *, is_redis_chosen: bool, environ: Mapping[str, str] = os.environ
) -> ApiCredentials | None:
    """Return the API that commands use: that of BATCHQ_SERVER; else, unless a Redis server was
    chosen, that of `batchq login`. None for the Redis server.

    The token for BATCHQ_SERVER is BATCHQ_TOKEN, the content of the file BATCHQ_TOKEN_FILE, or the
    one that `batchq login` has kept for this address. Raises InvalidInput.
    """
    named = environ.get(SERVER_VARIABLE, "")
    if not named and is_redis_chosen:
        return None
    kept = read_credentials(home) if home.credentials.exists() else None
    if not named:
        return kept
    server, pin = split_server(named, variable=SERVER_VARIABLE)
    if kept is None or kept.server != server:
        kept = ApiCredentials(server=server)
    if pin:
        kept = kept._replace(pin=pin)
    token = environ.get(_TOKEN_VARIABLE, "")
    if token and not (token.isascii() and _is_one_word(token)):
        # The message must not show the text, which may be a token with a wrong character.
        raise InvalidInput(
            f"{_TOKEN_VARIABLE}: expected a token, bqt_…, found other characters in it",
            hint=f"or name a file with the token: {_TOKEN_FILE_VARIABLE}",
        )
    token = token or _token_in(environ.get(_TOKEN_FILE_VARIABLE, ""))
    return kept._replace(token=token, expires_at="") if token else kept


def credentials_for(address: str | None) -> ApiCredentials:
    """Return the API at an address, with the token that commands use there; None stands for the API
    that commands use. Raises InvalidInput.
    """
    environ: Mapping[str, str] = os.environ
    if address is not None:
        if not isinstance(address, str):
            raise InvalidInput("the address of the API: expected text or ApiCredentials")
        split_server(address)
        if environ.get(SERVER_VARIABLE) != address:
            # The token of the environment is for the API that the environment names.
            environ = {SERVER_VARIABLE: address}
    found = chosen_credentials(find_home(), is_redis_chosen=False, environ=environ)
    if found is None:
        raise InvalidInput(
            "no API is named",
            hint=f"pass its address, set {SERVER_VARIABLE}, or log in with `batchq login`",
        )
    return found


#: How long before its end the user of a token is told.
_WARNED_BEFORE = timedelta(days=7)


def end_to_warn_of(token: Mapping[str, Any] | None) -> str:
    """Return when a token ends, from what the API says of it; "" if it never lasted for longer than
    users are warned before.
    """
    if token is None:
        return ""
    begin, end = (datetime.fromisoformat(token[name]) for name in ("madeAt", "expiresAt"))
    return str(token["expiresAt"]) if end - begin > _WARNED_BEFORE else ""


def days_left(credentials: ApiCredentials) -> int | None:
    """Return the days until the token ends, rounded up, if its user is to be warned now."""
    try:
        end = datetime.fromisoformat(credentials.expires_at)
        left = end - datetime.now(UTC)
    except (TypeError, ValueError):
        return None
    return ceil(left / timedelta(days=1)) if timedelta() < left <= _WARNED_BEFORE else None


def _token_in(path: str) -> str:
    if not path:
        return ""
    try:
        words = Path(path).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidInput(f"{_TOKEN_FILE_VARIABLE}: {path}: {why}") from None
    if len(words) != 1:
        # The message must not show the content, which may be a token.
        raise InvalidInput(
            f"{_TOKEN_FILE_VARIABLE}: expected a file of one line, a token; {path} has"
            f" {len(words)} words"
        )
    return words[0]


def remove_credentials(home: Home) -> None:
    """Remove the stored credentials."""
    (home.credentials).unlink(missing_ok=True)


#: How long `ssh` may take to end after its input was closed.
_ENDS_WITHIN_S = 3.0
_LONGEST_COMPLAINT = 300
_MOST_READ = 64 * 1024
_COMMAND_NOT_FOUND = 127
_ADDRESS = re.compile(r"^\S+@\S+: ")
#: Neither begins with a dash, which would make it an option of ssh.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9a-f:]+(%[A-Za-z0-9]+)?")


def checked_ssh(parts: SplitResult, what: str) -> str:
    """Return an address `ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]`. Raises InvalidInput."""
    is_plain = not parts.password and not parts.query and not parts.fragment
    user_fits = parts.username is None or _USER.fullmatch(parts.username)
    if not (is_plain and user_fits and _HOST.fullmatch(parts.hostname or "")):
        # The message does not repeat the text, which may contain a password.
        raise InvalidInput(
            f"{what}: expected ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]",
            hint="as in ssh://hpc.example; passwords and keys are those of `ssh`",
        )
    path = "" if parts.path == "/" else parts.path
    return f"ssh://{parts.netloc}{path}"


def ssh_command(address: str) -> list[str]:
    """Return the command that connects to the API at an address."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    words = ["ssh", "-T", "-e", "none"]
    if parts.port is not None:
        words += ["-p", str(parts.port)]
    if parts.username is not None:
        words += ["-l", parts.username]
    remote = ["batchq", "connect", *([unquote(parts.path)] if parts.path else [])]
    # The login shell of the account there splits it again.
    return [*words, "--", parts.hostname, shlex.join(remote)]


class SshConnection(http.client.HTTPConnection):
    """HTTP over the input and output of one `ssh`."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._complaint = ""

    def connect(self) -> None:
        """Start `ssh`. Raises OSError if there is none."""
        # Few commands go through ssh, and the others start sooner without these modules.
        import subprocess
        import tempfile

        own, others = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        try:
            self._process = subprocess.Popen(
                ssh_command(self._address),
                stdin=others.fileno(),
                stdout=others.fileno(),
                stderr=self._stderr,
            )
        except OSError as error:
            own.close()
            self._stderr.close()
            raise OSError(f"`ssh` cannot be started: {error.strerror}") from None
        finally:
            others.close()
        own.settimeout(self.timeout)
        self.sock = own

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the answer. Raises OSError with what `ssh` has said if it has ended."""
        try:
            return super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise OSError(self._complaint or str(error)) from None

    def send(self, data: object) -> None:
        """Send a part of a request; see `getresponse`."""
        try:
            super().send(data)  # type: ignore[arg-type]  # typeshed keeps its type private
        except (BrokenPipeError, ConnectionResetError) as error:
            self.close()
            raise OSError(self._complaint or str(error)) from None

    def close(self) -> None:
        """End `ssh` by closing its input, and keep what it has said."""
        super().close()
        process, file = self._process, self._stderr
        self._process = self._stderr = None
        if process is None or file is None:
            return
        with file:
            code = _end(process)
            file.seek(0)
            self._complaint = _complaint(code, file.read(_MOST_READ).decode(errors="replace"))


def _complaint(code: int, text: str) -> str:
    """Return why `ssh` has ended: the error of `batchq connect`, else its own last line."""
    if code == _COMMAND_NOT_FOUND:
        return "there is no command `batchq` in the PATH of ssh's shell there"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    # The message names the address already; `user@` after it would look like a password in a URL.
    last = _ADDRESS.sub("", [*lines, *errors][-1]) if lines else ""
    return printable(last)[:_LONGEST_COMPLAINT]


def _end(process: subprocess.Popen[bytes]) -> int:
    from subprocess import TimeoutExpired

    try:
        return process.wait(_ENDS_WITHIN_S)
    except TimeoutExpired:
        process.kill()
        return process.wait()
