"""The end of a session: why groups wait is written down, on change only."""

from __future__ import annotations

from batchq.api import intents
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Waiting, same_causes
from batchq.framework.moves import set_condition
from batchq.framework.session import Session


def write_reasons(session: Session) -> None:
    """Passing numbers are no change; they are worked out afresh when somebody asks."""
    for group in session.groups.values():
        if group.phase == PodGroupPhase.PENDING and group.queue not in session.queues:
            session.refuse(group, session.standing_aside(group))
    for uid, verdicts in session.refusals.items():
        group = session.groups[uid]
        if same_causes(group.status.reasons, verdicts) or not verdicts:
            continue
        first = verdicts[0]
        with session.statement() as statement:
            statement.set_status(group, reasons=verdicts)
            if group.phase == PodGroupPhase.PENDING:
                set_condition(
                    statement, group, "QuotaReserved", "False", first.reason, first.message()
                )
            if first.reason in (Waiting.SCHEDULING_GATED, Waiting.UNSCHEDULABLE):
                set_condition(statement, group, "Scheduled", "False", first.reason, first.detail)
            reasons = tuple(dict.fromkeys(str(verdict.reason) for verdict in verdicts))
            statement.say(intents.SetReasons(group=group.key, reasons=reasons))
            statement.commit()
