"""What `batchq doctor` reads from a server. It never writes, and omits what its user may not read.

`look_at_server` reads the server's settings and counters, `read_books` every object together with
the ledger that should agree with them, all at one revision however busy the server is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from msgspec import Struct

from batchq.api.node_report import NodeReport, decode
from batchq.api.objects import KINDS, Object, Unreadable, key_of, kind_of
from batchq.api.transaction import Ledger
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.errors import StoreUnavailable
from batchq.store import keys
from batchq.store.codec import DAMAGE
from batchq.store.link import OTHER_TYPE, answers_of, count_of_writes, is_forbidden
from batchq.store.mirror import Change, Trimmed, read_changes
from batchq.store.records import field_of_key, name_of, read_charges, read_ledger, read_limits
from batchq.store.redis import RedisStore
from batchq.store.rules import Held

T = TypeVar("T")

PINGS = 5
#: Changes allowed between listing the objects and reading the ledger; with more, the read starts
#: over.
_CHANGES_BETWEEN = 5_000
_BOOKS_READ = 8
#: Reports read from each node's queue, approximately and at most.
_FACTS_READ = 1_000


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What the server says of itself. None: this user may not ask, or the server does not say.

    `numbers` is the version of Redis, or the one that a Valkey is compatible with. `skew_ms` is how
    far this machine's wall clock is ahead of the server's.
    """

    place: str
    pings_us: tuple[int, ...]
    skew_ms: int
    #: Whether INFO was answered; it is the source of all fields below but `user` and `appendfsync`.
    informed: bool = False
    version: str = ""
    numbers: tuple[int, ...] = ()
    role: str = ""
    cluster: bool = False
    uptime_s: int | None = None
    maxmemory_policy: str | None = None
    maxmemory_bytes: int | None = None
    used_bytes: int | None = None
    evicted_keys: int | None = None
    clients: int | None = None
    maxclients: int | None = None
    rejected_connections: int | None = None
    aof: bool | None = None
    aof_write_ok: bool | None = None
    rdb_save_ok: bool | None = None
    appendfsync: str | None = None
    user: str | None = None


class Stored(Struct, frozen=True):
    """The hashes of the ledger, charges and limits, as stored."""

    ledger: Mapping[bytes, bytes] = {}
    charges: Mapping[bytes, bytes] = {}
    limits: Mapping[bytes, bytes] = {}


class Books(Struct, frozen=True, kw_only=True):
    """Objects by kind and key, with ledger, charges and limits, all at one revision."""

    revision: int
    objects: Mapping[str, Mapping[str, Object]]
    ledger: Ledger
    charges: Mapping[str, Held]
    limits: Mapping[str, Mapping[str, int]]
    standing: ContactStanding = ContactStanding()
    #: The records among all these that cannot be read.
    unreadable: tuple[Unreadable, ...] = ()
    stored: Stored = Stored()


def open_for_inspection(url: str) -> RedisStore:
    """Return the store behind a URL without checking that the server is usable. It asks once, so
    that an unavailable server is reported at once.

    Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers.
    """
    store = RedisStore(url)
    try:
        permitted(lambda: store.link.ask(lambda client: client.ping(), tries=1))
    except StoreUnavailable:
        store.close()
        raise
    return store


def permitted(question: Callable[[], T]) -> T | None:
    """Return the answer; None if this user may not ask. Raises StoreUnavailable."""
    try:
        return question()
    except StoreUnavailable as error:
        if is_forbidden(error):
            return None
        raise


def look_at_server(store: RedisStore) -> ServerFacts:
    """Return the server's settings and counters. Raises StoreUnavailable."""
    link = store.link
    pings = tuple(_ping_us(store) for _ in range(PINGS))
    info = permitted(lambda: link.ask(lambda client: client.info()))
    user = permitted(lambda: link.ask(lambda client: client.acl_whoami()))
    stated = info or {}
    return ServerFacts(
        place=link.shown,
        pings_us=pings,
        skew_ms=_skew_ms(store),
        informed=info is not None,
        version=_version(stated),
        numbers=tuple(int(part) for part in re.findall("[0-9]+", _text(stated, "redis_version"))),
        role={"master": "primary", "slave": "replica"}.get(_text(stated, "role"), ""),
        cluster=bool(stated.get("cluster_enabled")),
        uptime_s=_number(stated, "uptime_in_seconds"),
        maxmemory_policy=_text(stated, "maxmemory_policy") or _setting(store, "maxmemory-policy"),
        maxmemory_bytes=_number(stated, "maxmemory"),
        used_bytes=_number(stated, "used_memory"),
        evicted_keys=_number(stated, "evicted_keys"),
        clients=_number(stated, "connected_clients"),
        maxclients=_number(stated, "maxclients") or _whole(_setting(store, "maxclients")),
        rejected_connections=_number(stated, "rejected_connections"),
        aof=_flag(stated, "aof_enabled", 1),
        aof_write_ok=_flag(stated, "aof_last_write_status", "ok"),
        rdb_save_ok=_flag(stated, "rdb_last_bgsave_status", "ok"),
        appendfsync=_setting(store, "appendfsync"),
        user=user.decode() if isinstance(user, bytes) else user,
    )


