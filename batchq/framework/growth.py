"""What the limits say against a growth of the ledger: rules 2 to 4 of an admission or a bind.

The store holds every growth against the same limits, in the script that writes. What the session
lets pass and the store refuses would be decided again and again; so limits hold here too, with or
without the plugins that also say who keeps a place in line.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import Amounts, larger, plus
from batchq.api.transaction import CLUSTER, POD_GROUPS
from batchq.framework.ledger import counted, scopes_of, title_of
from batchq.framework.session import Session
from batchq.framework.shapes import TaskShape
from batchq.framework.state import GroupState


def claim_of(group: GroupState) -> Amounts:
    """What an admission asks of a limit: the reservation, and one group."""
    return counted(group.reservation)


def over_limit(
    session: Session, group: GroupState, scope: str, wanted: Mapping[str, int], *, plugin: str
) -> list[Verdict]:
    """ledger without the group + wanted <= limit, per dimension wanted.

    A namespace refuses out of line: nobody else waits for a group that only it holds back.
    """
    ledger = session.ledger
    verdicts = []
    for resource, need in wanted.items():
        limit = ledger.limit(scope, resource)
        if limit is None or (resource == POD_GROUPS and scope == CLUSTER):
            continue
        seen = ledger.without(group, scope, resource)
        if seen + need > limit:
            of_cluster = scope == CLUSTER
            heads = ", ".join(ledger.set_aside(group, scope, resource))
            verdicts.append(
                Verdict(
                    plugin=plugin,
                    reason=(
                        Waiting.WAITING_FOR_RESOURCES if of_cluster else Waiting.WAITING_FOR_QUOTA
                    ),
                    subject=title_of(scope),
                    resource=resource,
                    need=need,
                    limit=limit,
                    seen=seen,
                    detail=f"part of that is set aside for the head of {heads}" if heads else "",
                    in_line=not scope.startswith("ns:"),
                )
            )
    return verdicts


def over_any_limit(session: Session, group: GroupState) -> list[Verdict]:
    """What any limit says against the group's admission."""
    wanted = claim_of(group)
    return [
        verdict
        for scope in scopes_of(group)
        for verdict in over_limit(session, group, scope, wanted, plugin="ledger")
    ]


def over_limit_with(session: Session, group: GroupState, shape: TaskShape) -> list[Verdict]:
    """What any limit says against the growth of the group's charge by one pod of this shape.

    Within the promise nothing grows, and nothing is asked.
    """
    held = plus(group.held, shape.requests)
    after = counted(larger(held, group.status.reservation) if group.reserved else held)
    before = session.ledger.charged(group)
    grown = {name: units for name, units in after.items() if units > before.get(name, 0)}
    return [
        verdict
        for scope in scopes_of(group)
        for verdict in over_limit(session, group, scope, grown, plugin="ledger")
    ]
