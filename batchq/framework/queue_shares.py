"""What each queue deserves and holds in this session, for order and for reports.

Flat queues: the ready, uncordoned nodes are shared out by weight, each queue capped by its demand
(ledger + Pending groups in line + what admitted groups' waiting pods ask for beyond their promise)
and by its capability. Demand is added up once a session and follows admissions; what is deserved
is worked out when the demand has changed.
"""

from __future__ import annotations

from batchq.api.lifecycle import PodPhase
from batchq.api.quantity import LARGEST
from batchq.api.reasons import Verdict
from batchq.api.resources import Amounts, minus, plus, total
from batchq.api.transaction import queue_scope
from batchq.framework.ledger import ROOT
from batchq.framework.line import blockers, waits_in_line
from batchq.framework.session import Session
from batchq.framework.shares import Share, deserved_by_weight, share_of
from batchq.framework.state import GroupState, is_admitted


def deserved_of_queues(session: Session) -> dict[str, Amounts]:
    """Queue -> what it deserves, in every dimension that a node names. Kept on the session."""
    kept = session.deserved
    if kept is None:
        kept = session.deserved = _share_out(session)
    return kept


def share_of_queue(session: Session, queue: str) -> Share:
    """The queue's dominant share, by the ledger as it is now."""
    held = session.ledger.sums.get(queue_scope(queue), {})
    return share_of(held, deserved_of_queues(session).get(queue, {}))


def note_admission(session: Session, group: GroupState) -> None:
    """Let the demand follow an admission: pods beyond minMember are asked for from now on.

    What was reserved only moves from the line to the ledger; a full gang changes nothing.
    """
    if session.demands is not None and group.is_elastic:
        more = _asked_beyond_promise(group)
        session.demands[group.queue] = plus(session.demands[group.queue], more)
        session.deserved = None


def _share_out(session: Session) -> dict[str, Amounts]:
    available = total(node.total for node in session.nodes.values() if node.open)
    if session.demands is None:
        session.demands = _demands(session)
    demands = session.demands
    # The root queue is no sibling of the others: it deserves what there is.
    siblings = {name: queue for name, queue in session.queues.items() if name != ROOT}
    caps = []
    for name, queue in siblings.items():
        limits = session.ledger.limits.get(queue_scope(name), {})
        demand = demands[name]
        cap = {res: min(units, limits.get(res, LARGEST)) for res, units in demand.items()}
        caps.append((queue.record.spec.weight, cap))
    shares = deserved_by_weight(available, caps)
    return {ROOT: available, **dict(zip(siblings, shares, strict=True))}


def _demands(session: Session) -> dict[str, Amounts]:
    demands = {}
    asked: dict[str, list[Amounts]] = {}
    for group in session.groups.values():
        if is_admitted(group):
            asked.setdefault(group.queue, []).append(_asked_beyond_promise(group))
    for name, queue in session.queues.items():
        ledger = session.ledger.sums.get(queue_scope(name), {})
        in_line = (group.reservation for group in queue.line if _counts(blockers(session, group)))
        demands[name] = total([ledger, *in_line, *asked.get(name, [])])
    return demands


def _counts(verdicts: tuple[Verdict, ...]) -> bool:
    return not verdicts or waits_in_line(verdicts)


def _asked_beyond_promise(group: GroupState) -> Amounts:
    """What its pods without a node, those not yet created included, ask for beyond the promise."""
    asked: Amounts = {}
    if group.is_external:
        return asked
    for shape in group.tasks:
        away = sum(
            1
            for pod in group.current()
            if pod.spec.task == shape.task.name and pod.status.phase != PodPhase.PENDING
        )
        waiting = max(0, shape.task.replicas - away)
        asked = plus(asked, {name: units * waiting for name, units in shape.requests.items()})
    promise = minus(group.charge(), group.held)
    return minus(asked, promise)
