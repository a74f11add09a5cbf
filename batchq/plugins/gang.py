"""gang (groupReady): a group starts with minMember pods or not at all.

groupReady counts pods on nodes and finished ones, with every task's minAvailable. Woken by an
edit of the group.
"""

from __future__ import annotations

from batchq.framework.session import Session
from batchq.framework.state import GroupState


class Gang:
    name = "gang"

    def group_ready(self, session: Session, group: GroupState) -> bool:
        placed = group.placed
        return sum(placed.values()) >= group.min_member and all(
            placed[shape.task.name] >= shape.task.min_available for shape in group.tasks
        )
