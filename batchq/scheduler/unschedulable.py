"""InQueue groups that would not fit even on empty ready nodes give their place back."""

from __future__ import annotations

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Leaving
from batchq.framework.feasibility import fits_when_empty, why_not_when_empty
from batchq.framework.moves import roll_back
from batchq.framework.placement import gang_of
from batchq.framework.pledges import nodes_awaited
from batchq.framework.session import Session
from batchq.framework.statement import Statement


def leave_where_impossible(session: Session) -> None:
    """Asked once a session for each combination of shapes."""
    known: dict[tuple[object, ...], bool] = {}
    for group in session.busy():
        if group.phase != PodGroupPhase.IN_QUEUE or group.is_external:
            continue
        if session.group_ready(group) or nodes_awaited(session, group.status.pledge):
            continue
        gang = gang_of(session, group)
        shapes = tuple((shape.shape, count) for shape, count in gang)
        if shapes not in known:
            known[shapes] = fits_when_empty(session, gang)
        if not known[shapes]:
            with Statement(session) as statement:
                why = why_not_when_empty(session, gang)
                roll_back(statement, group, Leaving.UNSCHEDULABLE, why)
                statement.commit()
