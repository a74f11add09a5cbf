"""A user of a server, by role, as one line of the server's file of users."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from msgspec import Struct

from batchq.api.names import subdomain_problem
from batchq.api.notation import nearest
from batchq.errors import InvalidInput
from batchq.store.roles import ROLES, Role, rules_of

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
