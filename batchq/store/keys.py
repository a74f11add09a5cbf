"""Every key that batchq keeps in Redis: its name, its type, how long it lives. There are no others.

All share one hash tag, so that a script may touch any of them (and a cluster keeps them together).
"""

from __future__ import annotations

import re

from msgspec import Struct

from batchq.api.objects import KINDS

_TAG = "{bq}"
_MINUTE_S = 60
_DAY_S = 24 * 60 * _MINUTE_S

#: How long the answers to a commit are remembered, for a caller that lost them.
REQUEST_TTL_S = 10 * _MINUTE_S
#: How long a pod's output is kept after it last wrote.
LOG_TTL_S = 7 * _DAY_S

#: The order in which scripts are given the keys of kinds.
KIND_NAMES: tuple[str, ...] = tuple(KINDS)


class Key(Struct, frozen=True, kw_only=True):
    """A key, or a family of them with `<…>` for the part that varies. `ttl_s` None: permanent."""

    name: str
    type: str
    ttl_s: int | None
    holds: str


def objects(kind: str) -> str:
    """All objects of a kind."""
    return f"{_TAG}:{kind}"


def heads(kind: str) -> str:
    """What scripts compare of the objects of a kind."""
    return f"{_TAG}:{kind}:head"


def request(request_id: str) -> str:
    """The answers to one commit."""
    return f"{_TAG}:request:{request_id}"


def log(pod: str, attempt: int) -> str:
    """The output of one attempt of a pod."""
    return f"{_TAG}:log:{pod}-{attempt}"


REVISION = f"{_TAG}:revision"
EPOCH = f"{_TAG}:epoch"
LEADER = f"{_TAG}:leader"
CHANGES = f"{_TAG}:changes"
EVENTS = f"{_TAG}:events"
LEDGER = f"{_TAG}:ledger"
CHARGES = f"{_TAG}:charges"
LIMITS = f"{_TAG}:limits"
OUTBOX = f"{_TAG}:outbox"
LEASES = f"{_TAG}:leases"
BEATS = f"{_TAG}:beats"


def _permanent(name: str, type_: str, holds: str) -> Key:
    return Key(name=name, type=type_, ttl_s=None, holds=holds)


TABLE: tuple[Key, ...] = (
    *(_permanent(objects(kind), "hash", f"key of a {kind} -> JSON") for kind in KIND_NAMES),
    *(
        _permanent(heads(kind), "hash", f"key of a {kind} -> revision|phase|fence|stop")
        for kind in KIND_NAMES
    ),
    _permanent(REVISION, "string", "how many writes there have been; an object's is its last"),
    _permanent(EPOCH, "string", "how often the leader has changed"),
    _permanent(LEADER, "hash", "identity, epoch and expires_at (ms) of the leader"),
    _permanent(CHANGES, "stream", "the latest writes: kind, key, value; the id is <revision>-0"),
    _permanent(EVENTS, "stream", "the latest events, as JSON"),
    _permanent(LEDGER, "hash", "'<scope> <resource>' -> the sum of the charges in that scope"),
    _permanent(CHARGES, "hash", "holder -> JSON [scopes, [[resource, amount], …]]"),
    _permanent(LIMITS, "hash", "scope -> JSON {resource: amount}"),
    _permanent(OUTBOX, "hash", "'<pod>-<attempt>' -> '<revision> <place> <JSON>', until delivered"),
    _permanent(LEASES, "hash", "pod -> when the lease of its attempt ends (ms)"),
    _permanent(BEATS, "hash", "node -> when it was last heard of (ms)"),
    Key(
        name=request("<id>"),
        type="string",
        ttl_s=REQUEST_TTL_S,
        holds="JSON [revision, [[word, subject, resource, need, limit, seen], …]]",
    ),
    Key(
        name=f"{_TAG}:log:<pod>-<attempt>",
        type="stream",
        ttl_s=LOG_TTL_S,
        holds="the newest output: stream, data, length so far, request",
    ),
)

_PATTERNS = [
    (re.compile(".+".join(re.escape(part) for part in re.split("<[a-z]+>", key.name))), key)
    for key in TABLE
]


def declared(name: str) -> Key | None:
    """The row of the table that a key in use belongs to."""
    return next((key for pattern, key in _PATTERNS if pattern.fullmatch(name)), None)
