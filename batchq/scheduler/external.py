"""How external groups move: by what their consumers report, and by the clock of their claims.

A consumer writes into the group what it knows (`batchq.changes.claims`); the scheduler draws the
conclusions here, so that every move of a phase still has one owner. An external group is charged
its reservation until its end is reported, or its claim has lapsed and the grace is over.
"""

from __future__ import annotations

from collections import Counter

from batchq.api import intents
from batchq.api.claims import ended
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Finish, Leaving
from batchq.api.times import format_instant
from batchq.framework.moves import finish, roll_back
from batchq.framework.state import GroupState, is_admitted
from batchq.framework.statement import Statement
from batchq.scheduler.progress import Progress


def reported_progress(group: GroupState) -> Progress:
    """How far it is by what was reported of its pods; a word for all of it is in the claim."""
    counts = Counter(group.status.reported.values())
    failed = sorted(name for name, phase in group.status.reported.items() if phase == "Failed")
    return Progress(
        running=counts["Running"],
        succeeded=counts["Succeeded"],
        failed=counts["Failed"],
        finished_by_task={},
        failed_by_task={},
        first_failure=f"{failed[0]} was reported as failed" if failed else "",
        failure_reason=Finish.RETRIES_SPENT,
    )


def runs_enough(group: GroupState, progress: Progress) -> bool:
    """Whether it counts as Running: its consumer says so, or minMember pods have started."""
    if group.status.claim.phase == "Running":
        return True
    return progress.running + progress.succeeded >= group.min_member


def comes_to_its_end(statement: Statement, group: GroupState, progress: Progress) -> bool:
    """Completed or Failed, as reported of the group itself or of its pods.

    Where pods may still run, the consumer is told to stop, and the charge stays for as long.
    """
    claim = group.status.claim
    if claim.phase == "Succeeded" or progress.succeeded == group.replicas:
        if claim.is_open:
            statement.set_status(group, claim=ended(claim, "Succeeded"))
        finish(statement, group, PodGroupPhase.COMPLETED, Finish.SUCCEEDED)
        return True
    if claim.phase == "Failed" or progress.is_hopeless(group):
        failed = f"{progress.failed} of {group.replicas} pods failed; {progress.first_failure}"
        if claim.is_open and progress.succeeded + progress.failed == group.replicas:
            statement.set_status(group, claim=ended(claim, "Failed"))
        message = failed if progress.failed else f"reported by {claim.holder}"
        if claim.message:
            message = f"{message}: {claim.message}"
        finish(statement, group, PodGroupPhase.FAILED, Finish.RETRIES_SPENT, message)
        return True
    return False


def claim_is_over(statement: Statement, group: GroupState) -> bool:
    """A claim that lapsed, its grace over too: what it held is free, and the group waits anew."""
    claim = group.status.claim
    over_at = claim.over_at if claim.is_open else None
    if over_at is None or statement.session.now_ms < over_at:
        return False
    statement.set_status(group, claim=ended(claim, "Lapsed"))
    if is_admitted(group):
        lapsed_at = format_instant(over_at if claim.expires_at is None else claim.expires_at)
        message = f"the claim of {claim.holder} lapsed at {lapsed_at}"
        roll_back(statement, group, Leaving.CLAIM_LAPSED, message)
    else:
        statement.say(intents.Settle(group=group.key))
    return True
