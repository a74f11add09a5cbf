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
#: A scheduler that has been silent for so long is forgotten.
SCHEDULERS_TTL_S = _MINUTE_S
#: How long a pod's output is kept after it last wrote.
LOG_TTL_S = 7 * _DAY_S
#: How long what a node has left is kept for a leader to fold.
INBOX_TTL_S = 7 * _DAY_S
#: A node that is silent for so long was last heard of "never".
ALIVE_TTL_S = _DAY_S
#: How long what a pod's function returned is kept.
RESULT_TTL_S = LOG_TTL_S
#: How long what RQ keeps for a node stays after its agent was last there.
RQ_TTL_S = _DAY_S

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


def log(node: str, pod: str, attempt: int) -> str:
    """The output of one attempt of a pod, which ran on that node."""
    return f"{_TAG}:log:{node}:{pod}-{attempt}"


def inbox(node: str) -> str:
    """What a node has to say, for the leader to fold."""
    return f"{_TAG}:inbox:{node}"


def alive(node: str) -> str:
    """The beat of a node, and the leases of the pods on it."""
    return f"{_TAG}:alive:{node}"


def doorbell(node: str) -> str:
    """Rung by the leader when something has been brought to a node."""
    return f"{_TAG}:doorbell:{node}"


def result(node: str, pod: str, attempt: int) -> str:
    """What the function of one attempt of a pod returned, on the node that ran it."""
    return f"{_TAG}:result:{node}:{pod}-{attempt}"


#: RQ's names of keys begin so.
RQ = "rq:"


def of_rq(node: str, name: str) -> str:
    """Where RQ's key `rq:...` of a node stands; a name that is none of RQ's, as it is.

    Not among batchq's own keys, which all roles may read. A node's user reaches these of its own
    node alone, and none of other programs that use RQ on this server.
    """
    return f"{_TAG}-rq:{node}:{name[len(RQ) :]}" if name.startswith(RQ) else name


def node_of_rq(name: str) -> str:
    """The node that RQ's key is of; "" where it is none of a node's."""
    prefix, node, _ = name.split(":", 2) if name.count(":") > 1 else ("", "", "")
    return node if prefix == f"{_TAG}-rq" else ""


#: A pattern that every key matches.
EVERYTHING = f"{_TAG}:*"
REVISION = f"{_TAG}:revision"
EPOCH = f"{_TAG}:epoch"
LEADER = f"{_TAG}:leader"
SERVER = f"{_TAG}:server"
SCHEDULERS = f"{_TAG}:schedulers"
CONFIG = f"{_TAG}:config"
CHANGES = f"{_TAG}:changes"
EVENTS = f"{_TAG}:events"
LEDGER = f"{_TAG}:ledger"
CHARGES = f"{_TAG}:charges"
LIMITS = f"{_TAG}:limits"
OUTBOX = f"{_TAG}:outbox"
BELL = f"{_TAG}:bell"
COUNTS = f"{_TAG}:counts"


#: Beside the scopes among the limits: the revision of their last change, nodes' left out. No scope
#: has a space in it. `lua/limits.lua` writes and compares it.
LAST_CHANGE = "last change"


def _permanent(name: str, type_: str, holds: str) -> Key:
    return Key(name=name, type=type_, ttl_s=None, holds=holds)


TABLE: tuple[Key, ...] = (
    *(_permanent(objects(kind), "hash", f"key of a {kind} -> JSON") for kind in KIND_NAMES),
    *(
        _permanent(heads(kind), "hash", f"key of a {kind} -> revision|phase|fence|stop")
        for kind in KIND_NAMES
    ),
    _permanent(REVISION, "string", "how many writes there have been; an object's is its last"),
    _permanent(EPOCH, "string", "the leader's: generation * 10^6 + how often it has changed"),
    _permanent(SERVER, "hash", "run id of the server, its generation, and since when (ms)"),
    _permanent(LEADER, "hash", "identity, epoch and expires_at (ms) of the leader"),
    Key(
        name=SCHEDULERS,
        type="hash",
        ttl_s=SCHEDULERS_TTL_S,
        holds="identity -> '<last seen, ms> <revision mirrored, or -> <version>'",
    ),
    _permanent(CONFIG, "string", "by which configuration the leader goes, as YAML"),
    _permanent(CHANGES, "stream", "the latest writes: kind, key, value; the id is <revision>-0"),
    _permanent(EVENTS, "stream", "the latest events, as JSON"),
    _permanent(LEDGER, "hash", "'<scope> <resource>' -> the sum of the charges in that scope"),
    _permanent(CHARGES, "hash", "holder -> JSON [scopes, [[resource, amount], …]]"),
    _permanent(
        LIMITS, "hash", f"scope -> JSON {{resource: amount}}; '{LAST_CHANGE}' -> its revision"
    ),
    _permanent(OUTBOX, "hash", "'<pod>-<attempt>' -> '<revision> <place> <JSON>', until delivered"),
    _permanent(BELL, "stream", "which nodes have left something in their inbox: node"),
    _permanent(COUNTS, "hash", "what is counted for ever: superseded facts, unreadable ones"),
    Key(
        name=f"{_TAG}:inbox:<node>",
        type="hash",
        ttl_s=INBOX_TTL_S,
        holds="subject -> the last fact about it, as JSON, until it is folded",
    ),
    Key(
        name=f"{_TAG}:alive:<node>",
        type="hash",
        ttl_s=ALIVE_TTL_S,
        holds="beat -> ms; run -> run id of the server; '<pod>-<attempt>' -> end of its lease, ms",
    ),
    Key(
        name=f"{_TAG}:doorbell:<node>",
        type="stream",
        ttl_s=ALIVE_TTL_S,
        holds="the latest ring: pods were handed over to the node, or its claims folded",
    ),
    Key(
        name=request("<id>"),
        type="string",
        ttl_s=REQUEST_TTL_S,
        holds="JSON [revision, [[word, subject, resource, need, limit, seen], …]]",
    ),
    Key(
        name=f"{_TAG}:log:<node>:<pod>-<attempt>",
        type="stream",
        ttl_s=LOG_TTL_S,
        holds="the newest output: stream, data, length so far, request",
    ),
    Key(
        name=f"{_TAG}:result:<node>:<pod>-<attempt>",
        type="string",
        ttl_s=RESULT_TTL_S,
        holds="what the pod's function returned, as JSON",
    ),
)

_PATTERNS = [
    (re.compile(".+".join(re.escape(part) for part in re.split("<[a-z]+>", key.name))), key)
    for key in TABLE
]


def declared(name: str) -> Key | None:
    """The row of the table that a key in use belongs to."""
    return next((key for pattern, key in _PATTERNS if pattern.fullmatch(name)), None)
