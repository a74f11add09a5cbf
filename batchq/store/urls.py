"""URLs of servers: parsing them, showing them without secrets, and finding the primary that
sentinels watch.

    redis://[[user]:password@]host[:6379][/database]             one server
    rediss://…                                                   the same over TLS
    unix://[[user]:password@]/path/to/socket[?db=0]              one on this machine
    redis+sentinel://[[user]:password@]host[:26379],host,…/name[/database]
                                                                 the server that these sentinels
                                                                 call the primary of `name`
    rediss+sentinel://…                                          the same, TLS to all of them

User and password are the server's; those of the sentinels are the options `sentinel_username` and
`sentinel_password`. Other programs that support sentinels use the same form.

A mistyped URL may have its password anywhere: before a forgotten @ it is a host, and with a slash
in it half of it is a path. So messages never quote a malformed URL, and of a well-formed one they
show only its destination, never the part before the @ or the options.

One sentinel may be outdated: if it was cut off, it still names the former primary. So a majority of
the sentinels is asked if possible, and the newest answer counts. The sentinels are asked for each
new connection, and again for a connection that has reached a certain age: a former primary that
wakes up accepts writes for seconds until the sentinels demote it, and those writes are lost.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from msgspec import Struct
from redis import exceptions as broken
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from batchq.api.notation import counted
from batchq.errors import InvalidInput

SENTINEL_PORT = 26379

_LONGEST_SOCKET_PATH = 107
_TLS_OPTIONS = frozenset({"ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_SECRET = ("username", "password")
_CERTIFICATES = ("none", "optional", "required")
_OPTIONS = _TLS_OPTIONS | {"db", "username", "password"}
_SENTINEL_OPTIONS = _OPTIONS | {"sentinel_username", "sentinel_password"}
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SCHEMES = ("redis", "rediss", "unix", *_SENTINEL_SCHEMES)
_FORMS = (
    "redis://host:6379/0, rediss://host:6379/0, unix:///path/to/server.sock or"
    " redis+sentinel://host1:26379,host2:26379,host3:26379/mymaster/0"
)
#: Letters of any language: a host's name may contain them.
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(%\w+)?\]|[\w.-]*)(:(?P<port>[0-9]{1,5}))?")
_SERVICE = re.compile(r"[\w.-]+")
_DATABASE = re.compile(r"[0-9]{1,5}", re.ASCII)
_BLANK = re.compile(r"[\s\x00-\x1f\x7f]")


class SentinelUrl(Struct, frozen=True, kw_only=True):
    """The sentinels in a URL, and the service that they watch.

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


class _Parts(Struct, frozen=True, kw_only=True):
    """The parts of a well-formed URL. `hosts` have ports or None; `path` has no slash at its ends,
    unless it is a socket's.
    """

    scheme: str
    userinfo: str
    hosts: tuple[tuple[str, int | None], ...]
    path: str
    options: dict[str, str]


def shown(url: str) -> str:
    """Return the URL's destination without secrets; a malformed URL is not shown at all."""
    try:
        parts = _parse(url)
    except InvalidInput:
        return "(a malformed URL)"
    user = "***@" if parts.userinfo else ""
    hosts = ",".join(_endpoint(host, port) for host, port in parts.hosts)
    path = parts.path if parts.scheme == "unix" or not parts.path else f"/{parts.path}"
    database = f"?db={parts.options['db']}" if parts.options.get("db") else ""
    return f"{parts.scheme}://{user}{hosts}{path}{database}"


def checked_url(url: str) -> str:
    """Return the URL, its scheme in lower case. Raises InvalidInput for a malformed URL."""
    scheme = _parse(url).scheme
    return scheme + url[len(scheme) :]


def is_sentinel(url: str) -> bool:
    """Return whether the URL names sentinels, not a server."""
    return url.partition("://")[0].lower() in _SENTINEL_SCHEMES


def speaks_tls(url: str) -> bool:
    """Return whether the URL asks for TLS."""
    return url.lower().startswith("rediss")


def is_of_node(url: str) -> bool:
    """Return whether the URL's user is that of one node. Raises InvalidInput if it is malformed."""
    parts = _parse(url)
    user = unquote(parts.userinfo.partition(":")[0]) or parts.options.get("username", "")
    return user.startswith("worker-")


