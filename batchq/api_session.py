"""A session with the HTTP API: an address, a token, and the file in which they are kept.

Everyday commands load this module, so it imports TLS and `msgspec` only where they are used.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from batchq import errors
from batchq.errors import BatchqError, InvalidInput, NotFound, StoreUnavailable
from batchq.http_connection import (
    HttpAnswer,
    HttpConnection,
    tcp_socket,
    unix_socket,
)
from batchq.paths import SERVER_VARIABLE, URL_VARIABLE, Home, read_private, write_private

T = TypeVar("T")

_TIMEOUT_S = 30.0
#: A stream without news says so every 15 s.
_STREAM_TIMEOUT_S = 60.0
_MOST_BYTES = 64 * 1024 * 1024
#: How long a request waits, in all, for an API that has had too many of them.
_LONGEST_TURN_S = 60.0
#: A connection that was idle for longer is not used again.
_IDLE_S = 3.0
_NDJSON = "application/x-ndjson"
#: The headers of a request in the name of another user, and why; the reason is percent-encoded.
IMPERSONATED, REASON = "Batchq-As", "Batchq-Reason"
_HTTP_PORT, _HTTPS_PORT = 80, 443
_TOKEN_VARIABLE = "BATCHQ_TOKEN"  # noqa: S105 - its name
_TOKEN_FILE_VARIABLE = "BATCHQ_TOKEN_FILE"  # noqa: S105 - its name
#: The reason of an SSLError if the other side answers in plain text.
_NO_TLS = "WRONG_VERSION_NUMBER"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ApiCredentials(NamedTuple):
    """The API that a user is logged in to. `authority` is a file of certificates to trust.

    `impersonated` is the user in whose name requests are made, and `reason` says why; both are of
    one command, and never kept.
    """

    server: str
    user: str = ""
    token: str = ""
    authority: str = ""
    impersonated: str = ""
    reason: str = ""


_KEPT = ("server", "user", "token", "authority")


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
        from batchq.ssh_door import checked_ssh

        return checked_ssh(parts, what)
    if not is_whole or parts.scheme not in ("https", "http") or parts.path not in ("", "/"):
        # The message does not repeat the text, which may contain a token.
        hint = "as in https://hpc.example:8443, ssh://hpc.example or unix:/run/batchq/api.sock"
        if variable:
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
        self._open: HttpConnection | None = None
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
                answer = connection.exchange("GET", path, None, self._headers(_NDJSON))
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    self._checked(answer.body(_MOST_BYTES), answer.status, Any)
                begun = b""
                while True:
                    left_s = _STREAM_TIMEOUT_S
                    if deadline is not None:
                        left_s = min(left_s, deadline - monotonic())
                    if left_s <= 0:
                        return
                    connection.set_timeout(left_s)
                    try:
                        data = answer.part()
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
                found = answer.body(_MOST_BYTES)
            except BaseException:  # an interruption, too, leaves an answer half read
                self.close()
                raise
        if not answer.leaves_open:
            self.close()
        self.has_answered = True
        return found, answer.status, answer.headers.get("retry-after", "")

    def _answer(self, method: str, path: str, body: bytes | None, form: str) -> HttpAnswer:
        headers = self._headers(form)
        if body is not None:
            headers["Content-Type"] = form
        # The server closes a connection that has been idle for some seconds. A request that it did
        # not read could be sent again, but nothing tells whether it was read.
        if self._open is not None and monotonic() - self._used_at > _IDLE_S:
            self.close()
        if self._open is None:
            self._open = self._connection()
        answer = self._open.exchange(method, path, body, headers)
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
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise StoreUnavailable(
                f"the API at {server} does not answer: {why}", hint="is `batchq api` running there?"
            ) from None

    def _checked(self, body: bytes, status: int, kind: Any) -> Any:
        is_error = status >= HTTPStatus.BAD_REQUEST
        server = self._credentials.server
        if kind is not Any and not is_error:
            return self._decoded(body, kind)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise StoreUnavailable(f"{server} is not an API of batchq", lasts=True) from None
        if is_error:
            raise error_of(document, status)
        return document

    def _decoded(self, body: bytes, kind: Any) -> Any:
        # A list of groups as a table needs no types.
        import msgspec

        server = self._credentials.server
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            raise StoreUnavailable(
                f"the API at {server} is of another version of batchq",
                hint="use the same version here and there",
                lasts=True,
            ) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise StoreUnavailable(f"{server} is not an API of batchq", lasts=True) from None

    def _connection(self) -> HttpConnection:
        server = self._credentials.server
        if server.startswith("unix:"):
            path = server.removeprefix("unix:")
            return HttpConnection("localhost", lambda: unix_socket(path, _TIMEOUT_S))
        if server.startswith("ssh:"):
            from batchq.ssh_door import SshConnection

            return SshConnection(server, timeout_s=_TIMEOUT_S)
        parts = urlsplit(server)
        host = parts.hostname
        assert host is not None
        if parts.scheme == "http":
            port = parts.port or _HTTP_PORT
            return HttpConnection(parts.netloc, lambda: tcp_socket(host, port, _TIMEOUT_S))
        port = parts.port or _HTTPS_PORT
        return HttpConnection(parts.netloc, lambda: self._secured(host, port))

    def _secured(self, host: str, port: int) -> socket.socket:
        """Connect with TLS. Raises OSError, StoreUnavailable."""
        import ssl

        server = self._credentials.server
        context = ssl.create_default_context(cafile=self._credentials.authority or None)
        plain = tcp_socket(host, port, _TIMEOUT_S)
        try:
            return context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise StoreUnavailable(
                f"the certificate of {server} cannot be verified: {error.verify_message}",
                hint="name the authority's certificate with `batchq login --ca-file FILE`",
                lasts=True,
            ) from None
        except ssl.SSLError as error:
            if error.reason != _NO_TLS:
                raise
            raise StoreUnavailable(
                f"the API at {server} does not answer: it does not speak TLS",
                hint="it may speak http without TLS: then use http:// on its own machine, and"
                " ssh://HOST from others; `batchq api --tls-cert` adds TLS",
            ) from None
        finally:
            # After the handshake, the socket within TLS has its descriptor.
            plain.close()


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
    server = checked_server(named, variable=SERVER_VARIABLE)
    if kept is None or kept.server != server:
        kept = ApiCredentials(server=server)
    token = environ.get(_TOKEN_VARIABLE, "")
    if token and not (token.isascii() and _is_one_word(token)):
        # The message must not show the text, which may be a token with a wrong character.
        raise InvalidInput(
            f"{_TOKEN_VARIABLE}: expected a token, bqt_…, found other characters in it",
            hint=f"or name a file with the token: {_TOKEN_FILE_VARIABLE}",
        )
    token = token or _token_in(environ.get(_TOKEN_FILE_VARIABLE, ""))
    return kept._replace(token=token) if token else kept


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
