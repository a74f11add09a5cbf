"""Kept places: the nodes found for a gang at admission, kept until its pods are bound.

Their capacity is taken off the nodes, so no other pod is placed there. They are kept until the gang
is bound or its group leaves, across sessions if necessary (`status.places`), for example while the
group waits for its admission checks. If one of the nodes is lost, new places are sought
(batchq.core.placement.trial).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchq.api.resources import covers
from batchq.core.session.session_nodes import KeptPlaces, NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement

if TYPE_CHECKING:
    from batchq.core.session.session import Session


def drop(session: Session, group: GroupState) -> None:
    """Give back the places kept for a group, if any."""
    if group.uid in session.nodes.kept:
        session.nodes.release(group.uid)


def release(statement: Statement, group: GroupState) -> None:
    """Give back the places of a group that leaves; undoing the statement keeps them again."""
    nodes, uid = statement.session.nodes, group.uid
    if uid in nodes.kept:
        places = nodes.release(uid)
        statement.also_undo(lambda: nodes.keep(uid, places))
    if group.status.places:
        statement.set_status(group, places={})


def keep_again(statement: Statement, group: GroupState, places: KeptPlaces) -> None:
    """Keep released places again; undoing the statement drops them."""
    session = statement.session
    session.nodes.keep(group.uid, places)
    statement.also_undo(lambda: drop(session, group))


def keep_stored(session: Session) -> None:
    """Take the places kept in earlier sessions off the nodes."""
    for group in session.carried.placed.values():
        if group.status.places and (group.reserved or is_admitted(group)):
            places = _stored(session, group)
            if places is not None:
                session.nodes.keep(group.uid, places)


def _stored(session: Session, group: GroupState) -> KeptPlaces | None:
    """Return the places in a group's status; None if one of the nodes no longer takes its pods."""
    parts = []
    for task, names in group.status.places.items():
        shape = group.shape.by_task.get(task)
        nodes = [session.nodes.by_name[name] for name in names if name in session.nodes.by_name]
        if (
            shape is None
            or len(nodes) < len(names)
            or any(session.refused_by(shape, node) is not None for node in nodes)
        ):
            return None
        parts.append((shape, tuple(nodes)))
    places = KeptPlaces(tuple(parts))
    return places if _fit_together(session, places) else None


def _fit_together(session: Session, places: KeptPlaces) -> bool:
    """Return whether nodes take all these pods, each of which they would take alone."""
    if all(shape.sharing is None for shape, _ in places.parts):
        asked_on = places.by_node().items()
        return all(covers(session.nodes.by_name[name].free, asked) for name, asked in asked_on)
    taken: list[tuple[TaskShape, NodeState]] = []
    for shape, nodes in places.parts:
        for node in nodes:
            if session.refused_by(shape, node) is None:
                session.nodes.take_pod(node, shape)
                taken.append((shape, node))
    for shape, node in taken:
        session.nodes.put_back_pod(node, shape)
    return len(taken) == sum(len(nodes) for _, nodes in places.parts)


def store_kept_places(session: Session) -> None:
    """Store the places that are kept at the end of a session, for the next one."""
    for uid, places in session.nodes.kept.items():
        group = session.groups[uid]
        if group.reserved or is_admitted(group):
            _write(session, group, places.by_task())
    for group in list(session.carried.placed.values()):
        if group.uid not in session.nodes.kept:
            _write(session, group, {})


def _write(session: Session, group: GroupState, places: dict[str, tuple[str, ...]]) -> None:
    if group.status.places == places:
        return
    with Statement(session) as statement:
        statement.set_status(group, places=places)
        statement.commit()