def tls_options_of(url: str) -> Mapping[str, str]:
    """Return the URL's TLS options, by redis-py's names. Raises InvalidInput."""
    return {name: value for name, value in _parse(url).options.items() if name in _TLS_OPTIONS}


def sentinel_url(url: str) -> SentinelUrl:
    """Parse a URL of sentinels. Raises InvalidInput."""
    parts = _parse(url)
    service, _, database = parts.path.partition("/")
    user, _, password = parts.userinfo.partition(":")
    options = parts.options
    return SentinelUrl(
        sentinels=tuple((host, port or SENTINEL_PORT) for host, port in parts.hosts),
        service=service,
        database=int(options.get("db") or database or 0),
        username=unquote(user) or options.get("username"),
        password=unquote(password) or options.get("password"),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=parts.scheme == "rediss+sentinel",
        options={name: value for name, value in options.items() if name in _TLS_OPTIONS},
    )


def is_unknown_host(text: str) -> bool:
    """Return whether a resolver's error says that the host is unknown: it may be a password."""
    lower = text.lower()
    return any(words in lower for words in ("name or service", "name resolution", "nodename nor"))


def quoted(text: str, url: str) -> str:
    """Return a server's or library's message in one short line, unless it repeats a user or
    password of the URL, as a server without AUTH does.
    """
    line = text.splitlines()[0] if text else "no reason given"
    if any(secret in line for secret in _secrets_of(url)):
        return "(not repeated: the user or the password of the URL is in it)"
    return line if len(line) <= 120 else line[:117] + "..."


def _secrets_of(url: str) -> frozenset[str]:
    parts = _parse(url)
    named = [value for name, value in parts.options.items() if name.endswith(_SECRET)]
    found = {*parts.userinfo.split(":"), parts.userinfo, *named}
    return frozenset(one for one in {*found, *map(unquote, found)} if one)


def _parse(url: str) -> _Parts:
    if _BLANK.search(url) or not _is_text(url):
        raise _malformed("it contains a space or a control character; write them as %20 …")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _SCHEMES:
        known = ", ".join(f"{one}://" for one in _SCHEMES)
        raise _malformed(f"it does not begin with one of {known}")
    if "#" in rest:
        raise _malformed("it contains a #; in a password, write it as %23")
    try:
        # Each host for itself: newer Pythons refuse brackets that follow another host.
        for host in rest.partition("?")[0].partition("/")[0].split(","):
            urlsplit(f"{scheme}://{host}")
    except ValueError:
        raise _malformed("it cannot be parsed; in a password, write [ ] as %5B %5D") from None
    front, _, query = rest.partition("?")
    if "@" in query:
        raise _malformed("an @ follows a ?; in a password, write them as %40 and %3F")
    authority, slash, path = front.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    if "@" in path:
        raise _malformed("an @ follows a /; in a password, write them as %40 and %2F")
    if scheme == "unix":
        found: tuple[tuple[str, int | None], ...] = ()
        path = _socket(hosts, slash + path)
    else:
        found, path = _hosts(scheme, hosts), path.strip("/")
        _check_path(scheme, path)
    return _Parts(
        scheme=scheme,
        userinfo=userinfo,
        hosts=found,
        path=path,
        options=_options(scheme, query),
    )


def _hosts(scheme: str, written: str) -> tuple[tuple[str, int | None], ...]:
    if scheme in _SENTINEL_SCHEMES:
        found = tuple(map(_host, written.split(",")))
        if not all(host for host, _ in found):
            raise _malformed("one of its hosts has no name")
        return found
    return (_host(written),)


def _host(written: str) -> tuple[str, int | None]:
    found = _HOST.fullmatch(written)
    if found is None:
        raise _malformed(
            "its host and port are malformed; in a password, write @ : / ? # as %40 %3A %2F %3F %23"
        )
    host, port = found["host"], None if found["port"] is None else int(found["port"])
    if port is not None and not 0 < port < 65_536:
        raise _malformed("the port is not from 1 to 65535")
    if not (_is_ipv6(host[1:-1]) if host.startswith("[") else _is_name(host)):
        raise _malformed("its host is neither a name nor an address")
    return host.strip("[]"), port


