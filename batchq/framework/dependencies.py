"""Whether a group's dependencies hold: met, open, or never to be met any more.

A dependency holds once the other group has ended in the way named and its processes have ended:
what comes next may need the files, ports and devices that they still use.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import Dependency
from batchq.framework.state import GroupState

#: What a condition waits for the other group to do.
WANTED = {"ok": "to complete", "failed": "to fail", "any": "to end"}


class DependencyState(Enum):
    MET = "met"
    OPEN = "open"
    NEVER = "never"


def dependency_state(
    group: GroupState, dependency: Dependency, groups: Mapping[str, GroupState]
) -> DependencyState:
    """Judge one dependency of `group` by the group that it was bound to at submission.

    A group that is gone has ended: that meets `any`, and can never meet `ok` or `failed`, unless
    it has met them before: ends are final, so who was admitted once need not ask again. One that
    is bound to nothing (only a described world has it) stays open, as Misconfigured. What can
    never be met is so at once, whatever still runs.
    """
    if not dependency.uid:
        return DependencyState.OPEN
    other = groups.get(dependency.uid)
    if other is None:
        met = dependency.condition == "any" or group.status.admission > 0
        return DependencyState.MET if met else DependencyState.NEVER
    phase = other.phase
    if phase not in TERMINAL:
        return DependencyState.OPEN
    met = {
        "ok": phase == PodGroupPhase.COMPLETED,
        "failed": phase != PodGroupPhase.COMPLETED,
        "any": True,
    }[dependency.condition]
    if not met:
        return DependencyState.NEVER
    return DependencyState.OPEN if has_processes(other) else DependencyState.MET


def has_processes(group: GroupState) -> bool:
    """Whether processes of a group may still run: of its pods, or of who has claimed it."""
    return bool(group.held) or group.status.claim.is_open


def never_met(group: GroupState, groups: Mapping[str, GroupState]) -> Dependency | None:
    """The first dependency that can never hold any more."""
    for dependency in group.record.spec.depends_on:
        if dependency_state(group, dependency, groups) is DependencyState.NEVER:
            return dependency
    return None
