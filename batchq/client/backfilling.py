"""How a group stands in a queue that is backfilled: what is kept for it, or whom it would delay.

Read off a session that has decided: the head of a Backfill queue has a reservation, and whoever is
behind goes ahead if that delays nobody who has one (batchq_actions.backfill).
"""

from __future__ import annotations

from msgspec import Struct, structs

from batchq.api.objects import Strategy
from batchq.api.reasons import Waiting
from batchq.api.times import SECOND
from batchq.framework.head_places import length_of, still_waits
from batchq.framework.line import blockers
from batchq.framework.placement import gang_of, slots_for
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.framework.timetable import Timetable
from batchq_actions.backfill import reservations_of


class Backfilling(Struct, frozen=True, kw_only=True, rename="camel"):
    """How a group stands behind the head of its queue, or as the head itself (`head` is its key).

    `reserved_at`: from when on room is kept for it, in milliseconds; None: it is not. `delays`: the
    key of the one that it would delay if it went ahead now, and `delayed_at` when that is to start.
    `longest_ms`: the longest walltime with which it would go ahead now; None if there is none, or
    its own would do. `fits_now`: whether the limits have room for it at this moment.
    """

    head: str
    head_at: int | None
    reserved_at: int | None
    fits_now: bool = False
    delays: str = ""
    delayed_at: int | None = None
    longest_ms: int | None = None


def backfilling_of(session: Session, group: GroupState) -> Backfilling | None:
    """None where nobody waits for a head that is backfilled around, or not this group."""
    head = session.strict_heads.get(group.queue)
    if head is None or not still_waits(head) or not _is_filled(session, head):
        return None
    reservations = reservations_of(session)
    head_at, reserved_at = reservations.get(head.uid), reservations.get(group.uid)
    if group is head:
        return Backfilling(head=head.key, head_at=head_at, reserved_at=head_at)
    if not still_waits(group) or not _waits_for_turn(session, group):
        return None
    standing = Backfilling(head=head.key, head_at=head_at, reserved_at=reserved_at)
    known = Timetable(session)
    if head_at is None or not known.fits_now(group, 1):
        return standing
    return _beside(session, group, standing, known)


def _beside(
    session: Session, group: GroupState, standing: Backfilling, known: Timetable
) -> Backfilling:
    """What the reservations of those before it leave to a group that would fit now."""
    now_ms, length = session.now_ms, length_of(session, group)
    kept = _kept_before(session, group)
    for other, at in kept:
        known.book(other, at, length_of(session, other))
    standing = structs.replace(standing, fits_now=True)
    if known.fits_now(group, length):
        return standing
    delayed: tuple[GroupState, int] | None = None
    for other, at in sorted(kept, key=lambda one: one[1]):
        if not known.fits_now(group, at - now_ms):
            break
        if delayed is None or at > delayed[1]:
            delayed = other, at
    if delayed is None:
        return standing
    other, at = delayed
    return structs.replace(
        standing,
        delays=other.key,
        delayed_at=at,
        longest_ms=_whole(at - now_ms) if _would_go(session, group) else None,
    )


def _kept_before(session: Session, group: GroupState) -> list[tuple[GroupState, int]]:
    """Those with a reservation who are tried before it, and from when on they have it."""
    head = session.strict_heads[group.queue]
    by_length = _strategy(session, head).order == "shortest"

    def tried(one: GroupState) -> tuple[object, ...]:
        length = one.record.spec.walltime if by_length else 0
        return (one is not head, length is None, length or 0, session.group_key(one))

    mine = tried(group)
    others = [(session.groups[uid], at) for uid, at in reservations_of(session).items()]
    kept = [
        (one, at)
        for one, at in others
        if session.strict_heads.get(one.queue) is head and tried(one) < mine
    ]
    return sorted(kept, key=lambda pair: tried(pair[0]))


def _would_go(session: Session, group: GroupState) -> bool:
    """Whether a walltime that delays nobody is all that it takes to start now."""
    if group.is_array or session.refusals_at("permit", group) or blockers(session, group):
        return False
    gang = () if group.is_external else gang_of(session, group)
    return all(slots_for(session, shape, count) >= count for shape, count in gang)


def _whole(milliseconds: int) -> int | None:
    """As people write walltimes: no longer than that."""
    return milliseconds // SECOND * SECOND or None


def _waits_for_turn(session: Session, group: GroupState) -> bool:
    """Whether its place behind the head is a reason why it waits."""
    return any(
        verdict.reason == Waiting.WAITING_FOR_TURN and verdict.plugin == "enqueue"
        for verdict in session.refusals.get(group.uid, ())
    )


def _is_filled(session: Session, head: GroupState) -> bool:
    return "backfill" in session.actions and _strategy(session, head).type == "Backfill"


def _strategy(session: Session, group: GroupState) -> Strategy:
    return session.queues[group.queue].record.spec.strategy
