"""The books set right by the objects, where they cannot be read: what the leader does about it.

Ledger, charges and limits are sums and copies of what objects say, so nothing is lost with them.
What an unreadable object may still hold stays as it is: its charge and its limits are kept, so that
nothing is given away that somebody may be using.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct

from batchq.api.objects import KINDS
from batchq.api.transaction import namespace_scope, node_scope, objects_scope, queue_scope
from batchq.api.unreadable import Unreadable
from batchq.store import codec, keys, records, scripts
from batchq.store.books import charges_of, limits_of, of_every_namespace, sums_of
from batchq.store.inspection import Books, read_books
from batchq.store.redis import RedisStore

#: So often at most something else may write a field while it is counted.
TRIES = 8
#: One call of the script sets so many fields.
FIELDS_A_CALL = 2_000


class Recounted(Struct, frozen=True, kw_only=True):
    """A field of the books that was set right: what it held and holds now, "" for nothing."""

    kind: str
    key: str
    was: str
    now: str


class _Field(Struct, frozen=True):
    kind: str
    field: bytes
    was: bytes
    now: bytes


#: Where in KEYS the script finds each of the hashes; a kind stands for its heads.
_PLACES = {
    place: number
    for number, place in enumerate((records.LEDGER, records.CHARGES, records.LIMITS, *KINDS), 2)
}


def recount(
    store: RedisStore, epoch: int, headless: Collection[str] = ()
) -> list[Recounted] | None:
    """Count the books anew from the objects, and set right what differs, as the leader of `epoch`.

    Of the kinds in `headless` also the heads that are missing, none, or of no object.

    None if the server is written to faster than it can be read, or another leads. From
    `snapshot`'s thread only. Raises StoreUnavailable.
    """
    for _ in range(TRIES):
        # First: an object whose head is none is changed by nobody, so it is as it will be.
        heads = {kind: _heads(store, kind) for kind in sorted(headless)}
        books = read_books(store)
        if books is None:
            return None
        fields = list(_differences(books))
        for kind, stored in heads.items():
            fields += _damaged_heads(kind, stored, books)
        if all(_set(store, epoch, some) for some in _calls(fields)):
            return [
                Recounted(
                    kind=one.kind,
                    key=records.name_of(one.field),
                    was=one.was.decode(errors="replace")[:80],
                    now=one.now.decode(errors="replace")[:80],
                )
                for one in fields
            ]
    return None


def _calls(fields: list[_Field]) -> Iterator[list[_Field]]:
    for start in range(0, len(fields), FIELDS_A_CALL):
        yield fields[start : start + FIELDS_A_CALL]


def _set(store: RedisStore, epoch: int, fields: list[_Field]) -> bool:
    names = (keys.EPOCH, keys.LEDGER, keys.CHARGES, keys.LIMITS, *map(keys.heads, KINDS))
    arguments: list[str | bytes | int] = [epoch]
    for one in fields:
        arguments += [_PLACES[one.kind], one.field, one.was, one.now]
    return int(store.link.run(scripts.RECOUNT, names, arguments)) >= 0


def _heads(store: RedisStore, kind: str) -> dict[bytes, bytes]:
    return store.link.ask(
        lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.heads(kind)))
    )


def _damaged_heads(kind: str, stored: Mapping[bytes, bytes], books: Books) -> Iterator[_Field]:
    objects = books.objects.get(kind, {})
    for key, item in objects.items():
        field = records.field_of_key(key)
        head = stored.get(field, b"")
        if not records.is_head(head):
            yield _Field(kind, field, head, codec.head_of_object(item))
    # A head without an object keeps one from being made.
    unreadable = {one.key for one in books.unreadable if one.kind == kind}
    for field, head in stored.items():
        is_damaged = records.name_of(field) in unreadable and not records.is_head(head)
        is_of_none = records.name_of(field) not in unreadable
        if records.key_of_field(field) not in objects and (is_damaged or is_of_none):
            yield _Field(kind, field, head, b"")


def _differences(books: Books) -> Iterator[_Field]:
    kept = _Kept(books.unreadable)
    charges = charges_of(books.objects)
    charges |= {
        holder: held
        for holder, held in books.charges.items()
        if holder not in charges and kept.holds(holder)
    }
    sums = {
        f"{scope} {name}".encode(): b"%d" % units
        for scope, amounts in sums_of(charges).items()
        for name, units in amounts.items()
        if units
    }
    yield from _fields(records.LEDGER, books.stored.ledger, sums)
    yield from _fields(
        records.CHARGES,
        books.stored.charges,
        {
            holder.encode(): books.stored.charges[holder.encode()]
            if books.charges.get(holder) == held
            else codec.write_charge(held)
            for holder, held in charges.items()
        },
    )
    limits: dict[str, Mapping[str, int]] = dict(limits_of(books.objects))
    limits |= of_every_namespace(books.limits)
    limits |= {
        scope: amounts
        for scope, amounts in books.limits.items()
        if scope not in limits and kept.limits(scope)
    }
    wanted = {
        scope.encode(): books.stored.limits[scope.encode()]
        if books.limits.get(scope) == amounts
        else codec.write_limit(amounts)
        for scope, amounts in limits.items()
    }
    yield from _fields(records.LIMITS, books.stored.limits, wanted | _last_change(books))


def _fields(
    kind: str, stored: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes]
) -> Iterator[_Field]:
    for field in sorted({*stored, *wanted}):
        was, now = stored.get(field), wanted.get(field)
        if was != now:
            yield _Field(kind, field, was or b"", now or b"")


def _last_change(books: Books) -> dict[bytes, bytes]:
    """As it is, or, where it is none, now: whatever was decided before has not seen the limits."""
    field = keys.LAST_CHANGE.encode()
    stored = books.stored.limits.get(field)
    if stored is None:
        return {}
    is_none = any(one.key == records.name_of(field) for one in books.unreadable)
    return {field: b"%d" % books.revision if is_none else stored}


class _Kept:
    """What may be charged for, or limited by, objects that cannot be read."""

    def __init__(self, unreadable: Sequence[Unreadable]) -> None:
        keys_of: dict[str, set[str]] = {}
        for one in unreadable:
            keys_of.setdefault(one.kind, set()).add(one.key)
        self._pods = keys_of.get("Pod", set())
        self._nodes = keys_of.get("Node", set())
        self._has_groups = "PodGroup" in keys_of
        self._queues = keys_of.get("Queue", set())
        self._spaces = {key.partition("/")[0] for key in keys_of.get("ResourceQuota", ())}

    def holds(self, holder: str) -> bool:
        """Whether a holder that no object accounts for may be one of them."""
        kind, _, name = holder.partition(":")
        match kind:
            case "pod":
                return "" in self._pods or name in self._pods
            case "node":
                return "" in self._nodes or name in self._nodes
            case _:
                # The uid of a group is in what cannot be read.
                return self._has_groups

    def limits(self, scope: str) -> bool:
        """Whether a limit that no object states may be one of theirs."""
        stated = {
            *(queue_scope(name) for name in self._queues),
            *(node_scope(name) for name in self._nodes),
            *(limit(name) for name in self._spaces for limit in (namespace_scope, objects_scope)),
        }
        return scope in stated or "" in self._queues | self._nodes | self._spaces
