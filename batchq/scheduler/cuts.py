"""InQueue groups that no longer fit leave, in reverse order of line, until the rest fit."""

from __future__ import annotations

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.quantity import describe_quantity
from batchq.api.reasons import Leaving
from batchq.api.resources import Amounts, minus, of_pod, plus, total
from batchq.api.transaction import CLUSTER, POD_GROUPS
from batchq.framework.ledger import falls_by, title_of
from batchq.framework.moves import roll_back
from batchq.framework.pledges import nodes_awaited
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.framework.statement import Statement


def leave_where_cut(session: Session) -> None:
    """Scope by scope: the cluster, queues, namespaces."""
    in_queue = [group for group in session.busy() if _may_leave(group) and group.status.reservation]
    if not in_queue:
        return
    in_queue.sort(key=session.group_key, reverse=True)
    last_first: dict[str, list[GroupState]] = {}
    for group in in_queue:
        for scope in group.scopes:
            last_first.setdefault(scope, []).append(group)
    for scope in sorted(last_first):
        _cut(session, scope, last_first[scope])


def _cut(session: Session, scope: str, last_first: list[GroupState]) -> None:
    excess = _excess(session, scope)
    for group in last_first:
        if not excess:
            return
        charge = session.ledger.counts_for(group, scope)
        short = next((name for name in excess if charge.get(name)), None)
        if short is None or not _may_leave(group):
            continue
        if scope == CLUSTER and nodes_awaited(session, group.status.pledge):
            # Nobody else leaves for what is lost for a while with its node.
            excess = minus(excess, charge)
            continue
        limit = describe_quantity(short, session.ledger.limit(scope, short) or 0)
        message = (
            f"{title_of(scope)} allows {short} {limit} now,"
            " which is not enough for all that have reserved"
        )
        reason = Leaving.NODE_LOST if scope == CLUSTER else Leaving.CAPACITY_CUT
        with Statement(session) as statement:
            roll_back(statement, group, reason, message)
            statement.commit()
        excess = minus(excess, charge)


def _may_leave(group: GroupState) -> bool:
    """InQueue, or Pending with a reservation: nothing that runs is lost."""
    return group.phase == PodGroupPhase.IN_QUEUE or (
        group.phase == PodGroupPhase.PENDING and group.reserved
    )


def _excess(session: Session, scope: str) -> Amounts:
    """What the scope holds beyond its limit, less what is being stopped already.

    A limit under which a described world states more than fits has not been cut.
    """
    stated = session.snapshot.overbooked.get(scope, {})
    over: Amounts = {}
    for name, units in session.ledger.sums.get(scope, {}).items():
        limit = session.ledger.limit(scope, name)
        if limit is None or units <= limit or (scope == CLUSTER and name == POD_GROUPS):
            continue
        if name not in stated or limit < stated[name]:
            over[name] = units - limit
    return minus(over, _leaving(session, scope)) if over else {}


def _leaving(session: Session, scope: str) -> Amounts:
    """What charges will fall by when everything that was told to stop has stopped."""
    leaving: Amounts = {}
    for group in session.busy():
        stopping = total(
            of_pod(pod.spec.requests)
            for pod in group.pods.values()
            if pod.status.terminating and pod.status.phase in ON_NODE
        )
        if group.is_external:
            # What it holds without a reservation is a claim that is being stopped.
            stopping = group.held
        if stopping and scope in group.scopes:
            leaving = plus(leaving, falls_by(group, stopping))
    return leaving
