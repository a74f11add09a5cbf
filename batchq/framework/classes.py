"""What a group's priority class says beside its value."""

from __future__ import annotations

from batchq.framework.session import Session
from batchq.framework.state import GroupState


def may_evict(session: Session, group: GroupState) -> bool:
    """Whether its priority class lets it take anything from others."""
    wanted = group.record.spec.priority_class_name
    for item in session.snapshot.priority_classes:
        if item.metadata.name == wanted or (not wanted and item.spec.default):
            return item.spec.preemption_policy != "Never"
    return True


def everybody_may_evict(session: Session) -> bool:
    """Whether no class forbids it."""
    return all(item.spec.preemption_policy != "Never" for item in session.snapshot.priority_classes)
