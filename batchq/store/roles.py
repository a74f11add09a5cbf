"""Users of a server (Redis 7.2 or Valkey): one table of roles, and making and removing users.

A role has exactly the commands that batchq uses in it; the end-to-end tests run under these
permissions. A script has the rights of its caller, and the server checks the right to write every
key that a script is given. Schedulers load the scripts, and all other roles may only call loaded
ones: a script of a user's own could block the server for ever.

Users are not part of a server's data: they are kept in its ACL file, and not replicated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import redis
from msgspec import Struct

from batchq.api.objects import KINDS
from batchq.errors import StoreUnavailable
from batchq.store import keys
from batchq.store.link import Link

_NODE = "<node>"
#: RQ's keys, of one node and of all.
_RQ_OF_A_NODE, _RQ = (keys.of_rq(node, f"{keys.RQ}*") for node in (_NODE, "*"))

#: What every client sends when it connects, and asks before it uses a server.
_CONNECTS = ("client|setinfo", "info", "ping", "select", "time")
_LOOKS = (
    *("acl|whoami", "exec", "get", "hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "multi"),
    *("xinfo|stream", "xrange", "xread", "xrevrange"),
)
#: The commands of `commit.lua` and `create.lua`, without their reads.
_COMMITS = ("evalsha", "hdel", "hincrby", "hset", "incr", "incrby", "set", "xadd")
#: A leader's other scripts and commands, and the delivery of pods to RQ.
_LEADS = (
    *("del", "expire", "hrandfield", "hstrlen", "rpush"),
    *("script|exists", "script|load"),
)
_SERVES = ("evalsha", "expire", "hdel", "hset", "set", "xadd", "xdel")
#: What makes and removes users, and so can give its own user every right.
_REGISTERS = ("acl|deluser", "acl|getuser", "acl|save", "acl|setuser", "exec", "multi")
#: The commands of RQ's worker.
_RQ_WORKS = (
    *("del", "exists", "hincrby", "hincrbyfloat", "lmove", "lrange", "lrem", "persist", "rpush"),
    *("sadd", "smembers", "srandmember", "srem", "unwatch", "watch"),
    *("zadd", "zrange", "zrangebyscore", "zrem", "zremrangebyscore"),
)

#: What people submit. Deleting a group deletes its pods.
_SUBMITTED = ("PodGroup", "Pod")
#: What the controller of an admission check writes: its lease, and its answers in groups.
_ANSWERED = ("AdmissionCheck", "PodGroup")


class Role(Struct, frozen=True, kw_only=True):
    """What users of a role may do.

    `commands` are as in ACL rules. `reads` and `writes` are patterns of keys; a right to write
    includes reading. `<node>` in a pattern stands for each of the user's nodes. `kinds`: the kinds
    of objects that the role may write.
    """

    name: str
    purpose: str
    commands: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def is_of_nodes(self) -> bool:
        """Whether each user of the role is for certain nodes."""
        return any(_NODE in pattern for pattern in self.writes)


def _objects(kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(name(kind) for kind in kinds for name in (keys.objects, keys.heads))


_COMMITTED = (
    *(keys.request("*"), keys.REVISION, keys.CHANGES, keys.EVENTS),
    *(keys.LEDGER, keys.CHARGES),
)
#: Every key with the name of a node in it, whatever else it contains.
_OF_A_NODE = tuple(
    re.sub(r"<(?!node>)[a-z]+>", "*", key.name) for key in keys.TABLE if _NODE in key.name
)

#: What is said in commands in pods, of every node.
_EXEC = tuple(
    re.sub(r"<[a-z]+>", "*", key.name) for key in keys.TABLE if key.name.startswith("exec:")
)

#: From the fewest rights to the most.
ROLES: tuple[Role, ...] = (
    Role(
        name="readonly",
        purpose="reads everything and changes nothing",
        commands=(*_CONNECTS, *_LOOKS),
        reads=(keys.EVERYTHING,),
    ),
    Role(
        name="worker",
        purpose="serves nodes, and runs what is bound to them",
        commands=(*_CONNECTS, *_LOOKS, *_SERVES, *_RQ_WORKS),
        reads=(keys.EVERYTHING,),
        writes=(*_OF_A_NODE, keys.LEADER_CHANNEL, _RQ_OF_A_NODE),
    ),
    Role(
        name="submitter",
        purpose="submits, changes, claims and deletes groups of pods",
        commands=(*_CONNECTS, *_LOOKS, *_COMMITS),
        reads=(keys.EVERYTHING,),
        writes=(*_COMMITTED, *_objects(_SUBMITTED)),
        kinds=_SUBMITTED,
    ),
    Role(
        name="controller",
        purpose="keeps admission checks active, and answers them",
        commands=(*_CONNECTS, *_LOOKS, *_COMMITS),
        reads=(keys.EVERYTHING,),
        writes=(*_COMMITTED, *_objects(_ANSWERED)),
        kinds=_ANSWERED,
    ),
    Role(
        name="operator",
        purpose="submits, runs commands in pods, and changes queues, quotas, checks and nodes",
        commands=(*_CONNECTS, *_LOOKS, *_COMMITS, "config|get"),
        reads=(keys.EVERYTHING,),
        writes=(*_COMMITTED, keys.LIMITS, *_objects(tuple(KINDS)), *_EXEC),
        kinds=tuple(KINDS),
    ),
    Role(
        name="api",
        purpose="serves the HTTP API: acts for its users, and keeps tokens, bindings and the audit",
        commands=(*_CONNECTS, *_LOOKS, *_COMMITS),
        reads=(keys.EVERYTHING,),
        writes=(*_COMMITTED, keys.LIMITS, *_objects(tuple(KINDS)), *_EXEC, *keys.ACCESS),
        kinds=tuple(KINDS),
    ),
    Role(
        name="scheduler",
        purpose="decides, and hands pods to nodes",
        commands=(*_CONNECTS, *_LOOKS, *_COMMITS, *_LEADS),
        writes=(keys.EVERYTHING, _RQ),
        kinds=tuple(KINDS),
    ),
    Role(
        name="registrar",
        purpose="makes and removes the users of nodes, and could give itself every right",
        commands=(*_CONNECTS, *_REGISTERS),
    ),
)


def rules_of(role: Role, nodes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the rules of a user of this role, for these nodes, as ACL SETUSER takes them."""
    writes = [
        pattern.replace(_NODE, node)
        for pattern in role.writes
        for node in (nodes if _NODE in pattern else ("",))
    ]
    return (
        *(f"%R~{pattern}" for pattern in role.reads),
        *(f"~{pattern}" for pattern in writes),
        "resetchannels",
        "-@all",
        *(f"+{command}" for command in sorted(set(role.commands))),
    )


