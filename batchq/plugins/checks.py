"""checks (preEnqueue, permit): a group passes the admission checks of its queue (KEP-993).

preEnqueue: a group of a queue with a missing or inactive check reserves nothing, and a check that
requested a retry holds its group back for a while. permit: a group with a reservation waits until
all its checks are True. A refused group is unparked by an answer, by a change of a controller's
lease, and when the delay of a retry ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.notation import counted
from batchq.api.objects import CheckState
from batchq.api.reasons import Verdict, Waiting
from batchq.api.times import format_duration
from batchq.core.extension import LiftingChange, PluginTraits, Rule
from batchq.core.pending.eligibility import (
    is_active,
    names_for,
    open_checks,
    refused_with,
    retry_delay_ms,
    spec_of,
)
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState

#: The name of the plugin.
CHECKS = "checks"


class AdmissionChecks:
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
