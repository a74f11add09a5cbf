"""Whether nodes could ever take a gang (rule 1, node by node).

The nodes seen within a day are treated as present, empty and not cordoned. The answer depends only
on the pods' requests and the nodes, so it is cached while the nodes do not change: a backlog costs
one check for each shape, not for each group.

Gangs that no nodes took are cached by their requests, too. A session therefore checks changed nodes
times waiting shapes, never every waiting group: a gang whose shape was refused is tried again only
if a node that has freed something since takes one of its pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from batchq.api.notation import counted
from batchq.api.reasons import Verdict
from batchq.api.resources import Amounts, describe_quantity, larger
from batchq.core.placement.node_order import takes_for
from batchq.core.placement.placement import count_fitting, place_largest_first, take_best
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import EmptyNodes, Gang, NodeState, Wanted, is_known
from batchq.core.session.snapshot import Generation
from batchq.core.session.specs import TaskShape

if TYPE_CHECKING:
    from batchq.core.session.state import EquivalenceClass


#: The suffix that marks a failure of a plugin at this point.
_AT_PREDICATE = " at predicate"
#: Limits of the two caches: whether nodes take a gang, and the reason if they do not.
_MOST_KNOWN, _MOST_EXPLAINED = 200_000, 10_000
#: How many nodes are checked in the first batch and in later ones; the first few usually suffice.
_FIRST, _AT_ONCE = 4, 64


def why_no_known_node(session: Session, gang: Gang) -> str:
    """Return why these pods would not fit on the nodes seen within a day, if all of them were
    present, empty and not cordoned; '' if they would fit or no node is known.
    """
    known = session.nodes.known_when_empty()
    if not known.nodes or _are_taken_by(session, gang, known):
        return ""
    asked = tuple((shape.task.name, shape.shape, count) for shape, count in gang)
    answer = known.why_not.get(asked)
    if answer is None:
        answer = _why_not(session, gang, known.nodes)
        if _has_failed(session):
            # A plugin that raised has given no answer, so nothing is cached.
            return ""
        if len(known.why_not) >= _MOST_EXPLAINED:
            known.why_not.clear()
        known.why_not[asked] = answer
    return answer


def fits_when_empty(session: Session, gang: Gang) -> bool:
    """Return whether the nodes that are ready and not cordoned would take a gang if they were
    empty.

    The answer is cached for each gang and set of nodes.
    """
    return _are_taken_by(session, gang, session.nodes.open_when_empty())


def why_not_when_empty(session: Session, gang: Gang) -> str:
    """Return why even empty nodes refuse a pod of the gang; if they take each of its pods, how many
    pods do not fit together, and how many nodes are cordoned or not ready.
    """
    for shape, _ in gang:
        if not session.is_taken_when_empty(shape):
            empty = (
                NodeState(node.record, ready=node.ready, heard=node.heard)
                for node in session.nodes.by_name.values()
            )
            return count_fitting(session, shape, empty)[0]
    away = nodes_away(session)
    return "; ".join((_too_many(gang), away.text())) if away else _too_many(gang)


class NodesAway(NamedTuple):
    """Nodes seen within a day on which no pods are placed now, by name, and how many were seen."""

    cordoned: tuple[str, ...]
    not_ready: tuple[str, ...]
    known: int

    def __bool__(self) -> bool:
        return bool(self.cordoned or self.not_ready)

    def text(self, *, named: bool = False) -> str:
        """Return e.g. `1 of 2 nodes is cordoned`, with the names of the nodes if asked for."""
        kinds = (("cordoned", self.cordoned), ("not ready", self.not_ready))
        return ", ".join(
            f"{len(names)} of {self.known} nodes {'is' if len(names) == 1 else 'are'} {kind}"
            + (f" ({named_nodes(names)})" if named else "")
            for kind, names in kinds
            if names
        )


#: How many nodes are named in one sentence.
_MOST_NAMED = 3


def named_nodes(names: Sequence[str]) -> str:
    """Return the first names, of nodes or of groups, and the number of the others."""
    more = len(names[_MOST_NAMED:])
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more else "")


def nodes_away(session: Session, gang: Gang = ()) -> NodesAway:
    """Return the nodes that are cordoned or not ready; with a gang, those that would take a pod of
    it if they were ready, empty and not cordoned.
    """
    known = session.nodes.known_when_empty().nodes
    away = [node for node in session.nodes.by_name.values() if not node.open and node.name in known]
    if gang:
        away = [
            node
            for node in away
            if any(session.refused_by(shape, known[node.name]) is None for shape, _ in gang)
        ]
    return NodesAway(
        cordoned=tuple(node.name for node in away if node.ready),
        not_ready=tuple(node.name for node in away if not node.ready),
        known=len(known),
    )


def largest_node(session: Session, resource: str) -> int:
    """Return the largest amount of a resource on one node seen within a day, in base units."""
    nodes = session.nodes.by_name.values()
    known = (node for node in nodes if is_known(node, session.now_ms, session.settings))
    return max((node.total.get(resource, 0) for node in known), default=0)


def _are_taken_by(session: Session, gang: Gang, empty: EmptyNodes) -> bool:
    wanted = wanted_of(gang)
    answer = empty.takes.get(wanted)
    if answer is None:
        answer = _fit(session, gang, empty.nodes)
        if _has_failed(session):
            return answer
        if len(empty.takes) >= _MOST_KNOWN:
            empty.takes.clear()
        empty.takes[wanted] = answer
    return answer


def _has_failed(session: Session) -> bool:
    """Return whether a plugin has raised at `predicate` in this session."""
    return bool(session.plugins.failures) and any(
        failed.endswith(_AT_PREDICATE) for failed in session.plugins.failures
    )


def _why_not(session: Session, gang: Gang, nodes: Mapping[str, NodeState]) -> str:
    for shape, _ in gang:
        detail, fitting = count_fitting(session, shape, nodes.values())
        if not fitting:
            usable = _usable(session, shape, nodes.values())
            where = "" if len(usable) == len(nodes) else " that it may use"
            oversize = _oversize(shape, _largest(usable), where) if usable else ""
            return "; ".join(part for part in (detail, oversize) if part)
    return _too_many(gang)


def _usable(session: Session, shape: TaskShape, nodes: Iterable[NodeState]) -> list[NodeState]:
    """Return the nodes that refuse a pod for nothing but its size."""
    refusals = ((node, session.refused_by(shape, node)) for node in nodes)
    return [node for node, refusal in refusals if refusal is None or refusal.resource]


def _too_many(gang: Gang) -> str:
    pods = sum(count for _, count in gang)
    sharing = gang[0][0].sharing
    limit = f" with at most {counted(sharing.most, 'pod')} each" if sharing and sharing.most else ""
    if len({shape.shape for shape, _ in gang}) > 1:
        # Pods of several sizes are tried in a few orders only (`_fit`), so another might do.
        return f"no way was found to place {pods} pods together on empty nodes{limit}"
    return f"{pods} pods do not fit together on empty nodes{limit}"


def _fit(session: Session, gang: Gang, nodes: Mapping[str, NodeState]) -> bool:
    """Return whether the nodes take a gang: in its own order, each pod on the best node; or the
    largest pods first, each on the fullest node that takes it. The nodes themselves stay unchanged.
    """
    if len(gang) == 1:
        ((only, count),) = gang
        return _slots(session, only, nodes, count) >= count
    counts: dict[tuple[object, ...], int] = {}
    for shape, count in gang:
        counts[shape.shape] = counts.get(shape.shape, 0) + count
    one_of_each = {shape.shape: shape for shape, _ in gang}
    alone = (
        _slots(session, shape, nodes, counts[key]) >= counts[key]
        for key, shape in one_of_each.items()
    )
    if not all(alone):
        return False
    if len(one_of_each) == 1:
        return True
    used = _copies(nodes)
    if all(take_best(session, shape, used, count) for shape, count in gang):
        return True
    used = _copies(nodes)
    placed = place_largest_first(
        [(shape, counts[key]) for key, shape in one_of_each.items()],
        used.values(),
        _largest(nodes.values()),
        choices=lambda shape: _takers(session, shape, nodes),
        takes=lambda shape, node: session.refused_by(shape, node) is None,
        take=lambda shape, node: node.take_pod(shape),
        give_back=lambda shape, node: node.put_back_pod(shape),
    )
    return placed is not None


def _slots(session: Session, shape: TaskShape, nodes: Mapping[str, NodeState], most: int) -> int:
    """Return how many pods of one shape fit on the nodes, counting up to `most`."""
    takers = [takes_for(entry, session, shape) for entry in session.plugins.points["predicate"]]
    there, found, start, at_once = list(nodes.values()), 0, 0, _FIRST
    while start < len(there):
        some = there[start : start + at_once]
        start, at_once = start + at_once, _AT_ONCE
        for takes in takers:
            some = list(compress(some, takes(some)))
        for node in some:
            found += node.slots(shape)
        if found >= most:
            return most
    return found


def _takers(session: Session, shape: TaskShape, nodes: Mapping[str, NodeState]) -> int:
    """Return how many of the nodes take a pod of the shape."""
    some = list(nodes.values())
    for entry in session.plugins.points["predicate"]:
        taken = takes_for(entry, session, shape)(some)
        some = [node for node, is_taken in zip(some, taken, strict=True) if is_taken]
    return len(some)


def _largest(nodes: Iterable[NodeState]) -> Amounts:
    """Return, for each resource, the largest amount on one node."""
    found: Amounts = {}
    for node in nodes:
        found = larger(found, node.total)
    return found


def _copies(nodes: Mapping[str, NodeState]) -> dict[str, NodeState]:
    return {name: NodeState(node.record, ready=True) for name, node in nodes.items()}


def _oversize(shape: TaskShape, largest: Amounts, where: str) -> str:
    """Return the first dimension in which a pod needs more than any node has, in words; `where`
    says which nodes were compared.
    """
    for resource, need in shape.requests.items():
        most = largest.get(resource, 0)
        if most < need:
            needs, has = (describe_quantity(resource, units) for units in (need, most))
            return f"a pod needs {resource} {needs}, and the largest node{where} has {has}"
    return ""


#: How many refused shapes of one kind are compared with others.
_MOST_COMPARED = 16
#: How many refused gangs are cached.
_MOST_KNOWN = 200_000


def wanted_of(gang: Gang) -> Wanted:
    """Return the cache key of a gang: its shapes and their numbers of pods."""
    return tuple([(shape.shape, count) for shape, count in gang])


class _Refused(NamedTuple):
    """A refused gang's shapes and verdict, and how much had been freed by then."""

    shapes: tuple[TaskShape, ...]
    verdict: Verdict
    at: int


