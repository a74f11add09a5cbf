"""Kept places: the nodes that a gang found when its group was admitted, until its pods are there.

Their room is taken off the nodes, so that nothing else comes there. They are kept until the gang is
bound or its group leaves, from session to session if need be (`status.places`), as while the group
waits for its admission checks. If a node of them goes, places are sought again
(batchq.framework.placement_trial).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchq.api.resources import Amounts, covers, plus
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState, NodeState, is_admitted
from batchq.framework.statement import Statement

if TYPE_CHECKING:
    from batchq.framework.session import Session


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """Nodes for the pods of a gang, one shape after the other in the order of placement."""

    parts: tuple[tuple[TaskShape, tuple[NodeState, ...]], ...]

    def by_task(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the nodes by task, as they are stored."""
        found: dict[str, tuple[str, ...]] = {}
        for shape, nodes in self.parts:
            names = tuple([node.name for node in nodes])
            found[shape.task.name] = (*found.get(shape.task.name, ()), *names)
        return found

    def room(self) -> dict[str, Amounts]:
        """Return what the pods ask for by node."""
        found: dict[str, Amounts] = {}
        for shape, nodes in self.parts:
            for node in nodes:
                found[node.name] = plus(found.get(node.name, {}), shape.requests)
        return found

    def take(self, session: Session) -> None:
        """Take the room off the nodes."""
        for shape, nodes in self.parts:
            for node in nodes:
                node.take(shape.requests)
                session.node_changes.append(node.name)

    def give(self, session: Session) -> None:
        """Give the room back."""
        for shape, nodes in self.parts:
            for node in nodes:
                node.give(shape.requests)
                session.node_changes.append(node.name)

    def put_back(self, session: Session) -> None:
        """Give the room back that was taken for a trial: nothing is free that was not before."""
        for shape, nodes in self.parts:
            for node in nodes:
                node.put_back(shape.requests)
                session.node_changes.append(node.name)


def drop(session: Session, group: GroupState) -> None:
    """Give back what is kept for a group; nothing happens if nothing is."""
    places = session.kept.pop(group.uid, None)
    if places is not None:
        places.give(session)


def release(statement: Statement, group: GroupState) -> None:
    """Give back what is kept for a group that leaves; undone, it is kept again."""
    session = statement.session
    places = session.kept.get(group.uid)
    if places is not None:
        drop(session, group)
        statement.also_undo(lambda: _keep(session, group, places))
    if group.status.places:
        statement.set_status(group, places={})


def keep_again(statement: Statement, group: GroupState, places: KeptPlaces) -> None:
    """Keep places again that were released; undone, they are not kept."""
    session = statement.session
    _keep(session, group, places)
    statement.also_undo(lambda: drop(session, group))


def _keep(session: Session, group: GroupState, places: KeptPlaces) -> None:
    places.take(session)
    session.kept[group.uid] = places


def keep_stored(session: Session) -> None:
    """Take the places off the nodes that were found in former sessions and are still kept."""
    for group in session.placed.values():
        if group.status.places and (group.reserved or is_admitted(group)):
            places = _stored(session, group)
            if places is not None:
                _keep(session, group, places)


def _stored(session: Session, group: GroupState) -> KeptPlaces | None:
    """Return the places in a group's status; None if any of the nodes takes its pods no more."""
    parts = []
    for task, names in group.status.places.items():
        shape = group.shape.by_task.get(task)
        nodes = [session.nodes[name] for name in names if name in session.nodes]
        if (
            shape is None
            or len(nodes) < len(names)
            or any(session.refused_by(shape, node) is not None for node in nodes)
        ):
            return None
        parts.append((shape, tuple(nodes)))
    places = KeptPlaces(tuple(parts))
    room = places.room().items()
    return places if all(covers(session.nodes[name].free, asked) for name, asked in room) else None


def store_kept_places(session: Session) -> None:
    """Write down what is still kept at the end of a session and is to be kept in the next."""
    for uid, places in session.kept.items():
        group = session.groups[uid]
        if group.reserved or is_admitted(group):
            _write(session, group, places.by_task())
    for group in list(session.placed.values()):
        if group.uid not in session.kept:
            _write(session, group, {})


def _write(session: Session, group: GroupState, places: dict[str, tuple[str, ...]]) -> None:
    if group.status.places == places:
        return
    with Statement(session) as statement:
        statement.set_status(group, places=places)
        statement.commit()
