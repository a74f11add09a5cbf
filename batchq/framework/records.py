"""What a group's record alone says of what can become of the group."""

from __future__ import annotations

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.api.resources import Amounts

#: Looked up once: this is asked of every group that there is.
_PENDING, _RUNNING = PodGroupPhase.PENDING, PodGroupPhase.RUNNING


def only_waits(record: PodGroup) -> bool:
    """Whether a record without pods waits, and holds nothing, owes nothing and has no clock."""
    status = record.status
    return (
        status.phase == _PENDING
        and status.reserved_at is None
        and status.backoff_until is None
        and status.set_aside_at is None
        and not status.charge
        and not status.checks
        and not status.evictions.recent
        and not status.claim.is_open
        and not status.pledge.stands
        and not record.spec.depends_on
    )


def only_runs(record: PodGroup) -> bool:
    """Whether a record runs, and no check, pledge or claim has a say in that."""
    status = record.status
    return (
        status.phase == _RUNNING
        and not status.checks
        and not status.pledge.stands
        and not status.claim.is_open
        and record.spec.controller != "external"
    )


def is_over(record: PodGroup, held: Amounts) -> bool:
    """Whether an ended group holds nothing any more, in the store either."""
    status = record.status
    return not (held or status.charge or status.claim.is_open or status.pledge.stands)
