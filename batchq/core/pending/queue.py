"""What keeps a Pending group from being admitted right now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.api.transaction import CLUSTER, POD_GROUPS
from batchq.core.extension.points import Registration
from batchq.core.pending.eligibility import stands_aside
from batchq.core.pending.inadmissible import only_the_world_helps
from batchq.core.placement.node_refusals import NODE_REFUSALS
from batchq.core.preemption.pledges import awaits_victims, gives_way_to
from batchq.core.quota.ledger import LedgerView
from batchq.core.quota.limit_checks import claim_of, over_any_limit
from batchq.core.session.node_state import Wanted
from batchq.core.session.session import Session
from batchq.core.session.state import EquivalenceClass, GroupState, Headroom, PendingQueue

#: At no version of the ledger, nothing.
_NOT_TOLD: tuple[int, tuple[Verdict, ...]] = (-1, ())


def blockers(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Every refusal: what puts it out of line, and what the ledger and the limits say."""
    crowd = group.crowd
    if crowd is not None and group.status is group.record.status:
        return _with_own(session, group, _of_crowd(session, crowd, group))
    if group.uid in session.pending.parked:
        return session.pending.parked[group.uid]
    if alike(session, group):
        return _with_own(session, group, _refused_alike(session, group))
    aside = standing_aside(session, group)
    if awaits_victims(session, group):
        # It has reserved what it asks for: that its victims hold it still is no second reason.
        return aside
    return (*aside, *gives_way(session, group), *_inadmissible(session, group))


def is_of_crowd(group: GroupState) -> bool:
    """Return whether a group waits with others that ask for the same, and has not been changed."""
    return group.crowd is not None and group.status is group.record.status


def _with_own(
    session: Session, group: GroupState, alike: tuple[Verdict, ...]
) -> tuple[Verdict, ...]:
    """Add to the refusals of a class those that plugins give this group alone."""
    if not session.plugins.for_groups:
        return alike
    own = _refusals(session, session.plugins.for_groups, group)
    if not own:
        return alike
    found = session.dated((*alike, *own))
    found.are_own = True
    return found


def _refusals(
    session: Session, plugins: Iterable[Registration[Any]], group: GroupState
) -> list[Verdict]:
    return [verdict for entry in plugins for verdict in entry.function(session, group)]


def _of_crowd(session: Session, crowd: EquivalenceClass, group: GroupState) -> tuple[Verdict, ...]:
    if crowd.sleeps and crowd.verdicts is not None and is_kept_out(session, crowd):
        return crowd.verdicts
    aside = _crowd_aside(session, crowd, group)
    if not aside:
        return () if _fits(session, crowd, group) else _ask_of_crowd(session, crowd, group)
    key = ("aside", *group.asks, crowd.asks)
    version, verdicts = session.pending.last_verdicts.get(key, _NOT_TOLD)
    if version != session.ledger.version:
        verdicts = session.dated((*aside, *_ask(session, group)))
        session.pending.last_verdicts[key] = (session.ledger.version, verdicts)
    return verdicts


def _ask_of_crowd(
    session: Session, crowd: EquivalenceClass, group: GroupState
) -> tuple[Verdict, ...]:
    verdicts = _refused_alike(session, group)
    if all(_passes(verdict) for verdict in verdicts):
        crowd.could_in = session.pending.generation
    return verdicts


def _passes(verdict: Verdict) -> bool:
    """Whether a refusal passes as others end. What machines as they are now are too small for stays
    out of line until nodes change.
    """
    if verdict.reason == Waiting.WAITING_FOR_RESOURCES:
        return verdict.in_line
    return verdict.reason == Waiting.WAITING_FOR_QUOTA


