"""What `batchq doctor` reads from a server. It never writes, and omits what its user may not read.

`look_at_server` reads the server's settings and counters, `read_books` every object together with
the ledger that should agree with them, all at one revision however busy the server is.
`damaged_keys` finds shared keys that batchq cannot have written. A key of another type fails every
call that touches it. It holds nothing of batchq's, so the leader deletes it, and its owners rebuild
lists and sums. The count of writes continues after the newest change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from msgspec import Struct

from batchq.api.node_report import NodeReport, decode
from batchq.api.notation import subdomain_problem
from batchq.api.objects import KINDS, Object, Unreadable, key_of, kind_of
from batchq.api.transaction import Event, Ledger
from batchq.api.views import Change
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.errors import StoreUnavailable
from batchq.store import keys, scripts
from batchq.store.commits import EVENTS_KEPT
from batchq.store.keys import Key
from batchq.store.link import (
    OTHER_TYPE,
    Link,
    answers_of,
    count_of_writes,
    has_no_ids_left,
    is_count,
    is_forbidden,
    is_wrong_type,
    text_of_answer,
)
from batchq.store.liveness import MOST_FIELDS, damaged_in
from batchq.store.mirror import Trimmed, after_change, read_changes
from batchq.store.node_channels import EVERYTHING
from batchq.store.records import (
    DAMAGE,
    field_of_key,
    name_of,
    name_of_record,
    read_charges,
    read_event,
    read_ledger,
    read_limits,
    read_outbox,
    text_of,
    whole,
)
from batchq.store.redis import RedisStore
from batchq.store.rules import Held
from batchq.store.schedulers import read_entry

T = TypeVar("T")

LOOKS = 5
#: Changes allowed between listing the objects and reading the ledger; with more, the read starts
#: over.
_CHANGES_BETWEEN = 5_000
_BOOKS_READ = 8
#: More than any count of writes.
_ANY_REVISION = 2**53
#: The part of its maxmemory from which a server may refuse writes.
_FULL = 0.95
_BOOKS = (keys.LEDGER, keys.CHARGES, keys.LIMITS)
#: Reports read from each node's queue, approximately and at most.
_REPORTS_READ = 1_000


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What the server says of itself. None: this user may not ask, or the server does not say.

    `numbers` is the version of Redis, or the one that a Valkey is compatible with. `skew_ms` is how
    far this machine's wall clock is ahead of the server's.
    """

    place: str
    answers_us: tuple[int, ...]
    skew_ms: int
    #: Whether INFO was answered; it is the source of all fields below but `user`, `appendfsync`
    #: and `folder`.
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
    #: Where it keeps its files.
    folder: str | None = None
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
    #: Whether all is of one instant, so that the ledger can be compared with the objects.
    is_consistent: bool = True


def open_for_inspection(url: str) -> RedisStore:
    """Return the store behind a URL without checking that the server is usable. It asks once, so
    that an unavailable server is reported at once.

    Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers.
    """
    store = RedisStore(url)
    try:
        permitted(lambda: store.link.ask(lambda client: client.time(), tries=1))
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
    answers = tuple(_answer_us(store) for _ in range(LOOKS))
    info = permitted(lambda: link.ask(lambda client: client.info()))
    user = permitted(lambda: link.ask(lambda client: client.acl_whoami()))
    stated = info or {}
    return ServerFacts(
        place=link.shown,
        answers_us=answers,
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
        folder=_setting(store, "dir"),
        user=user.decode() if isinstance(user, bytes) else user,
    )


def why_writes_are_refused(store: RedisStore) -> str:
    """Return why the server refuses writes, and what to do, as far as reads can tell; "" if it
    seems to accept them. Raises StoreUnavailable.
    """
    if not store.link.run_id():
        return ""
    stated = permitted(lambda: store.link.ask(lambda client: client.info())) or {}
    used, most = _number(stated, "used_memory") or 0, _number(stated, "maxmemory") or 0
    log_failed = _flag(stated, "aof_last_write_status", "ok") is False
    # Without intervals, a save that has failed was asked for, and refuses no writes.
    save_failed = (
        _flag(stated, "rdb_last_bgsave_status", "ok") is False and _setting(store, "save") != ""
    )
    if save_failed or (log_failed and stated.get("aof_enabled")):
        return text_of_answer("MISCONF")
    return text_of_answer("OOM") if most and used >= _FULL * most else ""


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


