"""What the plugins that vote on victims share: what a victim leaves behind."""

from __future__ import annotations

from batchq.api.resources import Amounts, of_pod, total
from batchq.framework.ledger import charge_with_count, falls_by
from batchq.framework.state import Victim


def given_back(victim: Victim) -> Amounts:
    """What the ledger falls by when the victim has left.

    Pods of a group that keeps its reservation give back only what they hold beyond it.
    """
    if victim.whole:
        return charge_with_count(victim.group)
    return falls_by(victim.group, total(of_pod(pod.spec.requests) for pod in victim.pods))
