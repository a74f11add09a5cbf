"""Stored objects of a kind: all of them, those with given keys, and lists a page at a time; and the
pods on a node.

A list has its names first, then the objects of each page. The names come from the heads, which are
small (HSCAN, thousands a reply) and hold phase and uid; objects are read only when their page is
requested. So the first page costs about a microsecond for each object in the store, and a reader
holds only their names. A list is no snapshot: it lacks objects that were deleted before their page
was read, and objects created after the names were read.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import redis

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import NAMESPACED, Pod, Unreadable
from batchq.api.resources import ONE_POD, PODS
from batchq.api.transaction import node_scope
from batchq.api.views import Page
from batchq.errors import StoreUnavailable
from batchq.store import keys
from batchq.store.direct import AskedAhead
from batchq.store.link import Link, is_forbidden, is_wrong_type
from batchq.store.records import Entry, field_of_key, head_of, key_of_field, read_record

#: Objects per reply while listing: at least, and, as far as this many bytes hold them, at most.
PAGE = 1_000
LARGEST_PAGE = 4_000
BYTES_A_PAGE = 4 * 1024 * 1024
#: Names in one reply, which takes the server some milliseconds.
NAMES_A_REPLY = 10_000


def scan_objects(link: Link, kind: str) -> Generator[tuple[str, bytes]]:
    """Yield every object of a kind as stored, a page at a time; one may come twice.

    The server prepares the next page while the caller uses this one.
    """
    words: tuple[str | int, ...] = ("HSCAN", keys.objects(kind), 0, "COUNT", PAGE)
    ahead: AskedAhead | None = None

    def next_page(client: redis.Redis) -> tuple[int, dict[bytes, bytes]]:
        nonlocal ahead
        # If the page that was requested ahead does not come, another try requests it again.
        asked, ahead = ahead or AskedAhead(client, words), None
        return cast(tuple[int, dict[bytes, bytes]], asked.read())

    try:
        while True:
            cursor, page = link.ask(next_page)
            if int(cursor):
                count = _objects_a_page(page)
                words = ("HSCAN", keys.objects(kind), int(cursor), "COUNT", count)
                ahead = link.ask(partial(AskedAhead, words=words))
            for field, stored in page.items():
                yield key_of_field(field), stored
            if ahead is None:
                return
    finally:
        if ahead is not None:
            ahead.close()


def _objects_a_page(page: dict[bytes, bytes]) -> int:
    """Return how many objects to ask for, by the sizes on the page before."""
    size = sum(map(len, page.values()))
    return max(PAGE, min(LARGEST_PAGE, len(page) * BYTES_A_PAGE // max(size, 1)))


def scan_page(link: Link, kind: str, cursor: int) -> tuple[int, dict[str, bytes]]:
    """Return the next page of a kind's objects, and the next cursor (0 at the end)."""
    following, page = link.ask(
        lambda client: cast(
            tuple[int, dict[bytes, bytes]],
            client.hscan(keys.objects(kind), cursor=cursor, count=PAGE),
        )
    )
    return int(following), {key_of_field(key): value for key, value in page.items()}


