"""Reading stored objects of a kind: all of them, or those with given keys."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import cast

import redis

from batchq.store import keys
from batchq.store.direct import AskedAhead
from batchq.store.link import Link
from batchq.store.records import field_of_key, key_of_field

#: Objects per reply while listing: at least, and, as far as this many bytes hold them, at most.
PAGE = 1_000
LARGEST_PAGE = 4_000
BYTES_A_PAGE = 4 * 1024 * 1024


def scan_objects(link: Link, kind: str) -> Generator[tuple[str, bytes]]:
    """Yield every object of a kind as stored, a page at a time; one may come twice.

    The server prepares the next page while the caller uses this one.
    """
    words: tuple[str | int, ...] = ("HSCAN", keys.objects(kind), 0, "COUNT", PAGE)
    ahead: AskedAhead | None = None

    def next_page(client: redis.Redis) -> tuple[int, dict[bytes, bytes]]:
        nonlocal ahead
        # If the answer to what was asked ahead does not come, another try asks anew.
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
