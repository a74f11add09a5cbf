"""Finds what a server keeps of objects that are gone; used by the leak test and the swarm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import cast

import redis

from batchq.api.objects import KINDS
from batchq.api.transaction import EVERY_NAMESPACE
from batchq.store import keys


def lasting_keys(connection: redis.Redis) -> list[str]:
    """Return the keys that have no time to live and are not declared permanent."""
    return sorted(
        name
        for name in _names(connection)
        if connection.ttl(name) == -1
        and not ((declared := keys.declared(name)) and declared.ttl_s is None)
    )


def orphans(connection: redis.Redis) -> list[str]:
    """Return fields of batchq's hashes that belong to objects which do not exist any more."""
    objects = _Objects(connection)
    return sorted(
        f"{name}: {field}"
        for name in _names(connection)
        if keys.declared(name) is not None and connection.type(name) == b"hash"
        for field in _fields(connection, name)
        if not objects.knows(name, field)
    )


class _Objects:
    """The existing objects."""

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._of_kind = {kind: set(_fields(connection, keys.objects(kind))) for kind in KINDS}
        groups = cast("dict[bytes, bytes]", connection.hgetall(keys.objects("PodGroup")))
        self._groups = {json.loads(stored)["metadata"].get("uid") for stored in groups.values()}
        self._namespaces = {key.split("/")[0] for key in self._of_kind["ResourceQuota"]}
        self._namespaces |= {key.decode().split("/")[0] for key in groups}
        pods = cast("dict[bytes, bytes]", connection.hgetall(keys.objects("Pod")))
        self._group_of = {
            key.decode(): json.loads(stored)["status"].get("groupUid")
            for key, stored in pods.items()
        }

    def knows(self, name: str, field: str) -> bool:
        """Return whether the object that a key's field belongs to exists; True if it belongs to
        none.
        """
        _, family, *rest = name.split(":", 2)
        if family == "Pod" and not rest:
            return self._group_of[field] in self._groups
        if family in KINDS:
            return field in self._of_kind[family]
        if rest and family in ("inbox", "alive") and rest[0] not in self._of_kind["Node"]:
            # No agent renews the key any more, so it expires.
            return cast(int, self._connection.ttl(name)) > 0
        check = _CHECKS.get(family)
        return check is None or check(self, field)

    def holds(self, holder: str) -> bool:
        """Return whether `pod:<uid>`, `node:<name>`, `group:<uid>` or `object:<group uid>`
        exists.
        """
        kind, _, name = holder.partition(":")
        known = {
            "pod": self._of_kind["Pod"],
            "node": self._of_kind["Node"],
            "group": self._groups,
            "object": self._groups,
        }
        return name in known.get(kind, ())

    def limits(self, scope: str) -> bool:
        """Return whether the scope `queue:<name>`, `node:<name>` or that of a namespace exists."""
        if scope == EVERY_NAMESPACE:
            return True
        kind, _, name = scope.partition(":")
        known = {
            "queue": self._of_kind["Queue"],
            "node": self._of_kind["Node"],
            "namespace": self._namespaces,
            "objects": self._namespaces,
        }
        return kind not in known or name in known[kind]

    def delivers(self, attempt: str) -> bool:
        """Return whether the pod of `<pod>-<attempt>` exists."""
        return attempt.rpartition("-")[0] in self._of_kind["Pod"]

    def lives(self, field: str) -> bool:
        """Return whether `beat`, `run`, or the lease of `<pod>-<attempt>` belongs to an existing
        object.
        """
        return field in ("beat", "run") or self.delivers(field)


_CHECKS: dict[str, Callable[[_Objects, str], bool]] = {
    "charges": _Objects.holds,
    "limits": _Objects.limits,
    "outbox": _Objects.delivers,
    "alive": _Objects.lives,
}


def _names(connection: redis.Redis) -> Iterator[str]:
    for key in connection.scan_iter(count=1000):
        yield key.decode()


def _fields(connection: redis.Redis, name: str) -> list[str]:
    return [field.decode() for field in cast("list[bytes]", connection.hkeys(name))]
