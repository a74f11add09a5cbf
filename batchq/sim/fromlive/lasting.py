"""How long work is taken to last in a future that nobody knows.

What its author has said counts first (the annotation `batchq/runtime`), then its walltime, then
what the operator assumes of work that has none. Without any of these it never ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Pod
from batchq.framework.state import GroupState
from batchq.scheduler.timers import walltime_over_at
from batchq.sim.runtime import runtime_of

#: All of its walltime.
WHOLE = 1000


class Lasting(Struct, frozen=True, kw_only=True):
    """The assumptions of one look ahead.

    `thousandths`: so much of its walltime work takes; of work that runs already, so much of what
    is left of it. `assumed_ms`: how long work without a walltime takes, None for ever.
    """

    thousandths: int = WHOLE
    assumed_ms: int | None = None

    def ends_at(
        self,
        *,
        started_at: int,
        seen_at: int,
        stated_ms: int | None,
        walltime_over_at: int | None,
    ) -> int | None:
        """When work that started at `started_at` ends by itself, in milliseconds; None for never.

        `seen_at` is when the look ahead began, at which it ran if it had started before:
        it ends no earlier. `stated_ms` is what its author said.
        """
        if stated_ms is not None:
            return max(started_at + stated_ms, seen_at)
        if walltime_over_at is not None:
            # Nobody knows what it would have taken of what is past.
            known_at = max(started_at, seen_at)
            left = max(0, walltime_over_at - known_at)
            return known_at + left * self.thousandths // WHOLE
        if self.assumed_ms is None:
            return None
        over_at = started_at + self.assumed_ms
        # Who has outlived the assumption is taken to last as long again.
        return over_at if over_at > seen_at else seen_at + self.assumed_ms

    def length_ms(self, *, stated_ms: int | None, walltime_ms: int | None) -> int | None:
        """How long work takes that has not started yet; None for ever."""
        if stated_ms is not None or walltime_ms is None:
            return self.assumed_ms if stated_ms is None else stated_ms
        return walltime_ms * self.thousandths // WHOLE


def pod_ends_at(lasting: Lasting, group: GroupState, pod: Pod, *, seen_at: int) -> int | None:
    """When a pod on a node ends by itself, in milliseconds; None for never."""
    started_at, walltime = pod.status.started_at, group.record.spec.walltime
    if started_at is None:
        return None
    own_at = None if walltime is None else started_at + walltime
    # Pods of a gang end with it, however late they came.
    runs = group.phase in (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN)
    group_at = walltime_over_at(group) if runs else None
    return lasting.ends_at(
        started_at=started_at,
        seen_at=seen_at,
        stated_ms=stated_ms(pod.metadata.annotations),
        walltime_over_at=min((at for at in (own_at, group_at) if at is not None), default=None),
    )


def stated_ms(annotations: Mapping[str, str]) -> int | None:
    """What the annotation says, if it can be read: on a live server nobody has checked it."""
    try:
        return runtime_of(annotations)
    except ValueError:
        return None
