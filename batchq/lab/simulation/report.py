"""The outcome of a described world: every cycle, and the final state of groups and queues; the
durations of work that are assumed, and the comparison of outcomes.

`WorldOutcome` has exactly the keys of `batchq simulate -o json`, which are always all present.
Amounts are canonical quantities (`1500m`, plain bytes), times whole seconds from the start.

For the durations of work that are assumed, the author's statement counts first (the annotation
`batchq/runtime`), then the walltime, then what the operator assumes for other work. Without any of
these, work never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import median

import msgspec
from msgspec import Struct

from batchq.api import intents
from batchq.api.intents import Eviction
from batchq.api.lifecycle import ADMITTED, TERMINAL, PodGroupPhase
from batchq.api.objects import Pod
from batchq.api.reasons import UNSEEN, Verdict, Waiting
from batchq.api.resources import (
    PODS,
    UNLIMITED_PODS,
    Amounts,
    describe_quantity,
    format_quantity,
    minus,
    parse_quantity,
    total,
)
from batchq.core.placement.trial import verdicts_of
from batchq.core.quota.fair_shares import deserved_of_queues, resources_named, share_of_queue
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.lab.simulation.world import runtime_of
from batchq.ports import Clock, Store
from batchq.scheduler.cycle import CycleReport, Scheduler
from batchq.scheduler.timers import walltime_over_at

#: Phases in which a group may have reasons to wait.
_WAITING = frozenset({PodGroupPhase.PENDING, *ADMITTED})


class Requeued(Struct, frozen=True):
    """A group that went back to Pending."""

    group: str
    reason: str


class Evicted(Struct, frozen=True):
    """A pod that was evicted or lost; `by` is the preemptor, if there is one."""

    pod: str
    by: str | None
    action: str | None
    reason: str


class CycleStory(Struct, frozen=True, kw_only=True):
    """One session's decisions, each list in the order decided."""

    time: int
    reserved: list[str]
    admitted: list[str]
    requeued: list[Requeued]
    created: list[str]
    bound: dict[str, str]
    evicted: list[Evicted]
    pledged: dict[str, list[str]]
    finished: list[str]


class GroupOutcome(Struct, frozen=True, kw_only=True):
    """The state of a group: `shown` is its phase in lists, `position` its place in the queue."""

    phase: str
    shown: str
    position: int | None
    reasons: list[WorldReason]
    checks: dict[str, str]


class QueueOutcome(Struct, frozen=True, kw_only=True):
    """The state of a queue: `allocated` is live, `reserved` is not; null in deserved: unlimited."""

    deserved: dict[str, str | None]
    allocated: dict[str, str]
    reserved: dict[str, str]
    share: float | str


class WorldOutcome(Struct, frozen=True, kw_only=True):
    cycles: list[CycleStory]
    podgroups: dict[str, GroupOutcome]
    queues: dict[str, QueueOutcome]


def story_of(report: CycleReport, time_s: int) -> CycleStory:
    """Return one cycle's decisions that the store has accepted."""
    refused = {
        write.key
        for refusal in report.commit.refused
        for write in refusal.transaction.writes
        if write.kind == "PodGroup"
    }
    story = CycleStory(
        time=time_s,
        reserved=[],
        admitted=[],
        requeued=[],
        created=[],
        bound={},
        evicted=[],
        pledged={},
        finished=[],
    )
    for intent in report.intents:
        if isinstance(intent, intents.SetNodeReady) or intent.group not in refused:
            _record(story, report.session, intent)
    return story


def _record(story: CycleStory, session: Session, intent: intents.Intent) -> None:
    match intent:
        case intents.AdmitGroup(group=group):
            # Without checks both happen at once; a preemptor has reserved before.
            if session.by_key[group].record.status.reserved_at is None:
                story.reserved.append(group)
            story.admitted.append(group)
        case intents.ReserveQuota(group=group):
            story.reserved.append(group)
        case intents.Pledge(group=group, victims=victims):
            story.pledged[group] = list(victims)
        case intents.RollBack(group=group, reason=reason):
            story.requeued.append(Requeued(group, reason))
        case intents.CreatePods(pods=pods):
            story.created.extend(pods)
        case intents.Bind(pod=pod, node=node):
            story.bound[pod] = node
        case intents.Evict(pod=pod, by=by, action=action, reason=reason):
            story.evicted.append(Evicted(pod, by or None, action or None, reason))
        case intents.LosePod(pod=pod, uid=uid, group=group):
            lost = session.by_key[group].pods.get(uid)
            reason = lost.status.reason if lost is not None else "NodeLost"
            story.evicted.append(Evicted(pod, None, None, reason or "NodeLost"))
        case intents.FinishGroup(group=group):
            story.finished.append(group)
        case _:
            pass