def forbidden(error: StoreUnavailable, *, kinds: Sequence[str], leads: bool) -> StoreUnavailable:
    """Return the error for a user who may not write these kinds; it names a role that may."""
    least = next(
        role.name
        for role in ROLES
        if set(kinds) <= set(role.kinds) and role.kinds and (not leads or role.name == "scheduler")
    )
    others = [kind for kind in kinds if kind not in _SUBMITTED] or kinds
    what = " and ".join(f"{kind}s" if kind[-1:] != "s" else f"{kind}es" for kind in others)
    place = error.message.partition(" does not permit ")[0]
    return StoreUnavailable(
        f"{place} does not permit this user to write {what or 'events'}",
        hint=f"use a user of the role {least}: see `batchq acl {least}`",
        lasts=True,
    )


class ServerUsers:
    """The users of one server, for a user of the role registrar. Belongs to one thread."""

    def __init__(self, url: str) -> None:
        """Connects at the first request. Raises InvalidInput for a malformed URL."""
        self._link = Link(url)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def write(self, name: str, rules: Sequence[str]) -> None:
        """Make a user with these rules, and save that. If there is a user of that name, it is
        replaced, and its connections end. Raises StoreUnavailable.
        """

        def written(client: redis.Redis) -> None:
            # In one step: a user that is removed and not made again would be locked out.
            pipeline = client.pipeline(transaction=True)
            for words in (("DELUSER", name), ("SETUSER", name, *rules)):
                pipeline.execute_command("ACL", *words)  # type: ignore[no-untyped-call]
            pipeline.execute()

        self._link.ask(written)
        self.save()

    def hashes_of(self, name: str) -> list[str] | None:
        """Return the SHA-256 of each password of a user; None if there is no such user.

        Raises StoreUnavailable.
        """
        found: Any = self._link.ask(lambda client: client.acl_getuser(name))
        if found is None:
            return None
        return [
            (one.decode() if isinstance(one, bytes) else str(one)).lstrip("#")
            for one in found["passwords"]
        ]

    def delete(self, name: str) -> bool:
        """Remove a user, end its connections, and save that; return whether there was one.

        Raises StoreUnavailable.
        """
        count = self._link.ask(lambda client: client.acl_deluser(name))
        self.save()
        return bool(count)

    def save(self) -> None:
        """Save the users in the server's ACL file. Raises StoreUnavailable."""

        def saved(client: redis.Redis) -> Any:
            return client.acl_save()

        try:
            self._link.ask(saved)
        except StoreUnavailable as error:
            if "ACL file" not in str(error.__cause__):
                raise
            raise StoreUnavailable(
                f"the server at {self._link.shown} keeps its users in no file, and would lose new"
                " ones",
                hint="start it with an `aclfile` that its account may write: conf/acl/README.md",
                lasts=True,
            ) from error
