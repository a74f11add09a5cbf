"""What is set aside for a head that waits: others are tested as if it were charged.

Otherwise small groups of other queues, admitted one by one, keep a large head from ever finding
enough room at once. All that the head asks for is set aside, or nothing: a part of it would be idle
and let nobody start, the head included. It is all where the head, beside what its queue will still
hold when it starts by the ends that are known, leaves its queue within what it deserves. Kept for
the rest of a session, where queues meet: in the cluster and in the queues above.

Of the heads that ask for more, one at a time has all of it set aside, if its queue has used less
than its due over time (batchq.framework.usage).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.quantity import LARGEST
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import Amounts
from batchq.api.transaction import POD_GROUPS, queue_scope
from batchq.framework.classes import everybody_may_evict, may_evict
from batchq.framework.hygiene import is_protected
from batchq.framework.ledger import title_of
from batchq.framework.queue_shares import comparable, deserved_of_queues
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim, is_admitted
from batchq.framework.statement import Statement
from batchq.framework.timetable import timetable_of
from batchq.framework.tree import ROOT
from batchq.framework.usage import used_share

#: What machines refuse a group for, and the next pod of one that runs.
_OF_MACHINES = frozenset({Waiting.WAITING_FOR_RESOURCES, Waiting.UNSCHEDULABLE})


def set_aside(session: Session, head: GroupState) -> None:
    """For a strict head, against everybody else."""
    if not _lacks_what_is_shared(head, session.refusals[head.uid]):
        return
    if keeps_all(session, head):
        session.ledger.put_aside(head, head.reservation, lambda _: True)
    else:
        session.exceeding.append(head)


def keeps_all(session: Session, head: GroupState) -> bool:
    """Return whether all that a strict head asks for is set aside while it lacks it."""
    return head.status.set_aside_at is not None or _stays_within_deserved(session, head)


def has_waited(head: GroupState) -> bool:
    """Return whether a group has lacked what it shares with other queues, by its record."""
    return _lacks_what_is_shared(head, head.status.reasons)


def let_one_exceed(session: Session) -> None:
    """Of the heads that ask for more than their queues deserve, let one have all of it set aside
    from the next session on: that of the queue which has used least of its due, if that is less
    than its due. Once begun it lasts until the head starts or leaves its place.
    """
    if not session.strict_heads:
        return
    heads = {head.uid for head in session.strict_heads.values()}
    begun = [one for one in session.busy() if one.status.set_aside_at is not None]
    for group in begun:
        if group.uid not in heads:
            _note_aside(session, group, None)
    if not session.exceeding or any(group.uid in heads for group in begun):
        return
    below = [
        (part, head.queue, head) for head in session.exceeding if (part := _used(session, head)) < 1
    ]
    if below:
        *_, head = min(below, key=lambda one: one[:2])
        _note_aside(session, head, session.now_ms)


def _note_aside(session: Session, group: GroupState, since: int | None) -> None:
    with Statement(session) as statement:
        statement.set_status(group, set_aside_at=since)
        statement.commit()


def _used(session: Session, head: GroupState) -> Fraction:
    """How much of its due a head's queue has used; 1, if nothing is due to it, or what was used is
    no matter.

    Due is what it deserves of what the root does, in the dimension in which that is least.
    """
    deserved = deserved_of_queues(session)
    root = {name: deserved[ROOT][name] for name in comparable(session, deserved[ROOT])}
    root = {name: units for name, units in root.items() if units}
    mine = deserved.get(head.queue, {})
    due = min((Fraction(mine.get(name, 0), units) for name, units in root.items()), default=None)
    if not due or session.settings.half_life_ms is None:
        return Fraction(1)
    return used_share(session, queue_scope(head.queue), root) / due


def set_aside_from_borrowers(session: Session, head: GroupState) -> None:
    """For a head that others may overtake: only where its queue states what it deserves, against
    groups that would borrow what it could not, by policy, take back from them; or against all that
    would borrow, while nothing but a protection keeps it from its victims.
    """
    spares = _spares_some(session, head)
    if not spares and _gets_all_back(session, head):
        return
    if not session.queues[head.queue].record.spec.deserved:
        return
    refusals = session.refusals[head.uid]
    if not _lacks_what_is_shared(head, refusals) or not _stays_within_deserved(session, head):
        return
    amounts = head.reservation
    session.ledger.put_aside(
        head,
        amounts,
        lambda group: (
            _would_borrow(session, group, amounts)
            and (spares or not _gets_back(session, head, group))
        ),
    )


def _lacks_what_is_shared(head: GroupState, refusals: Iterable[Verdict]) -> bool:
    """Whether it is refused for what it shares with other queues: the cluster, or queues above."""
    above = {title_of(queue_scope(name)) for name in head.chain[:-1]}
    return any(_is_shared(verdict, above) for verdict in refusals)


def _is_shared(verdict: Verdict, above: set[str]) -> bool:
    return (verdict.in_line and verdict.resource != POD_GROUPS) and (
        verdict.reason in _OF_MACHINES or verdict.subject in above
    )


def _stays_within_deserved(session: Session, head: GroupState) -> bool:
    """Whether the head's queue, once it starts, holds no more than it deserves of anything that it
    asks for.
    """
    asked, scope = head.reservation, queue_scope(head.queue)
    deserved = deserved_of_queues(session).get(head.queue, {})
    bounds = {
        name: deserved[name] - asked[name]
        for name in comparable(session, asked)
        if name in deserved
    }
    if any(units < 0 for units in bounds.values()):
        return False
    if all(session.ledger.used(scope, name) <= units for name, units in bounds.items()):
        return True
    # Its own groups may end before it starts: by their walltimes, or as it does not start before.
    table = timetable_of(session)
    start = table.slot(head, None)
    return all(
        min(table.sum_then(scope, name, start), _left_beside(session, head, name)) <= units
        for name, units in bounds.items()
    )


def _left_beside(session: Session, head: GroupState, name: str) -> int:
    """The most that anybody could hold beside a head that has started."""
    limits = [session.ledger.limit(scope, name) for scope in head.scopes]
    return (
        min((limit for limit in limits if limit is not None), default=LARGEST)
        - (head.reservation[name])
    )


def _would_borrow(session: Session, group: GroupState, amounts: Amounts) -> bool:
    """Whether one more charge takes its queue above what it deserves, where that is set aside."""
    deserved = deserved_of_queues(session).get(group.queue, {})
    scope = queue_scope(group.queue)
    need = group.reservation if group.phase == PodGroupPhase.PENDING else session.asking
    return any(
        session.ledger.used(scope, name) + need.get(name, 1) > deserved[name]
        for name in comparable(session, amounts)
        if name in deserved
    )


def _gets_all_back(session: Session, head: GroupState) -> bool:
    """Whether nothing has to be kept for the head: its queue states nothing that it deserves, or
    can reclaim that from every borrower.

    That is the usual case, and has to be cheap where a thousand queues have heads that wait.
    """
    spec = session.queues[head.queue].record.spec
    takes = "reclaim" in session.actions and may_evict(session, head)
    takes_all = takes and session.all_reclaimable and spec.preemption.reclaim == "Any"
    return takes_all or not spec.deserved


def everybody_gets_all_back(session: Session) -> bool:
    """Whether that is so of every head that any queue of this session could have, now."""
    specs = [queue.record.spec for queue in session.queues.values() if queue.record.spec.deserved]
    return not specs or (
        "reclaim" in session.actions
        and session.all_reclaimable
        and all(spec.preemption.reclaim == "Any" for spec in specs)
        and everybody_may_evict(session)
        and not _protected(session)
    )


def _protected(session: Session) -> Iterable[GroupState]:
    """Of each queue with groups that reclaim may not take yet, for how short they have run, the one
    of the lowest priority.

    Found once a session, for any number of heads: what a session starts itself is not protected.
    """
    if session.protected is None:
        session.protected = {}
        for group in session.busy():
            lowest = session.protected.get(group.queue)
            if (lowest is None or group.priority < lowest.priority) and _is_protected(
                session, group
            ):
                session.protected[group.queue] = group
    return session.protected.values()


def _is_protected(session: Session, group: GroupState) -> bool:
    if group.is_external or not is_admitted(group):
        return False
    pods = tuple(pod for pod in group.current() if pod.status.phase in ON_NODE)
    return bool(pods) and is_protected(session, Victim(group, pods, whole=True), "reclaimable")


def _spares_some(session: Session, head: GroupState) -> bool:
    """Whether a protection alone keeps the head from a group that its queue could reclaim from."""
    spec = session.queues[head.queue].record.spec
    if not spec.deserved or spec.preemption.reclaim == "Never":
        return False
    return any(
        group.queue != head.queue
        and _gets_back(session, head, group)
        and _is_above_deserved(session, group.queue, head.reservation)
        for group in _protected(session)
    )


def _is_above_deserved(session: Session, queue: str, amounts: Amounts) -> bool:
    """Whether a queue holds more than it deserves of anything that is asked for."""
    deserved = deserved_of_queues(session).get(queue, {})
    return any(
        session.ledger.used(queue_scope(queue), name) > deserved[name]
        for name in comparable(session, amounts)
        if name in deserved
    )


def _gets_back(session: Session, head: GroupState, borrower: GroupState) -> bool:
    """Whether the head could reclaim from the borrower's queue what that takes now."""
    if "reclaim" not in session.actions or not may_evict(session, head):
        return False
    _, theirs = session.tree.divide(head.queue, borrower.queue)
    if not all(session.queues[name].record.spec.reclaimable for name in theirs):
        return False
    match session.queues[head.queue].record.spec.preemption.reclaim:
        case "Any":
            return True
        case "LowerPriority":
            return borrower.priority < head.priority
        case _:
            return False
