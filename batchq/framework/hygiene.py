"""A group that has only just started is no victim, so that everybody gets something done.

It is protected while it is Running or Unknown and now < startedAt + `minRuntime` (a setting of
scheduler.yaml, 0s by default, the same for all queues). One that is InQueue and does not run yet
loses no work, and is not protected. `Session.vote` asks this before any plugin, so that it holds
whichever of them are on. What else keeps evictions within bounds, the budget per window, counts
decisions and not victims; so the actions hold it.

After Slurm's PreemptExemptTime, whose effect is the same; kube-batch and Kueue have none, and see
the same groups start and stop in turns. The clock wakes what was refused: batchq.scheduler.timers
asks for the instants at which protection ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from batchq.api.lifecycle import PodGroupPhase

if TYPE_CHECKING:
    from batchq.framework.session import Session
    from batchq.framework.state import GroupState

_HAS_RUN = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


def is_protected(session: Session, group: GroupState) -> bool:
    """Whether nothing of a group may be evicted by preempt or reclaim yet."""
    until = protection_ends_at(session, group)
    return until is not None and session.now_ms < until


def protected_until(session: Session) -> Iterator[int]:
    """The instants at which groups may become victims, past ones included."""
    if session.settings.min_runtime_ms == 0:
        return
    for group in session.busy():
        if (until := protection_ends_at(session, group)) is not None:
            yield until


def protection_ends_at(session: Session, group: GroupState) -> int | None:
    """Until when a group is no victim, past or not; None if nothing protects it."""
    min_runtime_ms, started_at = session.settings.min_runtime_ms, group.status.started_at
    if min_runtime_ms == 0 or started_at is None or group.phase not in _HAS_RUN:
        return None
    return started_at + min_runtime_ms
