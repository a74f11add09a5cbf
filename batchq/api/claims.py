"""What becomes of the claim of an external group: opened by a consumer, ended by it or by a clock.

The core and the client agree by these few functions on what a claim holds and when it is over.
"""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from batchq.api.lifecycle import ADMITTED
from batchq.api.objects import GroupClaim, PodGroup, PodGroupSpec, PodGroupStatus
from batchq.api.times import SECOND

#: What work that states no terminationGrace is given to stop.
USUAL_GRACE_MS = 30 * SECOND


def grace_of(spec: PodGroupSpec) -> int:
    """How long the work of a group is given to stop: the largest grace of its tasks."""
    return max((task.template.termination_grace for task in spec.tasks), default=USUAL_GRACE_MS)


def stopped(claim: GroupClaim, reason: str, now_ms: int) -> GroupClaim:
    """The claim, its holder told to stop; the first reason stays, and nothing extends it."""
    if not claim.is_open or claim.stop_reason:
        return claim
    return structs.replace(claim, stop_reason=str(reason), stopped_at=now_ms)


def ended(
    claim: GroupClaim,
    phase: Literal["Succeeded", "Failed", "Released", "Lapsed"],
    message: str = "",
) -> GroupClaim:
    """The claim as a record of how it ended: it holds nothing any more."""
    return structs.replace(claim, phase=phase, holding={}, message=message or claim.message)


def final_reports(
    status: PodGroupStatus,
) -> dict[str, Literal["Running", "Succeeded", "Failed"]]:
    """What was reported of pods that have ended; the others went with their holder."""
    return {name: phase for name, phase in status.reported.items() if phase != "Running"}


def stop_reason_of(group: PodGroup) -> str:
    """Why the holder of the group's claim is to stop; empty if it may go on."""
    status, claim = group.status, group.status.claim
    if claim.stop_reason:
        return claim.stop_reason
    if status.phase in ADMITTED:
        # The scheduler lets it leave with its next session.
        return "Suspended" if group.spec.suspend else ""
    about = "Evicted" if status.phase == "Pending" else "Finished"
    said = next((one.reason for one in status.conditions if one.type == about), "")
    return said or str(status.phase)


def is_claimable(group: PodGroup) -> bool:
    """Whether a consumer may claim the group now.

    One that was admitted may count on other victims by now: a group that comes before it has taken
    over those that it had.
    """
    return (
        group.spec.controller == "external"
        and group.status.phase in ADMITTED
        and not group.status.pledge.awaited_victims
        and not group.spec.suspend
        and not group.status.claim.is_open
        and group.status.claim.phase not in ("Succeeded", "Failed")
    )
