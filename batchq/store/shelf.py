"""Objects in memory, in order: what `MemoryStore` keeps and the mirror of `RedisStore` fills.

A snapshot of an unchanged shelf is the same object; after a change only the sequences that
changed are built again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
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
    PodGroup,
    PriorityClass,
    Queue,
    ResourceQuota,
)
from batchq.framework.snapshot import Snapshot, Standing

T = TypeVar("T")


class Row(Generic[T]):
    """Items ordered by key."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._items: list[T] = []
        self._tuple: tuple[T, ...] | None = ()

    def put(self, key: str, item: T) -> None:
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place] == key:
            self._items[place] = item
        else:
            self._keys.insert(place, key)
            self._items.insert(place, item)
        self._tuple = None

    def remove(self, key: str) -> None:
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place] == key:
            del self._keys[place], self._items[place]
            self._tuple = None

    def all(self) -> tuple[T, ...]:
        """Every item; the same tuple until something changes."""
        if self._tuple is None:
            self._tuple = tuple(self._items)
        return self._tuple

    def keys_after(self, key: str, most: int) -> list[str]:
        place = bisect_right(self._keys, key)
        return self._keys[place : place + most]

    def within(self, prefix: str) -> tuple[T, ...]:
        """The items whose keys begin with `prefix`."""
        start = bisect_left(self._keys, prefix)
        stop = bisect_left(self._keys, prefix + chr(0x10FFFF))
        return tuple(self._items[start:stop])


class Shelf:
    """Every object by kind and key; owned by one thread."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
        self._rows: dict[str, Row[Object]] = {kind: Row() for kind in KINDS}
        self._pods: dict[str, Row[Pod]] = {}
        self._pods_view: dict[str, tuple[Pod, ...]] = {}
        self._stale_pods: set[str] = set()
        self._on_node: Counter[str] = Counter()
        self._beats: dict[str, int] = {}
        self._leases: Mapping[str, int] = {}
        self._standing = Standing()
        self._snapshot: Snapshot | None = None

    def get(self, kind: str, key: str) -> Object | None:
        return self._by_key[kind].get(key)

    def nodes_in_use(self) -> list[str]:
        """The nodes that there are, and those that pods are on, in order."""
        return sorted({*self._by_key["Node"], *self._on_node})

    def keys_after(self, kind: str, key: str, most: int) -> list[str]:
        """Up to `most` keys of a kind that follow `key`, in order."""
        return self._rows[kind].keys_after(key, most)

    def list(self, kind: str, namespace: str) -> tuple[Object, ...]:
        """All objects of a kind (of one namespace), ordered by key."""
        row = self._rows[kind]
        if not namespace or kind not in NAMESPACED:
            return row.all()
        if kind == "Pod":
            return tuple(pod for pod in row.all() if pod.metadata.namespace == namespace)
        return row.within(namespace + "/")

    def pods_of(self, group: str) -> tuple[Pod, ...]:
        """The pods of a group, by its uid, ordered by key."""
        row = self._pods.get(group)
        return () if row is None else row.all()

    def put(self, kind: str, key: str, item: Object) -> None:
        former = self._by_key[kind].get(key)
        self._by_key[kind][key] = item
        self._count_on_node(former, -1)
        self._count_on_node(item, 1)
        self._rows[kind].put(key, item)
        if isinstance(item, Pod):
            group = item.status.group_uid
            if isinstance(former, Pod) and former.status.group_uid != group:
                self._drop_pod(former, key)
            self._pods.setdefault(group, Row()).put(key, item)
            self._stale_pods.add(group)
        self._snapshot = None

    def remove(self, kind: str, key: str) -> None:
        former = self._by_key[kind].pop(key, None)
        if former is None:
            return
        self._rows[kind].remove(key)
        self._count_on_node(former, -1)
        if isinstance(former, Pod):
            self._drop_pod(former, key)
        self._snapshot = None

    def set_beats(self, beats: dict[str, int]) -> None:
        """When each node was last heard of; stands in its status if that is later than stored."""
        if beats != self._beats:
            self._beats = beats
            self._snapshot = None

    def set_leases(self, leases: Mapping[str, int]) -> None:
        """Until when each pod's lease lasts. The mapping must not change afterwards."""
        if leases != self._leases:
            self._leases = leases
            self._snapshot = None

    def set_standing(self, standing: Standing) -> None:
        """How the reader stands with its server."""
        if standing != self._standing:
            self._standing = standing
            self._snapshot = None

    def snapshot(self, revision: int) -> Snapshot:
        """Everything at `revision`."""
        if self._snapshot is not None and self._snapshot.revision == revision:
            return self._snapshot
        rows = self._rows
        self._snapshot = Snapshot(
            revision=revision,
            queues=cast(tuple[Queue, ...], rows["Queue"].all()),
            quotas=cast(tuple[ResourceQuota, ...], rows["ResourceQuota"].all()),
            nodes=self._nodes(),
            admission_checks=cast(tuple[AdmissionCheck, ...], rows["AdmissionCheck"].all()),
            priority_classes=cast(tuple[PriorityClass, ...], rows["PriorityClass"].all()),
            groups=cast(tuple[PodGroup, ...], rows["PodGroup"].all()),
            pods=self._pods_by_group(),
            leases=self._leases,
            standing=self._standing,
        )
        return self._snapshot

    def _nodes(self) -> tuple[Node, ...]:
        nodes = cast(tuple[Node, ...], self._rows["Node"].all())
        if not self._beats:
            return nodes
        return tuple(self._with_beat(node) for node in nodes)

    def _with_beat(self, node: Node) -> Node:
        beat = self._beats.get(node.metadata.name)
        # Beats are asked for now and then: a node that has just registered was heard of since.
        stored = node.status.heartbeat
        if beat is None or (stored is not None and beat <= stored):
            return node
        return structs.replace(node, status=structs.replace(node.status, heartbeat=beat))

    def _pods_by_group(self) -> Mapping[str, tuple[Pod, ...]]:
        if self._stale_pods:
            view = dict(self._pods_view)
            for group in self._stale_pods:
                if group in self._pods:
                    view[group] = self._pods[group].all()
                else:
                    view.pop(group, None)
            self._stale_pods.clear()
            self._pods_view = view
        return self._pods_view

    def _count_on_node(self, item: Object | None, difference: int) -> None:
        if isinstance(item, Pod) and item.status.phase in ON_NODE:
            name = item.status.node
            self._on_node[name] += difference
            if not self._on_node[name]:
                del self._on_node[name]

    def _drop_pod(self, pod: Pod, key: str) -> None:
        group = pod.status.group_uid
        row = self._pods[group]
        row.remove(key)
        if not row.all():
            del self._pods[group]
        self._stale_pods.add(group)
