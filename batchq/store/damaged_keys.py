"""Shared keys that batchq cannot have written: any process finds them, the leader repairs them.

A key of another type fails every call that touches it. It holds nothing of batchq's, so the leader
deletes it, and lists and sums are rebuilt by their owners. The count of writes continues after the
newest change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from batchq.api.objects import Unreadable
from batchq.store import keys, scripts
from batchq.store.keys import Key
from batchq.store.link import Link, count_of_writes, has_no_ids_left, is_count, is_wrong_type
from batchq.store.liveness import damaged_in
from batchq.store.records import (
    field_named,
    name_of,
    read_charges,
    read_event,
    read_ledger,
    read_limits,
    read_outbox,
)
from batchq.store.redis import RedisStore

#: The keys that all share, by name: a family of keys has a part that varies.
SHARED: tuple[Key, ...] = tuple(key for key in keys.TABLE if "<" not in key.name)
#: The `Unreadable.kind` of a damaged key.
KEY = "Key"
#: The reasons of events that report a leader's repairs.
MENDED = ("Mended", "Recounted")
#: Fields of each hash checked in one step.
_PAGE = 1_000

_NO_COUNT = "it is not a count of writes"
_AHEAD = f"its newest entry is ahead of the count of writes in {keys.REVISION}"
_NO_IDS_LEFT = "its last id is beyond any clock, so no entry can follow it"
_GOES = "none: it is ignored, and trimmed after 10,000 newer ones"
_BY_LEADER = "the leading scheduler repairs it within seconds; if it stays, start a scheduler"


def damaged_keys(link: Link) -> list[Unreadable]:
    """Return the shared keys of another type, and the count of writes if it is malformed.

    Raises StoreUnavailable.
    """

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=True)
        for key in SHARED:
            match key.type:
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
            found.append(_damaged(key.name, f"it is not a {key.type}"))
        elif key.name == keys.REVISION and not is_count(answer):
            found.append(_damaged(key.name, _NO_COUNT))
    if not found and _is_ahead(answers):
        found.append(_damaged(keys.CHANGES, _AHEAD))
    there = {one.key for one in found}
    streams = [key.name for key in SHARED if key.type == "stream" and key.name not in there]
    return [*found, *(_damaged(name, _NO_IDS_LEFT) for name in without_ids_left(link, streams))]


def without_ids_left(link: Link, streams: Sequence[str]) -> list[str]:
    """Return the streams whose ids are beyond any clock; without those that this user may not
    inspect. Raises StoreUnavailable.

    The newest entry is no substitute: it may have been deleted.
    """

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        for name in streams:
            pipeline.xinfo_stream(name)
        return cast("list[Any]", pipeline.execute(raise_on_error=False)) if streams else []

    replies = zip(streams, link.ask(asked), strict=True)
    return [
        name for name, one in replies if not isinstance(one, Exception) and has_no_ids_left(one)
    ]


def _is_ahead(answers: Mapping[Key, Any]) -> bool:
    """Whether the newest change is ahead of the count of writes."""
    by_name = {key.name: answer for key, answer in answers.items()}
    newest = by_name[keys.CHANGES]
    count = count_of_writes(by_name[keys.REVISION])
    return bool(newest) and int(newest[0][0].split(b"-")[0]) > count


def _damaged(name: str, why: str) -> Unreadable:
    return Unreadable(kind=KEY, key=name, why=why, remedy=_BY_LEADER)


def damaged_deliveries(link: Link) -> list[Unreadable]:
    """Return the malformed entries of the outbox. Raises StoreUnavailable."""
    stored = link.ask(lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.OUTBOX)))
    return read_outbox(stored)[1]


def take_out_deliveries(link: Link, damaged: Sequence[Unreadable]) -> None:
    """Remove these entries from the outbox. Raises StoreUnavailable."""
    fields = [field_named(one.key) for one in damaged]
    link.ask(lambda client: client.hdel(keys.OUTBOX, *fields))


def damaged_in_nodes(store: RedisStore, nodes: Sequence[str]) -> list[Unreadable]:
    """Return malformed fields of the keys that nodes write, and keys of another type.

    Raises StoreUnavailable.
    """
    found = [
        one for node, fields in store.alive.read(nodes).items() for one in damaged_in(node, fields)
    ]
    _note_bells(store.link, nodes)
    return [*found, *damaged_keys_of_nodes(store.link)]


def damaged_events(store: RedisStore, most: int) -> list[Unreadable]:
    """Return the malformed ones among the latest events. Raises StoreUnavailable."""
    page = store.link.ask(lambda client: client.xrevrange(keys.EVENTS, count=most))
    return [
        Unreadable(kind="Event", key=name_of(id_), why="it is not an event", remedy=_GOES)
        for id_, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", page)
        if read_event(fields) is None
    ]


def damaged_keys_of_nodes(link: Link) -> list[Unreadable]:
    """Return, once, the nodes' keys that this process has found damaged as a whole."""
    found = sorted(link.found_damaged)
    return [_damaged(name, link.found_damaged.pop(name)) for name in found]


def _note_bells(link: Link, nodes: Sequence[str]) -> None:
    for name in without_ids_left(link, [*map(keys.doorbell, nodes)]):
        link.found_damaged[name] = _NO_IDS_LEFT


def mend(link: Link, damaged: list[Unreadable], *, epoch: int, now_ms: int) -> None:
    """Delete the keys of another type, and repair the count of writes, as the leader.

    Raises StoreUnavailable.
    """
    gone = [one.key for one in damaged if one.why not in (_NO_COUNT, _AHEAD)]
    if gone:
        link.ask(lambda client: client.delete(*gone))
    again = (keys.EPOCH, keys.EPOCH, keys.REVISION, keys.CHANGES)
    link.run(scripts.MEND, again, (epoch, now_ms))


#: Nodes whose wake-up channels are checked in one step.
_BELLS = 100


class Bells:
    """Checks the wake-up channels of some nodes at a time, in turn."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._left: list[str] = []

    def next(self) -> None:
        """Check the next channels; `damaged_keys_of_nodes` returns those without ids left. Raises
        StoreUnavailable.
        """
        self._left = self._left or sorted(self._store.inboxes.nodes())
        some, self._left = self._left[:_BELLS], self._left[_BELLS:]
        _note_bells(self._store.link, some)


#: The hashes that are checked.
_BOOKS = (keys.LEDGER, keys.CHARGES, keys.LIMITS)


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
