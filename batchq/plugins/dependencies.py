"""dependencies (preEnqueue): a group waits for the groups that it depends on.

Each must end in the way specified, and its processes must have ended. A refused group is unparked
when the other group changes its phase, and when its last process ends. If a dependency can never be
met any more, the controller makes the group Failed.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.lifecycle import TERMINAL
from batchq.api.reasons import Verdict, Waiting
from batchq.core.extension import LiftingChange, PluginTraits
from batchq.core.pending.eligibility import WANTED, DependencyState, dependency_state, has_processes
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState


class Dependencies:
    name = "dependencies"
    traits = PluginTraits(
        lifted_by={Waiting.DEPENDENCY_NOT_MET: frozenset({LiftingChange.DEPENDENCIES})},
        passes_plain=True,
    )

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        waits_for = [
            f"{dependency.name} {WANTED[dependency.condition]}"
            for dependency in group.record.spec.depends_on
            if dependency_state(group, dependency, session.groups) is not DependencyState.MET
        ]
        if not waits_for:
            return []
        detail = f"waits for {', '.join(waits_for)}"
        return [
            Verdict(
                plugin=self.name,
                reason=Waiting.DEPENDENCY_NOT_MET,
                detail=detail,
                passing=", ".join(_progress(session, group)),
            )
        ]


def _progress(session: Session, group: GroupState) -> Iterator[str]:
    for dependency in group.record.spec.depends_on:
        other = session.groups.get(dependency.uid)
        if other is None:
            continue
        if other.phase not in TERMINAL:
            yield f"{dependency.name} is {other.phase}"
        elif has_processes(other):
            yield f"{dependency.name} is {other.phase}, and its processes have not ended yet"