def read_damaged_books(store: RedisStore) -> Books:
    """Return what can be read beside damaged keys, which `damaged_keys` finds; a key of another
    type counts as empty. Raises StoreUnavailable.
    """
    objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
    unreadable: list[Unreadable] = []
    for kind in KINDS:
        try:
            listing = store.listing(kind)
        except StoreUnavailable as error:
            if not is_wrong_type(error.__cause__):
                raise
            continue
        objects[kind] = {key_of(item): item for item in listing.objects}
        unreadable += listing.unreadable
    count, *hashes = store.link.ask(_pull_damaged)
    ledger, bad_sums = read_ledger(hashes[0] or {})
    charges, bad_charges = read_charges(hashes[1] or {})
    limits, bad_limits = read_limits(hashes[2] or {}, whole(count) or _ANY_REVISION)
    return Books(
        revision=0,
        objects=objects,
        ledger=ledger,
        charges=charges,
        limits=limits,
        unreadable=(*unreadable, *bad_sums, *bad_charges, *bad_limits),
        is_consistent=False,
    )


def _pull_damaged(client: Any) -> list[Any]:
    pipeline = client.pipeline(transaction=True)
    pipeline.get(keys.REVISION)
    for key in _BOOKS:
        pipeline.hgetall(key)
    return answers_of(pipeline)


def _pull(client: Any, after: int) -> tuple[int, Any, dict[bytes, bytes], Any, Any]:
    pipeline = client.pipeline(transaction=True)
    pipeline.get(keys.REVISION)
    pipeline.xread({keys.CHANGES: after_change(after)}, count=_CHANGES_BETWEEN)
    for key in _BOOKS:
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
        place = change.kind, name_of_record(field_of_key(change.key))
        found.pop(place, None)
        if change.unreadable is not None:
            found[place] = change.unreadable
    return tuple(found[place] for place in sorted(found))


def _answer_us(store: RedisStore) -> int:
    started = time.perf_counter_ns()
    permitted(lambda: store.link.ask(lambda client: client.time()))
    return (time.perf_counter_ns() - started) // 1000


def _skew_ms(store: RedisStore) -> int:
    before = time.time_ns()
    answer = store.link.ask(lambda client: client.time())
    after = time.time_ns()
    return (before + after) // 2_000_000 - (answer[0] * 1000 + answer[1] // 1000)


def _setting(store: RedisStore, name: str) -> str | None:
    """Return a setting by CONFIG GET; None if this user may not ask, or it is removed."""
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
    """A node report that waits in a queue. `report` is None for a report of an unknown version."""

    node: str
    subject: str
    report: NodeReport | None
    stored: bytes


def posted_by(store: RedisStore, nodes: Sequence[str]) -> list[WaitingReport]:
    """Return the reports in these nodes' queues, by node and subject; only some of a very long
    queue. Raises StoreUnavailable.
    """
    if not nodes:
        return []
    found = store.link.ask(partial(_inboxes, nodes=nodes))
    damaged = [node for node, queue in zip(nodes, found, strict=True) if queue is None]
    store.link.found_damaged |= dict.fromkeys(map(keys.report_queue, damaged), OTHER_TYPE)
    return [
        WaitingReport(node=node, subject=name_of(subject), report=_report(stored), stored=stored)
        for node, queue in zip(nodes, found, strict=True)
        for subject, stored in sorted((queue or {}).items())
    ]


def sizes_of_inboxes(store: RedisStore, nodes: Sequence[str]) -> dict[str, int]:
    """Return the length of each node's report queue, where this user may read it. Raises
    StoreUnavailable.
    """

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        for node in nodes:
            pipeline.hlen(keys.report_queue(node))
        return cast("list[Any]", pipeline.execute(raise_on_error=False)) if nodes else []

    sizes = zip(nodes, store.link.ask(asked), strict=True)
    return {node: size for node, size in sizes if isinstance(size, int)}


def _inboxes(client: Any, nodes: Sequence[str]) -> list[dict[bytes, bytes] | None]:
    pipeline = client.pipeline(transaction=False)
    for node in nodes:
        pipeline.hscan(keys.report_queue(node), cursor=0, count=_REPORTS_READ)
    return [None if answer is None else answer[1] for answer in answers_of(pipeline)]


def _report(stored: bytes) -> NodeReport | None:
    try:
        return decode(stored)
    except DAMAGE:
        return None


