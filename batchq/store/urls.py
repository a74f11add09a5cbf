"""How the URL of a server is read, and shown without what is secret in it.

    redis://[[user]:password@]host[:6379][/database]             one server
    rediss://…                                                   the same over TLS
    unix://[[user]:password@]/path/to/socket[?db=0]              one on this machine
    redis+sentinel://[[user]:password@]host[:26379],host,…/name[/database]
                                                                 whichever server the sentinels
                                                                 there call the primary of `name`
    rediss+sentinel://…                                          the same, TLS to all of them

User and password are the server's; those of the sentinels are the options `sentinel_username` and
`sentinel_password`. Other programs that know sentinels write their URLs in the same way.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from batchq.errors import InvalidInput

SENTINEL_PORT = 26379

_LONGEST_SOCKET_PATH = 107
_TLS_OPTIONS = frozenset({"ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_OPTIONS = _TLS_OPTIONS | {"db", "username", "password"}
_SENTINEL_OPTIONS = _OPTIONS | {"sentinel_username", "sentinel_password"}
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_FORMS = "expected redis://host:6379/0, rediss://host:6379/0 or unix:///path/to/server.sock"
_SENTINEL_FORM = "expected redis+sentinel://host1:26379,host2:26379,host3:26379/mymaster/0"
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]+)(:(?P<port>[0-9]{1,5}))?")


class SentinelUrl(Struct, frozen=True, kw_only=True):
    """What a URL says of sentinels and of the servers that they watch.

    `options` are those of TLS, by redis-py's names.
    """

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: bool = False
    options: dict[str, str] = {}


class _Parts(Struct, frozen=True):
    """A URL with several hosts, which the standard library does not take apart."""

    scheme: str
    userinfo: str
    hosts: str
    path: str
    query: str


def shown(url: str) -> str:
    """The URL without what is secret in it."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        _, at, rest = url.rpartition("@")
        return f"***@{rest}" if at else url
    if not is_sentinel(url):
        try:
            urlsplit(url)
        except ValueError:
            return "(not a URL)"
    front, _, query = rest.partition("?")
    if "@" not in front and "@" in query and not _pairs(query):
        # A question mark in a password that should have been written as %3F.
        return f"{scheme}://***"
    place = front
    # A path may hold an @, and a password that is not quoted a slash.
    head, slash, path = front.partition("/") if scheme == "unix" else (front, "", "")
    userinfo, at, host = head.rpartition("@")
    if at:
        user, colon, password = userinfo.partition(":")
        place = f"{user}:***@{host}" if colon and password else f"{user}@{host}"
        place += slash + path
    kept = [pair for pair in _pairs(query) if pair[0] in _OPTIONS | _SENTINEL_OPTIONS]
    told = "&".join(f"{name}={value}" for name, value in kept if "password" not in name)
    return f"{scheme}://{place}" + (f"?{told}" if told else "")


def checked_url(url: str) -> str:
    """The URL itself. Raises InvalidInput if it cannot lead to a server."""
    if is_sentinel(url):
        sentinel_url(url)
        return url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _malformed(url, f"{error}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _malformed(url, f"the scheme is {parts.scheme!r}" if parts.scheme else "no scheme")
    if port == 0:
        raise _malformed(url, "the port is 0")
    _checked_options(url, parts.query, _OPTIONS)
    if parts.scheme == "unix":
        return _checked_socket(url, parts.path)
    _database(url, parts.path.strip("/"))
    return url


def is_sentinel(url: str) -> bool:
    """Whether the URL names sentinels, not a server."""
    return url.partition("://")[0].lower() in _SENTINEL_SCHEMES


def sentinel_url(url: str) -> SentinelUrl:
    """What a URL of sentinels says. Raises InvalidInput."""
    parts = _taken_apart(url)
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise _malformed(url, "the name of the primary is missing after the hosts")
    if service.isdecimal():
        raise _malformed(
            url,
            f"the name of the primary is missing after the hosts, {service} looks like a database",
        )
    options = _checked_options(url, parts.query, _SENTINEL_OPTIONS)
    user, _, password = parts.userinfo.partition(":")
    return SentinelUrl(
        sentinels=tuple(_sentinel(url, host) for host in parts.hosts.split(",")),
        service=unquote(service),
        database=_database(url, options.get("db") or database),
        username=unquote(user) or options.get("username"),
        password=unquote(password) or options.get("password"),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=parts.scheme == "rediss+sentinel",
        options={name: value for name, value in options.items() if name in _TLS_OPTIONS},
    )


def _taken_apart(url: str) -> _Parts:
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    return _Parts(scheme.lower(), userinfo, hosts, path, query)


def _sentinel(url: str, written: str) -> tuple[str, int]:
    found = _HOST.fullmatch(written)
    if found is None:
        raise _malformed(url, f"{written[:80]!r} is not the host and port of a sentinel")
    port = int(found["port"] or SENTINEL_PORT)
    if not 0 < port < 65536:
        raise _malformed(url, f"the port of {written!r} is not from 1 to 65535")
    return found["host"].strip("[]"), port


def _checked_options(url: str, query: str, known: frozenset[str]) -> dict[str, str]:
    try:
        options = parse_qsl(query, strict_parsing=True) if query else []
    except ValueError as error:
        raise _malformed(url, f"{error}") from None
    for name, value in options:
        if name not in known:
            raise _malformed(
                url, f"the option {name!r} is unknown, known are {', '.join(sorted(known))}"
            )
        if name == "db":
            _database(url, value)
    return dict(options)


def _database(url: str, written: str) -> int:
    if written and not (written.isascii() and written.isdigit()):
        raise _malformed(url, f"the database is {written!r}, not a number")
    return int(written or 0)


def _checked_socket(url: str, path: str) -> str:
    if path in ("", "/"):
        raise _malformed(url, "the path of the socket is missing")
    if len(path.encode()) > _LONGEST_SOCKET_PATH:
        raise _malformed(url, f"the socket's path is longer than {_LONGEST_SOCKET_PATH} bytes")
    return url


def _pairs(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query)


def _malformed(url: str, found: str) -> InvalidInput:
    form = _SENTINEL_FORM if is_sentinel(url) else f"{_FORMS}, or redis+sentinel://"
    return InvalidInput(
        f"server URL {shown(url)!r}: {found}; {form}",
        hint="pass --redis-url or set BATCHQ_REDIS_URL",
    )
