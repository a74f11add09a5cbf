"""A group's position relative to others: gates, backfill, and lists of other groups' names."""

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

#: How many groups are named; the others are only counted.
MOST_NAMED = 3


class Others(Struct, frozen=True, kw_only=True, rename="camel"):
    """A list of groups: the keys of the first few in the reader's namespace, the number of further
    ones there, and the number in other namespaces, whose names are private.
    """

    named: tuple[str, ...] = ()
    more: int = 0
    elsewhere: int = 0

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.named) + self.more + self.elsewhere


def others(keys: Iterable[str], namespace: str) -> Others:
    """Summarise groups, in their order, for a reader of one namespace."""
    keys = list(dict.fromkeys(keys))
    own = [key for key in keys if key.startswith(f"{namespace}/")]
    return Others(
        named=tuple(own[:MOST_NAMED]),
        more=len(own[MOST_NAMED:]),
        elsewhere=len(keys) - len(own),
    )


def gated_pods(group: GroupState) -> tuple[Verdict, ...]:
    """Return a verdict for each task of an admitted group whose pods wait for gates; `subject` is
    the task's name.
    """
    if group.phase not in ADMITTED or not group.gates_hold:
        return ()
    reason = Waiting.SCHEDULING_GATED
    return tuple(
        Verdict(
            plugin=GATES, reason=reason, subject=shape.task.name, detail=_gates_message(shape.task)
        )
        for shape in group.tasks
        if shape.gated and shape.task.replicas
    )


def gates_of_task(group: GroupState, task: str) -> tuple[str, ...]:
    """Return the names of the gates in a task's template."""
    shape = group.shape.by_task.get(task)
    return () if shape is None else tuple(one.name for one in shape.task.template.scheduling_gates)


def _gates_message(task: Task) -> str:
    names = ", ".join(gate.name for gate in task.template.scheduling_gates)
    kind = "gate" if len(task.template.scheduling_gates) == 1 else "gates"
    wait = "waits" if task.replicas == 1 else "wait"
    return f"{counted(task.replicas, 'pod')} of task {task.name} {wait} for {kind} {names}"


class Backfilling(Struct, frozen=True, kw_only=True, rename="camel"):
    """The position of a group behind the head of a backfilled queue, or as the head (`head` is its
    key).

    `reserved_at` is when its reservation begins, in milliseconds; None if it has none. `delays` is
    the key of the group that it would delay if it started now, and `delayed_at` when that one is to
    start. `longest_ms` is the longest walltime with which it would start now; None if there is none
    or its own is short enough. `fits_now`: the limits have enough free quota at this moment.
    """

    head: str
    head_at: int | None
    reserved_at: int | None
    fits_now: bool = False
    delays: str = ""
    delayed_at: int | None = None
    longest_ms: int | None = None


def backfilling_of(session: Session, group: GroupState) -> Backfilling | None:
    """Return its position; None unless the group waits behind a head that is backfilled around."""
    head = session.heads.strict.get(group.queue)
    if head is None or not still_waits(head) or not _is_backfilled(session, head):
        return None
    reservations = reservations_of(session)
    head_at, reserved_at = reservations.get(head.uid), reservations.get(group.uid)
    if group is head:
        return Backfilling(head=head.key, head_at=head_at, reserved_at=head_at)
    if not still_waits(group) or not _waits_for_turn(session, group):
        return None
    position = Backfilling(head=head.key, head_at=head_at, reserved_at=reserved_at)
    known = LedgerTimeline(session)
    if head_at is None or not known.fits_now(group, 1):
        return position
    return _with_delay(session, group, position, known)


def _with_delay(
    session: Session, group: GroupState, position: Backfilling, known: LedgerTimeline
) -> Backfilling:
    """Complete the position of a group that would fit now but for earlier reservations."""
    now_ms, length = session.now_ms, length_of(session, group)
    reservations = _reservations_before(session, group)
    for other, at in reservations:
        known.book(other, at, length_of(session, other))
    position = structs.replace(position, fits_now=True)
    if known.fits_now(group, length):
        return position
    delayed: tuple[GroupState, int] | None = None
    for other, at in sorted(reservations, key=lambda one: one[1]):
        if not known.fits_now(group, at - now_ms):
            break
        if delayed is None or at > delayed[1]:
            delayed = other, at
    if delayed is None:
        return position
    other, at = delayed
    return structs.replace(
        position,
        delays=other.key,
        delayed_at=at,
        longest_ms=_whole_seconds(at - now_ms) if _would_start(session, group) else None,
    )


def _reservations_before(session: Session, group: GroupState) -> list[tuple[GroupState, int]]:
    """Return the groups with a reservation that are tried before it, and when each begins."""
    head = session.heads.strict[group.queue]
    by_length = _strategy(session, head).order == "shortest"

    def trial_order(one: GroupState) -> tuple[object, ...]:
        length = one.record.spec.walltime if by_length else 0
        return (one is not head, length is None, length or 0, session.group_key(one))

    own = trial_order(group)
    others = [(session.groups[uid], at) for uid, at in reservations_of(session).items()]
    reservations = [
        (one, at)
        for one, at in others
        if session.heads.strict.get(one.queue) is head and trial_order(one) < own
    ]
    return sorted(reservations, key=lambda pair: trial_order(pair[0]))


def _would_start(session: Session, group: GroupState) -> bool:
    """Return whether a shorter walltime is all that the group needs in order to start now."""
    if group.is_array or session.refusals_at("permit", group) or blockers(session, group):
        return False
    gang = () if group.is_external else gang_of(session, group)
    return all(slots_for(session, shape, count) >= count for shape, count in gang)


def _whole_seconds(milliseconds: int) -> int | None:
    """Round down to whole seconds, as people write walltimes; None for zero."""
    return milliseconds // SECOND * SECOND or None


def _waits_for_turn(session: Session, group: GroupState) -> bool:
    """Return whether the group waits because of its position behind the head."""
    return any(
        verdict.reason == Waiting.WAITING_FOR_TURN and verdict.plugin == "enqueue"
        for verdict in session.refusals.get(group.uid, ())
    )


def _is_backfilled(session: Session, head: GroupState) -> bool:
    return "backfill" in session.actions and _strategy(session, head).type == "Backfill"


def _strategy(session: Session, group: GroupState) -> Strategy:
    return session.queues[group.queue].record.spec.strategy
