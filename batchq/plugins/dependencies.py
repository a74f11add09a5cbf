"""dependencies (preEnqueue): a group waits for the groups that it depends on.

Woken by the end of one of those groups. A dependency that can never hold any more is not this
plugin's business: the controller makes the group Failed.
"""

from __future__ import annotations

from batchq.api.reasons import Verdict, Waiting
from batchq.framework.dependencies import WANTED, DependencyState, dependency_state
from batchq.framework.session import Session
from batchq.framework.state import GroupState


class Dependencies:
    name = "dependencies"

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        waits_for = [
            f"{dependency.name} {WANTED[dependency.condition]}"
            for dependency in group.record.spec.depends_on
            if dependency_state(group, dependency, session.groups) is not DependencyState.MET
        ]
        if not waits_for:
            return []
        detail = f"waits for {', '.join(waits_for)}"
        return [Verdict(plugin=self.name, reason=Waiting.DEPENDENCY_NOT_MET, detail=detail)]
