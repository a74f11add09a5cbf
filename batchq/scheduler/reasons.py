"""Store the reasons for which groups wait, at the end of a session, if they have changed."""

from __future__ import annotations

from collections import Counter

from batchq.api import intents
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import (
    Blockers,
    Verdict,
    Waiting,
    same_causes,
    turn_of,
)
from batchq.core.pending.inadmissible import InadmissibleGroups
from batchq.core.pending.queue import queues_to_tell, refuse_strayed, tell_classes
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, recorded_reasons
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import set_condition

#: Only the most fundamental ones are stored; `batchq describe` computes all of them on demand.
MOST_REASONS_KEPT = 64
#: Default of the most groups whose reasons one session writes.
MOST_WRITTEN = 10_000
_SHOWN_IN_SCHEDULED = (Waiting.SCHEDULING_GATED, Waiting.UNSCHEDULABLE)


class _Budget:
    """How many more groups may have their reasons written: `left` overall, `share` per queue."""

    def __init__(self, left: int, queues: int) -> None:
        self._left = left
        self._share: int | None = max(1, left // max(1, queues))
        self._written: Counter[str] = Counter()

    def allows(self, queue: str) -> bool:
        """Return whether one more group of this queue may be written, and count it."""
        if self._left <= 0 or (self._share is not None and self._written[queue] >= self._share):
            return False
        self._left -= 1
        self._written[queue] += 1
        return True

    def share_the_rest(self) -> None:
        """Let any queue use what the others have left."""
        self._share = None


def write_reasons(
    session: Session, inadmissible: InadmissibleGroups, most: int = MOST_WRITTEN
) -> None:
    """Write changed reasons to the groups' status, and park groups that may be left out from now
    on.

    A change of numbers within a message is not written. A session writes the reasons of at most
    `most` groups, and later sessions the rest, so that writing does not delay groups that can
    start. Queues get equal shares, so that a queue with very many groups does not delay the
    reasons of the others.
    """
    refuse_strayed(session)
    refused = list(session.refusals.own.items())
    queues = {session.groups[uid].queue for uid, _ in refused}
    queues |= queues_to_tell(session)
    budget = _Budget(most, len(queues))
    later: list[tuple[GroupState, tuple[Verdict, ...]]] = []
    for uid, refusals in refused:
        group = session.groups[uid]
        if _is_recorded(group, refusals):
            _park(session, inadmissible, group, refusals)
            continue
        verdicts = refusals[:MOST_REASONS_KEPT]
        if not verdicts or _is_as_good(group.status.reasons, verdicts):
            _park(session, inadmissible, group, refusals)
        elif budget.allows(group.queue) or group.status is not group.record.status:
            _write(session, group, verdicts)
        else:
            later.append((group, verdicts))
    _write_classes(session, budget)
    budget.share_the_rest()
    for group, verdicts in later:
        if budget.allows(group.queue):
            _write(session, group, verdicts)
    _write_classes(session, budget)


def _park(
    session: Session,
    inadmissible: InadmissibleGroups,
    group: GroupState,
    refusals: tuple[Verdict, ...],
) -> None:
    if inadmissible.park(session, group, refusals):
        session.park(group)


def _write_classes(session: Session, budget: _Budget) -> None:
    """Write the verdicts of an equivalence class to those members whose records differ."""

    def write(group: GroupState, verdicts: Blockers) -> bool:
        if not budget.allows(group.queue):
            return False
        session.refuse(group, verdicts)
        _write(session, group, verdicts[:MOST_REASONS_KEPT])
        return True

    def is_as_good(group: GroupState, verdicts: Blockers) -> bool:
        return _is_as_good(group.record.status.reasons, verdicts[:MOST_REASONS_KEPT])

    tell_classes(session, write, is_as_good)


def _write(session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> None:
    verdicts = tuple(verdict.lasting() for verdict in verdicts)
    first = verdicts[0]
    with Statement(session) as statement:
        statement.set_status(group, reasons=verdicts)
        if group.phase == PodGroupPhase.PENDING:
            # A group that has reserved waits only for its admission.
            what = "Admitted" if group.reserved else "QuotaReserved"
            set_condition(statement, group, what, "False", first.reason, first.message())
        _set_scheduled(statement, group, verdicts)
        reasons = tuple(dict.fromkeys(str(verdict.reason) for verdict in verdicts))
        statement.say(intents.SetReasons(group=group.key, reasons=reasons))
        statement.commit()


def _is_recorded(group: GroupState, blockers: Blockers) -> bool:
    """Return whether the stored record has the same causes, or the same turn, already.

    This is the usual case, so it is checked first.
    """
    if group.status is not group.record.status:
        return False
    causes, turn = recorded_reasons(group)
    return (bool(turn) and turn == blockers.turn) or causes == blockers.causes


def _is_as_good(stored: tuple[Verdict, ...], verdicts: tuple[Verdict, ...]) -> bool:
    """Return whether the stored reasons are as good as those found now.

    For an ineligible group only what makes it ineligible counts. Whether it would fit changes with
    other groups, and writing that each time would be useless. The same goes for a group whose turn
    it is not.
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
    """Show Gated and Unschedulable in the condition Scheduled, or remove them if no longer true."""
    stored = next((c for c in group.status.conditions if c.type == "Scheduled"), None)
    shown = [verdict for verdict in verdicts if verdict.reason in _SHOWN_IN_SCHEDULED]
    if not shown and (stored is None or stored.reason not in _SHOWN_IN_SCHEDULED):
        return
    verdict = (shown or verdicts)[0]
    set_condition(statement, group, "Scheduled", "False", verdict.reason, verdict.message())
