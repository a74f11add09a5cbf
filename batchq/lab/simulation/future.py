"""Assumed durations of work, and the comparison of futures.

The author's statement counts first (the annotation `batchq/runtime`), then the walltime, then what
the operator assumes for other work. Without any of these, work never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import median

from msgspec import Struct

from batchq.api.intents import Eviction
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import Pod
from batchq.api.resources import Amounts, total
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.lab.simulation.world import runtime_of
from batchq.scheduler.timers import walltime_over_at

#: All of a walltime, in thousandths.
WHOLE = 1000


class Lasting(Struct, frozen=True, kw_only=True):
    """The assumptions of one look ahead.

    `thousandths`: the share of its walltime that work takes; for running work, of the time left.
    `assumed_ms`: the duration of work without a walltime, None for endless.
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
        """Return when work that started at `started_at` ends, in ms; None for never.

        `seen_at` is the start of the look ahead; work that was running then ends no earlier.
        `stated_ms` is the duration that its author stated.
        """
        if stated_ms is not None:
            return max(started_at + stated_ms, seen_at)
        if walltime_over_at is not None:
            # The past part of the walltime says nothing about the rest.
            known_at = max(started_at, seen_at)
            left = max(0, walltime_over_at - known_at)
            return known_at + left * self.thousandths // WHOLE
        if self.assumed_ms is None:
            return None
        over_at = started_at + self.assumed_ms
        # Work that has outlasted the assumption is assumed to last as long again.
        return over_at if over_at > seen_at else seen_at + self.assumed_ms

    def length_ms(self, *, stated_ms: int | None, walltime_ms: int | None) -> int | None:
        """Return the duration of work that has not started yet, in ms; None for endless."""
        if stated_ms is not None or walltime_ms is None:
            return self.assumed_ms if stated_ms is None else stated_ms
        return walltime_ms * self.thousandths // WHOLE


def pod_ends_at(lasting: Lasting, group: GroupState, pod: Pod, *, seen_at: int) -> int | None:
    """Return when a pod on a node ends without intervention, in ms; None for never."""
    started_at, walltime = pod.status.started_at, group.record.spec.walltime
    if started_at is None:
        return None
    own_at = None if walltime is None else started_at + walltime
    # Pods of a gang end with the gang, however late they started.
    runs = group.phase in (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN)
    group_at = walltime_over_at(group) if runs else None
    return lasting.ends_at(
        started_at=started_at,
        seen_at=seen_at,
        stated_ms=stated_ms(pod.metadata.annotations),
        walltime_over_at=min((at for at in (own_at, group_at) if at is not None), default=None),
    )


def stated_ms(annotations: Mapping[str, str]) -> int | None:
    """Return the annotation's duration in ms, if valid; a live server does not check it."""
    try:
        return runtime_of(annotations)
    except ValueError:
        return None


#: Phases of a group that runs, or did until a moment ago.
_RUNS = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


class Stopped(StrEnum):
    """Why a look ahead ended."""

    #: Nothing can change any more.
    SETTLED = "Settled"
    #: The requested time was reached.
    UNTIL = "Until"
    #: Nothing is going to end, and nothing has started for a day: the rest repeats itself.
    IDLE = "Idle"
    #: More was due, but a limit was reached.
    TOO_FAR = "TooFar"


class WorldReason(Struct, frozen=True):
    """Why a group of a simulated world waits, or how it ended."""

    reason: str
    message: str


class Present(Struct, frozen=True, kw_only=True):
    """A group at the start of the look ahead. `started_at`: when it started, if it runs."""

    key: str
    queue: str
    phase: PodGroupPhase
    submitted_at: int
    started_at: int | None
    #: It has neither a walltime nor a stated runtime.
    endless: bool

    @property
    def waits(self) -> bool:
        """Whether it has not started yet."""
        return self.phase not in _RUNS


