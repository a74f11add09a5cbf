"""Stored objects in memory: ordered tables in chunks, of which each change replaces one, and a
store that has nothing else: for the simulator, and for tests.

It has the contract of `RedisStore`, and one suite tests both. One thread at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar, cast

from msgspec import structs

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import (
    KINDS,
    NAMESPACED,
    AdmissionCheck,
    Node,
    Object,
    Pod,
    PriorityClass,
    Queue,
    ResourceQuota,
)
from batchq.api.transaction import (
    Answer,
    Commit,
    Delivery,
    Event,
    Ledger,
    Transaction,
    Word,
)
from batchq.core.chunks import CHUNK, ByUid, Chunk, Rows, chunk_of, chunks_of, found, place_of
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.store.rules import (
    NOTHING,
    Held,
    Weighed,
    commit_of,
    holds_node,
    is_of_node,
    refuse_charges,
    refuse_outdated,
    refuse_write,
    weigh,
    well_formed,
)

T = TypeVar("T")

#: A chunk that falls below SMALL items is joined to a neighbour, if both together have at most
#: ROOMY.
SMALL = CHUNK // 4
ROOMY = CHUNK * 3 // 4
#: A group with more pods than this keeps a row of its own for them; most groups have few.
MANY = CHUNK
#: So many changes of a row wait at most. Beyond it, chunks are compared to find all changes since
#: the last view.
MOST_WAITING = 16


class ObjectRow(Generic[T]):
    """Items in the order of their keys; a change costs one chunk, a view a list of chunks.

    Changes wait until the next view, or until they are many: a key that changes twice by then costs
    one.
    """

    __slots__ = ("_chunks", "_rows", "_seen", "_size", "_touched", "_waiting")

    def __init__(self) -> None:
        self._chunks: list[Chunk[T]] = []
        self._size = 0
        self._rows: Rows[T] | None = Rows()
        #: The keys whose changes are not in the chunks yet, each with its item there and now.
        self._waiting: dict[str, tuple[T | None, T | None]] = {}
        #: The rows that were last handed out, and whether all changes since then are waiting.
        self._seen: Rows[T] = self._rows
        self._touched = True

    def __len__(self) -> int:
        return self._size

    def fill(self, known: Mapping[str, T]) -> None:
        """Replace all items by these."""
        self._chunks = chunks_of(known)
        self._size = len(known)
        self._rows, self._waiting, self._touched = None, {}, False

    def put(self, key: str, item: T) -> T | None:
        """Add or replace the item of a key; return the former item."""
        former = self.get(key)
        self.exchange(key, former, item)
        return former

    def remove(self, key: str) -> T | None:
        """Remove the item of a key, and return it; None if there is none."""
        former = self.get(key)
        self.exchange(key, former, None)
        return former

    def exchange(self, key: str, former: T | None, item: T | None) -> None:
        """Replace the item of a key, which is `former` now; None means no item."""
        if former is item:
            return
        if former is None:
            self._size += 1
        elif item is None:
            self._size -= 1
        self._rows, waiting = None, self._waiting
        known = waiting.get(key)
        waiting[key] = (former if known is None else known[0], item)
        if len(waiting) > MOST_WAITING:
            self._settle()
            self._touched = False

    def _settle(self) -> None:
        """Put the waiting changes into the chunks."""
        for key, (stored, item) in self._waiting.items():
            if item is not None:
                self._put(key, item)
            elif stored is not None:
                self._remove(key)
        self._waiting = {}

    def _put(self, key: str, item: T) -> None:
        if not self._chunks:
            self._chunks = [chunk_of((key,), (item,))]
            return
        at = place_of(self._chunks, key)
        chunk = self._chunks[at]
        place = bisect_left(chunk.keys, key)
        if place < len(chunk.keys) and chunk.keys[place] == key:
            items = chunk.items[:place] + (item,) + chunk.items[place + 1 :]  # noqa: RUF005
            # Keep the same keys tuple: a comparison of two chunks then sees that only items
            # changed.
            self._chunks[at] = Chunk(chunk.first, chunk.keys, items)
            return
        if place == CHUNK and at == len(self._chunks) - 1:
            # Adding in order of key fills chunks and splits none.
            self._chunks.append(chunk_of((key,), (item,)))
            return
        # Slices are copied as blocks, which unpacking them does not do.
        keys = chunk.keys[:place] + (key,) + chunk.keys[place:]  # noqa: RUF005
        items = chunk.items[:place] + (item,) + chunk.items[place:]  # noqa: RUF005
        if len(keys) <= CHUNK:
            self._chunks[at] = Chunk(keys[0], keys, items)
            return
        half = len(keys) // 2
        halves = chunk_of(keys[:half], items[:half]), chunk_of(keys[half:], items[half:])
        self._chunks[at : at + 1] = halves

    def _remove(self, key: str) -> None:
        at = place_of(self._chunks, key)
        chunk = self._chunks[at]
        place = bisect_left(chunk.keys, key)
        keys = chunk.keys[:place] + chunk.keys[place + 1 :]
        items = chunk.items[:place] + chunk.items[place + 1 :]
        if not keys:
            del self._chunks[at]
        elif len(keys) >= SMALL or len(self._chunks) == 1 or not self._join(at, keys, items):
            self._chunks[at] = Chunk(keys[0], keys, items)

    def get(self, key: str) -> T | None:
        """Return the item of a key; None if there is none."""
        known = self._waiting.get(key)
        return found(self._chunks, key) if known is None else known[1]

    def all(self) -> Rows[T]:
        """Return every item; the same object until something changes."""
        if self._rows is None:
            touched = self._waiting
            self._settle()
            chunks = tuple(self._chunks)
            if self._touched:
                self._rows = Rows(chunks, self._size, made_from=self._seen, touched=touched)
            else:
                self._rows = Rows(chunks, self._size)
            self._seen, self._touched = self._rows, True
        return self._rows

    def keys_after(self, key: str, most: int) -> list[str]:
        """Return up to `most` keys that follow `key`, in order."""
        return [one for one, _ in islice(self.all().items_from(key + "\0"), most)]

    def _join(self, at: int, keys: tuple[str, ...], items: tuple[T, ...]) -> bool:
        """Join a small chunk with a neighbour if both fit in one; return whether they do."""
        for start in (at - 1, at):
            if not 0 <= start < len(self._chunks) - 1:
                continue
            other = self._chunks[start if start < at else at + 1]
            if len(other.keys) + len(keys) <= ROOMY:
                both = ((other.keys, other.items), (keys, items))
                left, right = both if start < at else both[::-1]
                self._chunks[start : start + 2] = [chunk_of(left[0] + right[0], left[1] + right[1])]
                return True
        return False


class ObjectTable:
    """Every object by kind and key; owned by one thread."""

    def __init__(self) -> None:
        self._rows: dict[str, ObjectRow[Object]] = {kind: ObjectRow() for kind in KINDS}
        #: The kinds with few objects, as plain tuples, until one of them changes.
        self._few: dict[str, tuple[Object, ...]] = {}
        #: The pods of each group, by its uid: a tuple, or a view of a row if they are many.
        self._pods: ObjectRow[Sequence[Pod]] = ObjectRow()
        self._many: dict[str, ObjectRow[Pod]] = {}
        #: Groups whose pods have changed: uid -> its pods, by uid; a row if they are many.
        self._changed: dict[str, _FewPods | ObjectRow[Pod]] = {}
        self._by_uid: ByUid[Sequence[Pod]] = ByUid(Rows())
        #: Pods on nodes, by key; and the number of pods on each node.
        self._on_node: dict[str, Pod] = {}
        self._in_use: Counter[str] = Counter()
        self._beats: dict[str, int] = {}
        #: Nodes as stored, and with their heartbeats; None once a heartbeat has changed.
        self._stored_nodes: tuple[Node, ...] = ()
        self._nodes_with_beats: tuple[Node, ...] | None = None
        self._leases: Mapping[str, int] = {}
        self._standing = ContactStanding()
        self._snapshot: Snapshot | None = None
        #: What snapshots have besides groups and pods, until any of it changes.
        self._configured: Snapshot | None = None

    def get(self, kind: str, key: str) -> Object | None:
        return self._rows[kind].get(key)

    def nodes_in_use(self) -> list[str]:
        """Return the registered nodes and those that pods are on, in order."""
        return sorted({*self._rows["Node"].all().keys(), *self._in_use})

    def on_node(self, key: str) -> Pod | None:
        """Return the pod, if it is on a node."""
        return self._on_node.get(key)

    def keys_after(self, kind: str, key: str, most: int) -> list[str]:
        """Return up to `most` keys of a kind that follow `key`, in order."""
        return self._rows[kind].keys_after(key, most)

    def list(self, kind: str, namespace: str) -> Sequence[Object]:
        """Return all objects of a kind (of one namespace), ordered by key."""
        rows = self._rows[kind].all()
        if not namespace or kind not in NAMESPACED:
            return rows
        if kind == "Pod":
            return tuple(pod for pod in rows if pod.metadata.namespace == namespace)
        return rows.within(namespace + "/")

    def pods_of(self, group: str) -> Sequence[Pod]:
        """Return the pods of a group, by its uid, ordered by key."""
        if (pods := self._changed.get(group)) is not None:
            return pods.all()
        return self._pods.get(group) or ()

    def fill(self, kind: str, known: Mapping[str, Object]) -> None:
        """Add these objects of a kind, by key; the table must have none of it yet."""
        row = self._rows[kind]
        row.fill(known)
        if kind == "Pod":
            for key, pod in row.all().items():
                self._exchange_pod(key, None, pod)
        self._few.pop(kind, None)
        self._snapshot = self._configured = None

    def put(self, kind: str, key: str, item: Object) -> None:
        """Add or replace an object."""
        self.exchange(kind, key, self._rows[kind].get(key), item)

    def remove(self, kind: str, key: str) -> None:
        """Remove an object, if it is there."""
        self.exchange(kind, key, self._rows[kind].get(key), None)

    def exchange(self, kind: str, key: str, former: Object | None, item: Object | None) -> None:
        """Replace an object, which is `former` now; None means no object."""
        if former is item:
            return
        self._rows[kind].exchange(key, former, item)
        if kind == "Pod":
            self._exchange_pod(key, former, item)
        elif kind != "PodGroup":
            self._few.pop(kind, None)
            self._configured = None
        self._snapshot = None

    def set_beats(self, beats: dict[str, int]) -> None:
        """Set the last heartbeat of each node; it replaces an older one in the node's status."""
        if beats != self._beats:
            self._beats = beats
            self._nodes_with_beats = None
            self._snapshot = self._configured = None

    def set_leases(self, leases: Mapping[str, int]) -> None:
        """Set the end of each pod's lease. The mapping must not change afterwards."""
        if leases is not self._leases and leases != self._leases:
            self._leases = leases
            self._snapshot = self._configured = None

    def set_standing(self, standing: ContactStanding) -> None:
        """Set the state of the reader's contact with its server."""
        if standing != self._standing:
            self._standing = standing
            self._snapshot = self._configured = None

    def snapshot(self, revision: int) -> Snapshot:
        """Return everything, as of `revision`."""
        if self._snapshot is not None and self._snapshot.revision == revision:
            return self._snapshot
        if self._configured is None:
            self._configured = Snapshot(
                queues=cast(tuple[Queue, ...], self._plain("Queue")),
                quotas=cast(tuple[ResourceQuota, ...], self._plain("ResourceQuota")),
                nodes=self._nodes(),
                admission_checks=cast(tuple[AdmissionCheck, ...], self._plain("AdmissionCheck")),
                priority_classes=cast(tuple[PriorityClass, ...], self._plain("PriorityClass")),
                leases=self._leases,
                standing=self._standing,
            )
        self._snapshot = structs.replace(
            self._configured,
            revision=revision,
            groups=self._rows["PodGroup"].all(),
            pods=self._pods_by_group(),
        )
        return self._snapshot

    def _plain(self, kind: str) -> tuple[Object, ...]:
        """Return all objects of a kind; the same tuple until one changes."""
        known = self._few.get(kind)
        if known is None:
            known = self._few[kind] = tuple(self._rows[kind].all())
        return known

    def _nodes(self) -> tuple[Node, ...]:
        """Return the nodes; rebuilt only if one has changed or sent a heartbeat."""
        nodes = cast(tuple[Node, ...], self._plain("Node"))
        if nodes is not self._stored_nodes or self._nodes_with_beats is None:
            self._stored_nodes = nodes
            self._nodes_with_beats = tuple(map(self._with_beat, nodes)) if self._beats else nodes
        return self._nodes_with_beats

    def _with_beat(self, node: Node) -> Node:
        beat = self._beats.get(node.metadata.name)
        # Heartbeats are read now and then: a node that has just registered may have a newer one.
        stored = node.status.heartbeat
        if beat is None or (stored is not None and beat <= stored):
            return node
        return structs.replace(node, status=structs.replace(node.status, heartbeat=beat))

    def _pods_by_group(self) -> ByUid[Sequence[Pod]]:
        for group, pods in self._changed.items():
            self._settle(group, pods)
        self._changed.clear()
        rows = self._pods.all()
        if rows is not self._by_uid.rows:
            self._by_uid = ByUid(rows)
        return self._by_uid

    def _settle(self, group: str, pods: _FewPods | ObjectRow[Pod]) -> None:
        if len(pods) > MANY:
            if isinstance(pods, _FewPods):
                few, pods = pods, ObjectRow()
                pods.fill(few)
            self._many[group] = pods
            self._pods.put(group, pods.all())
            return
        if self._many:
            self._many.pop(group, None)
        former = pods.stored if isinstance(pods, _FewPods) else self._pods.get(group)
        self._pods.exchange(group, former, tuple(pods.all()) if pods else None)

    def _exchange_pod(self, key: str, former: Object | None, item: Object | None) -> None:
        if isinstance(former, Pod) and not _replaces(former, item):
            self._pods_in_change(former.status.group_uid).remove(former.metadata.uid)
        on_node = None
        if isinstance(item, Pod):
            self._pods_in_change(item.status.group_uid).put(item.metadata.uid, item)
            on_node = item if item.status.phase in ON_NODE else None
        self._note_node(key, on_node)

    def _note_node(self, key: str, pod: Pod | None) -> None:
        """Note the node that a pod is on now; None for a pod that is on none."""
        former = self._on_node.pop(key, None)
        if pod is not None:
            self._on_node[key] = pod
        was = "" if former is None else former.status.node
        now = "" if pod is None else pod.status.node
        if was == now:
            return
        if now:
            self._in_use[now] += 1
        if was:
            self._in_use[was] -= 1
            if not self._in_use[was]:
                del self._in_use[was]

    def _pods_in_change(self, group: str) -> _FewPods | ObjectRow[Pod]:
        pods = self._changed.get(group)
        if pods is None:
            pods = self._many.get(group) if self._many else None
            if pods is None:
                pods = _FewPods(self._pods.get(group))
            self._changed[group] = pods
        return pods


