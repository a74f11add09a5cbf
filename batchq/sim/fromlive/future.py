"""What a look ahead has seen, as values: when each group starts and ends, and who has to go.

Instants are milliseconds of the server's clock, amounts integer units.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.resources import Amounts, total
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.sim.fromlive.lasting import stated_ms

#: In these a group runs, or did until a moment ago.
_RUNS = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


class Stopped(StrEnum):
    """Why a look ahead goes no further."""

    #: Nothing can change any more.
    SETTLED = "Settled"
    #: So far it was asked to look.
    UNTIL = "Until"
    #: Nothing is going to end, and for a day nothing has started: what is left goes in circles.
    IDLE = "Idle"
    #: More was due, and it has looked far enough.
    TOO_FAR = "TooFar"


class Reason(Struct, frozen=True):
    reason: str
    message: str


class Present(Struct, frozen=True, kw_only=True):
    """A group as it stands when the look ahead begins. `started_at`: it runs, since then."""

    key: str
    queue: str
    phase: PodGroupPhase
    submitted_at: int
    started_at: int | None
    #: It has no end of its own: neither a walltime nor a stated runtime.
    endless: bool

    @property
    def waits(self) -> bool:
        """Whether it has yet to start."""
        return self.phase not in _RUNS


class Eviction(Struct, frozen=True, kw_only=True):
    """A group gave: all of it (`whole`), or so many of its pods.

    `by` is the claimant and `action` what took, both empty where nobody claimed. `lost` is what its
    pods had worked, in resource-seconds.
    """

    at: int
    key: str
    queue: str
    whole: bool
    pods: int
    by: str
    action: str
    reason: str
    lost: Amounts


class GroupFuture(Struct, frozen=True, kw_only=True):
    """What becomes of one group. `phase` is the last one seen.

    `starts`: every start that is ahead. `waits_for`: why it does not run in the end, most
    fundamental first; `unanswered`: of that, admission checks, which nobody answers here.
    """

    key: str
    phase: PodGroupPhase
    starts: tuple[int, ...] = ()
    ends_at: int | None = None
    ending: str = ""
    evictions: int = 0
    waits_for: tuple[Reason, ...] = ()
    unanswered: tuple[str, ...] = ()

    @property
    def starts_at(self) -> int | None:
        """When it starts next."""
        return self.starts[0] if self.starts else None


class Future(Struct, frozen=True, kw_only=True):
    """A look ahead, from `began_at` to `stopped_at`, under one configuration."""

    began_at: int
    stopped_at: int
    stopped: Stopped
    sessions: int
    refused: int
    groups: dict[str, GroupFuture]
    evictions: tuple[Eviction, ...]


def lost_by(evictions: Iterable[Eviction]) -> Amounts:
    """What they have cost together, in resource-seconds."""
    return total(eviction.lost for eviction in evictions)


def present_groups(session: Session) -> tuple[Present, ...]:
    """The groups that have not ended, by key."""
    unfinished = [one for one in session.groups.values() if one.phase not in TERMINAL]
    return tuple(_present(one) for one in sorted(unfinished, key=lambda group: group.key))


def _present(group: GroupState) -> Present:
    return Present(
        key=group.key,
        queue=group.queue,
        phase=group.phase,
        submitted_at=group.record.metadata.creation_timestamp or 0,
        started_at=group.status.started_at if group.phase in _RUNS else None,
        endless=group.record.spec.walltime is None and not _stated(group),
    )


def _stated(group: GroupState) -> bool:
    return any(stated_ms(task.template.annotations) is not None for task in group.record.spec.tasks)
