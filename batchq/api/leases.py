"""Fences against a server's lost writes, and the leases of consumers.

Epochs and attempts are numbers that fence. A server that lost its last writes, or was restored from
an older file, would give the same numbers out again, and a process that still holds a lost one
could pass for its successor. So every start of the server begins a *generation*, named by the
server's clock in seconds, and the numbers continue above everything that an earlier generation can
have reached:

    number = generation * JUMP + count

People are shown the count. Generation 0 is that of a store without a server (the simulator's),
whose numbers are plain. The largest number stays below 2^53, above which Lua's numbers skip
integers.
"""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from batchq.api.lifecycle import ADMITTED
from batchq.api.objects import GroupClaim, PodGroup, PodGroupSpec, PodGroupStatus
from batchq.api.times import SECOND

#: More than the binds of any pod, or the elections of any leader, between two starts of a server.
JUMP = 1_000_000


def count_of(number: int) -> int:
    """Return the count, as people are shown it: 1 for the first."""
    return number % JUMP


def generation_of(number: int) -> int:
    """Return the generation in which a number was given out."""
    return number // JUMP


def following(number: int, *, generation: int) -> int:
    """Return the number after `number`, in `generation` or in the number's own, whichever is later.

    The count continues across the jump.
    """
    return max(generation, generation_of(number)) * JUMP + count_of(number) + 1


#: The grace of work without a terminationGrace.
USUAL_GRACE_MS = 30 * SECOND


def grace_of(spec: PodGroupSpec) -> int:
    """Return how long the work of a group may take to stop: the largest grace of its tasks."""
    return max((task.template.termination_grace for task in spec.tasks), default=USUAL_GRACE_MS)


def stopped(claim: GroupClaim, reason: str, now_ms: int) -> GroupClaim:
    """Return the claim with its holder told to stop; the first reason stays, and nothing extends
    it.
    """
    if not claim.is_open or claim.stop_reason:
        return claim
    return structs.replace(claim, stop_reason=str(reason), stopped_at=now_ms)


def ended(
    claim: GroupClaim,
    phase: Literal["Succeeded", "Failed", "Released", "Lapsed"],
    message: str = "",
) -> GroupClaim:
    """Return the claim as a record of its end: it holds nothing any more."""
    return structs.replace(claim, phase=phase, holding={}, message=message or claim.message)


def final_reports(
    status: PodGroupStatus,
) -> dict[str, Literal["Running", "Succeeded", "Failed"]]:
    """Return the reports about pods that have ended; the other pods ended with their holder."""
    return {name: phase for name, phase in status.reported.items() if phase != "Running"}


def stop_reason_of(group: PodGroup) -> str:
    """Return why the holder of the group's claim must stop; "" if it may go on."""
    status, claim = group.status, group.status.claim
    if claim.stop_reason:
        return claim.stop_reason
    if status.phase in ADMITTED:
        # The next session evicts the group.
        return "Suspended" if group.spec.suspend else ""
    about = "Evicted" if status.phase == "Pending" else "Finished"
    said = next((one.reason for one in status.conditions if one.type == about), "")
    return said or str(status.phase)


def is_claimable(group: PodGroup) -> bool:
    """Whether a consumer may claim the group now.

    An admitted group may wait for other victims by now: a group ahead of it has taken over its
    former ones.
    """
    return (
        group.spec.controller == "external"
        and group.status.phase in ADMITTED
        and not group.status.pledge.awaited_victims
        and not group.spec.suspend
        and not group.status.claim.is_open
        and group.status.claim.phase not in ("Succeeded", "Failed")
    )
