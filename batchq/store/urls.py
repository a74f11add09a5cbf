"""How the URL of a server is read, and shown without what is secret in it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from batchq.errors import InvalidInput

_LONGEST_SOCKET_PATH = 107
_OPTIONS = frozenset(
    {"db", "username", "password", "ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
)
_FORMS = "expected redis://host:6379/0, rediss://host:6379/0 or unix:///path/to/server.sock"


def shown(url: str) -> str:
    """The URL without what is secret in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(not a URL)"
    if "://" not in url:
        _, at, rest = url.rpartition("@")
        return f"***@{rest}" if at else url
    place = parts.netloc.rpartition("@")[2]
    if parts.username:
        place = f"{parts.username}:***@{place}" if parts.password else f"{parts.username}@{place}"
    elif parts.password:
        place = f":***@{place}"
    options = [(name, value) for name, value in parse_qsl(parts.query) if name != "password"]
    query = "&".join(f"{name}={value}" for name, value in options)
    return f"{parts.scheme}://{place}{parts.path}" + (f"?{query}" if query else "")


def checked_url(url: str) -> str:
    """The URL itself. Raises InvalidInput if it cannot lead to a server."""
    try:
        parts = urlsplit(url)
        port = parts.port
        options = parse_qsl(parts.query, strict_parsing=True) if parts.query else []
    except ValueError as error:
        raise _malformed(url, f"{error}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _malformed(url, f"the scheme is {parts.scheme!r}" if parts.scheme else "no scheme")
    if port == 0:
        raise _malformed(url, "the port is 0")
    for name, value in options:
        if name not in _OPTIONS:
            raise _malformed(url, f"the option {name!r} is unknown, known are {_known()}")
        if name == "db" and not value.isdigit():
            raise _malformed(url, f"the database is {value!r}, not a number")
    if parts.scheme == "unix":
        return _checked_socket(url, parts.path)
    database = parts.path.strip("/")
    if database and not database.isdigit():
        raise _malformed(url, f"the database is {database!r}, not a number")
    return url


def _checked_socket(url: str, path: str) -> str:
    if path in ("", "/"):
        raise _malformed(url, "the path of the socket is missing")
    if len(path.encode()) > _LONGEST_SOCKET_PATH:
        raise _malformed(url, f"the socket's path is longer than {_LONGEST_SOCKET_PATH} bytes")
    return url


def _known() -> str:
    return ", ".join(sorted(_OPTIONS))


def _malformed(url: str, found: str) -> InvalidInput:
    return InvalidInput(
        f"server URL {shown(url)!r}: {found}; {_FORMS}",
        hint="pass --redis-url or set BATCHQ_REDIS_URL",
    )
