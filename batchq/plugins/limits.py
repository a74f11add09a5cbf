"""What the quota and capacity plugins share: holding a growth of the ledger against limits."""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.quantity import PODS
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import Amounts
from batchq.api.transaction import CLUSTER, ONE_GROUP, POD_GROUPS
from batchq.framework.session import Session
from batchq.framework.state import GroupState


def claim_of(group: GroupState) -> Amounts:
    """What an admission asks of a limit: the reservation, and one group."""
    return {**group.reservation, POD_GROUPS: ONE_GROUP}


def over_limit(
    session: Session,
    group: GroupState,
    scope: str,
    *,
    plugin: str,
    subject: str,
    in_line: bool,
) -> list[Verdict]:
    """Rules 2 to 4: ledger without the group + reservation <= limit, per dimension asked for."""
    ledger = session.ledger
    reason = Waiting.WAITING_FOR_RESOURCES if scope == CLUSTER else Waiting.WAITING_FOR_QUOTA
    verdicts = []
    for resource, need in claim_of(group).items():
        limit = ledger.limit(scope, resource)
        if limit is None or (resource == POD_GROUPS and scope == CLUSTER):
            continue
        seen = ledger.without(group, scope, resource)
        if seen + need > limit:
            verdicts.append(
                Verdict(
                    plugin=plugin,
                    reason=reason,
                    subject=subject,
                    resource=resource,
                    need=need,
                    limit=limit,
                    seen=seen,
                    in_line=in_line,
                )
            )
    return verdicts


def never_fits(
    group: GroupState, limits: Mapping[str, int], *, plugin: str, subject: str, absent: int | None
) -> list[Verdict]:
    """Rule 1: what no amount of waiting helps; `absent` is the limit of an unnamed dimension."""
    verdicts = []
    for resource, need in claim_of(group).items():
        limit = limits.get(resource, absent)
        if limit is None or need <= limit:
            continue
        verdicts.append(
            Verdict(
                plugin=plugin,
                reason=Waiting.EXCEEDS_MAX_QUOTA,
                subject=subject,
                resource=resource,
                need=need,
                limit=limit,
            )
        )
    return verdicts


#: Dimensions that a cluster limit leaves alone when no node bounds them.
UNBOUNDED = frozenset({PODS, POD_GROUPS})
