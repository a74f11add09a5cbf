"""The books recomputed from the objects: every charge, their sums, every limit, and the heads.

The doctor compares them with the stored ones, and the leader repairs the stored ones by them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.objects import KINDS, Node, Object, Pod, PodGroup, Queue, ResourceQuota, Unreadable
from batchq.api.resources import Amounts, of_pod, plus
from batchq.api.transaction import (
    CAPACITY,
    EVERY_NAMESPACE,
    ONE_GROUP,
    POD_GROUPS,
    Ledger,
    capacity_of,
    hard_limit,
    limit_of_queue,
    namespace_scope,
    node_scope,
    objects_scope,
    only_groups,
    queue_scope,
)
from batchq.core.quota.ledger import holders_in_store
from batchq.store import codec, heads, keys, records, scripts
from batchq.store.heads import PAGE
from batchq.store.inspection import Books, read_books
from batchq.store.redis import RedisStore
from batchq.store.rules import MOST, Held

#: Objects by kind and key.
Objects: TypeAlias = Mapping[str, Mapping[str, Object]]
K = TypeVar("K")


def of_kind(objects: Objects, kind: type[K]) -> Iterator[K]:
    """Yield the objects of a kind, by key."""
    found = objects.get(kind.__name__, {})
    for key in sorted(found):
        item = found[key]
        if isinstance(item, kind):
            yield item


def charges_of(objects: Objects) -> dict[str, Held]:
    """Return every holder's scopes and amounts, by the objects."""
    expected: dict[str, Held] = {}
    for node in of_kind(objects, Node):
        if node.status.ready:
            expected[f"node:{node.metadata.name}"] = ((CAPACITY,), capacity_of(node))
    for group in of_kind(objects, PodGroup):
        uid = group.metadata.uid
        expected |= holders_in_store(group)
        if group.status.phase not in TERMINAL:
            scope = objects_scope(group.metadata.namespace)
            expected[f"object:{uid}"] = ((scope,), {POD_GROUPS: ONE_GROUP})
    for pod in of_kind(objects, Pod):
        if pod.status.phase in ON_NODE:
            scope = node_scope(pod.status.node)
            expected[f"pod:{pod.metadata.uid}"] = ((scope,), of_pod(pod.spec.requests))
    nonzero = {
        holder: (scopes, {name: units for name, units in amounts.items() if units})
        for holder, (scopes, amounts) in expected.items()
    }
    return {holder: held for holder, held in nonzero.items() if held[1]}


def sums_of(charges: Mapping[str, Held]) -> Ledger:
    """Return the ledger as the sum of charges."""
    sums: Ledger = {}
    for scopes, amounts in charges.values():
        for scope in scopes:
            sums[scope] = plus(sums.get(scope, {}), amounts)
    return sums


def of_every_namespace(limits: Mapping[str, Mapping[str, int]]) -> dict[str, Amounts]:
    """Return the limits that the leader sets by its configuration, and that no object states."""
    return {EVERY_NAMESPACE: dict(limits[EVERY_NAMESPACE])} if EVERY_NAMESPACE in limits else {}


def limits_of(objects: Objects) -> dict[str, Amounts]:
    """Return the limits of every scope, as the objects state them."""
    stated: dict[str, Amounts] = {}
    for queue in of_kind(objects, Queue):
        stated[queue_scope(queue.metadata.name)] = limit_of_queue(queue)
    for node in of_kind(objects, Node):
        stated[node_scope(node.metadata.name)] = capacity_of(node)
    quotas: dict[str, list[ResourceQuota]] = defaultdict(list)
    for quota in of_kind(objects, ResourceQuota):
        quotas[quota.metadata.namespace].append(quota)
    for namespace, of_namespace in quotas.items():
        hard = hard_limit(of_namespace)
        stated[namespace_scope(namespace)] = hard
        stated[objects_scope(namespace)] = only_groups(hard)
    return {
        scope: {name: min(MOST, units) for name, units in amounts.items()}
        for scope, amounts in stated.items()
        if amounts
    }


