"""The nodes of one session: what is free on them, and what is kept there for waiting groups.

All changes of free resources go through `take`, `give` or `put_back`. Each records the node in
`changes`, the journal from which rankings and columns see which nodes to update.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.reasons import Verdict
from batchq.api.resources import Amounts, minus, plus
from batchq.core.cache.node_cache import EmptyNodes, NodeCache
from batchq.core.session.node_state import KeptPlaces, NodeState


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
        #: The most that the cluster could ever have, for rule 1.
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

    # Changes --------------------------------------------------------------------------------------

    def take(self, node: NodeState, amounts: Mapping[str, int]) -> None:
        """Take amounts off a node."""
        node.take(amounts)
        self.changes.append(node.name)

    def give(self, node: NodeState, amounts: Mapping[str, int]) -> None:
        """Free amounts on a node, so that refused groups may fit there from now on."""
        node.give(amounts)
        self.changes.append(node.name)

    def put_back(self, node: NodeState, amounts: Mapping[str, int]) -> None:
        """Return amounts taken only for a while: nothing is free that was not free before."""
        node.put_back(amounts)
        self.changes.append(node.name)

    # Places of gangs ------------------------------------------------------------------------------

    def take_places(self, places: KeptPlaces) -> None:
        """Take the requests of a gang's pods off their nodes."""
        for shape, nodes in places.parts:
            for node in nodes:
                self.take(node, shape.requests)

    def give_places(self, places: KeptPlaces) -> None:
        """Free the requests of a gang's pods."""
        for shape, nodes in places.parts:
            for node in nodes:
                self.give(node, shape.requests)

    def put_back_places(self, places: KeptPlaces) -> None:
        """Return what a trial took for the pods of a gang."""
        for shape, nodes in places.parts:
            for node in nodes:
                self.put_back(node, shape.requests)

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

    # Holds ----------------------------------------------------------------------------------------

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
        """Record as freed the nodes on which less is held or kept than at the end of the last
        session.
        """
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
        kept = (places.room() for places in reversed(self.kept.values()))
        for by_node in (*reversed(self.held.values()), *kept):
            for name, amounts in by_node.items():
                found[name] = plus(found.get(name, {}), amounts)
        return found

    # Totals ---------------------------------------------------------------------------------------

    def known_when_empty(self) -> EmptyNodes:
        """Return the nodes seen within a day, as if they were empty."""
        return self._cache.known_when_empty()

    def open_when_empty(self) -> EmptyNodes:
        """Return the nodes that are ready and not cordoned, as if they were empty."""
        return self._cache.open_when_empty()

    def most_free(self, resource: str) -> tuple[int, str]:
        """Return the largest free amount of a resource on one open node, and the node's name; (0,
        '') if no node is open.
        """
        if self._most_free_at != len(self.changes):
            self._most_free_at, self._most_free = len(self.changes), {}
        known = self._most_free.get(resource)
        if known is None:
            nodes = (node for node in self.by_name.values() if node.open)
            free = ((node.free.get(resource, 0), node.name) for node in nodes)
            known = self._most_free[resource] = max(free, default=(0, ""))
        return known
