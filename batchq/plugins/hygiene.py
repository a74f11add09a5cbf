"""hygiene (preemptable, reclaimable): a group that has only just started is left to run.

A veto on victims of a group that is Running or Unknown with now < startedAt + `minRuntime` (a
setting of scheduler.yaml, 0s by default, the same for all queues). A group that is InQueue and
does not run yet loses no work, and is not protected. What else keeps evictions within bounds, the
budget per window, counts decisions and not victims; so the actions hold it, not this plugin.

After Slurm's PreemptExemptTime, whose effect is the same; kube-batch and Kueue have none, and see
the same groups start and stop in turns. The clock wakes what it refused: `due_at` names the
instants at which protection ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.lifecycle import PodGroupPhase
from batchq.framework.session import Session
from batchq.framework.state import GroupState, Victim

_HAS_RUN = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


class Hygiene:
    name = "hygiene"

    def preemptable(self, session: Session, claimant: GroupState, victim: Victim) -> bool | None:
        until = _protected_until(session, victim.group)
        return False if until is not None and session.now_ms < until else None

    def reclaimable(self, session: Session, claimant: GroupState, victim: Victim) -> bool | None:
        return self.preemptable(session, claimant, victim)

    def due_at(self, session: Session) -> Iterator[int]:
        if session.settings.min_runtime_ms == 0:
            return
        for group in session.groups.values():
            if (until := _protected_until(session, group)) is not None:
                yield until


def _protected_until(session: Session, group: GroupState) -> int | None:
    started_at = group.status.started_at
    if started_at is None or group.phase not in _HAS_RUN:
        return None
    return started_at + session.settings.min_runtime_ms