def outcome_of(
    scheduler: Scheduler,
    store: Store,
    clock: Clock,
    stories: Sequence[CycleStory],
    last: CycleReport | None,
) -> WorldOutcome:
    """Return the state of the store, evaluated by a session that decides nothing."""
    session = scheduler.open(store.snapshot(), clock.now_ms())
    positions = _positions(session)
    refusals = {} if last is None else _verdicts_of(scheduler, last.session)
    groups = sorted(session.groups.values(), key=lambda group: group.key)
    return WorldOutcome(
        cycles=list(stories),
        podgroups={
            group.key: _group_outcome(session, group, refusals.get(group.uid), positions)
            for group in groups
        },
        queues=_queue_outcomes(session),
    )


def _verdicts_of(scheduler: Scheduler, session: Session) -> Mapping[str, tuple[Verdict, ...]]:
    """Return the verdicts of a session. Those of parked groups may have old numbers, so if there
    are any, the session is repeated without an inadmissible set.
    """
    if not session.has_parked_groups():
        return session.refusals
    return scheduler.without_memory().decide(session.snapshot, session.now_ms).refusals


def _positions(session: Session) -> dict[str, int]:
    """Return each Pending group's place among those of its queue, from 1."""
    lines: dict[str, list[GroupState]] = {}
    for group in session.groups.values():
        if group.phase == PodGroupPhase.PENDING:
            lines.setdefault(group.queue, []).append(group)
    return {
        group.uid: place
        for line in lines.values()
        for place, group in enumerate(sorted(line, key=session.group_key), start=1)
    }


def _group_outcome(
    session: Session,
    group: GroupState,
    seen: tuple[Verdict, ...] | None,
    positions: dict[str, int],
) -> GroupOutcome:
    verdicts = _blockers(session, group, seen)
    gated = any(verdict.reason == Waiting.SCHEDULING_GATED for verdict in verdicts)
    waits_for = [WorldReason(str(verdict.reason), verdict.message()) for verdict in verdicts]
    return GroupOutcome(
        phase=str(group.phase),
        shown=str(Waiting.SCHEDULING_GATED) if gated else str(group.phase),
        position=positions.get(group.uid),
        reasons=waits_for + _finish_reason(group),
        checks={check.name: check.status for check in group.status.checks},
    )


def _blockers(
    session: Session, group: GroupState, seen: tuple[Verdict, ...] | None
) -> tuple[Verdict, ...]:
    """Return the last session's verdicts, or, without any, what blocks a Pending group now."""
    if group.phase not in _WAITING:
        return ()
    if seen is not None or group.phase != PodGroupPhase.PENDING:
        return seen or ()
    return verdicts_of(session, group) or (UNSEEN,)


def _finish_reason(group: GroupState) -> list[WorldReason]:
    """Return the finish reason of a failed or cancelled group; success needs none."""
    if group.phase not in (PodGroupPhase.FAILED, PodGroupPhase.CANCELLED):
        return []
    return [
        WorldReason(str(condition.reason), condition.message)
        for condition in group.status.conditions
        if condition.type == "Finished" and condition.reason
    ]


def _queue_outcomes(session: Session) -> dict[str, QueueOutcome]:
    """Return each queue with what the groups in it and below it hold; the root has everything."""
    live: dict[str, list[Amounts]] = {name: [] for name in session.queues}
    promise: dict[str, list[Amounts]] = {name: [] for name in session.queues}
    for group in session.groups.values():
        held, charge = group.held, group.charge()
        for name in group.chain if charge else ():
            if name in session.queues:
                live[name].append(held)
                promise[name].append(minus(charge, held))
    return {
        name: _queue_outcome(session, name, live=total(live[name]), promise=total(promise[name]))
        for name in session.queues
    }


