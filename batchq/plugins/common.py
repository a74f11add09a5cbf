"""What the plugins about limits share: rule 1, what no amount of waiting helps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS, Amounts, of_pod, total
from batchq.api.transaction import POD_GROUPS
from batchq.core.quota.ledger import charge_with_count, falls_by
from batchq.core.quota.limit_checks import claim_of
from batchq.core.session.state import GroupState, Victim


def never_fits(
    group: GroupState,
    limits: Mapping[str, int],
    *,
    plugin: str,
    subject: str,
    absent: int | None,
    of_machines: Collection[str] = (),
    detail: Callable[[str], str] = lambda resource: "",
) -> list[Verdict]:
    """Rule 1: what no amount of waiting helps; `absent` is the limit of an unnamed dimension.

    The limits are stated ones but for the dimensions `of_machines`. `detail` says where the limit
    of a resource comes from, if its subject does not.
    """
    verdicts = []
    for resource, need in claim_of(group).items():
        limit = limits.get(resource, absent)
        if limit is None or need <= limit:
            continue
        verdicts.append(
            Verdict(
                plugin=plugin,
                reason=(
                    Waiting.EXCEEDS_CAPACITY
                    if resource in of_machines
                    else Waiting.EXCEEDS_MAX_QUOTA
                ),
                subject=subject,
                resource=resource,
                need=need,
                limit=limit,
                detail=detail(resource),
            )
        )
    return verdicts


#: Dimensions that a cluster limit leaves alone when no node bounds them.
UNBOUNDED = frozenset({PODS, POD_GROUPS})


def given_back(victim: Victim) -> Amounts:
    """What the ledger falls by when the victim has left.

    Pods of a group that keeps its reservation give back only what they hold beyond it.
    """
    if victim.whole:
        return charge_with_count(victim.group)
    return falls_by(victim.group, total(of_pod(pod.spec.requests) for pod in victim.pods))
