"""Every kind of key in the server, a user who may write it, and the ways to damage it."""

from __future__ import annotations

from contextlib import suppress

import redis
from msgspec import Struct

from batchq.api.objects import KINDS
from batchq.store import keys
from tests.poison.damage import DEEP, HUGE, PLACES, damaged_object


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


_WRITERS = {"PodGroup": "submitter", "Pod": "submitter", "AdmissionCheck": "controller"}
_TYPES = {key.name: key.type for key in keys.TABLE}


def _row(pattern: str, user: str, field: str = "poison", healthy: bytes = b"1000") -> Row:
    name = pattern
    for part, literal in (("<node>", "n1"), ("<pod>", "p"), ("<attempt>", "1"), ("<id>", "1")):
        name = name.replace(part, literal)
    type_ = _TYPES[pattern]
    return Row(pattern=pattern, name=name, type=type_, user=user, field=field, healthy=healthy)


def _rows_of_kind(kind: str) -> tuple[Row, Row]:
    user, place = _WRITERS.get(kind, "operator"), PLACES[kind]
    heads = _row(keys.heads(kind), user, place, b"5|Bound|u 1 1|")
    objects = keys.objects(kind)
    return Row(pattern=objects, name=objects, type="hash", user=user, field=place, kind=kind), heads


_CHARGE = b'[["cluster"],[["cpu","1"]]]'
_DELIVERY = b'5 1 {"pod":"p","attempt":1,"node":"n"}'
_EVENT = b'{"kind":"Pod","key":"p","reason":"Tested","at":1}'
_CLAIM = b'{"fact":"claim","pod":"p","attempt":1,"agent":"a","fence":"f"}'
_LEDGER_FIELD = "cluster cpu"

ROWS: tuple[Row, ...] = (
    *(row for kind in KINDS for row in _rows_of_kind(kind)),
    _row(keys.REVISION, "submitter"),
    _row(keys.CHANGES, "submitter", "kind", b"PodGroup"),
    _row(keys.EVENTS, "submitter", "event", _EVENT),
    _row(keys.LEDGER, "submitter", _LEDGER_FIELD),
    _row(keys.CHARGES, "submitter", "group:poison", _CHARGE),
    _row(keys.request("<id>"), "submitter", healthy=b"[1,[]]"),
    _row(keys.LIMITS, "operator", "queue:poison", b'{"cpu":"1"}'),
    _row(keys.EPOCH, "scheduler"),
    _row(keys.SERVER, "scheduler", "generation"),
    _row(keys.LEADER, "scheduler", "epoch"),
    _row(keys.SCHEDULERS, "scheduler", healthy=b"1700000000000 5"),
    _row(keys.CONFIG, "scheduler", healthy=b"actions: [allocate]\n"),
    _row(keys.OUTBOX, "scheduler", "p-1", _DELIVERY),
    _row(keys.COUNTS, "scheduler", "unreadable"),
    _row(keys.LEADER_CHANNEL, "worker-n1", "node", b"n1"),
    _row(keys.report_queue("<node>"), "worker-n1", "p-1", _CLAIM),
    _row(keys.alive("<node>"), "worker-n1", "beat", b"1700000000000"),
    _row(keys.wake_up_channel("<node>"), "worker-n1", "word", b"pods"),
    _row("{bq}:log:<node>:<pod>-<attempt>", "worker-n1", "data", b"output"),
    _row("{bq}:result:<node>:<pod>-<attempt>", "worker-n1", healthy=b'{"value":1}'),
    _row("{bq}:token:<node>:<pod>-<attempt>", "worker-n1", healthy=b"0" * 64),
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


def _of_rq(pattern: str, type_: str, field: str = "poison", healthy: bytes = b"poison") -> Row:
    name = keys.of_rq("n1", keys.RQ + pattern.replace("<queue>", "bq-node-n1"))
    name = name.replace("<attempt>", "poison").replace("<agent>", "poison")
    return Row(
        pattern=pattern, name=name, type=type_, user="worker-n1", field=field, healthy=healthy
    )


#: The keys of RQ that an agent uses.
RQ_ROWS: tuple[Row, ...] = (
    _of_rq("queue:<queue>", "list"),
    _of_rq("queue:<queue>:intermediate", "list"),
    _of_rq("job:<attempt>", "hash", "data", _JOB),
    _of_rq("workers", "set"),
    _of_rq("workers:<queue>", "set"),
    _of_rq("worker:<agent>", "hash", "birth"),
    _of_rq("results:<attempt>", "stream", "return_value"),
    *(
        _of_rq(f"{registry}:<queue>", "zset")
        for registry in (
            *("wip", "finished", "failed", "deferred", "scheduled", "canceled", "executions"),
        )
    ),
)

WRONG_TYPE = "wrong type"
DAMAGES = ("garbage", "truncated", "bytes", WRONG_TYPE, "huge", "deep")


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
