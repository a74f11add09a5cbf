"""Kept places: the nodes that a gang found when its group was admitted, until its pods are there.

Their room is taken off the nodes, so that nothing else comes there. They are kept until the gang is
bound or its group leaves, from session to session if need be (`status.places`), as while the group
waits for its admission checks. If a node of them goes, places are sought again
(batchq.core.placement.trial).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchq.api.resources import covers
from batchq.core.session.node_state import KeptPlaces
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement

if TYPE_CHECKING:
    from batchq.core.session.session import Session


def drop(session: Session, group: GroupState) -> None:
    """Give back what is kept for a group; nothing happens if nothing is."""
    if group.uid in session.nodes.kept:
        session.nodes.release(group.uid)


def release(statement: Statement, group: GroupState) -> None:
    """Give back what is kept for a group that leaves; undone, it is kept again."""
    nodes, uid = statement.session.nodes, group.uid
    if uid in nodes.kept:
        places = nodes.release(uid)
        statement.also_undo(lambda: nodes.keep(uid, places))
    if group.status.places:
        statement.set_status(group, places={})


def keep_again(statement: Statement, group: GroupState, places: KeptPlaces) -> None:
    """Keep places again that were released; undone, they are not kept."""
    session = statement.session
    session.nodes.keep(group.uid, places)
    statement.also_undo(lambda: drop(session, group))


def keep_stored(session: Session) -> None:
    """Take the places off the nodes that were found in former sessions and are still kept."""
    for group in session.carried.placed.values():
        if group.status.places and (group.reserved or is_admitted(group)):
            places = _stored(session, group)
            if places is not None:
                session.nodes.keep(group.uid, places)


def _stored(session: Session, group: GroupState) -> KeptPlaces | None:
    """Return the places in a group's status; None if any of the nodes takes its pods no more."""
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
    room = places.room().items()
    return (
        places
        if all(covers(session.nodes.by_name[name].free, asked) for name, asked in room)
        else None
    )


def store_kept_places(session: Session) -> None:
    """Write down what is still kept at the end of a session and is to be kept in the next."""
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
