"""Queues and quotas. Here: the tree of queues and their guarantees.

Every queue is a descendant of `root`. Only leaves hold groups. Requests that would break the tree
are refused (batchq.client.changes); in a snapshot described by hand, a queue whose parent is
missing or is its own descendant counts as a child of the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from batchq.api.objects import DEFAULT, PodGroup, Queue
from batchq.api.resources import PODS, Amounts, larger, total
from batchq.api.transaction import CLUSTER, namespace_scope, queue_scope

#: The queue above all others; it has a limit only if one is stated for it.
ROOT = "root"

#: How many of the namespaces that a queue accepts are named.
_NAMESPACES_SHOWN = 10


class QueueTree:
    """Names and guarantees of queues; built once for each snapshot.

    `parent_of` has every queue except the root; `children_of` has every queue with children, in
    order.
    """

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.records = {queue.metadata.name: queue for queue in queues}
        self.parent_of: dict[str, str] = {}
        for name in sorted(self.records):
            if name != ROOT:
                self.parent_of[name] = self._sound_parent(name)
        self.children_of: dict[str, tuple[str, ...]] = {}
        for name, parent in self.parent_of.items():
            self.children_of[parent] = (*self.children_of.get(parent, ()), name)
        #: Whether every queue lets others reclaim from it.
        self.all_reclaimable = all(one.spec.reclaimable for one in self.records.values())
        #: Whether any queue requires admission checks.
        self.asks_for_checks = any(one.spec.admission_checks for one in self.records.values())
        #: Whether any queue is stopped.
        self.has_stops = any(one.spec.stop_policy != "None" for one in self.records.values())
        #: Whether any queue accepts groups of certain namespaces only.
        self.has_namespaces = any(one.spec.namespaces for one in self.records.values())
        #: Whether any queue states how many pods it deserves.
        self.deserves_pods = any(PODS in one.spec.deserved for one in self.records.values())
        #: Every dimension that any queue names.
        self.resources = frozenset(
            name
            for one in self.records.values()
            for stated in (one.spec.capability, one.spec.deserved, one.spec.guarantee)
            for name in stated
        )
        self._chains: dict[str, tuple[str, ...]] = {}
        self._accepted: dict[str, frozenset[str] | None] = {}
        self._guarantees: dict[str, Amounts] = {}
        self._below: dict[str, Amounts] = {}

    def _sound_parent(self, name: str) -> str:
        above = name
        for _ in range(len(self.records) + 1):
            above = self.records[above].spec.parent or ROOT
            if above == ROOT:
                return self.records[name].spec.parent or ROOT
            if above not in self.records or above == name:
                return ROOT
        return ROOT

    def chain(self, name: str) -> tuple[str, ...]:
        """Return the path from the root to the queue itself: `("root", "org", "team")`."""
        known = self._chains.get(name)
        if known is None:
            above = () if name == ROOT else self.chain(self.parent_of.get(name, ROOT))
            known = self._chains[name] = (*above, name)
        return known

    def scopes(self, name: str) -> tuple[str, ...]:
        """Return the queue scopes in which a group of the queue is charged, the root's first."""
        return tuple(queue_scope(one) for one in self.chain(name))

    def is_leaf(self, name: str) -> bool:
        """Return whether the queue may hold groups."""
        return name != ROOT and name not in self.children_of

    def accepted(self, name: str) -> frozenset[str] | None:
        """Return the namespaces that the queue and each queue above it accept groups of; None: all.

        The queue need not exist.
        """
        if not self.has_namespaces:
            return None
        if name not in self._accepted:
            above = None if name == ROOT else self.accepted(self.parent_of.get(name, ROOT))
            record = self.records.get(name)
            own = frozenset(record.spec.namespaces) if record is not None else frozenset()
            self._accepted[name] = own & above if own and above is not None else own or above
        return self._accepted[name]

    def accepts(self, name: str, namespace: str) -> bool:
        """Return whether the queue, and each queue above it, accepts groups of the namespace."""
        accepted = self.accepted(name)
        return accepted is None or namespace in accepted

    def open_to(self, namespace: str) -> list[str]:
        """Return the queues that hold groups and accept those of the namespace, by name."""
        names = sorted({DEFAULT, *self.records})
        return [one for one in names if self.is_leaf(one) and self.accepts(one, namespace)]

    def closed_to(self, name: str, namespace: str) -> list[str]:
        """Return the queues that do not accept groups of the namespace, of the queue and those
        above it, the highest first.
        """
        stated = [
            (one, self.records[one].spec.namespaces)
            for one in self.chain(name)
            if one in self.records
        ]
        return [one for one, accepted in stated if accepted and namespace not in accepted]

    def why_closed(self, name: str, namespace: str) -> str:
        """Return why the queue does not accept groups of the namespace, in words."""
        accepted = sorted(self.accepted(name) or ())
        if not accepted:
            return (
                f"queue {name} accepts groups of no namespace: its spec.namespaces and those of the"
                " queues above it have none in common"
            )
        shown = accepted[:_NAMESPACES_SHOWN]
        more = len(accepted) - len(shown)
        last = f"{more} more" if more else shown.pop()
        names = f"{', '.join(shown)} and {last}" if shown else last
        which = "namespace" if len(accepted) == 1 else "namespaces"
        return f"queue {name} accepts only groups of {which} {names}, not of {namespace}"

    def siblings(self, name: str) -> tuple[str, ...]:
        """Return the other children of its parent."""
        same = self.children_of.get(self.parent_of.get(name, ""), ())
        return tuple(one for one in same if one != name)

    def leaves_below(self, name: str) -> tuple[str, ...]:
        """Return the leaves of its subtree; the queue itself if it is a leaf."""
        below = self.children_of.get(name)
        if below is None:
            return (name,)
        return tuple(leaf for child in below for leaf in self.leaves_below(child))

    def guarantee(self, name: str) -> Mapping[str, int]:
        """Return its stated guarantee; for a queue with children, at least the sum of theirs."""
        known = self._guarantees.get(name)
        if known is None:
            record = self.records.get(name)
            stated = record.spec.guarantee if record is not None else {}
            known = self._guarantees[name] = larger(stated, self.guaranteed_below(name))
        return known

    def guaranteed_below(self, name: str) -> Mapping[str, int]:
        """Return the sum of the guarantees of its children."""
        known = self._below.get(name)
        if known is None:
            children = self.children_of.get(name, ())
            known = self._below[name] = total(self.guarantee(child) for child in children)
        return known

    def divide(self, left: str, right: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return two queues' paths below their lowest common ancestor, the highest first."""
        first, second = self.chain(left), self.chain(right)
        same = 0
        while same < min(len(first), len(second)) and first[same] == second[same]:
            same += 1
        return first[same:], second[same:]


def scopes_in(record: PodGroup, chain: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes of a group's charge, given the path of its queue.

    An external group is not charged in the cluster, because it uses none of the cluster's nodes.
    """
    cluster = () if record.spec.controller == "external" else (CLUSTER,)
    namespace = namespace_scope(record.metadata.namespace)
    return (*cluster, *map(queue_scope, chain), namespace)
