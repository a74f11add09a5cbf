"""InQueue groups that no longer fit leave, in reverse order of line, until the rest fit."""

from __future__ import annotations

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.quantity import describe_quantity
from batchq.api.reasons import Leaving
from batchq.api.resources import Amounts, minus, of_pod, plus
from batchq.api.transaction import CLUSTER, POD_GROUPS
from batchq.framework.ledger import scopes_of
from batchq.framework.moves import roll_back
from batchq.framework.session import Session
from batchq.framework.state import GroupState


def leave_where_cut(session: Session) -> None:
    """Scope by scope: the cluster, queues, namespaces."""
    in_queue = [
        group
        for group in session.groups.values()
        if group.phase == PodGroupPhase.IN_QUEUE and group.status.reservation
    ]
    if not in_queue:
        return
    in_queue.sort(key=session.group_key, reverse=True)
    for scope in sorted({scope for group in in_queue for scope in scopes_of(group)}):
        _cut(session, scope, [group for group in in_queue if scope in scopes_of(group)])


def _cut(session: Session, scope: str, last_first: list[GroupState]) -> None:
    excess = _excess(session, scope)
    for group in last_first:
        if not excess:
            return
        charge = group.charge()
        short = next((name for name in excess if charge.get(name)), None)
        if short is None or group.phase != PodGroupPhase.IN_QUEUE:
            continue
        limit = describe_quantity(short, session.ledger.limit(scope, short) or 0)
        message = (
            f"{scope} allows {short} {limit} now, which is not enough for all that are InQueue"
        )
        reason = Leaving.NODE_LOST if scope == CLUSTER else Leaving.CAPACITY_CUT
        with session.statement() as statement:
            roll_back(statement, group, reason, message)
            statement.commit()
        excess = minus(excess, charge)


def _excess(session: Session, scope: str) -> Amounts:
    """What the scope holds beyond its limit, less what is being stopped already.

    Nothing, as long as it is no more than what a described world began with.
    """
    sums = session.ledger.sums.get(scope, {})
    stated = session.snapshot.overbooked.get(scope, {})
    over: Amounts = {}
    for name, units in sums.items():
        limit = session.ledger.limit(scope, name)
        if limit is not None and name in stated and limit >= stated[name]:
            continue
        if limit is not None and units > limit and not (scope == CLUSTER and name == POD_GROUPS):
            over[name] = units - limit
    if not over:
        return {}
    excess = minus(over, _leaving(session, scope))
    return excess if minus(excess, session.snapshot.tolerated.get(scope, {})) else {}


def _leaving(session: Session, scope: str) -> Amounts:
    leaving: Amounts = {}
    for group in session.groups.values():
        if group.reserved or scope not in scopes_of(group):
            continue
        for pod in group.pods.values():
            if pod.status.terminating and pod.status.phase in ON_NODE:
                leaving = plus(leaving, of_pod(pod.spec.requests))
    return leaving