class GroupFuture(Struct, frozen=True, kw_only=True):
    """The future of one group. `phase` is the last one seen.

    `starts`: all starts ahead. `waits_for`: why it does not run at the end, most fundamental first;
    `unanswered`: admission checks among these, which no controller answers here.
    """

    key: str
    phase: PodGroupPhase
    starts: tuple[int, ...] = ()
    ends_at: int | None = None
    ending: str = ""
    evictions: int = 0
    waits_for: tuple[WorldReason, ...] = ()
    unanswered: tuple[str, ...] = ()

    @property
    def starts_at(self) -> int | None:
        """The next start, in ms."""
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
    """Return the work that evictions lost in all, in resource-seconds."""
    return total(eviction.lost for eviction in evictions)


def present_groups(session: Session) -> tuple[Present, ...]:
    """Return the unfinished groups, by key."""
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


#: Stands for all queues together.
ALL = ""


class GroupFate(Struct, frozen=True, kw_only=True):
    """A group at the start, and its future under each configuration, in their order.

    `differs`: the futures are not all equal.
    """

    present: Present
    futures: tuple[GroupFuture, ...]
    differs: bool


class QueueFigures(Struct, frozen=True, kw_only=True):
    """What a configuration does to the groups of a queue (`ALL`: of every queue).

    `waiting`: groups that had yet to start; `started`: how many of these start; `median_wait_ms`:
    their median wait from submission to start. `last_end_at` is the last end seen; `unended`:
    groups that have started and are not seen to end. `lost`: by `evictions`, in resource-seconds.
    """

    queue: str
    waiting: int
    started: int
    median_wait_ms: int | None
    evictions: int
    lost: Amounts
    last_end_at: int | None
    unended: int


class WhatIf(Struct, frozen=True, kw_only=True):
    """A whole comparison. `figures` has, for each configuration, all queues, then each queue."""

    at: int
    names: tuple[str, ...]
    futures: tuple[Future, ...]
    fates: tuple[GroupFate, ...]
    figures: tuple[tuple[QueueFigures, ...], ...]

    @property
    def endless(self) -> int:
        """How many groups have neither a walltime nor a stated runtime."""
        return sum(fate.present.endless for fate in self.fates)


def compared(session: Session, futures: Mapping[str, Future]) -> WhatIf:
    """Compare futures of what a session was opened on, by the name of their configuration."""
    present = present_groups(session)
    played = tuple(futures.values())
    return WhatIf(
        at=session.now_ms,
        names=tuple(futures),
        futures=played,
        fates=tuple(_fate(one, [future.groups[one.key] for future in played]) for one in present),
        figures=tuple(_figures(present, future) for future in played),
    )


def _fate(present: Present, futures: Sequence[GroupFuture]) -> GroupFate:
    outcomes = [(one.starts, one.ends_at, one.phase, one.evictions) for one in futures]
    differs = any(one != outcomes[0] for one in outcomes)
    return GroupFate(present=present, futures=tuple(futures), differs=differs)


def _figures(present: Sequence[Present], future: Future) -> tuple[QueueFigures, ...]:
    queues = sorted({one.queue for one in present})
    return tuple(_of_queue(name, present, future) for name in (ALL, *queues))


def _of_queue(name: str, present: Sequence[Present], future: Future) -> QueueFigures:
    mine = [one for one in present if name in (ALL, one.queue)]
    waiting = [one for one in mine if one.waits]
    starts = [(one, future.groups[one.key].starts_at) for one in waiting]
    waits = [at - one.submitted_at for one, at in starts if at is not None]
    evictions = [one for one in future.evictions if name in (ALL, one.queue)]
    fates = [(one, future.groups[one.key]) for one in mine]
    ends = [fate.ends_at for _, fate in fates if fate.ends_at is not None]
    return QueueFigures(
        queue=name,
        waiting=len(waiting),
        started=len(waits),
        median_wait_ms=round(median(waits)) if waits else None,
        evictions=len(evictions),
        lost=lost_by(evictions),
        last_end_at=max(ends, default=None),
        unended=sum(
            fate.phase not in TERMINAL and (not one.waits or bool(fate.starts))
            for one, fate in fates
        ),
    )
