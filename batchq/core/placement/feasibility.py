"""Whether nodes could ever take a gang (rule 1, node by node).

The nodes seen within a day are treated as present, empty and not cordoned. The answer depends only
on the pods' requests and the nodes, so it is cached while the nodes do not change: a backlog costs
one check for each shape, not for each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TypeAlias

from batchq.api.resources import Amounts, describe_quantity, larger
from batchq.core.cache.node_cache import EmptyNodes, is_known
from batchq.core.placement.node_order import takes_for
from batchq.core.placement.node_refusals import wanted_of
from batchq.core.placement.placement import count_fitting, place_largest_first, take_best
from batchq.core.session.node_state import NodeState
from batchq.core.session.session import Session
from batchq.core.session.specs import TaskShape

#: Shapes with their number of pods, in placement order.
Gang: TypeAlias = Sequence[tuple[TaskShape, int]]

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
    pods do not fit together.
    """
    for shape, _ in gang:
        if not session.is_taken_when_empty(shape):
            empty = (
                NodeState(node.record, ready=node.ready, heard=node.heard)
                for node in session.nodes.by_name.values()
            )
            return count_fitting(session, shape, empty)[0]
    return _too_many(gang)


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
            oversize = _oversize(shape, _largest(nodes.values()))
            return "; ".join(part for part in (detail, oversize) if part)
    return _too_many(gang)


def _too_many(gang: Gang) -> str:
    pods = sum(count for _, count in gang)
    return f"{pods} pods do not fit together on empty nodes"


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
        take=lambda shape, node: node.take(shape.requests),
        give_back=lambda shape, node: node.put_back(shape.requests),
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
            found += _slots_on(shape, node)
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


def _slots_on(shape: TaskShape, node: NodeState) -> int:
    return min(node.free.get(name, 0) // units for name, units in shape.requests.items())


def _largest(nodes: Iterable[NodeState]) -> Amounts:
    """Return, for each resource, the largest amount on one node."""
    found: Amounts = {}
    for node in nodes:
        found = larger(found, node.total)
    return found


def _copies(nodes: Mapping[str, NodeState]) -> dict[str, NodeState]:
    return {name: NodeState(node.record, ready=True) for name, node in nodes.items()}


def _oversize(shape: TaskShape, largest: Amounts) -> str:
    """Return the first dimension in which a pod needs more than any node has, in words."""
    for resource, need in shape.requests.items():
        most = largest.get(resource, 0)
        if most < need:
            needs, has = (describe_quantity(resource, units) for units in (need, most))
            return f"a pod needs {resource} {needs}, and the largest node has {has}"
    return ""
