"""The books (charges, their sums, limits and heads), compared with the objects and repaired.

The books can be computed from the objects. The doctor compares the result with the stored books,
and the leader repairs the stored ones. They can be wrong although every field is well formed: a
user with a submitter's credentials can write false values without batchq's client, or delete an
object and leave its charge behind. A recount repairs this, but reads everything at once. So the
audit first decides, in steps of constant cost, whether a recount is needed.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct, structs

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.objects import (
    KINDS,
    Node,
    Object,
    Pod,
    PodGroup,
    Queue,
    ResourceQuota,
    Unreadable,
    group_key_of,
    key_of,
    kind_of,
)
from batchq.api.resources import Amounts, of_pod, plus
from batchq.api.transaction import (
    CAPACITY,
    EVERY_NAMESPACE,
    ONE_GROUP,
    POD_GROUPS,
    Event,
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
from batchq.core.session.snapshot import Snapshot
from batchq.store import keys, records, scripts
from batchq.store.commits import EVENTS_KEPT
from batchq.store.inspection import MOST_TOLD, Books, read_books
from batchq.store.link import Link, count_of_writes
from batchq.store.mirror import HEADS_A_PAGE, head_differs
from batchq.store.records import (
    DAMAGE,
    field_named,
    field_of_key,
    head_of_object,
    key_of_field,
    read_ledger,
    read_limits,
    read_outbox,
    read_record,
    text_of,
)
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
#: The most false heads of a kind that are reported: reading a million takes minutes.
MOST_FALSE_HEADS = 1_000


class Recounted(Struct, frozen=True, kw_only=True):
    """A repaired field of the books or of the outbox: its former and its new value, "" for none."""

    kind: str
    key: str
    was: str
    now: str
    #: What the event of the repair says.
    reason: str
    how: str


class _Field(Struct, frozen=True):
    kind: str
    field: bytes
    was: bytes
    now: bytes


#: The place of each hash in the script's KEYS; a kind stands for its heads.
_PLACES = {
    place: number
    for number, place in enumerate(
        (records.LEDGER, records.CHARGES, records.LIMITS, records.DELIVERY, *KINDS), 3
    )
}


def recount(
    store: RedisStore, epoch: int, headless: Collection[str] = ()
) -> list[Recounted] | None:
    """Recount the books from the objects, and repair what differs, as the leader of `epoch`.

    For the kinds in `headless`, also repair missing, malformed and orphaned heads.

    Returns the repairs; None if the server is written faster than it is read, or another leads.
    The first of them become events. From `snapshot`'s thread only. Raises StoreUnavailable.
    """
    done: list[Recounted] = []
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
        for some in _calls(fields):
            repaired = [_recounted(one) for one in some]
            if not _set(store, epoch, some, repaired[: max(0, MOST_TOLD - len(done))]):
                break
            done += repaired
        else:
            return done
    return None


def mend_heads(
    store: RedisStore,
    epoch: int,
    suspects: Mapping[str, Sequence[str]],
    *,
    most_told: int = MOST_TOLD,
) -> list[Recounted]:
    """Rewrite heads that do not match their objects, as the leader of `epoch`. Objects that change
    meanwhile are left to the next look.

    `suspects`: keys by kind whose heads are compared. Returns the repairs, of which the first
    `most_told` become events. Raises StoreUnavailable.
    """
    repaired: list[Recounted] = []
    for kind, some in suspects.items():
        for start in range(0, len(some), HEADS_A_PAGE):
            # A change of the object changes its head, too, which the script compares before setting
            # it.
            differing = compared_heads(store.link, kind, some[start : start + HEADS_A_PAGE])
            fields = [
                _Field(kind, records.field_of_key(key), was, now)
                for key, (was, now) in differing.items()
            ]
            some_repaired = [_recounted(one, is_head=True) for one in fields]
            told = some_repaired[: max(0, most_told - len(repaired))]
            if fields and _set(store, epoch, fields, told):
                repaired += some_repaired
    return repaired


def mend_outbox(store: RedisStore, epoch: int) -> list[Recounted]:
    """Remove malformed entries from the outbox, as the leader of `epoch`, unless they change
    meanwhile. Returns those that were removed. Raises StoreUnavailable.
    """
    stored = store.link.ask(lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.OUTBOX)))
    removed: list[Recounted] = []
    damaged = iter(read_outbox(stored)[1])
    while some := list(islice(damaged, FIELDS_A_CALL)):
        names = [field_named(one.key) for one in some]
        fields = [_Field(records.DELIVERY, name, stored[name], b"") for name in names]
        repaired = [
            structs.replace(_recounted(field), reason="Mended", how=f"{one.why}; it was removed")
            for field, one in zip(fields, some, strict=True)
        ]
        if _set(store, epoch, fields, repaired[: max(0, MOST_TOLD - len(removed))]):
            removed += repaired
    return removed


def compared_heads(link: Link, kind: str, some: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
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


def _heads_by_page(
    link: Link, kind: str, objects: Collection[str]
) -> Iterator[Mapping[str, bytes]]:
    """Yield all stored heads, and b"" for each object without one."""
    headless = set(objects)
    cursor, is_first = 0, True
    while cursor or is_first:
        following, page = link.ask(partial(_page_of_heads, kind=kind, cursor=cursor))
        cursor, is_first = int(following), False
        heads = {key_of_field(field): head for field, head in page.items()}
        headless -= heads.keys()
        yield heads
    rest = sorted(headless)
    for start in range(0, len(rest), HEADS_A_PAGE):
        yield dict.fromkeys(rest[start : start + HEADS_A_PAGE], b"")


def _page_of_heads(client: Any, kind: str, cursor: int) -> tuple[int, dict[bytes, bytes]]:
    return cast(
        tuple[int, dict[bytes, bytes]],
        client.hscan(keys.heads(kind), cursor=cursor, count=HEADS_A_PAGE),
    )


def _of_unreadable(head: bytes | None) -> bytes:
    return head if head and records.is_head(head) else b""


def false_heads(
    link: Link,
    objects: Mapping[str, Mapping[str, Object]],
    unreadable: Sequence[Unreadable],
    *,
    most: int = MOST_FALSE_HEADS,
) -> list[Unreadable]:
    """Return the heads that do not match their objects, for people: up to `most` of each kind.

    Raises StoreUnavailable.
    """
    left_out = {(one.kind, one.key) for one in unreadable}

    def expected(kind: str, key: str) -> bytes | None:
        item = objects.get(kind, {}).get(key)
        if item is not None:
            return head_of_object(item)
        return None if (kind, records.name_of_record(field_of_key(key))) in left_out else b""

    found = []
    for kind in KINDS:
        differing: set[str] = set()
        for heads in _heads_by_page(link, kind, objects.get(kind, {}).keys()):
            suspects = [
                key for key, head in heads.items() if head_differs(head, expected(kind, key))
            ]
            if suspects:
                differing.update(compared_heads(link, kind, suspects))
            if len(differing) >= most:
                break
        found += [records.false_head(kind, key) for key in sorted(differing)[:most]]
    return found


def _recounted(one: _Field, *, is_head: bool = False) -> Recounted:
    was, now = (value.decode(errors="replace")[:80] for value in (one.was, one.now))
    how = f"held {was or 'nothing'!r}; recounted from the objects: {now or 0}"
    if is_head:
        held = f"its head in {keys.heads(one.kind)} held {was or 'nothing'!r}"
        how = f"{held}; rebuilt as {now or 'nothing'}"
    return Recounted(
        kind=one.kind,
        key=records.name_of(one.field),
        was=was,
        now=now,
        reason="Recounted",
        how=how,
    )


def _calls(fields: list[_Field]) -> Iterator[list[_Field]]:
    for start in range(0, len(fields), FIELDS_A_CALL):
        yield fields[start : start + FIELDS_A_CALL]


def _set(
    store: RedisStore, epoch: int, fields: Sequence[_Field], told: Sequence[Recounted]
) -> bool:
    names = (
        *(keys.EPOCH, keys.EVENTS, keys.LEDGER, keys.CHARGES, keys.LIMITS, keys.OUTBOX),
        *map(keys.heads, KINDS),
    )
    now_ms = store.now_ms()
    events = [
        Event(kind=one.kind, key=one.key[:128], reason=one.reason, message=one.how, at=now_ms)
        for one in told
    ]
    arguments: list[str | bytes | int] = [epoch, EVENTS_KEPT, len(events), *map(text_of, events)]
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
            yield _Field(kind, field, head, records.head_of_object(item))
    # A head without an object prevents the object's creation.
    unreadable = {one.key for one in books.unreadable if one.kind == kind}
    for field, head in stored.items():
        is_damaged = records.name_of_record(field) in unreadable and not records.is_head(head)
        is_of_none = records.name_of_record(field) not in unreadable
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
            else records.write_charge(held)
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
        else records.write_limit(amounts)
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
    """Return the last change as stored, or the present revision if it is malformed."""
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
        """Return whether a holder without an object may belong to an unreadable one."""
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
        """Return whether a limit without an object may belong to an unreadable one."""
        stated = {
            *(queue_scope(name) for name in self._queues),
            *(node_scope(name) for name in self._nodes),
            *(limit(name) for name in self._spaces for limit in (namespace_scope, objects_scope)),
        }
        return scope in stated or "" in self._queues | self._nodes | self._spaces


#: Objects of a kind checked in one step.
_AUDIT_PAGE = 500
#: Seconds from the end of one pass to the beginning of the next.
_APART_S = 2.0
#: Attempts at reading mirror and ledger at the same revision, in one step.
_TRIES = 4
#: Differences remembered as explained by a recount.
_MOST_EXPLAINED = 10_000
#: The kinds whose objects carry charges.
_CHARGED = ("Node", "PodGroup", "Pod")


class MirroredObjects(Protocol):
    """The objects as the mirror has them."""

    def committed(self) -> Snapshot | None:
        """Return the snapshot of all commits; None while the mirror lacks changes."""

    def page_after(self, kind: str, key: str, most: int) -> list[Object]:
        """Return the next `most` objects of a kind after a key, with earlier commits applied."""

    def here(self, kind: str, key: str) -> Object | None:
        """Return the object as of the last call of another method; None if there is none."""

    def is_unreadable(self, kind: str, key: str) -> bool:
        """Return whether the stored record cannot be read."""


class _StoredBooks(Struct, frozen=True):
    """The stored ledger and limits at one revision, and the number of charges."""

    revision: int
    ledger: Mapping[bytes, bytes]
    limits: Mapping[bytes, bytes]
    holders: int


class _Pass:
    """One pass: the sums of the charges of the objects, at one instant, so far."""

    def __init__(self, snapshot: Snapshot, stored: _StoredBooks) -> None:
        pods = chain.from_iterable(snapshot.pods.values())
        self._left: Iterator[Object] = chain(snapshot.nodes, snapshot.groups, pods)
        self._stored = stored
        self._sums: Counter[str] = Counter()
        self._holders = 0

    def step(self) -> frozenset[str] | None:
        """Count a page of objects; after the last page, return the differences."""
        page = list(islice(self._left, _AUDIT_PAGE))
        charges = charges_of(_by_kind(page))
        self._holders += len(charges)
        for scope, amounts in sums_of(charges).items():
            for name, units in amounts.items():
                self._sums[f"{scope} {name}"] += units
        return None if len(page) == _AUDIT_PAGE else self._differences()

    def _differences(self) -> frozenset[str]:
        ledger, damaged = read_ledger(self._stored.ledger)
        stored = {
            f"{scope} {name}": units
            for scope, amounts in ledger.items()
            for name, units in amounts.items()
        }
        found = {f"ledger {one.key}" for one in damaged}
        for field in {*stored, *self._sums}:
            if more := stored.get(field, 0) - self._sums[field]:
                found.add(f"ledger {field} {more}")
        if more := self._stored.holders - self._holders:
            found.add(f"charges {more}")
        return frozenset(found)


class BooksAudit:
    """Compares the books with the objects, a page at a time. Owned by the mirror's thread."""

    def __init__(self, link: Link, objects: MirroredObjects) -> None:
        self._link = link
        self._objects = objects
        self._pass: _Pass | None = None
        self._begin_at = 0.0
        self._limits: frozenset[str] = frozenset()
        self._after = dict.fromkeys(_CHARGED, "")
        #: Differences found since the last recount, and those that it left in place: the charges of
        #: unreadable objects.
        self._found: frozenset[str] = frozenset()
        self._lone: dict[str, Pod] = {}
        self._alone: list[tuple[Pod, bool]] = []
        self._explained: frozenset[str] = frozenset()

    def next(self) -> bool:
        """Check the next page; return whether a difference was found that no recount has explained.

        Raises StoreUnavailable.
        """
        wrong = self._wrong_charges()
        if self._pass is None and time.monotonic() >= self._begin_at:
            self._begin()
        ended = self._pass.step() if self._pass is not None else None
        if ended is not None:
            self._pass, self._begin_at = None, time.monotonic() + _APART_S
            wrong |= ended | self._limits
        self._found = frozenset(islice(self._found | wrong, _MOST_EXPLAINED))
        return not wrong <= self._explained

    def recounted(self, *, is_changed: bool) -> None:
        """Note that a recount is done. Differences that it left in place are treated as correct."""
        if not is_changed:
            self._explained = frozenset(islice(self._found | self._explained, _MOST_EXPLAINED))
        self._found = frozenset()

    def lone_pods(self) -> list[Pod]:
        """Return the pods on the latest page whose group is missing, now and in the pass before: it
        was deleted past batchq.
        """
        return [one for one, is_known in self._alone if is_known]

    def _begin(self) -> None:
        for _ in range(_TRIES):
            snapshot = self._objects.committed()
            if snapshot is None:
                return
            stored = self._link.ask(_pull)
            if stored.revision == snapshot.revision:
                self._pass = _Pass(snapshot, stored)
                self._limits = _wrong_limits(snapshot, stored)
                return

    def _wrong_charges(self) -> frozenset[str]:
        """Return the holders on the next page whose charge differs from their object's."""
        found: list[str] = []
        for kind in _CHARGED:
            page = self._objects.page_after(kind, self._after[kind], _AUDIT_PAGE)
            self._after[kind] = key_of(page[-1]) if page else ""
            if kind == "Pod":
                self._note_lone([one for one in page if isinstance(one, Pod)])
            suspects = self._differing(page)
            if suspects:
                # Check again: an object may have been written between the two reads.
                self._objects.committed()
                there = (self._objects.here(kind, key_of(one)) for one in suspects)
                suspects = self._differing([one for one in there if one is not None])
            found += [f"{kind} {key_of(one)} {one.metadata.revision}" for one in suspects]
        return frozenset(found)

    def _note_lone(self, pods: Sequence[Pod]) -> None:
        if not pods:
            # The end of a pass: drop the pods that are gone.
            self._lone = {uid: pod for uid, pod in self._lone.items() if self._is_alone(pod)}
        lone = {pod.metadata.uid: pod for pod in pods if self._is_alone(pod)}
        self._alone = [(pod, uid in self._lone) for uid, pod in lone.items()]
        self._lone |= lone

    def _is_alone(self, pod: Pod) -> bool:
        key = group_key_of(pod)
        group = self._objects.here("PodGroup", key)
        if group is None:
            return not self._objects.is_unreadable("PodGroup", key)
        return group.metadata.uid != pod.status.group_uid

    def _differing(self, objects: Sequence[Object]) -> list[Object]:
        """Return the objects whose charges differ from the stored ones."""
        wanted = {key_of(one): charges_of({kind_of(one): {key_of(one): one}}) for one in objects}
        holders = [holder for charges in wanted.values() for holder in charges]
        stored = dict(zip(holders, self._charges(holders), strict=True)) if holders else {}
        return [
            one
            for one in objects
            if any(_held(stored[holder]) != held for holder, held in wanted[key_of(one)].items())
        ]

    def _charges(self, holders: Sequence[str]) -> list[bytes | None]:
        return self._link.ask(
            lambda client: cast("list[bytes | None]", client.hmget(keys.CHARGES, holders))
        )