def read_many(link: Link, kind: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """Return objects of a kind as stored, by key; missing ones are left out."""
    fields = [field_of_key(key) for key in wanted]
    values = link.ask(
        lambda client: cast("list[bytes | None]", client.hmget(keys.objects(kind), fields))
    )
    return {key: value for key, value in zip(wanted, values, strict=True) if value is not None}


def read_one(link: Link, kind: str, key: str) -> bytes | None:
    """Return an object as stored; None if it is missing."""
    field = field_of_key(key)
    return link.ask(lambda client: cast("bytes | None", client.hget(keys.objects(kind), field)))


def count_objects(link: Link, kind: str) -> int:
    """Return the number of objects of a kind; 0 if the key is of another type. Raises
    StoreUnavailable.
    """
    return _count(link, keys.objects(kind))


def _count(link: Link, key: str) -> int:
    try:
        return link.ask(lambda client: client.hlen(key))
    except StoreUnavailable as error:
        if is_wrong_type(error.__cause__):
            return 0
        if not is_forbidden(error):
            raise
    # A user from an older ACL file may not call HLEN.
    return len(link.ask(lambda client: cast("list[bytes]", client.hkeys(key))))


def read_entries(link: Link, kind: str, *, namespace: str = "") -> list[Entry]:
    """Return every object of a kind, unordered; of one namespace where the keys of the kind contain
    it, which those of pods do not. Raises StoreUnavailable.
    """
    is_spaced = bool(namespace) and kind in NAMESPACED and kind != "Pod"
    prefix = field_of_key(f"{namespace}/") if is_spaced else b""
    heads: dict[bytes, bytes] = {}
    for page in _heads(link, kind, prefix):
        heads |= page
    entries = [_entry(field, head) for field, head in heads.items()]
    entries += [(b"", field, b"") for field in _headless(link, kind, prefix, heads)]
    return entries


def in_order(entries: Sequence[Entry], size: int) -> Iterator[Sequence[Entry]]:
    """Yield sorted pages of `size` entries; the first without sorting all."""
    yield heapq.nsmallest(size, entries)
    if len(entries) > size:
        rest = sorted(entries)
        for start in range(size, len(rest), size):
            yield rest[start : start + size]


def by_key(entries: Sequence[Entry]) -> list[Entry]:
    """Return the same entries, to be sorted by key instead of uid."""
    return [(b"", field, phase) for _, field, phase in entries]


def read_page(link: Link, kind: str, entries: Sequence[Entry]) -> Page:
    """Return the objects of a page, in the order of its entries. Raises StoreUnavailable."""
    wanted = [key_of_field(field) for _, field, _ in entries]
    stored = read_many(link, kind, wanted) if wanted else {}
    items = [read_record(kind, key, stored[key]) for key in wanted if key in stored]
    return Page(
        objects=tuple(item for item in items if not isinstance(item, Unreadable)),
        unreadable=tuple(item for item in items if isinstance(item, Unreadable)),
    )


def _heads(link: Link, kind: str, prefix: bytes) -> Iterator[dict[bytes, bytes]]:
    match = re.sub(rb"([*?\[\]\\^])", rb"\\\1", prefix) + b"*" if prefix else None
    cursor = 0
    while True:
        try:
            cursor, page = link.ask(partial(_scan, keys.heads(kind), cursor, match))
        except StoreUnavailable as error:
            # The leader rebuilds the heads within seconds; until then the objects' fields are read.
            if not is_wrong_type(error.__cause__):
                raise
            return
        yield page
        if cursor == 0:
            return


def _scan(
    key: str, cursor: int, match: bytes | None, client: redis.Redis
) -> tuple[int, dict[bytes, bytes]]:
    following, page = client.hscan(key, cursor=cursor, match=match, count=NAMES_A_REPLY)
    return int(following), cast("dict[bytes, bytes]", page)


def _headless(link: Link, kind: str, prefix: bytes, heads: Collection[bytes]) -> Iterator[bytes]:
    """Yield the fields of objects without a head: these were written past batchq."""
    if _count(link, keys.objects(kind)) == _count(link, keys.heads(kind)):
        return
    fields = link.ask(lambda client: cast("list[bytes]", client.hkeys(keys.objects(kind))))
    yield from (field for field in fields if field.startswith(prefix) and field not in heads)


def _entry(field: bytes, head: bytes) -> Entry:
    """Return an entry by the first word of the fence: a group's uid, or that of a pod's group."""
    parts = head.split(b"|", 3)
    if len(parts) < 4:
        return (b"", field, b"")
    return (parts[2].partition(b" ")[0], field, parts[1])


#: After this many answers by the ledger, all pods are looked through: every ten minutes for an
#: agent that asks every ten seconds.
ANSWERS_BY_COUNT = 60


class PodsByNode:
    """The pods on nodes of one server. Methods raise StoreUnavailable."""

    def __init__(self, link: Link) -> None:
        self._link = link
        # The first look reads all pods: the ledger has not been checked yet.
        self._answers_left = 0

    def pods(self, node: str, known: Collection[str] | None) -> Iterator[Pod]:
        """Yield the pods that occupy a node; one may come twice.

        `known`: the keys of pods that the caller knows, on the node or not; None if it has none to
        offer.
        """
        if known is not None and self._answers_left > 0:
            self._answers_left -= 1
            found, counted = self._found_and_counted(node, sorted(known))
            if counted == b"%d" % (len(found) * ONE_POD):
                yield from found
                return
        yield from self._all(node)
        self._answers_left = ANSWERS_BY_COUNT

    def _found_and_counted(self, node: str, known: Sequence[str]) -> tuple[list[Pod], bytes]:
        """Return those of the known pods that are on the node, and the ledger's count there, at one
        instant.
        """
        field = f"{node_scope(node)} {PODS}"

        fields = [field_of_key(key) for key in known]

        def asked(client: Any) -> tuple[list[bytes | None], bytes | None]:
            pipeline = client.pipeline(transaction=True)
            if fields:
                pipeline.hmget(keys.objects("Pod"), fields)
            pipeline.hget(keys.LEDGER, field)
            *stored, counted = pipeline.execute()
            return (stored[0] if stored else [None] * len(known)), counted

        stored, counted = self._link.ask(asked)
        found = {key: one for key, one in zip(known, stored, strict=True) if one is not None}
        return list(_pods_on(node, found)), counted or b"0"

    def _all(self, node: str) -> Iterator[Pod]:
        """Find all pods on the node. Heads are read first: they are short, and most pods have
        ended.
        """
        cursor = 0
        while True:
            following, heads = self._link.ask(partial(_heads_of_pods, cursor=cursor))
            there = [
                key_of_field(field) for field, head in heads.items() if head_of(head)[1] in ON_NODE
            ]
            if there:
                yield from _pods_on(node, read_many(self._link, "Pod", there))
            if (cursor := int(following)) == 0:
                return


def _pods_on(node: str, stored: Mapping[str, bytes]) -> Iterator[Pod]:
    """Yield the pods on the node. Unreadable ones are left out; the leader reports them."""
    for key, value in stored.items():
        pod = read_record("Pod", key, value)
        if isinstance(pod, Pod) and pod.status.node == node and pod.status.phase in ON_NODE:
            yield pod


def _heads_of_pods(client: Any, cursor: int) -> tuple[int, dict[bytes, bytes]]:
    return cast(
        tuple[int, dict[bytes, bytes]],
        client.hscan(keys.heads("Pod"), cursor=cursor, count=PAGE),
    )
