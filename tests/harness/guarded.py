"""A server with users: one for each role of batchq, and one for the worker of each node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import redis

from batchq.client.connection import access, hash_of, role_named
from tests.harness.server import Server

#: A part of every password that no quoting changes; a place that contains it has leaked a password.
CANARY = "canary9f3c"
ADMIN = "admin"
NODES = ("n1", "n2")
USERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "scheduler": ("scheduler", ()),
    "worker-n1": ("worker", ("n1",)),
    "worker-n2": ("worker", ("n2",)),
    "submitter": ("submitter", ()),
    "controller": ("controller", ()),
    "operator": ("operator", ()),
    "api": ("api", ()),
    "registrar": ("registrar", ()),
    "readonly": ("readonly", ()),
}


def password_of(user: str) -> str:
    return f"{CANARY}/:@%{user}"


def users_file() -> str:
    """Return the server's users, as `batchq acl` prints them, and an administrator for the
    tests.
    """
    lines = ["user default off", f"user {ADMIN} on #{_hash(ADMIN)} ~* &* +@all"]
    lines += [
        access(role_named(role), nodes=nodes, user=user, hash_=_hash(user)).line
        for user, (role, nodes) in USERS.items()
    ]
    return "\n".join(lines) + "\n"


def _hash(user: str) -> str:
    return hash_of(password_of(user).encode())


class GuardedServer(Server):
    """A server on a unix socket, whose default user is disabled."""

    def __init__(self, *options: str) -> None:
        super().__init__(*options)
        path = self.folder / "users.acl"
        path.write_text(users_file())
        self._options = (*self._options, "--aclfile", str(path))

    def url_of(self, user: str) -> str:
        """Return the server's URL with the name and password of a user."""
        return f"unix://{user}:{quote(password_of(user), safe='')}@{self.socket}"

    @contextmanager
    def as_user(self, user: str) -> Iterator[redis.Redis]:
        """Open a plain client of a user."""
        client = redis.Redis(
            unix_socket_path=str(self.socket), username=user, password=password_of(user)
        )
        try:
            yield client
        finally:
            client.close()

    def refusals(self) -> set[tuple[str, str]]:
        """Return the users and the commands or keys that were refused since the last call."""
        with self.as_user(ADMIN) as admin:
            entries = admin.acl_log(count=128)
            admin.acl_log_reset()
        return {(entry["username"], entry["object"]) for entry in entries}
