"""What is set aside for a head that waits: others are tested as if it were charged.

Otherwise small groups of other queues, admitted one by one, keep a large head from ever finding
enough room at once. Kept for the rest of a session, where queues meet: in the cluster and in the
queues above.
"""

from __future__ import annotations

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import Amounts, minus, smaller
from batchq.api.transaction import POD_GROUPS, queue_scope
from batchq.framework.classes import everybody_may_evict, may_evict
from batchq.framework.ledger import title_of
from batchq.framework.queue_shares import comparable, deserved_of_queues
from batchq.framework.session import Session
from batchq.framework.state import GroupState


def set_aside(session: Session, head: GroupState) -> None:
    """For a strict head: what its queue still deserves, against everybody else."""
    if _lacks_what_is_shared(session, head):
        amounts = smaller(head.reservation, _undershoot(session, head.queue))
        session.ledger.put_aside(head, amounts, lambda _: True)


def set_aside_from_borrowers(session: Session, head: GroupState) -> None:
    """For a head that others may overtake: only where its queue states what it deserves, against
    groups that would borrow what it could not, by policy, take back from them, and only if it asks
    for no more than that.
    """
    if _gets_all_back(session, head) or not _lacks_what_is_shared(session, head):
        return
    deserved = deserved_of_queues(session).get(head.queue, {})
    above = minus(head.reservation, deserved)
    if any(name in deserved for name in comparable(session, above)):
        return
    amounts = smaller(head.reservation, _undershoot(session, head.queue))
    session.ledger.put_aside(
        head,
        amounts,
        lambda group: (
            _would_borrow(session, group, amounts) and not _gets_back(session, head, group)
        ),
    )


def _lacks_what_is_shared(session: Session, head: GroupState) -> bool:
    """Whether it is refused for what it shares with other queues: the cluster, or queues above."""
    above = {title_of(queue_scope(name)) for name in head.chain[:-1]}
    return any(_is_shared(verdict, above) for verdict in session.refusals[head.uid])


def _is_shared(verdict: Verdict, above: set[str]) -> bool:
    return (verdict.in_line and verdict.resource != POD_GROUPS) and (
        verdict.reason == Waiting.WAITING_FOR_RESOURCES or verdict.subject in above
    )


def _undershoot(session: Session, queue: str) -> Amounts:
    deserved = deserved_of_queues(session).get(queue, {})
    return minus(deserved, session.ledger.sums.get(queue_scope(queue), {}))


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
    """Whether that is so of every head that any queue of this session could have."""
    specs = [queue.record.spec for queue in session.queues.values() if queue.record.spec.deserved]
    return not specs or (
        "reclaim" in session.actions
        and session.all_reclaimable
        and all(spec.preemption.reclaim == "Any" for spec in specs)
        and everybody_may_evict(session)
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
