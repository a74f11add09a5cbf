"""Every kind of key in the server, a user who may write it, and the ways to damage it."""

from __future__ import annotations

from contextlib import suppress

import redis
from msgspec import Struct, structs

from batchq.api.objects import KINDS
from batchq.store import keys
from tests.poison.damage import DEEP, HUGE, PLACES, damaged_object

WRONG_TYPE = "wrong type"
DAMAGES = ("garbage", "truncated", "bytes", WRONG_TYPE, "huge", "deep")
#: Those that leave a short word of plain letters.
_PLAIN = ("garbage", "truncated")


class Row(Struct, frozen=True, kw_only=True):
    """A kind of key. `pattern`: its name in `batchq.store.keys.TABLE`, or RQ's name for it."""

    pattern: str
    #: One key of this kind, and its type.
    name: str
    type: str
    #: The role with the fewest rights that may write it.
    user: str
    #: Where a record stands in it, and a record that can be read.
    field: str = "poison"
    healthy: bytes = b"1000"
    #: The kind of the objects in it.
    kind: str = ""
    #: What the doctor calls a damaged record in it; the name of the key unless it is stated.
    called: str = ""
    #: And what it says after a repair, if not that.
    once_repaired: str = ""
    #: Why the doctor does not name the key after these damages.
    unnamed: str = ""
    unnamed_after: tuple[str, ...] = ()

    def unnamed_if(self, how: str) -> str:
        """Return why the doctor does not name a key that is damaged this way; "" if it does."""
        if how == "truncated" and self.healthy.isdigit() and not self.kind:
            return "the first half of a number is a number"
        return self.unnamed if how in self.unnamed_after else ""

    def called_if(self, how: str) -> str:
        """Return what the doctor calls it when it is damaged this way."""
        return self.name if how == WRONG_TYPE else self.called or self.name


_WRITERS = {"PodGroup": "submitter", "Pod": "submitter", "AdmissionCheck": "controller"}
_TYPES = {key.name: key.type for key in keys.TABLE}


def _row(
    pattern: str,
    user: str,
    field: str = "poison",
    healthy: bytes = b"1000",
    *,
    called: str = "",
    unnamed: str = "",
    after: tuple[str, ...] = (),
) -> Row:
    name = pattern
    literals = ("<node>", "n1"), ("<pod>", "p"), ("<attempt>", "1"), ("<id>", "1")
    for part, literal in (*literals, ("<session>", "0" * 48)):
        name = name.replace(part, literal)
    return Row(
        pattern=pattern,
        name=name,
        type=_TYPES[pattern],
        user=user,
        field=field,
        healthy=healthy,
        called=called,
        unnamed=unnamed,
        unnamed_after=after,
    )


def _rows_of_kind(kind: str) -> tuple[Row, Row]:
    user, place = _WRITERS.get(kind, "operator"), PLACES[kind]
    heads = structs.replace(
        _row(keys.heads(kind), user, place, b"5|Bound|u 1 1|", called=f"Head {kind} {place}"),
        once_repaired=f"{kind} {place} could not be read, and was repaired",
    )
    objects = Row(
        pattern=keys.objects(kind),
        name=keys.objects(kind),
        type="hash",
        user=user,
        field=place,
        kind=kind,
        called=f"{kind} {place}",
    )
    return objects, heads


_CHARGE = b'[["cluster"],[["cpu","1"]]]'
_DELIVERY = b'5 1 {"pod":"p","attempt":1,"node":"n"}'
_EVENT = b'{"kind":"Pod","key":"p","reason":"Tested","at":1}'
_CLAIM = b'{"fact":"claim","pod":"p","attempt":1,"agent":"a","fence":"f"}'
_LEDGER_FIELD = "cluster cpu"

_STAYS = "a user without DEL gives a string that exists no other type"
_NO_CALLER = "only the caller that chose its random id reads it"
_A_NAME = "it may be the name of a node, which has posted nothing"
_NO_TOKEN = "it is compared with the secret that a caller of the API presents"
_NO_SESSION = "only the two sides of the session, whose name is random, read it"
_A_REQUEST = "its agent refuses what is no request, and makes the channel again"
_NO_POD = (
    "it is read for the pod alone: `batchq logs` and `batchq result` name it, as"
    " tests/client/test_output.py shows"
)

