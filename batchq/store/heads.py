"""Finding heads that do not match their objects, a page at a time.

Scripts compare heads, not objects. If the head of an object is missing or wrong, the scripts refuse
every change of the object as outdated, until the head is repaired, and its resources are not freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from batchq.api.objects import KINDS, Object, Unreadable
from batchq.store import keys, records
from batchq.store.codec import head_of_object
from batchq.store.link import Link
from batchq.store.records import field_of_key, key_of_field, read_record

#: Heads of each kind checked in one step: this many in the server's order, and this many in the
#: order of their keys.
PAGE = 500

#: Kind and key -> the expected head: b"" if there is no object, None if any well-formed head will
#: do.
Expected: TypeAlias = Callable[[str, str], bytes | None]
#: Kind, a key and a number -> the keys of that many objects after it.
KeysAfter: TypeAlias = Callable[[str, str, int], list[str]]


class HeadPages:
    """How far the check has come: among the server's heads, and among the objects."""

    def __init__(self) -> None:
        self._cursors = dict.fromkeys(KINDS, 0)
        self._after = dict.fromkeys(KINDS, "")

    def suspects(
        self, link: Link, keys_after: KeysAfter, expected: Expected
    ) -> dict[str, list[str]]:
        """Return by kind the keys on the next pages whose head is not the expected one.

        Raises StoreUnavailable.
        """
        wanted = {kind: keys_after(kind, self._after[kind], PAGE) for kind in KINDS}

        def asked(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for kind in KINDS:
                pipeline.hscan(keys.heads(kind), cursor=self._cursors[kind], count=PAGE)
                # HMGET needs at least one field.
                fields = [field_of_key(key) for key in wanted[kind]] or [b""]
                pipeline.hmget(keys.heads(kind), fields)
            return cast("list[Any]", pipeline.execute())

        answers = iter(link.ask(asked))
        found: dict[str, list[str]] = {}
        for kind in KINDS:
            cursor, page = next(answers)
            heads = {key_of_field(field): head for field, head in page.items()}
            heads |= dict(zip(wanted[kind], next(answers), strict=False))
            self._cursors[kind] = int(cursor)
            self._after[kind] = wanted[kind][-1] if wanted[kind] else ""
            found[kind] = [
                key for key, head in heads.items() if differs(head or b"", expected(kind, key))
            ]
        return {kind: some for kind, some in found.items() if some}


def differs(head: bytes, expected: bytes | None) -> bool:
    """Whether a stored head (b"" for none) differs from the expected one."""
    if expected is None:
        return bool(head) and not records.is_head(head)
    return head != expected


def compared(link: Link, kind: str, some: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
    """Return the stored and the expected head (b"" for none) of the keys where these differ,
    reading object and head in one step. Raises StoreUnavailable.
    """
    fields = [field_of_key(key) for key in some]

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=True)
        pipeline.hmget(keys.objects(kind), fields)
        pipeline.hmget(keys.heads(kind), fields)
        return cast("list[Any]", pipeline.execute())

    stored, heads = link.ask(asked)
    found = {}
    for key, value, head in zip(some, stored, heads, strict=True):
        expected = b""
        if value is not None:
            item = read_record(kind, key, value)
            expected = (
                _of_unreadable(head) if isinstance(item, Unreadable) else head_of_object(item)
            )
        if (head or b"") != expected:
            found[key] = (head or b"", expected)
    return found


def _all_heads(link: Link, kind: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    cursor = 0
    while True:
        following, page = link.ask(partial(_page_of_heads, kind=kind, cursor=cursor))
        found |= {key_of_field(field): head for field, head in page.items()}
        if (cursor := int(following)) == 0:
            return found


def _page_of_heads(client: Any, kind: str, cursor: int) -> tuple[int, dict[bytes, bytes]]:
    return cast(
        tuple[int, dict[bytes, bytes]], client.hscan(keys.heads(kind), cursor=cursor, count=PAGE)
    )


def _of_unreadable(head: bytes | None) -> bytes:
    return head if head and records.is_head(head) else b""


def false_heads(
    link: Link, objects: Mapping[str, Mapping[str, Object]], unreadable: Sequence[Unreadable]
) -> list[Unreadable]:
    """Return every head that does not match its object, for people. Raises StoreUnavailable."""
    left_out = {(one.kind, one.key) for one in unreadable}

    def expected(kind: str, key: str) -> bytes | None:
        item = objects.get(kind, {}).get(key)
        if item is not None:
            return head_of_object(item)
        return None if (kind, records.name_of(field_of_key(key))) in left_out else b""

    found = []
    for kind in KINDS:
        there = {**dict.fromkeys(objects.get(kind, {}), b""), **_all_heads(link, kind)}
        suspects = [key for key, head in there.items() if differs(head, expected(kind, key))]
        for start in range(0, len(suspects), PAGE):
            differing = compared(link, kind, suspects[start : start + PAGE])
            found += [records.false_head(kind, key) for key in sorted(differing)]
    return found