class NodeRefusals:
    """Gangs that no nodes took, and the equivalence classes parked for that reason.

    Lasts across sessions and belongs to one scheduler; it changes no decision.
    """

    def __init__(self) -> None:
        self._known: dict[Wanted, _Refused] = {}
        #: Gangs of a single shape, by all parts of the shape except its amounts.
        self._alike: dict[tuple[Any, ...], dict[Wanted, None]] = {}
        self._parked: dict[Wanted, dict[EquivalenceClass, None]] = {}
        self._wants: dict[EquivalenceClass, Wanted] = {}
        self._nodes = Generation()

    def __bool__(self) -> bool:
        return bool(self._known)

    def begin(self, session: Session) -> None:
        """Clear the cache if nodes have come, gone or changed in more than their free resources."""
        if self._nodes.follow(session.nodes.version):
            self._known.clear()
            self._alike.clear()

    def find(self, session: Session, wanted: Wanted) -> Verdict | None:
        """Return why nodes do not take a gang, if that is cached and still true."""
        known = self._known.get(wanted)
        if known is None:
            return None
        if known.at != session.nodes.freed.count:
            if known.verdict.in_line and _helps(session, known):
                del self._known[wanted]
                return None
            self._known[wanted] = known._replace(at=session.nodes.freed.count)
        return known.verdict

    def asks_for_more(self, session: Session, wanted: Wanted) -> tuple[Any, ...] | None:
        """Return the first shape of a gang that requests at least as much as a refused gang of the
        same kind, for at least as many pods; None if there is none.
        """
        for shape, count in wanted if self._alike else ():
            for other in list(self._alike.get(shape[1:], ())):
                if _asks_for_less(other, shape, count) and self.find(session, other) is not None:
                    return shape
        return None

    def note(self, session: Session, gang: Gang, verdict: Verdict) -> Verdict:
        """Cache that no nodes take a gang now; return the verdict with the snapshot's revision."""
        wanted = wanted_of(gang)
        verdict = structs.replace(verdict, revision=session.snapshot.revision)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[wanted] = _Refused(
            tuple([one for one, _ in gang]), verdict, session.nodes.freed.count
        )
        if len(wanted) == 1 and verdict.in_line:
            alike = self._alike.setdefault(wanted[0][0][1:], {})
            if len(alike) >= _MOST_COMPARED:
                del alike[next(iter(alike))]
            alike[wanted] = None
        return verdict

    def sleep(self, peers: EquivalenceClass, wanted: Wanted) -> None:
        """Park an equivalence class until nodes may take its gangs."""
        self._parked.setdefault(wanted, {})[peers] = None
        self._wants[peers] = wanted

    def unpark(self, peers: EquivalenceClass) -> None:
        """Unpark an equivalence class, if it is parked here."""
        wanted = self._wants.pop(peers, None)
        if wanted is not None:
            del self._parked[wanted][peers]
            if not self._parked[wanted]:
                del self._parked[wanted]

    def unpark_all(self) -> None:
        """Unpark all equivalence classes."""
        self._parked.clear()
        self._wants.clear()

    def holds(self, peers: EquivalenceClass) -> bool:
        """Return whether an equivalence class is parked here."""
        return peers in self._wants

    def keeps_out(self, session: Session, peers: EquivalenceClass) -> bool:
        """Return whether an equivalence class is parked here and would still find no nodes."""
        wanted = self._wants.get(peers)
        return wanted is not None and self.find(session, wanted) is not None

    def parked_classes(self) -> Iterable[EquivalenceClass]:
        """Return the equivalence classes that are parked here."""
        return self._wants.keys()

    def freed(self, session: Session) -> list[EquivalenceClass]:
        """Return the classes that nodes may take now, in the order of parking."""
        return [
            peers
            for wanted, classes in list(self._parked.items())
            if self.find(session, wanted) is None
            for peers in classes
        ]


def _helps(session: Session, known: _Refused) -> bool:
    """Return whether a node that has freed something since takes any pod of the gang now."""
    return any(
        session.refused_by(shape, session.nodes.by_name[name]) is None
        for name in session.nodes.freed.since(known.at)
        if name in session.nodes.by_name
        for shape in known.shapes
    )


def _asks_for_less(other: Wanted, shape: tuple[Any, ...], count: int) -> bool:
    """Return whether a refused gang of one shape has at most `count` pods of this size."""
    ((small, fewer),) = other
    requests = dict(shape[0])
    return fewer <= count and all(requests.get(name, 0) >= units for name, units in small[0])


#: The refused gangs; the scheduler cache provides the object.
NODE_REFUSALS: StateKey[NodeRefusals] = StateKey("node refusals", lambda _: NodeRefusals())