#: Tries, since other clients may write a field during the recount.
TRIES = 8
#: Fields that one call of the script sets.
FIELDS_A_CALL = 2_000


class Recounted(Struct, frozen=True, kw_only=True):
    """A repaired field of the books: its former and its new value, "" for none."""

    kind: str
    key: str
    was: str
    now: str


class _Field(Struct, frozen=True):
    kind: str
    field: bytes
    was: bytes
    now: bytes


#: The place of each hash in the script's KEYS; a kind stands for its heads.
_PLACES = {
    place: number
    for number, place in enumerate((records.LEDGER, records.CHARGES, records.LIMITS, *KINDS), 2)
}


def recount(
    store: RedisStore, epoch: int, headless: Collection[str] = ()
) -> list[Recounted] | None:
    """Recount the books from the objects, and repair what differs, as the leader of `epoch`.

    For the kinds in `headless`, also repair missing, malformed and orphaned heads.

    Returns the repairs; None if the server is written faster than it is read, or another leads.
    From `snapshot`'s thread only. Raises StoreUnavailable.
    """
    for _ in range(TRIES):
        # Read first: an object with a malformed head cannot change, so it stays as it is read
        # later.
        stored_heads = {kind: _heads(store, kind) for kind in sorted(headless)}
        books = read_books(store)
        if books is None:
            return None
        fields = list(_differences(books))
        for kind, stored in stored_heads.items():
            fields += _damaged_heads(kind, stored, books)
        if all(_set(store, epoch, some) for some in _calls(fields)):
            return [_recounted(one) for one in fields]
    return None


def mend_heads(
    store: RedisStore, epoch: int, suspects: Mapping[str, Sequence[str]]
) -> list[Recounted]:
    """Rewrite heads that do not match their objects, as the leader of `epoch`. Objects that change
    meanwhile are left to the next look.

    `suspects`: keys by kind whose heads are compared. Returns the repairs. Raises StoreUnavailable.
    """
    repaired = []
    for kind, some in suspects.items():
        for start in range(0, len(some), PAGE):
            # A change of the object changes its head, too, which the script compares before setting
            # it.
            differing = heads.compared(store.link, kind, some[start : start + PAGE])
            fields = [
                _Field(kind, records.field_of_key(key), was, now)
                for key, (was, now) in differing.items()
            ]
            if fields and _set(store, epoch, fields):
                repaired += [_recounted(one) for one in fields]
    return repaired


def _recounted(one: _Field) -> Recounted:
    return Recounted(
        kind=one.kind,
        key=records.name_of(one.field),
        was=one.was.decode(errors="replace")[:80],
        now=one.now.decode(errors="replace")[:80],
    )


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
    # A head without an object prevents the object's creation.
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
    """Return the last change as stored or, if malformed, the present revision: earlier decisions
    have not seen the limits.
    """
    field = keys.LAST_CHANGE.encode()
    stored = books.stored.limits.get(field)
    if stored is None:
        return {}
    is_damaged = any(one.key == records.name_of(field) for one in books.unreadable)
    return {field: b"%d" % books.revision if is_damaged else stored}


class _Kept:
    """The charges and limits that may belong to unreadable objects."""

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
        """Whether a holder without an object may belong to an unreadable one."""
        kind, _, name = holder.partition(":")
        match kind:
            case "pod":
                return "" in self._pods or name in self._pods
            case "node":
                return "" in self._nodes or name in self._nodes
            case _:
                # An unreadable group's uid is unknown.
                return self._has_groups

    def limits(self, scope: str) -> bool:
        """Whether a limit without an object may belong to an unreadable one."""
        stated = {
            *(queue_scope(name) for name in self._queues),
            *(node_scope(name) for name in self._nodes),
            *(limit(name) for name in self._spaces for limit in (namespace_scope, objects_scope)),
        }
        return scope in stated or "" in self._queues | self._nodes | self._spaces