#: The keys that all share, by name: a family of keys has a part that varies.
SHARED: tuple[Key, ...] = tuple(
    key for key in keys.TABLE if "<" not in key.name and key.name not in keys.ACCESS
)
#: The `Unreadable.kind` of a damaged key, and of an entry of a stream.
KEY, ENTRY = "Key", "Entry"
#: The reasons of events that report a leader's repairs.
MENDED = ("Mended", "Recounted")
#: The most repairs of one kind that are logged and become events at once: more than there are keys
#: that all share.
MOST_TOLD = 50
#: Fields of each hash checked in one step.
_PAGE = 1_000

_NO_COUNT = "it is not a count of writes"
_BEHIND = "behind an earlier write"
_NO_IDS_LEFT = "its last id is beyond any clock, so no entry can follow it"
_GOES = "none: it is ignored, and trimmed when enough newer ones have followed"
_BY_LEADER = "the leading scheduler repairs it within seconds; if it stays, start a scheduler"


def damaged_keys(link: Link, highest: int = 0) -> list[Unreadable]:
    """Return the shared keys of another type, counters if one is malformed, and a count of writes
    that is malformed or too low.

    `highest`: a revision that was stored before. Raises StoreUnavailable.
    """

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=True)
        for key in SHARED:
            match key.type:
                case "hash" if key.name == keys.COUNTS:
                    pipeline.hgetall(key.name)
                case "hash":
                    pipeline.hget(key.name, "")
                case "stream":
                    pipeline.xrevrange(key.name, count=1)
                case _:
                    pipeline.get(key.name)
        return cast("list[Any]", pipeline.execute(raise_on_error=False))

    found = []
    answers = dict(zip(SHARED, link.ask(asked), strict=True))
    for key, answer in answers.items():
        if isinstance(answer, Exception) and not is_wrong_type(answer):
            raise link.unavailable(answer) from answer
        if isinstance(answer, Exception):
            found.append(damaged_key(key.name, f"it is not a {key.type}"))
        elif key.name == keys.REVISION and not is_count(answer):
            found.append(damaged_key(key.name, _NO_COUNT))
        elif key.name == keys.COUNTS:
            found += _damaged_counters(answer)
    if not found and (behind := _behind(answers, highest)) is not None:
        found.append(damaged_count(behind))
    there = {one.key for one in found}
    streams = [key.name for key in SHARED if key.type == "stream" and key.name not in there]
    return [*found, *(damaged_key(name, _NO_IDS_LEFT) for name in without_ids_left(link, streams))]


def _damaged_counters(stored: Mapping[bytes, bytes]) -> list[Unreadable]:
    """Return the finding about the first malformed counter, if any."""
    bad = sorted(field for field, count in stored.items() if not is_count(count))
    return [damaged_key(keys.COUNTS, f"its field {_shown(bad[0])} is not a count")] if bad else []


def without_ids_left(link: Link, streams: Sequence[str]) -> list[str]:
    """Return the streams whose ids are beyond any clock; without those that this user may not
    inspect. Raises StoreUnavailable.

    The newest entry is no substitute: it may have been deleted.
    """
    replies = zip(*_infos(link, streams), strict=True)
    return [
        name for name, one in replies if not isinstance(one, Exception) and has_no_ids_left(one)
    ]


def _infos(link: Link, streams: Sequence[str]) -> tuple[Sequence[str], list[Any]]:
    """Return the names of streams, and the answer to XINFO STREAM, or an error, for each."""

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        for name in streams:
            pipeline.xinfo_stream(name)
        return cast("list[Any]", pipeline.execute(raise_on_error=False)) if streams else []

    return streams, link.ask(asked)


def _behind(answers: Mapping[Key, Any], highest: int) -> int | None:
    """Return the count of writes if the newest change or a stored revision is ahead of it."""
    by_name = {key.name: answer for key, answer in answers.items()}
    newest = by_name[keys.CHANGES]
    count = count_of_writes(by_name[keys.REVISION])
    ahead = int(newest[0][0].split(b"-")[0]) if newest else 0
    return count if max(ahead, highest) > count else None


def damaged_count(was: int) -> Unreadable:
    """Return the finding about a count of writes that was too low."""
    return damaged_key(keys.REVISION, f"it was {was}, {_BEHIND}")


def repaired_by_writes(found: Sequence[tuple[str, int]]) -> list[Unreadable]:
    """Return the findings about keys that writes have repaired (`Mirror.repairs`)."""
    return [
        damaged_count(was) if key == keys.REVISION else damaged_key(key, _NO_IDS_LEFT)
        for key, was in found
    ]