def _held(stored: bytes | None) -> object:
    if stored is None:
        return None
    try:
        return records.read_charge(stored)
    except DAMAGE:
        return None


def _by_kind(objects: Iterable[Object]) -> dict[str, dict[str, Object]]:
    found: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
    for one in objects:
        found[kind_of(one)][key_of(one)] = one
    return found


def _pull(client: Any) -> _StoredBooks:
    pipeline = client.pipeline(transaction=True)
    pipeline.get(keys.REVISION)
    pipeline.hgetall(keys.LEDGER)
    pipeline.hgetall(keys.LIMITS)
    pipeline.hlen(keys.CHARGES)
    revision, *rest = pipeline.execute()
    return _StoredBooks(count_of_writes(revision), *rest)


def _wrong_limits(snapshot: Snapshot, stored: _StoredBooks) -> frozenset[str]:
    """Return the scopes whose limits differ from those that the objects state."""
    objects = _by_kind([*snapshot.queues, *snapshot.quotas, *snapshot.nodes])
    limits, _ = read_limits(stored.limits, stored.revision)
    stated = limits_of(objects) | of_every_namespace(limits)
    scopes: Collection[str] = {*limits, *stated}
    return frozenset(f"limit {one}" for one in scopes if limits.get(one) != stated.get(one))
