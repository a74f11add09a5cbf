"""The nodes kept across sessions, with what is free on them.

A node is evaluated again only when its record has changed or it may have become silent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import structs

from batchq.api.lifecycle import ON_NODE
from batchq.api.node_report import PROTOCOL_ANNOTATION
from batchq.api.objects import Node
from batchq.api.resources import Amounts, scaled, total
from batchq.core.session.node_state import FreedNodes, NodeState, Wanted
from batchq.core.session.snapshot import Settings, Snapshot
from batchq.core.session.state import GroupState

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        #: The most that the cluster could ever have, for rule 1.
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
        anew = not self._are_as_before(records)
        before = [_judged_by(node) for node in self.nodes.values()]
        if anew:
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
        if anew or before != after or known != self.known:
            self.version += 1
            self.taken_when_empty = {}
            self.known = known
            self._known_when_empty = self._open_when_empty = None
        self.ready = total(node.total for node in self.nodes.values() if node.ready)
        self.could_have = scaled(self.known, settings.overcommit)
        later = (at for at in _instants(snapshot, records, settings) if at > now_ms)
        self._until = min(later, default=None)
        return anew

    def known_when_empty(self) -> EmptyNodes:
        """Return the nodes seen within a day as if empty; the same object until the version
        rises.
        """
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

    def take(self, group: GroupState) -> None:
        """Take the requests of a group's pods off their nodes."""
        for pod in group.pods.values():
            if pod.status.phase in ON_NODE and (node := self.nodes.get(pod.status.node)):
                node.take(group.requests_of(pod))

    def give(self, group: GroupState) -> None:
        """Free the requests of a group's pods on their nodes."""
        for pod in group.pods.values():
            if pod.status.phase in ON_NODE and (node := self.nodes.get(pod.status.node)):
                node.give(group.requests_of(pod))

    def _are_as_before(self, records: Sequence[Node]) -> bool:
        """Return whether these are the same nodes with the same specs."""
        return len(records) == len(self.nodes) and all(
            one.metadata.name == node.name
            and (one is node.record or one.spec is node.record.spec or one.spec == node.record.spec)
            for one, node in zip(records, self.nodes.values(), strict=True)
        )


def _judged_by(node: NodeState) -> tuple[object, ...]:
    """Return the parts of a node besides its spec that affect what may be put on it."""
    meta = node.record.metadata
    return (meta.labels, meta.annotations.get(PROTOCOL_ANNOTATION), node.ready)


def _when_empty(record: Node) -> NodeState:
    spec = structs.replace(record.spec, unschedulable=False)
    return NodeState(structs.replace(record, spec=spec), ready=True)


def is_ready(record_ready: bool, heartbeat: int | None, now_ms: int, timeout_ms: int) -> bool:
    """Return whether a node counts as ready: marked as ready, and heard of within the timeout if it
    sends heartbeats.
    """
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
