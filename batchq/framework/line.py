"""What keeps a Pending group from being admitted right now."""

from __future__ import annotations

from batchq.api.reasons import Verdict
from batchq.framework.session import Session
from batchq.framework.state import GroupState


def blockers(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Every refusal: what puts it out of line, and what the ledger and the limits say."""
    return (*session.standing_aside(group), *session.refusals_at("admissible", group))


def waits_in_line(verdicts: tuple[Verdict, ...]) -> bool:
    """Whether a group refused like this keeps its place: every refusal is by capacity."""
    return bool(verdicts) and all(verdict.in_line for verdict in verdicts)