ROWS: tuple[Row, ...] = (
    *(row for kind in KINDS for row in _rows_of_kind(kind)),
    _row(keys.REVISION, "submitter", unnamed=_STAYS, after=(WRONG_TYPE,)),
    _row(keys.CHANGES, "submitter", "kind", b"PodGroup"),
    _row(keys.EVENTS, "submitter", "event", _EVENT),
    _row(keys.LEDGER, "submitter", _LEDGER_FIELD, called=r"Ledger cluster\x20cpu"),
    _row(keys.CHARGES, "submitter", "group:poison", _CHARGE, called="Charge group:poison"),
    _row(keys.request("<id>"), "submitter", healthy=b"[1,[]]", unnamed=_NO_CALLER, after=DAMAGES),
    _row(keys.LIMITS, "operator", "queue:poison", b'{"cpu":"1"}', called="Limit queue:poison"),
    _row(keys.EPOCH, "scheduler"),
    _row(keys.SERVER, "scheduler", "generation"),
    _row(keys.LEADER, "scheduler", "epoch"),
    _row(keys.SCHEDULERS, "scheduler", healthy=b"1700000000000 5"),
    _row(keys.CONFIG, "scheduler", healthy=b"actions: [allocate]\n"),
    _row(keys.OUTBOX, "scheduler", "p-1", _DELIVERY, called="Delivery p-1"),
    _row(keys.COUNTS, "scheduler", "unreadable"),
    _row(keys.LEADER_CHANNEL, "worker-n1", "node", b"n1", unnamed=_A_NAME, after=_PLAIN),
    _row(keys.report_queue("<node>"), "worker-n1", "p-1", _CLAIM),
    _row(keys.alive("<node>"), "worker-n1", "beat", b"1700000000000"),
    _row(keys.wake_up_channel("<node>"), "worker-n1", "word", b"pods"),
    _row(
        "{bq}:log:<node>:<pod>-<attempt>",
        "worker-n1",
        "data",
        b"output",
        unnamed=_NO_POD,
        after=DAMAGES,
    ),
    _row(
        "{bq}:result:<node>:<pod>-<attempt>",
        "worker-n1",
        healthy=b'{"value":1}',
        unnamed=_NO_POD,
        after=DAMAGES,
    ),
    _row(
        "{bq}:token:<node>:<pod>-<attempt>",
        "worker-n1",
        healthy=b"0" * 64,
        unnamed=_NO_TOKEN,
        after=DAMAGES,
    ),
    _row(
        "exec:{bq}:requests:<node>",
        "worker-n1",
        "request",
        b'{"session":"0"}',
        unnamed=_A_REQUEST,
        after=DAMAGES,
    ),
    *(
        _row(name, "worker-n1", "data", b"hello", unnamed=_NO_SESSION, after=DAMAGES)
        for name in (
            "exec:{bq}:input:<node>:<session>",
            "exec:{bq}:output:<node>:<session>",
        )
    ),
    *(
        _row(name, "api", "poison", healthy)
        for name, healthy in (
            (keys.TOKENS, b'{"id":"poison","owner":"alice"}'),
            (keys.TOKENS_USED, b"1700000000000"),
            (keys.BINDINGS, b'{"subject":"user:alice"}'),
        )
    ),
    _row(keys.ACCESS_STATE, "api", "revision"),
    _row(keys.AUDIT, "api", "record", b'{"user":"alice"}'),
)

_JOB = b'["batchq.worker.entry.run_pod", null, ["x", 1], {}]'


_NO_READER = "batchq does not read it, nor does what it uses of RQ"
_NO_QUEUE = "no queue holds its id"
_AN_ID = "it may be the id of an RQ job without a record, which expires"


def _of_rq(
    pattern: str,
    type_: str,
    field: str = "poison",
    healthy: bytes = b"poison",
    *,
    unnamed: str = "",
    after: tuple[str, ...] = (),
) -> Row:
    name = keys.of_rq("n1", keys.RQ + pattern.replace("<queue>", "bq-node-n1"))
    name = name.replace("<attempt>", "poison").replace("<agent>", "poison")
    return Row(
        pattern=pattern,
        name=name,
        type=type_,
        user="worker-n1",
        field=field,
        healthy=healthy,
        unnamed=unnamed,
        unnamed_after=after,
    )


#: The keys of RQ that an agent uses.
RQ_ROWS: tuple[Row, ...] = (
    _of_rq("queue:<queue>", "list", unnamed=_AN_ID, after=_PLAIN),
    _of_rq("queue:<queue>:intermediate", "list", unnamed=_AN_ID, after=_PLAIN),
    _of_rq("job:<attempt>", "hash", "data", _JOB, unnamed=_NO_QUEUE, after=(WRONG_TYPE,)),
    _of_rq("workers", "set"),
    _of_rq("workers:<queue>", "set"),
    _of_rq("worker:<agent>", "hash", "birth", unnamed=_NO_READER, after=DAMAGES),
    _of_rq("results:<attempt>", "stream", "return_value", unnamed=_NO_READER, after=DAMAGES),
    *(
        _of_rq(f"{registry}:<queue>", "zset", unnamed=_AN_ID, after=_PLAIN)
        for registry in ("wip", "finished", "failed", "deferred")
    ),
    *(
        _of_rq(f"{registry}:<queue>", "zset", unnamed=_NO_READER, after=DAMAGES)
        for registry in ("scheduled", "canceled", "executions")
    ),
)


def damage(client: redis.Redis, row: Row, how: str) -> None:
    """Damage a key of this kind. A string that exists gets no other type from a user without
    DEL.
    """
    if how == WRONG_TYPE:
        _replace(client, row)
        return
    value = _value(row, how)
    if row.user == "worker-n1":
        # It may still be of another type, and so refuse the command.
        client.delete(row.name)
    match row.type:
        case "hash":
            client.hset(row.name, mapping={row.field: value, b"\xff": value})
        case "stream":
            client.xadd(row.name, {row.field: value, b"\xff": value})
        case "list":
            client.rpush(row.name, value)
        case "set":
            client.sadd(row.name, value)
        case "zset":
            client.zadd(row.name, {value: 1})
        case _:
            client.set(row.name, value)
    if row.pattern == "job:<attempt>":
        client.rpush(keys.of_rq("n1", f"{keys.RQ}queue:bq-node-n1"), "poison")


def _replace(client: redis.Redis, row: Row) -> None:
    if row.type != "string":
        client.set(row.name, "x")
        return
    with suppress(redis.exceptions.NoPermissionError):
        client.delete(row.name)
    with suppress(redis.exceptions.ResponseError):
        client.hset(row.name, "a", "b")


def _value(row: Row, how: str) -> bytes:
    match how:
        case "truncated" if row.kind:
            return damaged_object(row.kind, row.field, "truncated")
        case "truncated":
            return row.healthy[: len(row.healthy) // 2]
        case "bytes":
            return b"\xff\xfe\x00"
        case "huge":
            return HUGE
        case "deep":
            return DEEP
    return b"garbage"