def _queue_outcome(session: Session, name: str, *, live: Amounts, promise: Amounts) -> QueueOutcome:
    dimensions = resources_named(session)
    deserved = deserved_of_queues(session).get(name, {})
    return QueueOutcome(
        deserved={dim: _limit(dim, deserved.get(dim, 0)) for dim in dimensions},
        allocated=_amounts(live, dimensions),
        reserved=_amounts(promise, dimensions),
        share=share_of_queue(session, name).rounded(),
    )


def _limit(resource: str, units: int) -> str | None:
    """Return the limit as text; None for unlimited, which only pods can be."""
    unlimited = resource == PODS and units >= UNLIMITED_PODS
    return None if unlimited else format_quantity(resource, units)


def _amounts(amounts: Amounts, dimensions: list[str]) -> dict[str, str]:
    """Return what is held, with a zero for every other resource of the world."""
    names = sorted({*dimensions, *(name for name, units in amounts.items() if units)})
    return {name: format_quantity(name, amounts.get(name, 0)) for name in names}


def as_json(outcome: WorldOutcome) -> str:
    """Return the outcome as `-o json` prints it; keys in the order of the structs."""
    return msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode()


def as_table(outcome: WorldOutcome) -> str:
    """Return the events by instant, then the groups, then the queues."""
    happened = [(f"{cycle.time}s", *line) for cycle in outcome.cycles for line in _decisions(cycle)]
    groups = [_group_row(key, group) for key, group in outcome.podgroups.items()]
    queues = [_queue_row(name, queue) for name, queue in outcome.queues.items()]
    sessions = "session" if len(outcome.cycles) == 1 else "sessions"
    last = f", the last at {outcome.cycles[-1].time}s" if outcome.cycles else ""
    return "\n\n".join(
        (
            _rows(("TIME", "WHAT", "WHO"), happened),
            _rows(("PODGROUP", "PHASE", "POSITION", "REASON"), groups),
            _rows(("QUEUE", "SHARE", "ALLOCATED", "RESERVED", "DESERVED"), queues),
            f"{len(outcome.cycles)} {sessions}{last}",
        )
    )


def _decisions(cycle: CycleStory) -> Iterator[tuple[str, str]]:
    for item in cycle.requeued:
        yield "back to Pending", f"{item.group} ({item.reason})"
    for group in cycle.admitted:
        yield "InQueue", group
    for pod, node in cycle.bound.items():
        yield "bound", f"{pod} to {node}"
    for evicted in cycle.evicted:
        by = f", for {evicted.by}" if evicted.by else ""
        yield "evicted", f"{evicted.pod} ({evicted.reason}{by})"
    for group in cycle.finished:
        yield "finished", group


def _group_row(key: str, group: GroupOutcome) -> tuple[str, ...]:
    position = "-" if group.position is None else str(group.position)
    reasons = "; ".join(
        f"{reason.reason}: {reason.message}" if reason.message else reason.reason
        for reason in group.reasons
    )
    return (key, group.shown, position, reasons or "-")


def _queue_row(name: str, queue: QueueOutcome) -> tuple[str, ...]:
    allocated, reserved = _amounts_as_text(queue.allocated), _amounts_as_text(queue.reserved)
    share = queue.share if isinstance(queue.share, str) else f"{queue.share:g}"
    # The share of a queue that holds nothing means nothing.
    shown = "-" if (allocated, reserved) == ("-", "-") else share
    return (name, shown, allocated, reserved, _deserved(queue))


def _deserved(queue: QueueOutcome) -> str:
    limited = {name: text for name, text in queue.deserved.items() if text is not None}
    unlimited = [f"{name} unlimited" for name, text in queue.deserved.items() if text is None]
    parts = [_amounts_as_text(limited)] if limited else []
    return ", ".join(parts + unlimited) or "-"


def _amounts_as_text(amounts: dict[str, str]) -> str:
    held = {name: parse_quantity(name, text) for name, text in amounts.items()}
    parts = [f"{name} {describe_quantity(name, units)}" for name, units in held.items() if units]
    return ", ".join(parts) or "-"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns as wide as their widest cell; the last one is not padded."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )


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
