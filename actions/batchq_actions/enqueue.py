"""enqueue: who may have pods. First come, first served; policy lives in plugins.

Queues by fair share, looked at anew after each admission (or, without a queueOrder plugin, one
global line); within a queue by the groupOrder plugins, then queue time, then uid. A group that is
refused *out of line* (gated, suspended, impossible, held back by its own namespace only …) is
passed over: nobody waits for it. A group refused *in line* (by capacity) means for those behind
it: under BestEffortFIFO they are tried, under StrictFIFO they wait.
"""

from __future__ import annotations

from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import Amounts, minus, smaller
from batchq.api.transaction import queue_scope
from batchq.framework.ledger import ROOT, title_of
from batchq.framework.line import blockers, waits_in_line
from batchq.framework.moves import admit, create_pods
from batchq.framework.queue_shares import deserved_of_queues, note_admission
from batchq.framework.session import Session
from batchq.framework.state import GroupState, QueueState
from batchq.framework.statement import Statement
from batchq.framework.wanted import wanted_ordinals

_BEHIND = Verdict(
    plugin="enqueue",
    reason=Waiting.WAITING_FOR_TURN,
    detail="waits behind the head of its queue, which is first come, first served (StrictFIFO)",
    in_line=True,
)


class Enqueue:
    """Pending -> InQueue, with reservation and pods, for every group that may."""

    name = "enqueue"

    def execute(self, session: Session) -> None:
        if session.points["queueOrder"]:
            _serve_queues(session)
        else:
            _serve_one_line(session)


def _serve_queues(session: Session) -> None:
    """The queue with the lowest share first; its next group decides when it is served again."""
    lines = {name: iter(queue.line) for name, queue in session.queues.items() if queue.line}
    keys = {name: session.queue_key(session.queues[name]) for name in lines}
    while lines:
        name = min(lines, key=keys.__getitem__)
        group = next(lines[name], None)
        if group is None:
            del lines[name]
        elif _try(session, group):
            # Who asks for more than it reserves may change what every queue deserves.
            moved = lines if session.deserved is None else (name,)
            keys.update((one, session.queue_key(session.queues[one])) for one in moved)
        elif _blocks(session, group):
            _wait_behind(session, list(lines.pop(name)))
            _set_aside(session, group)


def _serve_one_line(session: Session) -> None:
    """No queueOrder: every group in one line; a strict head stops it."""
    groups = [group for queue in session.queues.values() for group in queue.line]
    line = iter(sorted(groups, key=session.group_key))
    for group in line:
        if not _try(session, group) and _blocks(session, group):
            _wait_behind(session, list(line))
            _set_aside(session, group)
            return


def _try(session: Session, group: GroupState) -> bool:
    """Admit the group, or keep every reason against it."""
    verdicts = blockers(session, group)
    if verdicts:
        session.refuse(group, verdicts)
        return False
    with Statement(session) as statement:
        admit(statement, group, reservation=group.reservation)
        create_pods(statement, group, wanted_ordinals(group))
        statement.commit()
    note_admission(session, group)
    return True


def _blocks(session: Session, group: GroupState) -> bool:
    strict = session.queues[group.queue].record.spec.strategy.type != "BestEffortFIFO"
    return strict and waits_in_line(session.refusals[group.uid])


def _wait_behind(session: Session, groups: list[GroupState]) -> None:
    """Those behind a strict head wait for it, unless they are out of line anyway."""
    for group in groups:
        verdicts = blockers(session, group)
        behind = (_BEHIND,) if not verdicts or waits_in_line(verdicts) else ()
        session.refuse(group, (*verdicts, *behind))


def _set_aside(session: Session, head: GroupState) -> None:
    """What a strict head's queue still deserves is kept for it for the rest of the pass.

    Otherwise small groups of other queues, admitted one by one, keep a large head from ever
    finding enough room at once.
    """
    if not any(_is_shared(verdict) for verdict in session.refusals[head.uid]):
        return
    queue = session.queues[head.queue]
    amounts = smaller(head.reservation, _undershoot(session, queue))
    session.ledger.put_aside(head, amounts)


def _is_shared(verdict: Verdict) -> bool:
    """Whether what refuses is shared with other queues: the cluster, or the root queue."""
    return verdict.in_line and (
        verdict.reason == Waiting.WAITING_FOR_RESOURCES
        or verdict.subject == title_of(queue_scope(ROOT))
    )


def _undershoot(session: Session, queue: QueueState) -> Amounts:
    deserved = deserved_of_queues(session).get(queue.name, {})
    return minus(deserved, session.ledger.sums.get(queue_scope(queue.name), {}))
