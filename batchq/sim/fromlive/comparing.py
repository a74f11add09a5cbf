"""Futures of one live state under several configurations, side by side.

The first is what the others are held against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

from batchq.api.lifecycle import TERMINAL
from batchq.api.resources import Amounts
from batchq.framework.session import Session
from batchq.sim.fromlive.future import (
    Future,
    GroupFuture,
    Present,
    lost_by,
    present_groups,
)

#: The line over all queues.
ALL = ""


class Fate(Struct, frozen=True, kw_only=True):
    """A group as it stands, and what becomes of it under each configuration, in their order.

    `differs`: not the same under all of them.
    """

    present: Present
    futures: tuple[GroupFuture, ...]
    differs: bool


class QueueFigures(Struct, frozen=True, kw_only=True):
    """What a configuration does to the groups of a queue (`ALL`: of every queue).

    `waiting`: groups that had yet to start; `started`: how many of them do. `median_wait_ms` is
    theirs, from submission to start. `last_end_at` is the end of the last that ends; `unended`: how
    many have started and are not seen to end. `lost`: in resource-seconds, by `evictions`.
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
    """Everything that a comparison shows. `figures`: of each configuration, queue by queue, all of
    them first.
    """

    at: int
    names: tuple[str, ...]
    futures: tuple[Future, ...]
    fates: tuple[Fate, ...]
    figures: tuple[tuple[QueueFigures, ...], ...]

    @property
    def endless(self) -> int:
        """How many groups have no end of their own."""
        return sum(fate.present.endless for fate in self.fates)


def compared(session: Session, futures: Mapping[str, Future]) -> WhatIf:
    """Futures, by the name of their configuration, of what a session was opened on."""
    present = present_groups(session)
    played = tuple(futures.values())
    return WhatIf(
        at=session.now_ms,
        names=tuple(futures),
        futures=played,
        fates=tuple(_fate(one, [future.groups[one.key] for future in played]) for one in present),
        figures=tuple(_figures(present, future) for future in played),
    )


def _fate(present: Present, futures: Sequence[GroupFuture]) -> Fate:
    told = [(one.starts, one.ends_at, one.phase, one.evictions) for one in futures]
    differs = any(one != told[0] for one in told)
    return Fate(present=present, futures=tuple(futures), differs=differs)


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
