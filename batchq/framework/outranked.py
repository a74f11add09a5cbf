"""Claimants whose pledges another one may take over, since it comes before them.

A claimant that comes before another by priority, then queue time, uid (not by share, which a pledge
moves), and may itself take its victims, counts these as its own. So no group is started only to be
evicted for one that waited already.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pledge
from batchq.api.resources import Amounts, total
from batchq.api.transaction import queue_scope
from batchq.framework.ordered import UidOrder, uid_order
from batchq.framework.pledges import leaves_whole, standing_pledges, victims_left
from batchq.framework.state import GroupState, Victim

if TYPE_CHECKING:
    from batchq.framework.session import Session


class Rank(NamedTuple):
    """The place of a claimant among all: the lowest comes first."""

    priority: int
    queue_time: int
    uid: UidOrder


def rank_of(group: GroupState) -> Rank:
    """By priority, then queue time, uid."""
    return Rank(-group.priority, group.queue_time, uid_order(group.uid))


def outranked_by(session: Session, claimant: GroupState) -> list[GroupState]:
    """The claimants with a pledge that come after this one, the last first; not those about which
    this session has decided, nor those whose pods would have to go with their reservation.
    """
    standing = _standing(session)
    after = standing[bisect_right(standing, rank_of(claimant), key=rank_of) :]
    decided = session.decided.served(session) if after else ()
    return [
        other
        for other in reversed(after)
        if other is not claimant
        and other.status.pledge.stands
        and other.uid not in decided
        and (other.status.pledge.extra or not _holds_nodes(other))
    ]


def pledged_below(session: Session, claimant: GroupState) -> Amounts:
    """What the claimants of the same queue that come after this one count there."""
    scope = queue_scope(claimant.queue)
    return total(
        session.ledger.counts_for(other, scope)
        for other in outranked_by(session, claimant)
        if other.queue == claimant.queue
    )


def pledged_in(session: Session, queue: str) -> Amounts:
    """What all claimants of a queue with a pledge count there."""
    scope = queue_scope(queue)
    return total(
        session.ledger.counts_for(other, scope)
        for other in _standing(session)
        if other.queue == queue
    )


@contextmanager
def sparing_pledges(session: Session) -> Iterator[None]:
    """For a while, nobody takes over what is pledged to another."""
    former, session.standing_by_rank = session.standing_by_rank, []
    try:
        yield
    finally:
        session.standing_by_rank = former


def _standing(session: Session) -> list[GroupState]:
    """All claimants with a pledge when the action began, the first in rank first."""
    if session.standing_by_rank is None:
        groups = [group for group, _ in standing_pledges(session)]
        session.standing_by_rank = sorted(groups, key=rank_of)
    return session.standing_by_rank


def _holds_nodes(group: GroupState) -> bool:
    return any(pod.status.phase in ON_NODE for pod in group.current())


def told_and_untold(session: Session, pledge: Pledge) -> tuple[list[Victim], list[Victim]]:
    """The victims of a pledge that have not ended: those that were told to stop, and the others."""
    told: list[Victim] = []
    untold: list[Victim] = []
    for group, pods in victims_left(session, pledge):
        if leaves_whole(pledge, group):
            untold.append(Victim(group, pods, whole=True))
            continue
        whole = group.uid in pledge.whole
        stopping = tuple(pod for pod in pods if pod.status.terminating)
        if stopping or whole:
            told.append(Victim(group, stopping, whole=whole))
        untold += [Victim(group, (pod,), whole=False) for pod in pods if not pod.status.terminating]
    return told, untold
