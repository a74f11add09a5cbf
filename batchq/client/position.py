"""Several groups, as somebody of one namespace is told of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from batchq.api.lifecycle import ADMITTED
from batchq.api.notation import counted
from batchq.api.objects import Strategy, Task
from batchq.api.reasons import Verdict, Waiting
from batchq.api.times import SECOND
from batchq.core.forecast.timeline import LedgerTimeline
from batchq.core.pending.queue import blockers
from batchq.core.placement.placement import gang_of, slots_for
from batchq.core.quota.head_reservation import length_of, still_waits
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.plugins.gates import GATES
from batchq_actions.backfill import reservations_of

#: So many names are told where others are only counted.
MOST_NAMED = 3


class Others(Struct, frozen=True, kw_only=True, rename="camel"):
    """Several groups: the first few of the same namespace by key, how many more of it there are,
    and how many of other namespaces.
    """

    named: tuple[str, ...] = ()
    more: int = 0
    elsewhere: int = 0

    @property
    def count(self) -> int:
        """How many in all."""
        return len(self.named) + self.more + self.elsewhere


def others(keys: Iterable[str], namespace: str) -> Others:
    """These groups, in their order, as somebody of one namespace is told of them."""
    keys = list(dict.fromkeys(keys))
    mine = [key for key in keys if key.startswith(f"{namespace}/")]
    return Others(
        named=tuple(mine[:MOST_NAMED]),
        more=len(mine[MOST_NAMED:]),
        elsewhere=len(keys) - len(mine),
    )


def gated_pods(group: GroupState) -> tuple[Verdict, ...]:
    """One verdict for each task of an admitted group whose pods wait for gates; `subject` is the
    task's name.
    """
    if group.phase not in ADMITTED or not group.gates_hold:
        return ()
    reason = Waiting.SCHEDULING_GATED
    return tuple(
        Verdict(plugin=GATES, reason=reason, subject=shape.task.name, detail=_said(shape.task))
        for shape in group.tasks
        if shape.gated and shape.task.replicas
    )


def gates_of_task(group: GroupState, task: str) -> tuple[str, ...]:
    """The names of the gates in the template of a task."""
    shape = group.shape.by_task.get(task)
    return () if shape is None else tuple(one.name for one in shape.task.template.scheduling_gates)


def _said(task: Task) -> str:
    names = ", ".join(gate.name for gate in task.template.scheduling_gates)
    kind = "gate" if len(task.template.scheduling_gates) == 1 else "gates"
    wait = "waits" if task.replicas == 1 else "wait"
    return f"{counted(task.replicas, 'pod')} of task {task.name} {wait} for {kind} {names}"


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
    head = session.heads.strict.get(group.queue)
    if head is None or not still_waits(head) or not _is_filled(session, head):
        return None
    reservations = reservations_of(session)
    head_at, reserved_at = reservations.get(head.uid), reservations.get(group.uid)
    if group is head:
        return Backfilling(head=head.key, head_at=head_at, reserved_at=head_at)
    if not still_waits(group) or not _waits_for_turn(session, group):
        return None
    standing = Backfilling(head=head.key, head_at=head_at, reserved_at=reserved_at)
    known = LedgerTimeline(session)
    if head_at is None or not known.fits_now(group, 1):
        return standing
    return _beside(session, group, standing, known)


def _beside(
    session: Session, group: GroupState, standing: Backfilling, known: LedgerTimeline
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
    head = session.heads.strict[group.queue]
    by_length = _strategy(session, head).order == "shortest"

    def tried(one: GroupState) -> tuple[object, ...]:
        length = one.record.spec.walltime if by_length else 0
        return (one is not head, length is None, length or 0, session.group_key(one))

    mine = tried(group)
    others = [(session.groups[uid], at) for uid, at in reservations_of(session).items()]
    kept = [
        (one, at)
        for one, at in others
        if session.heads.strict.get(one.queue) is head and tried(one) < mine
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
