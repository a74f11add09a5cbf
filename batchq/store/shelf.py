"""Objects in memory, in order: what `MemoryStore` keeps and the mirror of `RedisStore` fills.

A snapshot of an unchanged shelf is the same object; after a change it shares with the one before
all that did not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

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
from batchq.framework.rows import ByUid, Rows
from batchq.framework.snapshot import Snapshot, Standing
from batchq.store.row import Row


class Shelf:
    """Every object by kind and key; owned by one thread."""

    def __init__(self) -> None:
        self._rows: dict[str, Row[Object]] = {kind: Row() for kind in KINDS}
        #: The kinds that are few, as plain tuples, until something changes in them.
        self._few: dict[str, tuple[Object, ...]] = {}
        self._pods: Row[tuple[Pod, ...]] = Row()
        #: Groups whose pods have changed: uid -> all of its pods, by uid.
        self._changed: dict[str, dict[str, Pod]] = {}
        self._by_uid: ByUid[tuple[Pod, ...]] = ByUid(Rows())
        #: Pods that are on nodes, by key; and how many are on each node.
        self._on_node: dict[str, Pod] = {}
        self._in_use: Counter[str] = Counter()
        self._beats: dict[str, int] = {}
        #: Nodes as stored, and the same with their beats; None once there are other beats.
        self._stored_nodes: tuple[Node, ...] = ()
        self._heard: tuple[Node, ...] | None = None
        self._leases: Mapping[str, int] = {}
        self._standing = Standing()
        self._snapshot: Snapshot | None = None

    def get(self, kind: str, key: str) -> Object | None:
        return self._rows[kind].get(key)

    def nodes_in_use(self) -> list[str]:
        """The nodes that there are, and those that pods are on, in order."""
        return sorted({*self._rows["Node"].all().keys(), *self._in_use})

    def on_node(self, key: str) -> Pod | None:
        """The pod, if it is on a node."""
        return self._on_node.get(key)

    def keys_after(self, kind: str, key: str, most: int) -> list[str]:
        """Up to `most` keys of a kind that follow `key`, in order."""
        return self._rows[kind].keys_after(key, most)

    def list(self, kind: str, namespace: str) -> Sequence[Object]:
        """All objects of a kind (of one namespace), ordered by key."""
        rows = self._rows[kind].all()
        if not namespace or kind not in NAMESPACED:
            return rows
        if kind == "Pod":
            return tuple(pod for pod in rows if pod.metadata.namespace == namespace)
        return rows.within(namespace + "/")

    def pods_of(self, group: str) -> tuple[Pod, ...]:
        """The pods of a group, by its uid, ordered by key."""
        if group in self._changed:
            self._settle(group, self._changed.pop(group))
        return self._pods.get(group) or ()

    def fill(self, kind: str, known: Mapping[str, Object]) -> None:
        """Take these objects of a kind, by key, of which there are none yet."""
        row = self._rows[kind]
        row.fill(known)
        if kind == "Pod":
            for key, pod in row.all().items():
                self._exchange_pod(key, None, pod)
        self._changes(kind)

    def put(self, kind: str, key: str, item: Object) -> None:
        former = self._rows[kind].put(key, item)
        if kind == "Pod":
            self._exchange_pod(key, former, item)
        self._changes(kind)

    def remove(self, kind: str, key: str) -> None:
        former = self._rows[kind].remove(key)
        if former is None:
            return
        if kind == "Pod":
            self._exchange_pod(key, former, None)
        self._changes(kind)

    def set_beats(self, beats: dict[str, int]) -> None:
        """When each node was last heard of; stands in its status if that is later than stored."""
        if beats != self._beats:
            self._beats = beats
            self._heard = None
            self._snapshot = None

    def set_leases(self, leases: Mapping[str, int]) -> None:
        """Until when each pod's lease lasts. The mapping must not change afterwards."""
        if leases is not self._leases and leases != self._leases:
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
        self._snapshot = Snapshot(
            revision=revision,
            queues=cast(tuple[Queue, ...], self._plain("Queue")),
            quotas=cast(tuple[ResourceQuota, ...], self._plain("ResourceQuota")),
            nodes=self._nodes(),
            admission_checks=cast(tuple[AdmissionCheck, ...], self._plain("AdmissionCheck")),
            priority_classes=cast(tuple[PriorityClass, ...], self._plain("PriorityClass")),
            groups=cast(Rows[PodGroup], self._rows["PodGroup"].all()),
            pods=self._pods_by_group(),
            leases=self._leases,
            standing=self._standing,
        )
        return self._snapshot

    def _plain(self, kind: str) -> tuple[Object, ...]:
        """All of a kind; the same tuple until something changes."""
        known = self._few.get(kind)
        if known is None:
            known = self._few[kind] = tuple(self._rows[kind].all())
        return known

    def _changes(self, kind: str) -> None:
        self._few.pop(kind, None)
        self._snapshot = None

    def _nodes(self) -> tuple[Node, ...]:
        """Made again only if one of them or a beat has changed, for nodes may be many."""
        nodes = cast(tuple[Node, ...], self._plain("Node"))
        if nodes is not self._stored_nodes or self._heard is None:
            self._stored_nodes = nodes
            self._heard = tuple(map(self._with_beat, nodes)) if self._beats else nodes
        return self._heard

    def _with_beat(self, node: Node) -> Node:
        beat = self._beats.get(node.metadata.name)
        # Beats are asked for now and then: a node that has just registered was heard of since.
        stored = node.status.heartbeat
        if beat is None or (stored is not None and beat <= stored):
            return node
        return structs.replace(node, status=structs.replace(node.status, heartbeat=beat))

    def _pods_by_group(self) -> ByUid[tuple[Pod, ...]]:
        for group, pods in self._changed.items():
            self._settle(group, pods)
        self._changed.clear()
        rows = self._pods.all()
        if rows is not self._by_uid.rows:
            self._by_uid = ByUid(rows)
        return self._by_uid

    def _settle(self, group: str, pods: dict[str, Pod]) -> None:
        if pods:
            self._pods.put(group, tuple(pods[key] for key in sorted(pods)))
        else:
            self._pods.remove(group)

    def _exchange_pod(self, key: str, former: Object | None, item: Object | None) -> None:
        if isinstance(former, Pod):
            self._pods_in_change(former.status.group_uid).pop(former.metadata.uid, None)
        self._leave_node(key)
        if isinstance(item, Pod):
            self._pods_in_change(item.status.group_uid)[item.metadata.uid] = item
            if item.status.phase in ON_NODE:
                self._on_node[key] = item
                self._in_use[item.status.node] += 1

    def _leave_node(self, key: str) -> None:
        former = self._on_node.pop(key, None)
        if former is not None:
            name = former.status.node
            self._in_use[name] -= 1
            if not self._in_use[name]:
                del self._in_use[name]

    def _pods_in_change(self, group: str) -> dict[str, Pod]:
        if group not in self._changed:
            known = self._pods.get(group) or ()
            self._changed[group] = {pod.metadata.uid: pod for pod in known}
        return self._changed[group]
