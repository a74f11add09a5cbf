"""Keys of batchq that hold what batchq never writes, as a whole: found by anybody, mended by the
leader.

A key of another type would end each call that touches it, whoever makes it. It holds nothing of
batchq's, so it is taken out: what is a list or a sum is made anew by those who keep it. The count
of writes goes on behind the newest change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from batchq.api.objects import KINDS, Unreadable
from batchq.store import keys, scripts
from batchq.store.keys import Key
from batchq.store.link import Link, count_of_writes, is_count, is_wrong_type
from batchq.store.liveness import damaged_in
from batchq.store.records import (
    field_named,
    is_head,
    name_of,
    read_charges,
    read_event,
    read_ledger,
    read_limits,
    read_outbox,
)
from batchq.store.redis import RedisStore

#: The keys that all share, by name: a family of them has a part that varies.
SHARED: tuple[Key, ...] = tuple(key for key in keys.TABLE if "<" not in key.name)
#: What `Unreadable.kind` calls a key as a whole.
KEY = "Key"
#: The reasons of events that tell of what a leader has mended.
MENDED = ("Mended", "Recounted")
#: So many fields of each of the books are looked at in one step.
_PAGE = 1_000

_NO_COUNT = "it is no count of writes"
_AHEAD = "its newest entry is ahead of the count of writes"
_GOES = "nothing: it is passed over, and goes when there are 10,000 newer ones"
_BY_LEADER = "the scheduler that leads mends it within seconds; if it stays, start a scheduler"


def damaged_keys(link: Link) -> list[Unreadable]:
    """The shared keys of another type, and the count of writes where it is none.

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
            found.append(_damaged(key.name, f"it is no {key.type}"))
        elif key.name == keys.REVISION and not is_count(answer):
            found.append(_damaged(key.name, _NO_COUNT))
    if not found and _is_ahead(answers):
        found.append(_damaged(keys.CHANGES, _AHEAD))
    return found


def _is_ahead(answers: Mapping[Key, Any]) -> bool:
    """Whether the newest change is none that has been counted."""
    by_name = {key.name: answer for key, answer in answers.items()}
    newest = by_name[keys.CHANGES]
    count = count_of_writes(by_name[keys.REVISION])
    return bool(newest) and int(newest[0][0].split(b"-")[0]) > count


def _damaged(name: str, why: str) -> Unreadable:
    return Unreadable(kind=KEY, key=name, why=why, remedy=_BY_LEADER)


def damaged_deliveries(link: Link) -> list[Unreadable]:
    """What stands in the outbox and is no delivery. Raises StoreUnavailable."""
    stored = link.ask(lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.OUTBOX)))
    return read_outbox(stored)[1]


def take_out_deliveries(link: Link, damaged: Sequence[Unreadable]) -> None:
    """Take these out of the outbox. Raises StoreUnavailable."""
    fields = [field_named(one.key) for one in damaged]
    link.ask(lambda client: client.hdel(keys.OUTBOX, *fields))


def damaged_in_nodes(store: RedisStore, nodes: Sequence[str]) -> list[Unreadable]:
    """What stands in keys that nodes write and is none of theirs, and keys of another type.

    Raises StoreUnavailable.
    """
    found = [
        one for node, said in store.alive.read(nodes).items() for one in damaged_in(node, said)
    ]
    return [*found, *damaged_keys_of_nodes(store.link)]


def damaged_events(store: RedisStore, most: int) -> list[Unreadable]:
    """The entries among the latest events that are none. Raises StoreUnavailable."""
    page = store.link.ask(lambda client: client.xrevrange(keys.EVENTS, count=most))
    return [
        Unreadable(kind="Event", key=name_of(id_), why="it is no event", remedy=_GOES)
        for id_, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", page)
        if read_event(fields) is None
    ]


def damaged_keys_of_nodes(link: Link) -> list[Unreadable]:
    """The keys of single nodes that this process has met, and that are of another type."""
    found = sorted(link.found_damaged)
    link.found_damaged.difference_update(found)
    return [_damaged(name, "it is of another type") for name in found]


def mend(link: Link, damaged: list[Unreadable], *, epoch: int, now_ms: int) -> None:
    """Take out the keys of another type, and set the count of writes right, as the leader.

    Raises StoreUnavailable.
    """
    names = [one.key for one in damaged if one.why not in (_NO_COUNT, _AHEAD)]
    if names:
        link.ask(lambda client: client.delete(*names))
    again = (keys.EPOCH, keys.EPOCH, keys.REVISION, keys.CHANGES)
    link.run(scripts.MEND, again, (epoch, now_ms))


#: The hashes that are looked through: the books, and what scripts compare of objects.
_BOOKS = (keys.LEDGER, keys.CHARGES, keys.LIMITS, *map(keys.heads, KINDS))


class BookPages:
    """Looks through ledger, charges, limits and heads a page at a time, and begins again at the
    end.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._cursors = [0] * len(_BOOKS)

    def next(self) -> tuple[bool, set[str]]:
        """Whether something on the next page of each of the books cannot be read, and the kinds
        with a head that cannot. Raises StoreUnavailable.
        """

        def asked(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for name, cursor in zip(_BOOKS, self._cursors, strict=True):
                pipeline.hscan(name, cursor=cursor, count=_PAGE)
            return cast("list[Any]", pipeline.execute())

        pages = self._link.ask(asked)
        self._cursors = [int(cursor) for cursor, _ in pages]
        ledger, charges, limits, *heads = (fields for _, fields in pages)
        is_damaged = bool(read_ledger(ledger)[1] or read_charges(charges)[1])
        headless = {
            kind
            for kind, fields in zip(KINDS, heads, strict=True)
            if not all(map(is_head, fields.values()))
        }
        return is_damaged or bool(read_limits(limits)[1]), headless
