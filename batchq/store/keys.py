"""Every key that batchq keeps in Redis: its name, its type and its lifetime. There are no others.

All share one hash tag, so that a script may touch any of them (and a cluster keeps them together).
"""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct

from batchq.api.objects import KINDS

_TAG = "{bq}"
_MINUTE_S = 60
_DAY_S = 24 * 60 * _MINUTE_S

#: How long the answers to a commit are kept, for a caller that lost the reply.
REQUEST_TTL_S = 10 * _MINUTE_S
#: A scheduler that has been silent this long is forgotten.
SCHEDULERS_TTL_S = _MINUTE_S
#: How long a pod's output is kept after its last write.
LOG_TTL_S = 7 * _DAY_S
#: How long a node's reports are kept for a leader to apply.
REPORTS_TTL_S = 7 * _DAY_S
#: A node that has been silent this long counts as never heard of.
ALIVE_TTL_S = _DAY_S
#: How long the result of a pod's function is kept.
RESULT_TTL_S = LOG_TTL_S
#: How long a pod's token is kept after its agent was last seen; it is refused long before.
POD_TOKEN_TTL_S = _DAY_S
#: How long a node's requests for commands in pods are kept after its agent was last seen.
EXEC_REQUESTS_TTL_S = _DAY_S
#: How long the streams of a session are kept after its node has last written.
EXEC_TTL_S = _MINUTE_S
#: How long RQ's keys for a node stay after its agent was last seen.
RQ_TTL_S = _DAY_S

#: The order in which scripts are given the keys of kinds.
KIND_NAMES: tuple[str, ...] = tuple(KINDS)


class Key(Struct, frozen=True, kw_only=True):
    """A key, or a family of keys with `<…>` for the part that varies. `ttl_s` None: permanent."""

    name: str
    type: str
    ttl_s: int | None
    holds: str


def objects(kind: str) -> str:
    """All objects of a kind."""
    return f"{_TAG}:{kind}"


def heads(kind: str) -> str:
    """The heads of a kind's objects, which scripts compare."""
    return f"{_TAG}:{kind}:head"


def request(request_id: str) -> str:
    """The answers to one commit."""
    return f"{_TAG}:request:{request_id}"


def log(node: str, pod: str, attempt: int) -> str:
    """The output of one attempt of a pod, by the node that it ran on."""
    return f"{_TAG}:log:{node}:{pod}-{attempt}"


def report_queue(node: str) -> str:
    """A node's report queue, which the leader applies."""
    return f"{_TAG}:inbox:{node}"


def alive(node: str) -> str:
    """A node's heartbeat, and the leases of the pods on it."""
    return f"{_TAG}:alive:{node}"


def wake_up_channel(node: str) -> str:
    """A node's wake-up channel, which the leader notifies."""
    return f"{_TAG}:doorbell:{node}"


def result(node: str, pod: str, attempt: int) -> str:
    """The result of the function of one attempt of a pod, by the node that ran it."""
    return f"{_TAG}:result:{node}:{pod}-{attempt}"


def pod_token(node: str, pod: str, attempt: int) -> str:
    """The digest of the secret of an attempt's token, by the node that it runs on."""
    return f"{_TAG}:token:{node}:{pod}-{attempt}"


#: The prefix of what is said in commands in pods: only their users and their node may read it.
_EXEC = f"exec:{_TAG}"


def exec_requests(node: str) -> str:
    """The requests for commands in the pods of a node."""
    return f"{_EXEC}:requests:{node}"


def exec_input(node: str, session: str) -> str:
    """What the user of a session says to the node."""
    return f"{_EXEC}:input:{node}:{session}"


def exec_output(node: str, session: str) -> str:
    """What the node says to the user of a session."""
    return f"{_EXEC}:output:{node}:{session}"


#: The prefix of RQ's key names.
RQ = "rq:"


def of_rq(node: str, name: str) -> str:
    """Return the key that stands for RQ's key `rq:...` of a node; other names are returned as they
    are.

    Its prefix is not batchq's own, which all roles may read. A node's user reaches its own node's
    keys alone, and none of other programs that use RQ on this server.
    """
    return f"{_TAG}-rq:{node}:{name[len(RQ) :]}" if name.startswith(RQ) else name


def node_of_rq(name: str) -> str:
    """Return the node that a key of RQ's belongs to; "" for other keys."""
    prefix, node, _ = name.split(":", 2) if name.count(":") > 1 else ("", "", "")
    return node if prefix == f"{_TAG}-rq" else ""


#: A pattern that matches every key.
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
LEADER_CHANNEL = f"{_TAG}:bell"
COUNTS = f"{_TAG}:counts"

