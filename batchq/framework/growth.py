"""Whether one more pod of a group may be bound: the limits hold for what was not promised."""

from __future__ import annotations

from batchq.api.resources import larger, plus
from batchq.api.transaction import CLUSTER, POD_GROUPS
from batchq.framework.ledger import counted, scopes_of
from batchq.framework.session import Session
from batchq.framework.state import GroupState, TaskShape


def may_grow(session: Session, group: GroupState, shape: TaskShape) -> bool:
    """Rules 2 to 4 for the growth of the group's charge by one pod of this shape.

    Within the promise nothing grows, and nothing is asked.
    """
    held = plus(group.held, shape.requests)
    after = counted(larger(held, group.status.reservation) if group.reserved else held)
    before = session.ledger.charged(group)
    grown = {name: units for name, units in after.items() if units > before.get(name, 0)}
    for scope in scopes_of(group):
        for resource, units in grown.items():
            if scope == CLUSTER and resource == POD_GROUPS:
                continue
            limit = session.ledger.limit(scope, resource)
            if limit is not None and session.ledger.without(group, scope, resource) + units > limit:
                return False
    return True
