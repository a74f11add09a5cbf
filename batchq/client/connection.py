"""From what a user says, or does not say, of the server to a store on it, waited for or not."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import socket
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING

from msgspec import Struct

from batchq.api.notation import nearest, subdomain_problem
from batchq.api.times import describe_age
from batchq.errors import InvalidInput, StoreUnavailable, WaitTimedOut
from batchq.paths import default_url, find_home, resolve_url
from batchq.store.outage import Patience
from batchq.store.roles import ROLES, Role, rules_of

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore


def target_of(url: str | None) -> str:
    """The URL itself, else BATCHQ_REDIS_URL, else that of this machine's embedded server.

    Raises InvalidInput without a place for a home, StoreUnavailable if that server does not run.
    """
    home = find_home()
    target = resolve_url(url, home)
    if target == default_url(home):
        if not home.has_socket():
            raise StoreUnavailable(
                "no batchq server is running on this machine",
                hint="start one with `batchq up`, or name yours with --redis-url",
            )
        home.check_socket()
    return target


def connect(url: str | None) -> RedisStore:
    """A store on the server.

    Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers or it will not
    do.
    """
    from batchq.store.redis import open_store

    return open_store(target_of(url))


def connect_patiently(
    url: str | None, tell: Callable[[str], None], patience_s: float | None
) -> tuple[RedisStore, float]:
    """As `connect`, once the server answers, and how many seconds it was away until then.

    Raises InvalidInput, StoreUnavailable if waiting does not help, WaitTimedOut.
    """
    started = monotonic()
    patience = patience_of(tell, patience_s)
    away_s = 0.0
    while True:
        try:
            store = connect(url)
        except StoreUnavailable as error:
            wait_s = patience.next_wait_s(error)
            if wait_s is None:
                if error.lasts:
                    raise
                raise _not_in_time(error, patience_s or 0.0) from error
            sleep(wait_s)
            away_s = monotonic() - started
        else:
            patience.answered()
            return store, away_s


def patience_of(tell: Callable[[str], None], timeout_s: float | None) -> Patience:
    """Patience that lasts `timeout_s` seconds from now, or for ever. Raises InvalidInput."""
    lasts_s = checked_seconds(timeout_s)
    return Patience(tell, deadline=None if lasts_s is None else monotonic() + lasts_s)


def checked_seconds(timeout_s: float | None) -> float | None:
    """The number itself. Raises InvalidInput for what is none: nobody has checked its type."""
    if timeout_s is None or isinstance(timeout_s, int | float):
        return timeout_s
    raise InvalidInput(
        f"timeout_s: expected a number of seconds or None, found {timeout_s!r}",
        hint="as in timeout_s=90",
    )


def _not_in_time(error: StoreUnavailable, patience_s: float) -> WaitTimedOut:
    after = describe_age(round(patience_s * 1000))
    return WaitTimedOut(f"nothing could be seen after {after}: {error.message}", hint=error.hint)


_MOST = 128
#: The server's user for those who name none.
_NOBODY = ("", "default")


def checked_component(component: str) -> str:
    """What a program calls itself. Raises InvalidInput for what would not be one short line."""
    if len(component) > _MOST or not component.isprintable():
        raise InvalidInput(
            f"component: expected at most {_MOST} printable characters, found {component[:40]!r}",
            hint='as in Client(component="data-ready")',
        )
    return component


def user_of(store: RedisStore, component: str) -> str:
    """`alice@laptop`, the server's `submitter`, or `data-ready (submitter)` of a component."""
    name = store.link.user
    if name in _NOBODY:
        name = f"{_login()}@{socket.gethostname()}"
    return f"{component} ({name})" if component else name


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # In a container, often.
        return f"uid-{os.getuid()}"


__all__ = ["ROLES", "Access", "Role", "access", "hash_of", "role_named"]

_HASH = re.compile("[0-9a-f]{64}")
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


class Access(Struct, frozen=True, kw_only=True):
    """A user and what it may do. Without the hash of a password it is off: nobody can be it."""

    user: str
    role: Role
    nodes: tuple[str, ...]
    hash: str
    rules: tuple[str, ...]

    @property
    def line(self) -> str:
        """As a file of users has it; what follows `user` is what ACL SETUSER takes."""
        secret = ("on", f"#{self.hash}") if self.hash else ("off",)
        return " ".join(("user", self.user, "reset", *secret, *self.rules))


def role_named(name: str) -> Role:
    """The role. Raises InvalidInput."""
    for role in ROLES:
        if role.name == name:
            return role
    names = [role.name for role in ROLES]
    near = nearest(name, names)
    raise InvalidInput(
        f"there is no role {name!r}; expected one of {', '.join(names)}",
        hint=f"did you mean {near}?" if near else "",
    )


def access(role: Role, *, nodes: Sequence[str] = (), user: str = "", hash_: str = "") -> Access:
    """A user of a role; a worker's is for certain nodes. Raises InvalidInput.

    A user without a name is called as its role, and as its node if it is for one: by how its name
    begins `batchq doctor` knows the role.
    """
    if role.is_of_nodes and not nodes:
        raise InvalidInput(
            f"a user of the role {role.name} is for certain nodes, and none was named",
            hint=f"name them: `batchq acl {role.name} --node gpu-01`",
        )
    if nodes and not role.is_of_nodes:
        raise InvalidInput(f"a user of the role {role.name} is not for certain nodes")
    for node in nodes:
        if problem := subdomain_problem(node):
            # A pattern in a name would be one in the rules.
            raise InvalidInput(f"node {node[:80]!r}: {problem}")
    name = user or (f"{role.name}-{nodes[0]}" if len(nodes) == 1 else role.name)
    if not _USER.fullmatch(name):
        raise InvalidInput(
            f"user {name[:80]!r}: expected letters, digits, '.', '_', '@' and '-', beginning with"
            " a letter or digit"
        )
    if hash_ and not _HASH.fullmatch(hash_):
        raise InvalidInput("the hash of a password: expected 64 hexadecimal digits of a SHA-256")
    return Access(user=name, role=role, nodes=tuple(nodes), hash=hash_, rules=rules_of(role, nodes))


def hash_of(password: bytes) -> str:
    """What a server keeps of a password. Raises InvalidInput for none."""
    if not password or b"\n" in password:
        raise InvalidInput(
            "the file of the password: expected one line, the password",
            hint="make one, e.g. with `openssl rand -hex 32`",
        )
    return hashlib.sha256(password).hexdigest()
