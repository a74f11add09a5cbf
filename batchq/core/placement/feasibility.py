"""Whether nodes could ever take a gang: rule 1, node by node.

Asked of the nodes that were seen within a day, as if all of them were there, empty and not
cordoned. The answer follows from what the pods ask for and from the nodes alone, so it is kept for
as long as the nodes stay as they are: a backlog costs one look for each shape, not for each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TypeAlias

from batchq.api.resources import Amounts, describe_quantity, larger
from batchq.core.cache.node_cache import EmptyNodes, is_known
from batchq.core.placement.batch_answers import takes_for
from batchq.core.placement.node_refusals import wanted_of
from batchq.core.placement.placement import count_fitting, place_largest_first, take_best
from batchq.core.session.node_state import NodeState
from batchq.core.session.session import Session
from batchq.core.session.specs import TaskShape

#: Pods by shape, in the order in which they are placed.
Gang: TypeAlias = Sequence[tuple[TaskShape, int]]

#: How failures of plugins at this point are named.
_AT_PREDICATE = " at predicate"
#: Of so many gangs it is remembered whether nodes take them, and of so many why not.
_MOST_KNOWN, _MOST_EXPLAINED = 200_000, 10_000
#: Nodes are asked about so many at a time: mostly the first few take the gang.
_FIRST, _AT_ONCE = 4, 64
#: How full a node is, is told in so many parts of what the largest node has.
_PARTS = 1_000_000


def why_no_known_node(session: Session, gang: Gang) -> str:
    """Why these pods would not fit on the nodes that were seen within a day, if all of them were
    there, empty and not cordoned; '' if they would, or if no node is known.
    """
    known = session.nodes.known_when_empty()
    if not known.nodes or _are_taken_by(session, gang, known):
        return ""
    asked = tuple((shape.task.name, shape.shape, count) for shape, count in gang)
    answer = known.why_not.get(asked)
    if answer is None:
        answer = _why_not(session, gang, known.nodes)
        if _has_failed(session):
            # A plugin that raised has said nothing of the nodes.
            return ""
        if len(known.why_not) >= _MOST_EXPLAINED:
            known.why_not.clear()
        known.why_not[asked] = answer
    return answer


def fits_when_empty(session: Session, gang: Gang) -> bool:
    """Return whether the nodes that are ready and not cordoned would take a gang, were they empty.

    Looked up once for each gang and set of nodes.
    """
    return _are_taken_by(session, gang, session.nodes.open_when_empty())


def why_not_when_empty(session: Session, gang: Gang) -> str:
    """Return which pod of a gang not even an empty node takes, and why; else how many pods do not
    fit together.
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
    """The most of a resource that one node has, of those seen within a day."""
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
    """Whether a plugin has raised at `predicate` in this session."""
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
    """Whether the nodes take a gang: in its order, each pod on the best node; or the largest pods
    first, each on the fullest node that takes it. Nothing stays on the nodes.
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
    """How many pods of one shape fit on the nodes; counts up to `most`."""
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
    """How many of the nodes take a pod."""
    some = list(nodes.values())
    for entry in session.plugins.points["predicate"]:
        taken = takes_for(entry, session, shape)(some)
        some = [node for node, is_taken in zip(some, taken, strict=True) if is_taken]
    return len(some)


def _slots_on(shape: TaskShape, node: NodeState) -> int:
    return min(node.free.get(name, 0) // units for name, units in shape.requests.items())


def _largest(nodes: Iterable[NodeState]) -> Amounts:
    """Of each resource, the most that one node has."""
    found: Amounts = {}
    for node in nodes:
        found = larger(found, node.total)
    return found


def _copies(nodes: Mapping[str, NodeState]) -> dict[str, NodeState]:
    return {name: NodeState(node.record, ready=True) for name, node in nodes.items()}


def _oversize(shape: TaskShape, largest: Amounts) -> str:
    """What a pod needs more of than any node has, in the first such dimension."""
    for resource, need in shape.requests.items():
        most = largest.get(resource, 0)
        if most < need:
            needs, has = (describe_quantity(resource, units) for units in (need, most))
            return f"a pod needs {resource} {needs}, and the largest node has {has}"
    return ""