def _fits(session: Session, crowd: EquivalenceClass, group: GroupState) -> bool:
    """Whether every limit has room for one of a crowd, and nothing else could be said against it.

    It is what `admissible` comes to, without asking anybody: many are let in one after the other.
    """
    ledger = session.ledger
    if not session.pending.limits_decide or crowd.could_in != session.pending.generation:
        return False
    if ledger.unused or ledger.aside:
        return False
    if crowd.bounds is None or crowd.bounds.limits is not ledger.limits:
        if session.pending.last_verdicts.get(group.asks, _NOT_TOLD)[0] == ledger.version:
            # It has just been asked, so there is an answer.
            return False
        crowd.bounds = _bounds_for(ledger, group)
    for sums, resource, most in crowd.bounds.most:
        if sums.get(resource, 0) > most:
            return False
    return crowd.bounds.are_all


def _bounds_for(ledger: LedgerView, group: GroupState) -> Headroom:
    """What the sums of its scopes may come to, so that there is room for one like this."""
    most: list[tuple[dict[str, int], str, int]] = []
    are_all = True
    for scope in group.scopes:
        limits = ledger.limits.get(scope)
        if limits is None:
            are_all = are_all and scope != CLUSTER
            continue
        sums = ledger.sums.setdefault(scope, {})
        for resource, need in claim_of(group).items():
            if scope == CLUSTER and resource == POD_GROUPS:
                continue
            limit = limits.get(resource)
            if limit is not None:
                most.append((sums, resource, limit - need))
            else:
                are_all = are_all and scope != CLUSTER
    return Headroom(ledger.limits, most, are_all)


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

    Asked once a session for each group, or crowd: none of it changes within one.
    """
    crowd = group.crowd
    if crowd is not None and group.status is group.record.status:
        return _crowd_aside(session, crowd, group)
    verdicts = session.pending.ineligible.get(group.uid)
    if verdicts is None:
        is_known = _is_known_to_stand_in_line(session, group)
        if is_known and not session.plugins.passing:
            return ()
        session.pending.evaluated += 1
        found = [] if is_known else _lasting_refusals(session, group)
        if not found and group.bare and group.status is group.record.status:
            group.in_line_at = session.pending.generation
        found += _refusals(session, session.plugins.passing, group)
        is_reserved = group.reserved and group.phase == PodGroupPhase.PENDING
        if is_reserved and "enqueue" in session.actions:
            # It has what it asks for, and waits for leave to start. (Without enqueue nobody needs
            # any.)
            found += session.refusals_at("permit", group)
        verdicts = session.pending.ineligible[group.uid] = tuple(found)
    return verdicts


def _lasting_refusals(session: Session, group: GroupState) -> list[Verdict]:
    """Return what puts a group out of line until its record or the world changes."""
    return [*stands_aside(session, group), *_refusals(session, session.plugins.lasting, group)]


def _crowd_aside(
    session: Session, crowd: EquivalenceClass, group: GroupState
) -> tuple[Verdict, ...]:
    if crowd.asides_in != session.pending.generation:
        session.pending.evaluated += 1
        crowd.aside, crowd.asides_in = (
            tuple(_lasting_refusals(session, group)),
            session.pending.generation,
        )
    return crowd.aside


def _is_known_to_stand_in_line(session: Session, group: GroupState) -> bool:
    """Whether it stood in line before, and nothing has happened since that could change it.

    Every plugin there says what lifts its refusals; so nothing else brings them about.
    """
    return (
        group.in_line_at is not None
        and group.in_line_at == session.pending.generation
        and group.status is group.record.status
    )


def alike(session: Session, group: GroupState) -> bool:
    """Whether it stands in line, and is asked nothing but what the limits ask of all who ask for
    the same: `GroupState.asks`.
    """
    return (
        group.bare
        and group.status is group.record.status
        and group.uid not in session.ledger.claimants
        and not standing_aside(session, group)
    )


def _inadmissible(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    if session.ledger.charged(group):
        return _with_own(session, group, _ask(session, group))
    return _with_own(session, group, _refused_alike(session, group))


def _refused_alike(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Asked once for all groups of one queue, namespace and request, until the ledger moves."""
    version, verdicts = session.pending.last_verdicts.get(group.asks, _NOT_TOLD)
    if version != session.ledger.version:
        verdicts = session.dated(_ask(session, group))
        session.pending.last_verdicts[group.asks] = (session.ledger.version, verdicts)
    return verdicts


