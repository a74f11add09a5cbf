"""The nodes of a session, the state of each, and the node cache, which keeps them across sessions.

`SessionNodes` knows what is free on the nodes, and what is kept there for waiting groups. All
changes of free resources go through `take`, `give` or `put_back`. Each records the node in
`changes`, the journal from which rankings and columns see which nodes to update.

`NodeCache` evaluates a node again only when its record has changed or it may have become silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, structs

from batchq.api.lifecycle import ON_NODE
from batchq.api.node_report import PROTOCOL_ANNOTATION
from batchq.api.notation import counted
from batchq.api.objects import Node, Pod
from batchq.api.reasons import Verdict
from batchq.api.resources import ONE_POD, PODS, Amounts, covers, minus, plus, scaled, total
from batchq.api.transaction import POD_GROUPS, capacity_of
from batchq.core.session.snapshot import Settings, Snapshot
from batchq.core.session.specs import Sharing, TaskShape
from batchq.core.session.state import GroupState

_NO_OWNERS: Mapping[Sharing, Amounts] = {}
_UNBOUNDED = dict.fromkeys((PODS, POD_GROUPS), 2**53)


#: The shapes of a gang with their numbers of pods, in placement order.
Gang: TypeAlias = Sequence[tuple[TaskShape, int]]
#: A gang's request to nodes, as shapes and counts; equal for gangs that the same nodes take.
Wanted: TypeAlias = tuple[tuple[tuple[Any, ...], int], ...]


class FreedNodes:
    """The nodes on which something was freed, the latest last, and how often."""

    __slots__ = ("_at", "count")

    def __init__(self) -> None:
        self.count = 0
        self._at: dict[str, int] = {}

    def note(self, name: str) -> None:
        """Record that something was freed on a node."""
        self.count += 1
        self._at.pop(name, None)
        self._at[name] = self.count

    def since(self, count: int) -> Iterator[str]:
        """Yield the nodes on which something was freed after a former `count`, the latest first."""
        for name, at in reversed(self._at.items()):
            if at <= count:
                return
            yield name


class NodeState:
    """A node during one session, with what is free on it now.

    `ready` says whether its resources count. `heard` is False if the node counts as ready only
    because the scheduler itself was out of touch and could not have heard it
    (batchq.core.session.open_session).
    """

    __slots__ = ("_freed", "free", "heard", "name", "owners", "ready", "record", "total")

    def __init__(
        self, record: Node, *, ready: bool, heard: bool = True, freed: FreedNodes | None = None
    ) -> None:
        self.record = record
        self.name = record.metadata.name
        self.ready = ready
        self.heard = heard
        #: The record of freed nodes that `give` updates.
        self._freed = freed
        self.total: Amounts = capacity_of(record)
        self.free: dict[str, int] = dict(self.total)
        #: The sharing of each group here that has one -> what its pods request.
        self.owners: Mapping[Sharing, Amounts] = _NO_OWNERS

    @property
    def open(self) -> bool:
        """Return whether new pods may be placed here."""
        return self.ready and not self.record.spec.unschedulable

    def take(self, requests: Mapping[str, int]) -> None:
        """Take the requests of a pod."""
        free = self.free
        for name, units in requests.items():
            free[name] = free.get(name, 0) - units

    def give(self, requests: Mapping[str, int]) -> None:
        """Free the requests of a pod."""
        self.put_back(requests)
        if self._freed is not None:
            self._freed.note(self.name)

    def put_back(self, requests: Mapping[str, int]) -> None:
        """Return an amount that was only held for the length of a session or trial."""
        free = self.free
        for name, units in requests.items():
            free[name] = free.get(name, 0) + units

    def take_pod(self, shape: TaskShape) -> None:
        """Take what a pod of this shape takes off the node."""
        if shape.sharing is None:
            self.take(shape.requests)
        else:
            self.take(self.share(shape.sharing, shape.requests))

    def put_back_pod(self, shape: TaskShape) -> None:
        """Return what a pod of this shape took, as `put_back` does."""
        if shape.sharing is None:
            self.put_back(shape.requests)
        else:
            self.put_back(self.unshare(shape.sharing, shape.requests))

    def share(self, sharing: Sharing, requests: Amounts) -> Amounts:
        """Note a pod of a group with such sharing; return what it takes off the node: the first pod
        of an exclusive group takes the whole node, and the others nothing.
        """
        own = self.owners.get(sharing)
        self.owners = {**self.owners, sharing: plus(own or {}, requests)}
        if not sharing.exclusive:
            return requests
        return self.total if own is None else {}

    def unshare(self, sharing: Sharing, requests: Amounts) -> Amounts:
        """Note that such a pod is gone; return what that frees on the node."""
        own = minus(self.owners.get(sharing, {}), requests)
        others = {one: amounts for one, amounts in self.owners.items() if one != sharing}
        self.owners = {**others, sharing: own} if own else others
        if not sharing.exclusive:
            return requests
        return {} if own else self.total

    def why_not_shared(self, shape: TaskShape) -> str:
        """Return why the sharing of a pod's group keeps it off the node, or ''."""
        sharing = shape.sharing
        if sharing is None:
            return ""
        own = self.owners.get(sharing, {})
        if sharing.most and own.get(PODS, 0) >= sharing.most * ONE_POD:
            return f"with {counted(sharing.most, 'pod')} of its group already"
        if not sharing.exclusive:
            return ""
        # Its own pods there have taken the whole node, and no more.
        unused = min(self.free.values()) >= 0 if own else covers(self.free, self.total)
        return "" if unused else "in use by another group"

    def free_for(self, shape: TaskShape) -> dict[str, int]:
        """Return what is free for a pod of this shape, if the sharing of its group allows it."""
        sharing = shape.sharing
        if sharing is None or not sharing.exclusive or sharing not in self.owners:
            return self.free
        own = self.owners[sharing]
        return {name: units - own.get(name, 0) for name, units in self.total.items()}

    def slots(self, shape: TaskShape) -> int:
        """Return how many pods of this shape alone fit, if one does."""
        free, sharing = self.free, shape.sharing
        if sharing is not None:
            free = self.free_for(shape)
        found = min(free.get(name, 0) // units for name, units in shape.requests.items())
        if sharing is None or not sharing.most:
            return found
        own = self.owners.get(sharing, {}).get(PODS, 0) // ONE_POD
        return min(found, sharing.most - own)

    def lacks(self, shape: TaskShape) -> str:
        """Return the first dimension that does not fit, in the order of the request, or ''."""
        free = self.free_for(shape)
        for name, units in shape.requests.items():
            if units > free.get(name, 0):
                return name
        return ""


def with_pod(amounts: Amounts, shape: TaskShape, node: NodeState) -> Amounts:
    """Return what pods of a group take off a node, with one more pod of this shape."""
    if shape.sharing is not None and shape.sharing.exclusive:
        return node.total
    return plus(amounts, shape.requests)


class KeptPlaces(Struct, frozen=True):
    """The nodes for the pods of a gang, shape by shape in placement order."""

    parts: tuple[tuple[TaskShape, tuple[NodeState, ...]], ...]

    def by_task(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the nodes by task, as they are stored."""
        found: dict[str, tuple[str, ...]] = {}
        for shape, nodes in self.parts:
            names = tuple([node.name for node in nodes])
            found[shape.task.name] = (*found.get(shape.task.name, ()), *names)
        return found

    def by_node(self) -> dict[str, Amounts]:
        """Return what the pods take off their nodes, by node."""
        found: dict[str, Amounts] = {}
        for shape, nodes in self.parts:
            for node in nodes:
                found[node.name] = with_pod(found.get(node.name, {}), shape, node)
        return found


class SessionNodes:
    """The owner of the nodes during a session; between sessions, it is the node cache."""

    def __init__(self, cache: NodeCache) -> None:
        self._cache = cache
        #: Every node by name, in order.
        self.by_name: dict[str, NodeState] = cache.nodes
        #: Rises when anything changes that affects what may be put on nodes.
        self.version = cache.version
        #: The total of all ready nodes, and of all nodes seen within a day, ready or not.
        self.ready: Amounts = cache.ready
        self.known: Amounts = cache.known
        #: The most that the cluster could ever have, for rule 1; the dimensions that nodes leave
        #: unbounded have a limit that no request reaches.
        self.could_have: Amounts = cache.could_have
        #: Shape of a pod -> whether an open node would take it if the node were empty.
        self.taken_when_empty: dict[tuple[object, ...], bool] = cache.taken_when_empty
        #: The nodes on which something has been freed, and how often.
        self.freed = cache.freed
        #: The names of changed nodes, in the order of the changes.
        self.changes: list[str] = []
        #: Uid of a group -> node -> the amounts held for the group in this session: pledged
        #: capacity, or what a gang that has waited for long has found.
        self.held: dict[str, dict[str, Amounts]] = {}
        #: Uid of a group -> the places kept for its gang; their amounts are taken.
        self.kept: dict[str, KeptPlaces] = {}
        #: Why nothing is bound in this session; None if pods may be bound.
        self.binding_refused: Verdict | None = None
        #: Resource -> the result of `most_free`, valid for one length of `changes`.
        self._most_free: dict[str, tuple[int, str]] = {}
        self._most_free_at = -1

    def take_pod(self, node: NodeState, shape: TaskShape) -> None:
        """Take what a pod of this shape takes off a node."""
        if shape.sharing is None:
            node.take(shape.requests)
        else:
            node.take_pod(shape)
        self.changes.append(node.name)

    def put_back_pod(self, node: NodeState, shape: TaskShape) -> None:
        """Return what a pod of this shape took in a trial."""
        if shape.sharing is None:
            node.put_back(shape.requests)
        else:
            node.put_back_pod(shape)
        self.changes.append(node.name)

    def exchange(
        self, node: NodeState, sharing: Sharing, requests: Amounts, *, taken: bool
    ) -> None:
        """Take or free what a pod of a group with such sharing takes off a node."""
        if taken:
            self.take(node, node.share(sharing, requests))
        else:
            self.give(node, node.unshare(sharing, requests))

    def take(self, node: NodeState, amounts: Mapping[str, int]) -> None:
        """Take amounts off a node."""
        node.take(amounts)
        self.changes.append(node.name)

    def give(self, node: NodeState, amounts: Mapping[str, int]) -> None:
        """Free amounts on a node, so that refused groups may fit there from now on."""
        node.give(amounts)
        self.changes.append(node.name)

    def put_back(self, node: NodeState, amounts: Mapping[str, int]) -> None:
        """Return what a hold or a trial has taken. It does not count as freed."""
        node.put_back(amounts)
        self.changes.append(node.name)

    def take_places(self, places: KeptPlaces) -> None:
        """Take the requests of a gang's pods off their nodes."""
        for shape, nodes in places.parts:
            for node in nodes:
                self.take_pod(node, shape)

    def give_places(self, places: KeptPlaces) -> None:
        """Free the requests of a gang's pods."""
        for shape, nodes in places.parts:
            for node in nodes:
                self.put_back_pod(node, shape)
                self.freed.note(node.name)

    def put_back_places(self, places: KeptPlaces) -> None:
        """Return what a trial took for the pods of a gang."""
        for shape, nodes in places.parts:
            for node in nodes:
                self.put_back_pod(node, shape)

    def keep(self, uid: str, places: KeptPlaces) -> None:
        """Take places for the gang of a group, and keep them."""
        self.take_places(places)
        self.keep_taken(uid, places)

    def keep_taken(self, uid: str, places: KeptPlaces) -> None:
        """Keep places whose amounts the search has taken already."""
        self.kept[uid] = places

    def use_kept(self, uid: str) -> None:
        """Stop keeping places without freeing them, because the gang's pods are bound there."""
        del self.kept[uid]

    def release(self, uid: str) -> KeptPlaces:
        """Free the places kept for the gang of a group, and return them."""
        places = self.kept.pop(uid)
        self.give_places(places)
        return places

    def hold(self, uid: str, amounts: dict[str, Amounts]) -> None:
        """Hold amounts by node for a group, until the session ends."""
        self.hold_taken(uid, amounts)
        for name, part in amounts.items():
            self.take(self.by_name[name], part)

    def hold_taken(self, uid: str, amounts: dict[str, Amounts]) -> None:
        """Hold amounts that the search has taken already."""
        self.held[uid] = amounts

    def give_hold(self, uid: str) -> dict[str, Amounts]:
        """Free what is held for a group, and return it; empty if nothing is held."""
        amounts = self.held.pop(uid, {})
        for name, part in amounts.items():
            self.give(self.by_name[name], part)
        return amounts

    def put_back_hold(self, uid: str) -> dict[str, Amounts]:
        """Return what is held for a group to the nodes, as if it had not been held."""
        amounts = self.held.pop(uid)
        for name, part in amounts.items():
            self.put_back(self.by_name[name], part)
        return amounts

    def note_held_less(self) -> None:
        """Record as freed each node on which less is held than after the last session."""
        former = self._cache.held
        if not former:
            return
        held = self._all_held()
        for name, amounts in former.items():
            if minus(amounts, held.get(name, {})):
                self.freed.note(name)

    def end(self) -> None:
        """Return everything held or kept; the next session takes it again."""
        self._cache.held = self._all_held()
        for uid in list(self.held):
            self.put_back_hold(uid)
        while self.kept:
            self.put_back_places(self.kept.popitem()[1])

    def _all_held(self) -> dict[str, Amounts]:
        """Return everything held or kept, by node."""
        found: dict[str, Amounts] = {}
        kept = (places.by_node() for places in reversed(self.kept.values()))
        for by_node in (*reversed(self.held.values()), *kept):
            for name, amounts in by_node.items():
                found[name] = plus(found.get(name, {}), amounts)
        return found

    def known_when_empty(self) -> EmptyNodes:
        """Return the nodes seen within a day, as if they were empty."""
        return self._cache.known_when_empty()

    def open_when_empty(self) -> EmptyNodes:
        """Return the nodes that are ready and not cordoned, as if they were empty."""
        return self._cache.open_when_empty()

    def most_free(self, resource: str) -> tuple[int, str]:
        """Return the largest free amount on one open node, and its name; or (0, '')."""
        if self._most_free_at != len(self.changes):
            self._most_free_at, self._most_free = len(self.changes), {}
        known = self._most_free.get(resource)
        if known is None:
            nodes = (node for node in self.by_name.values() if node.open)
            free = ((node.free.get(resource, 0), node.name) for node in nodes)
            known = self._most_free[resource] = max(free, default=(0, ""))
        return known


class EmptyNodes:
    """Nodes as if all of them were present, empty and not cordoned.

    Cached results for gangs (batchq.core.placement.feasibility) stay valid for the lifetime of the
    object.
    """

    __slots__ = ("nodes", "takes", "why_not")

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        self.nodes = {node.name: _when_empty(node.record) for node in nodes}
        #: Shapes and counts of a gang -> whether these nodes take it.
        self.takes: dict[Wanted, bool] = {}
        #: The same with the names of its tasks -> why they do not.
        self.why_not: dict[tuple[object, ...], str] = {}


class NodeCache:
    """Every node by name, in order; owned by the scheduler cache."""

    def __init__(self, version: int = 0) -> None:
        self.nodes: dict[str, NodeState] = {}
        #: Rises when anything has changed that affects what may be put on nodes.
        self.version = version
        #: The total of all ready nodes, and of all nodes seen within a day, ready or not.
        self.ready: Amounts = {}
        self.known: Amounts = {}
        #: The most that the cluster could ever have, for rule 1; the dimensions that nodes leave
        #: unbounded have a limit that no request reaches.
        self.could_have: Amounts = {}
        #: Shape of a pod -> whether any open node would take it if the node were empty.
        self.taken_when_empty: dict[tuple[object, ...], bool] = {}
        self._known_when_empty: EmptyNodes | None = None
        self._open_when_empty: EmptyNodes | None = None
        #: The nodes on which something has been freed, and what was held or kept there at the end
        #: of the last session.
        self.freed = FreedNodes()
        self.held: dict[str, Amounts] = {}
        self._seen: tuple[object, ...] = ()
        self._settings = Settings()
        #: The instant (ms) until which no further node can become silent or unknown.
        self._until: int | None = None
        self._now_ms = 0

    def follow(self, snapshot: Snapshot, now_ms: int, settings: Settings) -> bool:
        """Update the nodes from a snapshot; return whether free resources must be counted again."""
        seen = (snapshot.nodes, snapshot.standing.hears_since, settings)
        same = len(self._seen) == 3 and self._seen[0] is seen[0] and self._seen[1:] == seen[1:]
        if same and self._now_ms <= now_ms and (self._until is None or now_ms < self._until):
            return False
        self._seen, self._settings, self._now_ms = seen, settings, now_ms
        records = sorted(snapshot.nodes, key=lambda node: node.metadata.name)
        is_changed = not self._are_as_before(records)
        before = [_judged_by(node) for node in self.nodes.values()]
        if is_changed:
            self.nodes = {
                one.metadata.name: NodeState(one, ready=False, freed=self.freed) for one in records
            }
        for record, node in zip(records, self.nodes.values(), strict=True):
            node.record = record
            node.ready = is_heard(snapshot, record, now_ms, settings.node_timeout_ms)
            heartbeat, timeout_ms = record.status.heartbeat, settings.node_timeout_ms
            node.heard = is_ready(record.status.ready, heartbeat, now_ms, timeout_ms)
        after = [_judged_by(node) for node in self.nodes.values()]
        known = known_resources(self.nodes.values(), now_ms, settings)
        if is_changed or before != after or known != self.known:
            self.version += 1
            self.taken_when_empty = {}
            self.known = known
            self._known_when_empty = self._open_when_empty = None
        self.ready = total(node.total for node in self.nodes.values() if node.ready)
        self.could_have = _UNBOUNDED | scaled(self.known, settings.overcommit)
        later = (at for at in _instants(snapshot, records, settings) if at > now_ms)
        self._until = min(later, default=None)
        return is_changed

    def known_when_empty(self) -> EmptyNodes:
        """Return the nodes seen within a day as if empty; the same object for one version."""
        if self._known_when_empty is None:
            nodes, settings = self.nodes.values(), self._settings
            known = (node for node in nodes if is_known(node, self._now_ms, settings))
            self._known_when_empty = EmptyNodes(known)
        return self._known_when_empty

    def open_when_empty(self) -> EmptyNodes:
        """Return the ready, uncordoned nodes as if empty; the same object until the version rises.
        If all known nodes are open, it is the object of the known nodes, so that each gang is
        checked only once.
        """
        if self._open_when_empty is None:
            known = self.known_when_empty()
            nodes = {name: node for name, node in self.nodes.items() if node.open}
            same = nodes.keys() == known.nodes.keys()
            self._open_when_empty = known if same else EmptyNodes(nodes.values())
        return self._open_when_empty

    def count(self, groups: Iterable[GroupState]) -> None:
        """Take what the pods of these groups hold off the nodes, after these were created."""
        for group in groups:
            self.take(group)

    def follow_pods(self, groups: Iterable[GroupState]) -> None:
        """Take what the pods of these groups hold off the nodes, or only the differences from the
        states that have handed on their pods.
        """
        for group in groups:
            if group.handed_on is None:
                self.take(group)
                continue
            for _, old, new in group.handed_on:
                if old is not None:
                    self._give(group, old)
                if new is not None:
                    self._take(group, new)

    def take(self, group: GroupState) -> None:
        """Take the requests of a group's pods off their nodes."""
        for pod in group.live_pods.values():
            self._take(group, pod)

    def give(self, group: GroupState) -> None:
        """Free the requests of a group's pods on their nodes."""
        for pod in group.live_pods.values():
            self._give(group, pod)

    def _take(self, group: GroupState, pod: Pod) -> None:
        if pod.status.phase in ON_NODE and (node := self.nodes.get(pod.status.node)):
            requests = group.requests_of(pod)
            node.take(requests if group.sharing is None else node.share(group.sharing, requests))

    def _give(self, group: GroupState, pod: Pod) -> None:
        if pod.status.phase in ON_NODE and (node := self.nodes.get(pod.status.node)):
            requests = group.requests_of(pod)
            node.give(requests if group.sharing is None else node.unshare(group.sharing, requests))

    def _are_as_before(self, records: Sequence[Node]) -> bool:
        """Return whether these are the same nodes with the same specs."""
        return len(records) == len(self.nodes) and all(
            one.metadata.name == node.name
            and (one is node.record or one.spec is node.record.spec or one.spec == node.record.spec)
            for one, node in zip(records, self.nodes.values(), strict=True)
        )


def hold_the_same(one: GroupState, other: GroupState) -> bool:
    """Return whether the pods of two states of a group hold the same on the same nodes."""
    if len(one.pods) != len(other.pods) or one.sharing is not None or other.sharing is not None:
        return False
    for uid, pod in one.pods.items():
        was = other.pods.get(uid)
        if was is not pod and (
            was is None
            or was.status.node != pod.status.node
            or was.spec.requests != pod.spec.requests
            or (was.status.phase in ON_NODE) is not (pod.status.phase in ON_NODE)
        ):
            return False
    return True


def _judged_by(node: NodeState) -> tuple[object, ...]:
    """Return the parts of a node besides its spec that affect what may be put on it."""
    meta = node.record.metadata
    return (meta.labels, meta.annotations.get(PROTOCOL_ANNOTATION), node.ready)


def _when_empty(record: Node) -> NodeState:
    spec = structs.replace(record.spec, unschedulable=False)
    return NodeState(structs.replace(record, spec=spec), ready=True)


def is_ready(record_ready: bool, heartbeat: int | None, now_ms: int, timeout_ms: int) -> bool:
    """Return whether a node is marked as ready and, if it sends heartbeats, not silent."""
    return record_ready and (heartbeat is None or now_ms < heartbeat + timeout_ms)


def is_heard(snapshot: Snapshot, record: Node, now_ms: int, timeout_ms: int) -> bool:
    """Return the same as `is_ready`, but count silence only from when the scheduler could have
    heard the node (batchq.core.session.open_session).
    """
    heard_at, hears_since = record.status.heartbeat, snapshot.standing.hears_since
    if heard_at is not None and hears_since is not None:
        heard_at = max(heard_at, hears_since)
    return is_ready(record.status.ready, heard_at, now_ms, timeout_ms)


def known_resources(nodes: Iterable[NodeState], now_ms: int, settings: Settings) -> Amounts:
    """Return the total of all nodes seen within a day, ready or not."""
    return total(node.total for node in nodes if is_known(node, now_ms, settings))


def is_known(node: NodeState, now_ms: int, settings: Settings) -> bool:
    """Return whether the node was seen within a day, so that it may come back."""
    heartbeat = node.record.status.heartbeat
    return heartbeat is None or now_ms < heartbeat + settings.node_memory_ms


def _instants(snapshot: Snapshot, records: Iterable[Node], settings: Settings) -> Iterable[int]:
    """Yield the instants (ms) at which nodes may become silent or unknown."""
    hears_since = snapshot.standing.hears_since
    for record in records:
        if (heartbeat := record.status.heartbeat) is not None:
            yield heartbeat + settings.node_timeout_ms
            yield heartbeat + settings.node_memory_ms
            if hears_since is not None:
                yield hears_since + settings.node_timeout_ms
