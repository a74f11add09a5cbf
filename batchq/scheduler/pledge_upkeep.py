"""Pledges from session to session: what was promised is kept to, and ends.

A claimant's pledge ends when it has been placed; when it loses its reservation; or with that when
its victims have not ended in time. Whatever a pledge may evict and has not, every session evicts.
"""

from __future__ import annotations

import msgspec

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Pledge
from batchq.api.reasons import Leaving
from batchq.core.pending.eligibility import are_honoured, evicts_late, holds_off
from batchq.core.preemption.evictions import REASONS, action_against
from batchq.core.preemption.pledges import (
    end_pledge,
    has_lost_room,
    leaves_whole,
    standing_pledges,
    victims_left,
)
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import evict, roll_back

_LATE = "the victims that it was promised the room of did not end in time"
_NO_NODE = "a node on which room was made for it has not come back in time, and there is no other"


def follow_pledges(session: Session) -> None:
    """Let every claimant and its victims follow what has happened to the other."""
    for claimant, pledge in list(standing_pledges(session)):
        with Statement(session) as statement:
            _follow(statement, claimant, pledge)
            statement.commit()


def _follow(statement: Statement, claimant: GroupState, pledge: Pledge) -> None:
    session = statement.session
    is_admitted = claimant.phase != PodGroupPhase.PENDING
    # Without the action enqueue, groups are admitted without a reservation.
    has_left = not is_admitted and not claimant.reserved
    if has_left or (is_admitted and not pledge.extra and session.group_ready(claimant)):
        end_pledge(statement, claimant)
        return
    left = victims_left(session, pledge)
    # Who waits for nothing but its checks, or did until now, is not late by its victims.
    has_checks = bool(claimant.status.checks) and are_honoured(session)
    is_served = not is_admitted and not left and has_checks
    if pledge.expires is not None and pledge.expires <= session.now_ms and not is_served:
        _give_up(statement, claimant)
        return
    is_young = pledge.expires is None and evicts_late(session, claimant)
    if left and is_young and (pledge.action in session.actions or holds_off(session, claimant)):
        # Nobody has been evicted yet: the action chooses its victims anew.
        return
    for group, pods in left:
        # A described world need not say of what kind its pledge is.
        action = action_against(claimant, group) if pledge.action else ""
        reason = REASONS.get(action, Leaving.PREEMPTED)
        if leaves_whole(pledge, group):
            message = f"made room for {claimant.key}"
            roll_back(statement, group, reason, message, by=claimant.key, action=action)
            continue
        for pod in pods:
            evict(statement, group, pod, reason, by=claimant.key, action=action)
    if not left and pledge.made_at is not None:
        _start_clock(statement, claimant, pledge)


def _give_up(statement: Statement, claimant: GroupState) -> None:
    """With the pledge a claimant loses its reservation; what runs already goes on without."""
    if claimant.phase not in (PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE):
        end_pledge(statement, claimant)
    elif has_lost_room(statement.session, claimant.status.pledge):
        roll_back(statement, claimant, Leaving.NODE_LOST, _NO_NODE)
    else:
        roll_back(statement, claimant, Leaving.IN_QUEUE_TIMEOUT, _LATE)


def _start_clock(statement: Statement, claimant: GroupState, pledge: Pledge) -> None:
    """The time for which victims were awaited does not count towards inQueueTimeout."""
    waited = statement.session.now_ms - (pledge.made_at or 0)
    since = claimant.status.in_queue_at
    statement.set_status(
        claimant,
        pledge=msgspec.structs.replace(pledge, made_at=None),
        in_queue_at=None if since is None else since + waited,
    )
