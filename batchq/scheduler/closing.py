"""The end of a session: why groups wait is written down, on change only."""

from __future__ import annotations

from batchq.api import intents
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import (
    Blockers,
    Verdict,
    Waiting,
    causes_of,
    same_causes,
    turn_of,
)
from batchq.framework.line import standing_aside
from batchq.framework.moves import set_condition
from batchq.framework.parking import Parking
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.framework.statement import Statement

#: The most fundamental ones; `batchq describe` works out all of them when it is asked.
MOST_REASONS_KEPT = 64
_SHOWN_IN_SCHEDULED = (Waiting.SCHEDULING_GATED, Waiting.UNSCHEDULABLE)


def write_reasons(session: Session, parking: Parking) -> None:
    """Passing numbers are no change; they are worked out afresh when somebody asks.

    Whose reasons are written already may sleep from now on.
    """
    for group in session.strayed:
        if group.uid not in session.asleep and group.phase == PodGroupPhase.PENDING:
            session.refuse(group, standing_aside(session, group))
    for uid, refusals in session.refusals.items():
        if uid in session.asleep:
            continue
        group = session.groups[uid]
        if isinstance(refusals, Blockers) and _says_so_already(group, refusals):
            parking.park(session, group, refusals)
            continue
        verdicts = refusals[:MOST_REASONS_KEPT]
        if not verdicts or _still_says(group.status.reasons, verdicts):
            parking.park(session, group, refusals)
            continue
        verdicts = tuple(verdict.lasting() for verdict in verdicts)
        first = verdicts[0]
        with Statement(session) as statement:
            statement.set_status(group, reasons=verdicts)
            if group.phase == PodGroupPhase.PENDING:
                # Of a group that has reserved, it is the admission that waits.
                what = "Admitted" if group.reserved else "QuotaReserved"
                set_condition(statement, group, what, "False", first.reason, first.message())
            _set_scheduled(statement, group, verdicts)
            reasons = tuple(dict.fromkeys(str(verdict.reason) for verdict in verdicts))
            statement.say(intents.SetReasons(group=group.key, reasons=reasons))
            statement.commit()


def _says_so_already(group: GroupState, blockers: Blockers) -> bool:
    """Whether its own record has the very same causes, or waits for the same turn: the usual case,
    and looked at first.
    """
    if group.status is not group.record.status:
        return False
    if group.told is None:
        group.told = causes_of(group.status.reasons), turn_of(group.status.reasons)
    causes, turn = group.told
    return (bool(turn) and turn == blockers.turn) or causes == blockers.causes


def _still_says(stored: tuple[Verdict, ...], verdicts: tuple[Verdict, ...]) -> bool:
    """Whether what is stored tells as much as what was found now.

    Of a group that stands aside, only what makes it stand aside counts: whether there would be
    room for it comes and goes with others, and would be one write each time for nothing. The same
    of a group whose turn it is not.
    """
    if (turn := turn_of(stored)) and turn == turn_of(verdicts):
        return True
    firm, stored_firm = _firm(verdicts), _firm(stored)
    if firm and stored_firm:
        return same_causes(stored_firm, firm)
    return same_causes(stored, verdicts)


def _firm(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    return tuple(
        verdict
        for verdict in verdicts
        if not verdict.in_line and verdict.reason != Waiting.WAITING_FOR_QUOTA
    )


def _set_scheduled(statement: Statement, group: GroupState, verdicts: tuple[Verdict, ...]) -> None:
    """Gated and Unschedulable show in the condition Scheduled; once untrue, they make way."""
    said = next((c for c in group.status.conditions if c.type == "Scheduled"), None)
    shown = [verdict for verdict in verdicts if verdict.reason in _SHOWN_IN_SCHEDULED]
    if not shown and (said is None or said.reason not in _SHOWN_IN_SCHEDULED):
        return
    verdict = (shown or verdicts)[0]
    set_condition(statement, group, "Scheduled", "False", verdict.reason, verdict.message())