def _ask(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    verdicts = tuple(_refusals(session, session.plugins.for_classes, group))
    return verdicts or tuple(over_any_limit(session, group))


def waits_in_line(verdicts: tuple[Verdict, ...]) -> bool:
    """Whether a group refused like this keeps its place in line (`Blockers.wait_in_line`)."""
    known = verdicts if isinstance(verdicts, Blockers) else Blockers(verdicts)
    return known.wait_in_line


# --- Crowds ---------------------------------------------------------------------------------------


def is_kept_out(session: Session, crowd: EquivalenceClass) -> bool:
    """Whether what a sleeping crowd was refused for has not changed."""
    if not crowd.sleeps:
        return False
    if session.get(NODE_REFUSALS).holds(crowd):
        return session.get(NODE_REFUSALS).keeps_out(session, crowd)
    return crowd.watches is None or session.ledger.used(*crowd.watches) > crowd.most


def refuse_crowd(
    session: Session,
    group: GroupState,
    verdicts: Blockers,
    behind: Verdict | None = None,
    *,
    wanted: Wanted | None = None,
) -> None:
    """Keep why all groups wait that wait as this one does; they sleep from now on, if they may.

    `wanted`: what nodes were asked for, if it is they that refused.
    """
    crowd = group.crowd
    assert crowd is not None
    kind = "" if behind is None else behind.detail
    if crowd.told is not None and crowd.verdicts is verdicts and crowd.behind == kind:
        return
    crowd.verdicts, crowd.behind = verdicts, kind
    line = _line_of(session, group)
    told = verdicts if behind is None else session.dated((*verdicts, behind))
    if crowd.tell(told):
        line.unread[crowd.asks] = crowd
    line.count(crowd, counts=verdicts.wait_in_line)
    _fall_asleep(session, crowd, group, verdicts, wanted)
    if crowd.sleeps:
        line.restless.pop(crowd.asks, None)
    else:
        line.restless[crowd.asks] = crowd


def wake_crowd(session: Session, group: GroupState) -> None:
    """Let the crowd of a group be asked again; nothing happens if it is of none."""
    crowd = group.crowd
    if crowd is None:
        return
    session.carried.watches.remove(crowd)
    session.get(NODE_REFUSALS).wake(crowd)
    crowd.sleeps, crowd.watches = False, None
    _line_of(session, group).restless[crowd.asks] = crowd


def _fall_asleep(
    session: Session,
    crowd: EquivalenceClass,
    group: GroupState,
    verdicts: Blockers,
    wanted: Wanted | None,
) -> None:
    session.carried.watches.remove(crowd)
    session.get(NODE_REFUSALS).wake(crowd)
    crowd.sleeps, crowd.watches = False, None
    if not session.pending.classes_may_sleep:
        return
    if wanted is not None:
        crowd.sleeps = True
        session.get(NODE_REFUSALS).sleep(crowd, wanted)
        return
    if not verdicts.wait_in_line:
        crowd.sleeps = only_the_world_helps(session, verdicts)
        return
    for scope in group.scopes:
        if scope.startswith("ns:"):
            continue
        for resource, need in claim_of(group).items():
            limit = session.ledger.limit(scope, resource)
            if limit is None or (resource == POD_GROUPS and scope == CLUSTER):
                continue
            if session.ledger.used(scope, resource) + need > limit:
                crowd.sleeps, crowd.watches = True, (scope, resource)
                crowd.most = limit - need
                session.carried.watches.add(crowd, crowd.watches, crowd.most)
                return


def _line_of(session: Session, group: GroupState) -> PendingQueue:
    queue = session.queues.get(group.queue)
    return session.carried.strayed if queue is None else queue.line