def _is_ipv6(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    """Return whether a resolver accepts the name; each part of a name has a longest length."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_text(url: str) -> bool:
    """Return whether the URL is text: a variable may hold bytes that are not UTF-8."""
    try:
        url.encode()
    except UnicodeEncodeError:
        return False
    return True


def _endpoint(host: str, port: int | None) -> str:
    return (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")


def _check_path(scheme: str, path: str) -> None:
    if scheme not in _SENTINEL_SCHEMES:
        _check_database(path)
        return
    service, _, database = path.partition("/")
    if not service or service.isdecimal():
        raise _malformed("the name of the primary is missing after the hosts")
    if not _SERVICE.fullmatch(service):
        raise _malformed("the name of the primary, after the hosts, is malformed")
    _check_database(database)


def _options(scheme: str, query: str) -> dict[str, str]:
    known = _SENTINEL_OPTIONS if scheme in _SENTINEL_SCHEMES else _OPTIONS
    try:
        options = dict(parse_qsl(query, strict_parsing=True, max_num_fields=50) if query else [])
    except ValueError:
        raise _malformed("after the ?, expected NAME=VALUE, separated by &") from None
    if unknown := options.keys() - known:
        raise _malformed(
            f"{len(unknown)} of its options are unknown; known are {', '.join(sorted(known))}"
        )
    if options.keys() & _TLS_OPTIONS and not scheme.startswith("rediss"):
        raise _malformed("it has TLS options, which need rediss://")
    _check_database(options.get("db", ""))
    certificates = options.get("ssl_cert_reqs", "none")
    if certificates not in _CERTIFICATES:
        raise _malformed(f"ssl_cert_reqs is not one of {', '.join(_CERTIFICATES)}")
    return options


def _check_database(written: str) -> None:
    if written and not _DATABASE.fullmatch(written):
        raise _malformed("the database is not a number of at most 5 digits")


def _socket(before: str, path: str) -> str:
    """Return the path as it was written."""
    if before:
        raise _malformed("a socket's path begins with a slash: unix:///run/server.sock")
    if path in ("", "/"):
        raise _malformed("the path of the socket is missing")
    if "\0" in unquote(path):
        raise _malformed("the path of the socket contains %00")
    if len(unquote(path).encode()) > _LONGEST_SOCKET_PATH:
        raise _malformed(f"the socket's path is longer than {_LONGEST_SOCKET_PATH} bytes")
    return path


def _malformed(found: str) -> InvalidInput:
    return InvalidInput(
        f"the server's URL is malformed: {found}",
        hint=f"expected {_FORMS}; see --redis-url and the variable BATCHQ_REDIS_URL",
    )


#: The options of a URL that name files, by redis-py's names.
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

#: Phrases of OpenSSL -> the message about the server, and the hint. The first match counts.
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
        "write the host in the URL as it is in the certificate",
    ),
    (
        ("self-signed certificate", "self signed certificate", "local issuer certificate"),
        "shows a TLS certificate of an authority unknown to this machine",
        "put the authority's file into the URL: rediss://…?ssl_ca_certs=/path/to/ca.crt",
    ),
    (
        ("certificate_verify_failed",),
        "shows a TLS certificate that cannot be verified",
        "see `openssl s_client -connect HOST:PORT`",
    ),
    (
        ("certificate_required", "certificate required", "handshake_failure", "bad_certificate"),
        "asks for a TLS certificate of the client, or refuses it",
        "put it into the URL: rediss://…?ssl_certfile=/path/to/client.crt&ssl_keyfile=/path/to/key",
    ),
    (
        ("unknown_ca", "unknown ca"),
        "does not know the authority of the client's TLS certificate",
        "use one from an authority that the server knows (its tls-ca-cert-file)",
    ),
    (
        ("key_values_mismatch",),
        "was not asked: the key in ssl_keyfile does not match the certificate in ssl_certfile",
        "put a matching pair into the URL",
    ),
    (
        ("no_certificate_or_crl_found", "no_start_line", "[ssl] pem lib", "bad_base64_decode"),
        "was not asked: a file named in the URL contains no certificate or key in PEM",
        "see ssl_ca_certs, ssl_certfile and ssl_keyfile",
    ),
    (
        ("wrong_version_number", "record_layer_failure", "packet_length_too_long"),
        "does not speak TLS",
        "write redis:// for a server without TLS, or its TLS port",
    ),
    (
        ("unexpected_eof_while_reading", "violation of protocol"),
        "ends the connection during the TLS handshake",
        "does it speak TLS at that port, or ask for a certificate of the client (ssl_certfile)?",
    ),
    (
        ("[ssl", "[x509", "ssl:"),
        "fails the TLS handshake",
        "see `openssl s_client -connect HOST:PORT`",
    ),
)


def trouble(text: str) -> tuple[str, str] | None:
    """Return the message and hint for an error about TLS; None for other errors."""
    lower = text.lower()
    for phrases, message, hint in _TROUBLES:
        if any(phrase in lower for phrase in phrases):
            return message, hint
    return None


def check_files(options: Mapping[str, str]) -> None:
    """Raise InvalidInput if a file that a URL names cannot be read."""
    for name in FILES:
        if path := options.get(name):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise InvalidInput(
                    f"the server's URL: the file of {name} cannot be read: {error.strerror}",
                    hint="use an absolute path",
                ) from None


#: A running sentinel answers at once; a missing one must not cost much.
ASK_TIMEOUT_S = 1.0
#: A connection is used this long before the sentinels are asked again.
LOOK_EVERY_S = 1.0
#: The pause when no sentinel has answered: the connection may still be good.
LOOK_AGAIN_S = 5.0
#: A connection is used at least this many times longer than the last question took.
_USES_PER_LOOK = 10


class NoPrimary(MasterNotFoundError):
    """No sentinel knows the primary; `message` and `hint` are for people."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class _SentinelAnswer(Struct, frozen=True, kw_only=True):
    """What one sentinel knows of the service."""

    address: tuple[str, int]
    #: Rises with each failover.
    config_epoch: int
    is_usable: bool


class SentinelClient(Sentinel):
    """The sentinels of a URL. May be shared by threads."""

    def __init__(self, place: SentinelUrl) -> None:
        tls = _tls_options(place)
        super().__init__(  # type: ignore[no-untyped-call]  # redis-py has none here
            list(place.sentinels),
            sentinel_kwargs={
                "username": place.sentinel_username,
                "password": place.sentinel_password,
                "socket_timeout": ASK_TIMEOUT_S,
                "socket_connect_timeout": ASK_TIMEOUT_S,
                "retry": Retry(NoBackoff(), 0),
                **tls,
            },
        )
        self._hosts = ", ".join(f"{host}:{port}" for host, port in place.sentinels)

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the primary. Raises NoPrimary."""
        answers: list[_SentinelAnswer] = []
        others: set[str] = set()
        troubles: list[Exception] = []
        asked = list(self.sentinels)
        heard = 0
        for sentinel in asked:
            if heard > len(asked) // 2:
                break
            try:
                states: Any = sentinel.sentinel_masters()
            except (broken.RedisError, OSError) as trouble:
                troubles.append(trouble)
                self._ask_last(sentinel)
                continue
            heard += 1
            others |= set(states) - {service_name}
            if service_name in states:
                answers.append(_answer_of(states[service_name]))
        if not heard:
            raise self._no_answer(troubles)
        if not answers:
            raise self._unknown(service_name, sorted(others))
        newest = max(one.config_epoch for one in answers)
        for one in answers:
            if one.config_epoch == newest and one.is_usable:
                return one.address
        raise NoPrimary(
            f"have no primary for {service_name!r} now: {_endpoint(*answers[0].address)} is down",
            "wait until they have chosen another, or start it; "
            f"`SENTINEL MASTER {service_name}` tells more",
        )

    def _ask_last(self, silent: redis.Redis) -> None:
        self.sentinels = [one for one in self.sentinels if one is not silent] + [silent]

    def _no_answer(self, troubles: Sequence[Exception]) -> NoPrimary:
        trouble = troubles[0]
        match trouble:
            case broken.AuthenticationError() | broken.NoPermissionError():
                return NoPrimary(
                    "refuse the user name or password",
                    "put the sentinels' own into the URL: ?sentinel_username=…&sentinel_password=…",
                )
            case broken.ResponseError():
                return NoPrimary(
                    "are no sentinels",
                    f"put the sentinels into the URL, usually at port 26379, not {self._hosts}",
                )
            case _:
                count = counted(len(self.sentinels), "sentinel")
                known = [one for one in troubles if not is_unknown_host(str(one))]
                why = _in_words(known[0]) if known else "their hosts are unknown"
                return NoPrimary(
                    f"do not answer: none of {count} ({why})",
                    "start them, or check the hosts and ports in the URL",
                )

    def _unknown(self, service: str, others: Sequence[str]) -> NoPrimary:
        known = f"they know {', '.join(others)}" if others else "they know none at all"
        return NoPrimary(
            f"know no primary with the name after the hosts in the URL; {known}",
            "correct the name",
        )


class PrimaryPool(SentinelConnectionPool):
    """Connections to the present primary. May be shared by threads."""

    def __init__(self, place: SentinelUrl, **options: Any) -> None:
        self._look_at = 0.0
        super().__init__(  # type: ignore[no-untyped-call]  # as above
            place.service,
            SentinelClient(place),
            connection_class=_SecuredConnection if place.tls else _PlainConnection,
            db=place.database,
            username=place.username,
            password=place.password,
            **{name: value for name, value in _tls_options(place).items() if name != "ssl"},
            **options,
        )

    def get_connection(self, *arguments: Any, **options: Any) -> Any:
        """Return a connection, to the primary as far as the sentinels know."""
        self._look_again()
        return super().get_connection(*arguments, **options)

    def get_master_address(self) -> tuple[str, int]:
        """Ask the sentinels, and close idle connections to another address. Raises NoPrimary."""
        began = time.monotonic()
        address: tuple[str, int] = super().get_master_address()  # type: ignore[no-untyped-call]
        now = time.monotonic()
        # With silent sentinels a question takes seconds, and must not take most of the time.
        self._look_at = now + max(LOOK_EVERY_S, _USES_PER_LOOK * (now - began))
        return address

    def close(self) -> None:
        """Close the connections, those to the sentinels too."""
        super().close()
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.close()

    def _look_again(self) -> None:
        now = time.monotonic()
        if self.master_address is None or now < self._look_at:
            return
        # Set before asking, so that one thread asks and the others go on.
        self._look_at = now + LOOK_AGAIN_S
        # If no sentinel answers, the connected server is still the best candidate.
        with suppress(NoPrimary):
            self.get_master_address()


def _refuse_replica(connection: Any) -> None:
    """Raise ConnectionError if the server reached says that it is no primary.

    It says so in the answer to HELLO, which costs nothing and needs no permission.
    """
    handshake = getattr(connection, "handshake_metadata", None) or {}
    role = handshake.get(b"role", handshake.get("role", b"master"))
    if role not in (b"master", "master"):
        connection.disconnect()
        raise broken.ConnectionError(
            f"{_endpoint(connection.host, connection.port)} is no longer the primary"
        )


class _PlainConnection(SentinelManagedConnection):
    def connect_to(self, address: tuple[str, int]) -> None:
        super().connect_to(address)  # type: ignore[no-untyped-call]  # as above
        _refuse_replica(self)


class _SecuredConnection(SentinelManagedSSLConnection):
    def connect_to(self, address: tuple[str, int]) -> None:
        super().connect_to(address)  # type: ignore[no-untyped-call]  # as above
        _refuse_replica(self)


def _answer_of(state: Any) -> _SentinelAnswer:
    down = state["is_sdown"] or state["is_odown"]
    return _SentinelAnswer(
        address=(state["ip"], int(state["port"])),
        config_epoch=int(state.get("config-epoch", 0)),
        is_usable=bool(state["is_master"]) and not down,
    )


def _in_words(error: Exception) -> str:
    found = trouble(str(error))
    return f"the first {found[0]}" if found else str(error)


def _tls_options(place: SentinelUrl) -> dict[str, Any]:
    return {"ssl": True, **place.options} if place.tls else {}