def damaged_key(name: str, why: str) -> Unreadable:
    """Return the finding about a key that the leader repairs."""
    return Unreadable(kind=KEY, key=name, why=why, remedy=_BY_LEADER)


#: Fields of single records, and those of them that are numbers.
_FIELDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (keys.LEADER, ("identity", "epoch", "expires_at"), ("epoch", "expires_at")),
    (keys.SERVER, ("run", "generation", "since"), ("generation", "since")),
)
#: The latest entries of a stream that are checked.
_ENTRIES_LOOKED_AT = 1_000


def damaged_fields(link: Link) -> list[Unreadable]:
    """Return malformed values in the records of leader, server and schedulers, and malformed
    entries among the latest of the change stream and of the leader's wake-up channel; none in a key
    of another type. Raises StoreUnavailable.
    """

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        pipeline.get(keys.EPOCH)
        pipeline.hgetall(keys.SCHEDULERS)
        pipeline.xrevrange(keys.CHANGES, count=_ENTRIES_LOOKED_AT)
        pipeline.xrevrange(keys.LEADER_CHANNEL, count=_ENTRIES_LOOKED_AT)
        for key, names, _ in _FIELDS:
            pipeline.hmget(key, names)
        return answers_of(pipeline)

    epoch, there, changes, wake_ups, *records = link.ask(asked)
    found = []
    if not is_count(epoch):
        found.append(damaged_key(keys.EPOCH, "it is not an epoch"))
    for (key, names, numbers), values in zip(_FIELDS, records, strict=True):
        fields = dict(zip(names, values or (), strict=False))
        found += [
            damaged_key(key, f"its field {name} is not a number")
            for name in numbers
            if fields.get(name) is not None and not is_count(fields[name])
        ]
    found += [
        damaged_key(keys.SCHEDULERS, f"its field {_shown(field)} is not a scheduler's entry")
        for field, entry in sorted((there or {}).items())
        if read_entry(field, entry) is None
    ]
    found += [
        _ignored(keys.CHANGES, id_, "a change")
        for id_, one in changes or ()
        if not _is_change(id_, one)
    ]
    found += [
        _ignored(keys.LEADER_CHANNEL, id_, "a notification of a node")
        for id_, one in wake_ups or ()
        if subdomain_problem(one.get(b"node", b"").decode(errors="replace"))
    ]
    return found


def _is_change(id_: bytes, fields: dict[bytes, bytes]) -> bool:
    try:
        read_changes([(b"", [(id_, fields)])], int(id_.split(b"-")[0]) - 1)
    except Trimmed:
        return False
    return True


def _shown(field: bytes) -> str:
    return name_of(field)[:60]


def _ignored(stream: str, id_: bytes, what: str) -> Unreadable:
    """Return the finding about an entry of a stream, which its readers skip."""
    return Unreadable(kind=ENTRY, key=f"{stream} {name_of(id_)}", why=f"not {what}", remedy=_GOES)


def damaged_deliveries(link: Link) -> list[Unreadable]:
    """Return the malformed entries of the outbox. Raises StoreUnavailable."""
    stored = link.ask(lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.OUTBOX)))
    return read_outbox(stored)[1]


def damaged_in_nodes(store: RedisStore, nodes: Sequence[str]) -> list[Unreadable]:
    """Return malformed fields of the keys that nodes write, and keys of another type.

    Raises StoreUnavailable.
    """
    found = [
        one for node, fields in store.alive.read(nodes).items() for one in damaged_in(node, fields)
    ]
    found += _damaged_wake_ups(store.link, nodes)
    _note_bells(store.link, nodes)
    return [*found, *damaged_keys_of_nodes(store.link)]


def _damaged_wake_ups(link: Link, nodes: Sequence[str]) -> list[Unreadable]:
    """Return the malformed entries in these nodes' wake-up channels."""
    found: list[Unreadable] = []
    for node in nodes:
        name = keys.wake_up_channel(node)
        [page] = link.ask(partial(_latest_of, name))
        found += [
            _ignored(name, id_, "a wake-up")
            for id_, one in page or ()
            if one.get(b"word", b"").decode(errors="replace") not in EVERYTHING
        ]
    return found


def _latest_of(name: str, client: Any) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    pipeline.xrevrange(name, count=_ENTRIES_LOOKED_AT)
    return answers_of(pipeline)