def read_books(store: RedisStore) -> Books | None:
    """Return objects and ledger of one instant; None if the server is written faster than it is
    read.

    The objects are listed first; the changes since then are read in the same step as the ledger, so
    that both are of one revision despite concurrent writers. For `snapshot`'s thread only. Raises
    StoreUnavailable.
    """
    for _ in range(_BOOKS_READ):
        snapshot = store.snapshot()
        revision, reply, *hashes = store.link.ask(partial(_pull, after=snapshot.revision))
        try:
            changes = read_changes(reply, snapshot.revision)
        except Trimmed:
            continue
        if (changes[-1].revision if changes else snapshot.revision) != revision:
            continue
        ledger, bad_sums = read_ledger(hashes[0])
        charges, bad_charges = read_charges(hashes[1])
        limits, bad_limits = read_limits(hashes[2], revision)
        objects = _with_changes(snapshot, changes)
        return Books(
            revision=revision,
            objects=objects,
            ledger=ledger,
            charges=charges,
            limits=limits,
            stored=Stored(*hashes),
            standing=snapshot.standing,
            unreadable=(
                *_unreadable_after(store.unreadable(), changes),
                *bad_sums,
                *bad_charges,
                *bad_limits,
            ),
        )
    return None


def _pull(client: Any, after: int) -> tuple[int, Any, dict[bytes, bytes], Any, Any]:
    pipeline = client.pipeline(transaction=True)
    pipeline.get(keys.REVISION)
    pipeline.xread({keys.CHANGES: f"{after}-0"}, count=_CHANGES_BETWEEN)
    for key in (keys.LEDGER, keys.CHARGES, keys.LIMITS):
        pipeline.hgetall(key)
    revision, *rest = pipeline.execute()
    return count_of_writes(revision), *rest


def _with_changes(snapshot: Snapshot, changes: list[Change]) -> dict[str, dict[str, Object]]:
    objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
    listed: list[Object] = [*snapshot.queues, *snapshot.quotas, *snapshot.nodes, *snapshot.groups]
    listed += [pod for pods in snapshot.pods.values() for pod in pods]
    for item in listed:
        objects[kind_of(item)][key_of(item)] = item
    for change in changes:
        if change.value is None:
            objects[change.kind].pop(change.key, None)
        else:
            objects[change.kind][change.key] = change.value
    return objects


def _unreadable_after(
    of_snapshot: Sequence[Unreadable], changes: Sequence[Change]
) -> tuple[Unreadable, ...]:
    """Return the unreadable records, after the changes since the snapshot."""
    found = {(one.kind, one.key): one for one in of_snapshot}
    for change in changes:
        place = change.kind, name_of(field_of_key(change.key))
        found.pop(place, None)
        if change.unreadable is not None:
            found[place] = change.unreadable
    return tuple(found[place] for place in sorted(found))


def _ping_us(store: RedisStore) -> int:
    started = time.perf_counter_ns()
    permitted(lambda: store.link.ask(lambda client: client.ping()))
    return (time.perf_counter_ns() - started) // 1000


def _skew_ms(store: RedisStore) -> int:
    before = time.time_ns()
    answer = store.link.ask(lambda client: client.time())
    after = time.time_ns()
    return (before + after) // 2_000_000 - (answer[0] * 1000 + answer[1] // 1000)


def _setting(store: RedisStore, name: str) -> str | None:
    """Return a setting by CONFIG GET; None if this user may not ask, or the host has removed the
    command.
    """
    try:
        found = permitted(lambda: store.link.ask(lambda client: client.config_get(name)))
    except StoreUnavailable as error:
        if "unknown command" in str(error.__cause__):
            return None
        raise
    if not isinstance(found, Mapping):
        return None
    for key, value in found.items():
        if _plain(key) == name:
            return _plain(value)
    return None


def _version(info: Mapping[str, Any]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else ""


def _text(info: Mapping[str, Any], name: str) -> str:
    return str(info.get(name, ""))


def _number(info: Mapping[str, Any], name: str) -> int | None:
    return _whole(str(info[name])) if name in info else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _flag(info: Mapping[str, Any], name: str, wanted: str | int) -> bool | None:
    return info[name] == wanted if name in info else None


def _plain(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class WaitingReport(Struct, frozen=True, kw_only=True):
    """A node report that waits in a queue. `fact` is None for a report of an unknown version."""

    node: str
    subject: str
    fact: NodeReport | None
    stored: bytes


def posted_by(store: RedisStore, nodes: Sequence[str]) -> list[WaitingReport]:
    """Return the reports in these nodes' queues, by node and subject; only some of a very long
    queue. Raises StoreUnavailable.
    """
    if not nodes:
        return []
    found = store.link.ask(partial(_inboxes, nodes=nodes))
    damaged = [node for node, inbox in zip(nodes, found, strict=True) if inbox is None]
    store.link.found_damaged |= dict.fromkeys(map(keys.inbox, damaged), OTHER_TYPE)
    return [
        WaitingReport(node=node, subject=name_of(subject), fact=_report(stored), stored=stored)
        for node, inbox in zip(nodes, found, strict=True)
        for subject, stored in sorted((inbox or {}).items())
    ]


def sizes_of_inboxes(store: RedisStore, nodes: Sequence[str]) -> dict[str, int]:
    """Return the length of each node's report queue, where this user may read it. Raises
    StoreUnavailable.
    """

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        for node in nodes:
            pipeline.hlen(keys.inbox(node))
        return cast("list[Any]", pipeline.execute(raise_on_error=False)) if nodes else []

    sizes = zip(nodes, store.link.ask(asked), strict=True)
    return {node: size for node, size in sizes if isinstance(size, int)}


def _inboxes(client: Any, nodes: Sequence[str]) -> list[dict[bytes, bytes] | None]:
    pipeline = client.pipeline(transaction=False)
    for node in nodes:
        pipeline.hscan(keys.inbox(node), cursor=0, count=_FACTS_READ)
    return [None if answer is None else answer[1] for answer in answers_of(pipeline)]


def _report(stored: bytes) -> NodeReport | None:
    try:
        return decode(stored)
    except DAMAGE:
        return None
