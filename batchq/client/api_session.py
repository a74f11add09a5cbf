"""A session with the HTTP API: an address, a token, and the file in which they are kept.

The standard library's `http.client` suffices, and is loaded by the commands that use it alone.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import ssl
import stat
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from batchq import errors
from batchq.errors import BatchqError, InvalidInput, NotFound, StoreUnavailable
from batchq.paths import Home

_TIMEOUT_S = 30.0
_MOST_BYTES = 16 * 1024 * 1024
_HTTPS_PORT = 443
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FILE = "credentials.json"


class ApiCredentials(Struct, frozen=True, kw_only=True, rename="camel"):
    """The API that a user is logged in to. `authority` is a file of certificates to trust."""

    server: str
    user: str = ""
    token: str = ""
    authority: str = ""


def checked_server(url: str) -> str:
    """Return the address of an API: `https://HOST[:PORT]`, `http://` on loopback, `unix:PATH`.

    Raises InvalidInput.
    """
    if url.startswith("unix:") and len(url) > len("unix:"):
        return f"unix:{Path(url.removeprefix('unix:')).absolute()}"
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or parts.scheme not in ("https", "http") or parts.path not in ("", "/"):
        # The message does not repeat the text, which may contain a token.
        raise InvalidInput(
            "the address of the API: expected https://HOST:PORT or unix:PATH",
            hint="as in https://hpc.example:8443",
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(
            "the address of the API: expected no user, password or parameters in it",
            hint="the token is asked for, or read from --token-file",
        )
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise InvalidInput(
            f"http://{parts.hostname}: others could read the token on the way",
            hint="use https://, or unix:PATH on the API's machine",
        )
    return f"{parts.scheme}://{parts.netloc}"


class ApiSession:
    """Sends requests to an API, one connection for each."""

    def __init__(self, credentials: ApiCredentials) -> None:
        self._credentials = credentials

    def request(self, method: str, path: str) -> Any:
        """Return the document that answers a request.

        Raises the error that the API's problem describes, StoreUnavailable if it does not answer.
        """
        headers = {"Accept": "application/json"}
        if self._credentials.token:
            headers["Authorization"] = f"Bearer {self._credentials.token}"
        server = self._credentials.server
        try:
            connection = self._connection()
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                body = answer.read(_MOST_BYTES)
            finally:
                connection.close()
        except ssl.SSLCertVerificationError as error:
            raise StoreUnavailable(
                f"the certificate of {server} cannot be verified: {error.verify_message}",
                hint="name the authority's certificate with `batchq login --ca-file FILE`",
                lasts=True,
            ) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StoreUnavailable(
                f"the API at {server} does not answer: {why}", hint="is `batchq api` running there?"
            ) from None
        try:
            document = json.loads(body)
        except ValueError:
            raise StoreUnavailable(f"{server} is not an API of batchq", lasts=True) from None
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise _error_of(document, answer.status)
        return document

    def _connection(self) -> http.client.HTTPConnection:
        server = self._credentials.server
        if server.startswith("unix:"):
            return _SocketConnection(server.removeprefix("unix:"))
        parts = urlsplit(server)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._credentials.authority or None)
        port = parts.port or _HTTPS_PORT
        return http.client.HTTPSConnection(
            parts.hostname, port, timeout=_TIMEOUT_S, context=context
        )


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def _error_of(problem: Any, status: int) -> BatchqError:
    """Return the error that a problem describes; it keeps its exit code."""
    known = problem if isinstance(problem, dict) else {}
    detail, hint = str(known.get("detail", f"status {status}")), str(known.get("hint", ""))
    kind = getattr(errors, str(known.get("code", "")), None)
    if isinstance(kind, type) and issubclass(kind, BatchqError):
        return kind(detail, hint=hint)
    return StoreUnavailable(detail, hint=hint, lasts=True)


# --- the file ---------------------------------------------------------------------------------


def write_credentials(home: Home, credentials: ApiCredentials) -> Path:
    """Store credentials in a file that only this user may read; return its path.

    Raises InvalidInput if that is not possible.
    """
    home.prepare()
    path = home.root / _FILE
    new = path.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        # The mode is there from the beginning, whatever the umask.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(credentials) + b"\n")
        new.replace(path)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    return path


def read_credentials(home: Home) -> ApiCredentials:
    """Return the stored credentials.

    Raises NotFound if there are none, InvalidInput if other users may read them or they are
    malformed.
    """
    path = home.root / _FILE
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidInput(
                f"{path}: other users may read the token in it",
                hint=f"chmod 600 {shlex.quote(str(path))}, and log in again with another token",
            )
        return msgspec.json.decode(path.read_bytes(), type=ApiCredentials)
    except FileNotFoundError:
        raise NotFound("not logged in to an API", hint="see `batchq login --help`") from None
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError:
        raise InvalidInput(f"{path} is malformed", hint="log in again: `batchq login`") from None


def remove_credentials(home: Home) -> None:
    """Remove the stored credentials."""
    (home.root / _FILE).unlink(missing_ok=True)
