"""Numbers that fence: epochs and attempts, and how they jump when a server may have forgotten some.

A server that lost its last writes, or was restored from an older file, would hand the same numbers
out again, and a process that still holds one of the lost ones could pass for its successor. So
every start of the server begins a *generation*, named by the server's clock in seconds, and the
numbers go on above everything that an earlier generation can have reached:

    number = generation * JUMP + count

What people are shown is the count. Generation 0 is that of a store without a server (the
simulator's), where numbers are plain. The largest number stays below 2^53, above which Lua's
numbers skip integers.
"""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from batchq.api.lifecycle import ADMITTED
from batchq.api.objects import GroupClaim, PodGroup, PodGroupSpec, PodGroupStatus
from batchq.api.times import SECOND

#: More than any pod is bound, or any leader elected, between two starts of a server.
JUMP = 1_000_000


def count_of(number: int) -> int:
    """The count, as people are shown it: 1 for the first."""
    return number % JUMP


def generation_of(number: int) -> int:
    """The generation in which a number was given out."""
    return number // JUMP


def following(number: int, *, generation: int) -> int:
    """The number after `number`, in `generation` or in that of the number, if it is later.

    The count goes on over the jump.
    """
    return max(generation, generation_of(number)) * JUMP + count_of(number) + 1


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
