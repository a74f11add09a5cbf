"""What a group waits for before it is in line: `gates`, `dependencies` and `checks`."""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.lifecycle import TERMINAL
from batchq.api.notation import counted, format_duration
from batchq.api.objects import CheckState, gates_of
from batchq.api.reasons import Verdict, Waiting
from batchq.core.eligibility import (
    WANTED,
    DependencyState,
    dependency_state,
    has_processes,
    is_active,
    names_for,
    open_checks,
    refused_with,
    retry_delay_ms,
    spec_of,
)
from batchq.core.extension import LiftingChange, PluginTraits, Rule
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState

#: The name of the plugin.
GATES = "gates"


class SchedulingGates:
    """gates (preEnqueue): a group with scheduling gates is not in line (KEP-3521).

    A group is refused while it has a gate of its own, or while gates of its pods (in the templates
    of tasks, or of single pods in a snapshot described by hand) leave fewer pods than minMember or
    than a task's minAvailable. While this plugin is configured, gated pods are neither created nor
    bound, and do not count in sums or requests; without it, gates are stored and ignored. The
    removal of the last gate unparks the group. A gated group uses no retry, and is never
    Unschedulable.
    """

    name = GATES
    traits = PluginTraits(
        lifted_by={Waiting.SCHEDULING_GATED: frozenset()},
        passes_plain=True,
        enforces=frozenset({Rule.SCHEDULING_GATES}),
    )

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        names = ", ".join(dict.fromkeys(_blocking(group)))
        if not names:
            return []
        detail = f"Scheduling is blocked due to non-empty scheduling gates: {names}"
        return [Verdict(plugin=self.name, reason=Waiting.SCHEDULING_GATED, detail=detail)]


def _blocking(group: GroupState) -> Iterator[str]:
    """Yield the gates that hold the group back: its own, then those of its pods."""
    lacks = group.lacks_ungated()
    for gate in gates_of(group.record.spec):
        if lacks or not gate.task:
            yield gate.name
    if lacks:
        pods = sorted(group.pods.values(), key=lambda pod: (pod.spec.task, pod.spec.index))
        for pod in pods:
            yield from (gate.name for gate in pod.spec.scheduling_gates)


class Dependencies:
    """dependencies (preEnqueue): a group waits for the groups that it depends on.

    Each must end in the way specified, and its processes must have ended. A refused group is
    unparked when the other group changes its phase, and when its last process ends. If a dependency
    can never be met any more, the controller makes the group Failed.
    """

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


#: The name of the plugin.
CHECKS = "checks"


class AdmissionChecks:
    """checks (preEnqueue, permit): a group passes the admission checks of its queue (KEP-993).

    preEnqueue: a group of a queue with a missing or inactive check reserves nothing, and a check
    that requested a retry holds its group back for a while. permit: a group with a reservation
    waits until all its checks are True. A refused group is unparked by an answer, by a change of a
    controller's lease, and when the delay of a retry ends.
    """

    name = CHECKS
    traits = PluginTraits(
        lifted_by={
            Waiting.BACKING_OFF: frozenset({LiftingChange.CLOCK, LiftingChange.CHECKS}),
            Waiting.CHECK_INACTIVE: frozenset({LiftingChange.CHECKS}),
        },
        passes_plain=True,
        enforces=frozenset({Rule.ADMISSION_CHECKS}),
    )

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        names = names_for(session, group)
        if not names:
            return []
        return [*self._pauses(session, group), *self._inactive(session, group, names)]

    def permit(self, session: Session, group: GroupState) -> list[Verdict]:
        if not group.status.checks:
            return []
        waiting = open_checks(group)
        if not waiting:
            return []
        passed = len(group.status.checks) - len(waiting)
        answers = "; ".join(_describe(session, state) for state in waiting)
        detail = f"{passed} of {counted(len(group.status.checks), 'check')} passed; {answers}"
        return [Verdict(plugin=self.name, reason=Waiting.WAITING_FOR_CHECKS, detail=detail)]

    def due_at(self, session: Session) -> Iterator[int]:
        """Yield when (ms) a controller's lease expires, unless it is renewed."""
        for check in session.admission_checks.values():
            if check.status.active and check.status.expires_at is not None:
                yield check.status.expires_at

    def _pauses(self, session: Session, group: GroupState) -> list[Verdict]:
        """Return the refusals by retries, with a text that stays the same during the delay."""
        asked = refused_with(group, "Retry")
        if not asked or group.reserved:
            return []
        # This applies even after the delay: a new reservation must not use an answer about the
        # previous one. The next session resets the checks first.
        answers = "; ".join(
            f"check {state.name} asked to retry after"
            f" {format_duration(retry_delay_ms(session, state))}{_said(state)}"
            for state in asked
        )
        return [Verdict(plugin=self.name, reason=Waiting.BACKING_OFF, detail=answers)]

    def _inactive(
        self, session: Session, group: GroupState, names: tuple[str, ...]
    ) -> list[Verdict]:
        """Return the refusals by inactive checks; a passed check no longer needs its controller."""
        passed = {state.name for state in group.status.checks if state.status == "True"}
        found = []
        for name in names:
            if group.reserved and name in passed:
                continue
            check = session.admission_checks.get(name)
            if is_active(check, session.now_ms):
                continue
            if check is None:
                detail = f"there is no AdmissionCheck {name}, which queue {group.queue} asks for"
            else:
                controller = check.spec.controller_name or "its controller"
                detail = f"check {name} is inactive: {controller} holds no lease on it"
            reason = Waiting.CHECK_INACTIVE
            found.append(Verdict(plugin=self.name, reason=reason, subject=name, detail=detail))
        return found


def _describe(session: Session, state: CheckState) -> str:
    spec = spec_of(session, state.name)
    answer = f"{state.status} ({state.reason})" if state.reason else state.status
    most = format_duration(spec.unknown_timeout)
    patience = f", for at most {most} from the reservation" if state.status == "Unknown" else ""
    return f"check {state.name} is {answer}{patience}{_said(state)}"


def _said(state: CheckState) -> str:
    return f": {state.message}" if state.message else ""
