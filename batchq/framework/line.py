"""What keeps a Pending group from being admitted right now."""

from __future__ import annotations

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.framework.eligibility import stands_aside
from batchq.framework.growth import over_any_limit
from batchq.framework.pledges import awaits_victims, gives_way_to
from batchq.framework.session import Session
from batchq.framework.state import GroupState


def blockers(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Every refusal: what puts it out of line, and what the ledger and the limits say."""
    if group.uid in session.asleep:
        return session.asleep[group.uid]
    if alike(session, group):
        return _refused_alike(session, group)
    aside = standing_aside(session, group)
    if awaits_victims(session, group):
        # It has reserved what it asks for: that its victims hold it still is no second reason.
        return aside
    return (*aside, *gives_way(session, group), *_inadmissible(session, group))


def gives_way(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """A victim keeps its place, but is not admitted again before its claimant."""
    claimant = gives_way_to(session, group)
    if claimant is None:
        return ()
    detail = f"made room for {claimant.key}, and waits until that has it"
    reason = Waiting.WAITING_FOR_TURN
    return (Verdict(plugin="pledge", reason=reason, detail=detail, in_line=True),)


def standing_aside(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Why a Pending group is out of line, whatever the ledger says; empty if it is in line.

    Asked once a session for each group: none of it changes within one.
    """
    verdicts = session.asides.get(group.uid)
    if verdicts is None:
        if _is_known_to_stand_in_line(session, group):
            return ()
        session.evaluated += 1
        found = [*stands_aside(session, group), *session.refusals_at("preEnqueue", group)]
        is_reserved = group.reserved and group.phase == PodGroupPhase.PENDING
        if is_reserved and "enqueue" in session.actions:
            # It has what it asks for, and waits for leave to start. (Without enqueue nobody needs
            # any.)
            found += session.refusals_at("permit", group)
        verdicts = session.asides[group.uid] = tuple(found)
        if not found and group.bare and group.status is group.record.status:
            group.in_line_at = session.world
    return verdicts


def _is_known_to_stand_in_line(session: Session, group: GroupState) -> bool:
    """Whether it stood in line before, and nothing has happened since that could change it.

    Every plugin there says what lifts its refusals; so nothing else brings them about.
    """
    return (
        group.in_line_at is not None
        and group.in_line_at == session.world
        and group.status is group.record.status
    )


def alike(session: Session, group: GroupState) -> bool:
    """Whether it stands in line, and is asked nothing but what the limits ask of all who ask for
    the same: `GroupState.asks`.
    """
    return (
        not session.asks_each_group
        and group.bare
        and group.status is group.record.status
        and group.uid not in session.ledger.claimants
        and not standing_aside(session, group)
    )


def _inadmissible(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    if session.asks_each_group or session.ledger.charged(group):
        return _ask(session, group)
    return _refused_alike(session, group)


def _refused_alike(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Asked once for all groups of one queue, namespace and request, until the ledger moves."""
    version, verdicts = session.told.get(group.asks, (-1, ()))
    if version != session.ledger.version:
        verdicts = session.dated(_ask(session, group))
        session.told[group.asks] = (session.ledger.version, verdicts)
    return verdicts


def _ask(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    verdicts = tuple(session.refusals_at("admissible", group))
    return verdicts or tuple(over_any_limit(session, group))


def waits_in_line(verdicts: tuple[Verdict, ...]) -> bool:
    """Whether a group refused like this keeps its place in line.

    It does if capacity refuses it. A namespace's quota alone puts it out of line, but does not
    cost it its place where capacity refuses it too; anything else does.
    """
    if isinstance(verdicts, Blockers) and verdicts.are_in_line:
        return bool(verdicts)
    return any(verdict.in_line for verdict in verdicts) and all(
        verdict.in_line or verdict.reason == Waiting.WAITING_FOR_QUOTA for verdict in verdicts
    )
