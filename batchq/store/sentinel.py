"""Finding the primary among several servers, through the sentinels that watch them.

One sentinel may be outdated: if it was cut off, it still names the former primary. So a majority of
the sentinels is asked if possible, and the newest answer counts. The sentinels are asked for each
new connection, and again for a connection that has reached a certain age: a former primary that
wakes up accepts writes for seconds until the sentinels demote it, and those writes are lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

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
from batchq.store.urls import SentinelUrl, is_unknown_host, trouble

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
            f"have no primary for {service_name!r} now: {_endpoint(answers[0].address)} is down",
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
            f"{_endpoint((connection.host, connection.port))} is no longer the primary"
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


def _endpoint(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