class _FewPods(dict[str, Pod]):
    """The pods of one group, by uid, while they change; `ObjectRow` for a group with few pods, for
    which a row's chunks cost more than sorting.
    """

    __slots__ = ("stored",)

    def __init__(self, stored: Sequence[Pod] | None) -> None:
        super().__init__([(pod.metadata.uid, pod) for pod in stored] if stored else ())
        #: The pods before the changes; None without any.
        self.stored = stored

    def put(self, uid: str, pod: Pod) -> None:
        self[uid] = pod

    def remove(self, uid: str) -> None:
        self.pop(uid, None)

    def all(self) -> tuple[Pod, ...]:
        return tuple(self[uid] for uid in sorted(self)) if len(self) > 1 else tuple(self.values())


def _replaces(former: Pod, item: Object | None) -> bool:
    """Return whether the item is a pod with the same uid in the same group."""
    return (
        isinstance(item, Pod)
        and item.metadata.uid == former.metadata.uid
        and item.status.group_uid == former.status.group_uid
    )


EVENTS_KEPT = 10_000
REQUESTS_KEPT = 256
_OK = Answer(word=Word.OK)


class MemoryStore:
    """Objects, ledger and events as Python values."""

    def __init__(self) -> None:
        self._table = ObjectTable()
        #: The same objects by kind and key, to read one without a search.
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
        self._revision = 0
        self._epoch = 0
        self._sums: Ledger = {}
        self._charges: dict[str, Held] = {}
        self._limits: dict[str, dict[str, int]] = {}
        #: The revision at which limits last changed, nodes' limits excluded.
        self._limits_changed_at = 0
        self._outbox: dict[tuple[str, int], Delivery] = {}
        self._leases: dict[str, int] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._answered: OrderedDict[str, tuple[tuple[Answer, ...], int]] = OrderedDict()

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object; None if there is none."""
        return self._objects[kind].get(key)

    def get_many(self, kind: str, keys: Sequence[str]) -> Mapping[str, Object]:
        """Return the existing ones of these objects, by key."""
        known = self._objects[kind]
        return {key: known[key] for key in keys if key in known}

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind (of one namespace), ordered by key."""
        return self._table.list(kind, namespace)

    def pods_of(self, group_uid: str) -> Sequence[Pod]:
        """Return the pods of one group, ordered by key."""
        return self._table.pods_of(group_uid)

    def snapshot(self) -> Snapshot:
        """Return everything that a session reads; the same object until something changes."""
        return self._table.snapshot(self._revision)

    def ledger(self) -> Ledger:
        """Return the sums of every scope, without zeros."""
        return {scope: dict(self._sums[scope]) for scope in sorted(self._sums)}

    def charges(self) -> Mapping[str, Held]:
        """Return every holder's scopes and amounts."""
        return {
            holder: (scopes, dict(amounts))
            for holder, (scopes, amounts) in sorted(self._charges.items())
        }

    def events(self, *, kind: str = "", key: str = "", most: int = 100) -> Sequence[Event]:
        """Return the latest events (of one object), oldest first."""
        found: list[Event] = []
        for event in reversed(self._events):
            if len(found) == most:
                break
            if (not kind or event.kind == kind) and (not key or event.key == key):
                found.append(event)
        return tuple(reversed(found))

    def outbox(self) -> Sequence[Delivery]:
        """Return the bound pods not yet delivered, in order of binding."""
        return tuple(self._outbox.values())

    def commit(
        self,
        transactions: Sequence[Transaction],
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> Commit:
        """Apply each transaction whole or not at all, in order (see `ports.Store`)."""
        for transaction in transactions:
            well_formed(transaction)
        known = self._answered.get(request_id)
        if known is None:
            answers = tuple([self._answer(one, epoch, overcommit, seen) for one in transactions])
            known = self._answered[request_id] = (answers, self._revision)
            if len(self._answered) > REQUESTS_KEPT:
                self._answered.popitem(last=False)
        return commit_of(transactions, *known)

    def apply(self, transaction: Transaction) -> Answer:
        """Apply one well-formed transaction as `commit` does, for a writer without an epoch that
        never repeats a request.
        """
        return self._answer(transaction, None, 1000, None)

    def next_epoch(self) -> int:
        """Begin a new leader's epoch, and return it."""
        self._epoch += 1
        return self._epoch

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """Remove delivered pods from the outbox."""
        for delivery in deliveries:
            self._outbox.pop((delivery.pod, delivery.attempt), None)

    def set_standing(self, standing: ContactStanding) -> None:
        """Set the state of the reader's contact, as with a server."""
        self._table.set_standing(standing)

    def hold_lease(self, pod: str, until_ms: int) -> None:
        """Set the end of the pod's lease. The lease ends with the pod's attempt."""
        self._leases[pod] = until_ms
        self._table.set_leases(dict(self._leases))

    def _answer(
        self, transaction: Transaction, epoch: int | None, overcommit: int, seen: int | None
    ) -> Answer:
        if epoch is not None and epoch != self._epoch:
            return Answer(word=Word.EPOCH, subject=str(self._epoch))
        for write in transaction.writes:
            refused = refuse_write(write, self._objects[write.kind].get(write.key))
            if refused is not None:
                return refused
        if transaction.charges:
            weighed = weigh(transaction.charges, self._charges)
            if weighed.growths:
                refused = self._refuse_growth(transaction, weighed, overcommit, seen)
                if refused is not None:
                    return refused
            self._count(weighed)
        self._apply(transaction)
        return _OK

    def _refuse_growth(
        self, transaction: Transaction, weighed: Weighed, overcommit: int, seen: int | None
    ) -> Answer | None:
        refused = refuse_outdated(weighed, seen, self._limits_changed_at)
        if refused is not None:
            return refused
        limits: Mapping[str, Mapping[str, int] | None] = self._limits
        if transaction.limits:
            stated = {limit.scope: limit.amounts for limit in transaction.limits}
            limits = {**limits, **stated}
        return refuse_charges(weighed, self._sums.get, limits.get, overcommit)

    def _apply(self, transaction: Transaction) -> None:
        for write in transaction.writes:
            kind, key, item = write.kind, write.key, write.value
            objects = self._objects[kind]
            former = objects.get(key)
            if item is None and write.expect == 0:
                # It was only a condition.
                continue
            self._revision += 1
            if item is None:
                del objects[key]
            else:
                meta = structs.replace(item.metadata, revision=self._revision)
                item = objects[key] = structs.replace(item, metadata=meta)
            self._table.exchange(kind, key, former, item)
            if self._leases:
                self._end_lease(kind, key)
        for limit in transaction.limits:
            if limit.amounts is None:
                self._limits.pop(limit.scope, None)
            else:
                self._limits[limit.scope] = dict(limit.amounts)
            if not is_of_node(limit.scope):
                self._limits_changed_at = self._revision
        for delivery in transaction.deliveries:
            self._outbox[delivery.pod, delivery.attempt] = delivery
        if transaction.events:
            self._events.extend(transaction.events)

    def _count(self, weighed: Weighed) -> None:
        for scope, more in weighed.plus.items():
            sums = self._sums.get(scope)
            if sums is None:
                self._sums[scope] = dict(more)
                continue
            for name, units in more.items():
                sums[name] = sums.get(name, 0) + units
        for scope, less in weighed.minus.items():
            sums = self._sums.setdefault(scope, {})
            for name, units in less.items():
                if left := sums.get(name, 0) - units:
                    sums[name] = left
                else:
                    sums.pop(name, None)
            if not sums:
                del self._sums[scope]
        for holder, held in weighed.held.items():
            if held is NOTHING:
                self._charges.pop(holder, None)
            else:
                self._charges[holder] = held

    def _end_lease(self, kind: str, key: str) -> None:
        if kind == "Pod" and key in self._leases and not holds_node(self.get(kind, key)):
            del self._leases[key]
            self._table.set_leases(dict(self._leases))
