"""Pods that request nothing: they go wherever a pod slot is free, whoever waits for resources."""

from __future__ import annotations

from batchq.api.quantity import PODS
from batchq.framework.extras import waiting_extras
from batchq.framework.gangs import bind_until_ready
from batchq.framework.growth import over_limit_with
from batchq.framework.moves import bind, create_pods
from batchq.framework.placement import find_node
from batchq.framework.pledges import gives_way_to
from batchq.framework.pods import shape_of_extra
from batchq.framework.session import Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState, is_admitted
from batchq.framework.statement import Statement


def place_what_asks_for_nothing(session: Session) -> None:
    """Pods that take nothing but a place on a node, behind a strict head too; a gang of such pods
    whole or not at all.
    """
    for group in session.busy():
        if not is_admitted(group) or group.is_external or group.has_all_placed:
            continue
        if not _has_free_pods(group) or gives_way_to(session, group) is not None:
            continue
        if not session.group_ready(group) and all(map(_asks_for_nothing, group.tasks)):
            with Statement(session) as statement:
                bind_until_ready(session, statement, group)
                if session.group_ready(group):
                    statement.commit()
        if session.group_ready(group):
            _place_free_pods(session, group)


def _place_free_pods(session: Session, group: GroupState) -> None:
    for extra in list(waiting_extras(session, group)) if _has_free_pods(group) else ():
        shape = shape_of_extra(group, extra)
        if not _asks_for_nothing(shape):
            continue
        node = find_node(session, shape)
        if node is None or over_limit_with(session, group, shape):
            return
        with Statement(session) as statement:
            pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
            bind(statement, group, pod, node.name)
            statement.commit()


def _has_free_pods(group: GroupState) -> bool:
    return any(_asks_for_nothing(shape) for shape in group.tasks)


def _asks_for_nothing(shape: TaskShape) -> bool:
    return not shape.requests.keys() - {PODS}