#: The prefix of what only the role `api` may read and write: no other pattern matches it.
_ACCESS = f"access:{_TAG}"
TOKENS = f"{_ACCESS}:tokens"
TOKENS_USED = f"{_ACCESS}:used"
BINDINGS = f"{_ACCESS}:bindings"
ACCESS_STATE = f"{_ACCESS}:state"
AUDIT = f"{_ACCESS}:audit"
ACCESS: tuple[str, ...] = (TOKENS, TOKENS_USED, BINDINGS, ACCESS_STATE, AUDIT)


#: A field beside the scopes of the limits: the revision of their last change, nodes' limits
#: excluded. No scope contains a space. `lua/limits.lua` writes and compares it.
LAST_CHANGE = "last change"


def _permanent(name: str, type_: str, holds: str) -> Key:
    return Key(name=name, type=type_, ttl_s=None, holds=holds)


TABLE: tuple[Key, ...] = (
    *(_permanent(objects(kind), "hash", f"key of a {kind} -> JSON") for kind in KIND_NAMES),
    *(
        _permanent(heads(kind), "hash", f"key of a {kind} -> revision|phase|fence|stop")
        for kind in KIND_NAMES
    ),
    _permanent(REVISION, "string", "the count of writes; an object's is its last write's"),
    _permanent(EPOCH, "string", "the leader's: generation * 10^6 + the changes of leader"),
    _permanent(SERVER, "hash", "run id of the server, its generation, and its beginning (ms)"),
    _permanent(LEADER, "hash", "identity, epoch and expires_at (ms) of the leader"),
    Key(
        name=SCHEDULERS,
        type="hash",
        ttl_s=SCHEDULERS_TTL_S,
        holds="identity -> '<last seen, ms> <revision mirrored, or -> <version>;<config digest>'",
    ),
    _permanent(CONFIG, "string", "the leader's configuration, as YAML"),
    _permanent(CHANGES, "stream", "the latest writes: kind, key, value; the id is <revision>-0"),
    _permanent(EVENTS, "stream", "the latest events, as JSON"),
    _permanent(LEDGER, "hash", "'<scope> <resource>' -> the sum of the charges in that scope"),
    _permanent(CHARGES, "hash", "holder -> JSON [scopes, [[resource, amount], …]]"),
    _permanent(
        LIMITS, "hash", f"scope -> JSON {{resource: amount}}; '{LAST_CHANGE}' -> its revision"
    ),
    _permanent(OUTBOX, "hash", "'<pod>-<attempt>' -> '<revision> <place> <JSON>', until delivered"),
    _permanent(
        LEADER_CHANNEL, "stream", "the leader's wake-up channel: nodes that have posted reports"
    ),
    _permanent(COUNTS, "hash", "counters, for ever: superseded reports, unreadable ones"),
    Key(
        name=f"{_TAG}:inbox:<node>",
        type="hash",
        ttl_s=REPORTS_TTL_S,
        holds="subject -> the last report on it, as JSON, until it is applied",
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
        holds="the node's wake-up channel: its pods were bound or must stop, or its claims applied",
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
        holds="the result of the pod's function, as JSON",
    ),
    Key(
        name=f"{_TAG}:token:<node>:<pod>-<attempt>",
        type="string",
        ttl_s=POD_TOKEN_TTL_S,
        holds="the SHA-256 of the secret of the token that the attempt has for the API",
    ),
    Key(
        name=exec_requests("<node>"),
        type="stream",
        ttl_s=EXEC_REQUESTS_TTL_S,
        holds="the latest requests for commands in pods of the node, as JSON",
    ),
    Key(
        name=exec_input("<node>", "<session>"),
        type="stream",
        ttl_s=EXEC_TTL_S,
        holds="frames for a command in a pod: kind, data; the id is <number>-0",
    ),
    Key(
        name=exec_output("<node>", "<session>"),
        type="stream",
        ttl_s=EXEC_TTL_S,
        holds="frames of a command in a pod: kind, data; the id is <number>-0",
    ),
    _permanent(TOKENS, "hash", "id of a token of the API -> JSON, with the digest of its secret"),
    _permanent(TOKENS_USED, "hash", "id of a token -> its last use, ms"),
    _permanent(
        BINDINGS, "hash", "'<subject> <role> <namespace>' -> JSON; subject of a local group -> JSON"
    ),
    _permanent(
        ACCESS_STATE,
        "hash",
        "the revision of both, the last change, and the last digest of the audit trail",
    ),
    _permanent(AUDIT, "stream", "the latest audit records, as JSON, and their digests"),
)


def declared(name: str) -> Key | None:
    """Return the row of the table for a key in use; None for a foreign key."""
    return next((key for pattern, key in _patterns() if pattern.fullmatch(name)), None)


@cache
def _patterns() -> list[tuple[re.Pattern[str], Key]]:
    return [
        (re.compile(".+".join(re.escape(part) for part in re.split("<[a-z]+>", key.name))), key)
        for key in TABLE
    ]