def damaged_events(store: RedisStore, most: int) -> list[Unreadable]:
    """Return the malformed ones among the latest events. Raises StoreUnavailable."""
    page = store.link.ask(lambda client: client.xrevrange(keys.EVENTS, count=most))
    return [
        _ignored(keys.EVENTS, id_, "an event")
        for id_, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", page)
        if read_event(fields) is None
    ]


def damaged_keys_of_nodes(link: Link) -> list[Unreadable]:
    """Return, once, the nodes' keys that this process has found damaged as a whole."""
    found = sorted(link.found_damaged)
    return [damaged_key(name, link.found_damaged.pop(name)) for name in found]


def _note_bells(link: Link, nodes: Sequence[str]) -> None:
    """Note wake-up channels of another type, and those with ids beyond any clock."""
    for name, info in zip(*_infos(link, [*map(keys.wake_up_channel, nodes)]), strict=True):
        if is_wrong_type(info):
            link.found_damaged[name] = OTHER_TYPE
        elif not isinstance(info, Exception) and has_no_ids_left(info):
            link.found_damaged[name] = _NO_IDS_LEFT


def event_of_repair(one: Unreadable, now_ms: int) -> Event:
    """Return the event of a repair of this."""
    message = f"{one.why}; it was repaired"
    return Event(kind=one.kind, key=one.key[:128], reason="Mended", message=message, at=now_ms)


def mend(
    link: Link, damaged: Sequence[Unreadable], *, epoch: int, now_ms: int, highest: int
) -> list[Unreadable]:
    """Delete the keys of another type, and repair the count of writes, as the leader of `epoch`,
    each with its event. A key that is in order by now is left alone.

    `highest`: as for `damaged_keys`. Returns what was repaired. Raises StoreUnavailable.
    """
    # The event stream first, because it takes the events; the count after the changes.
    ordered = sorted(damaged, key=lambda one: (one.key == keys.REVISION, one.key != keys.EVENTS))
    names = (keys.EPOCH, keys.EPOCH, keys.REVISION, keys.CHANGES, keys.EVENTS)
    arguments: list[str | int] = [epoch, now_ms, highest, EVENTS_KEPT]
    for number, one in enumerate(ordered):
        event = text_of(event_of_repair(one, now_ms)) if number < MOST_TOLD else ""
        arguments += [*_expected(one.key), event]
    places = link.run(scripts.MEND, (*names, *(one.key for one in ordered)), arguments)
    return [ordered[place - 1] for place in places]


def _expected(name: str) -> tuple[str, str]:
    """Return the type that a key should have, and the most fields or "", for `mend.lua`."""
    if name == keys.COUNTS:
        return "counts", ""
    declared = keys.declared(name)
    most = str(MOST_FIELDS) if name.startswith(keys.alive("")) else ""
    return declared.type if declared is not None else "hash", most


#: Nodes whose wake-up channels are checked in one step.
_BELLS = 100


class ChannelsCheck:
    """Checks the wake-up channels of some nodes at a time, in turn."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._left: list[str] = []

    def next(self) -> None:
        """Check the next channels; `damaged_keys_of_nodes` returns those without ids left. Raises
        StoreUnavailable.
        """
        self._left = self._left or sorted(self._store.report_queues.nodes())
        some, self._left = self._left[:_BELLS], self._left[_BELLS:]
        _note_bells(self._store.link, some)


class BookPages:
    """Checks ledger, charges and limits a page at a time, in turn."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._cursors = [0] * len(_BOOKS)

    def next(self) -> bool:
        """Return whether anything on the next page of each hash is malformed.

        Raises StoreUnavailable.
        """

        def asked(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for name, cursor in zip(_BOOKS, self._cursors, strict=True):
                pipeline.hscan(name, cursor=cursor, count=_PAGE)
            pipeline.hget(keys.LIMITS, keys.LAST_CHANGE)
            # Read last: no change of the limits is later than this count.
            pipeline.get(keys.REVISION)
            return cast("list[Any]", pipeline.execute())

        *pages, last_change, count = self._link.ask(asked)
        self._cursors = [int(cursor) for cursor, _ in pages]
        ledger, charges, limits = (fields for _, fields in pages)
        if last_change is not None:
            limits = {**limits, keys.LAST_CHANGE.encode(): last_change}
        revision = count_of_writes(count)
        damaged = (read_ledger(ledger), read_charges(charges), read_limits(limits, revision))
        return any(one[1] for one in damaged)
