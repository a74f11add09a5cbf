"""Why a group waits, or why it waited: every rule that decides it, evaluated now; its history.

    why = client.why("train")
    why.reasons[0].message      # the most fundamental reason, with its numbers
    why.reasons[0].remedy       # what to do about it
    why.start.at                # when capacity will be free, according to walltimes
    why.expected.at             # when it is expected to start, counting the groups ahead

The scheduler's own session runs on the current state, so no rule is implemented twice; nothing is
written. Instants are in milliseconds, amounts in integer units. Groups of other namespaces are only
counted, not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.api.reasons import (
    POD_LOST,
    UNSATISFIABLE,
    UNSEEN,
    Explanation,
    Leaving,
    Verdict,
    Waiting,
)
from batchq.api.transaction import Event
from batchq.api.views import (
    _LEFT,
    Backfilling,
    ExpectedStart,
    GroupPlan,
    Outcome,
    Period,
    QueueShare,
    QueueView,
    Spared,
    Why,
)
from batchq.client.changes.object_writes import find
from batchq.client.outcomes import (
    TrialScheduler,
    expected_of,
    group_plan,
    missing_nodes,
    no_node_ever,
)
from batchq.client.overview import (
    Overview,
    borrowers,
    gated_pods,
    others,
    queue_views,
    restarts_of,
)
from batchq.client.remedies import backfilling_of, remedy_for
from batchq.core.estimates import earliest_start, expected_starts
from batchq.core.placement.trial import verdicts_of
from batchq.core.preemption.order import why_both_spared
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.errors import NotFound
from batchq.scheduler.cycle import Scheduler

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore


#: The action that places the pods of admitted groups.
_PLACES = "allocate"
_EVICTING_ACTIONS = ("preempt", "reclaim")
#: How victims of both actions for one group are named.
_TOGETHER = "preempt and reclaim"
_NOT_CONFIGURED = "the scheduler is configured without this action"
_LACKS_CAPACITY = (
    Waiting.WAITING_FOR_QUOTA,
    Waiting.WAITING_FOR_RESOURCES,
    Waiting.WAITING_FOR_PREEMPTION,
)
_LACKS_NODES = (*_LACKS_CAPACITY, Waiting.UNSCHEDULABLE)


def explain(
    deciding: TrialScheduler, key: str, events: Sequence[Event] = (), *, unled: str = ""
) -> Why | None:
    """Explain one group's wait from its `events`; None if there is no such group. `unled` says that
    no scheduler leads, or is empty.
    """
    opened = deciding.session()
    group = opened.by_key.get(key)
    if group is None:
        return None
    overview = Overview(deciding.snapshot, deciding.now_ms, opened)
    view = overview.group(key)
    assert view is not None
    decided = deciding.decide()
    waits = _WaitReport(deciding.scheduler, decided, decided.by_key[key], group, unled=unled)
    history = periods_of(events, view.created_at)
    unfinished = group.phase not in TERMINAL
    return Why(
        key=key,
        uid=group.uid,
        queue=group.queue,
        priority=group.priority,
        phase=group.phase,
        shown=view.shown,
        at=deciding.now_ms,
        revision=deciding.snapshot.revision,
        since=_since(group, history),
        created_at=view.created_at,
        started_at=view.started_at,
        finished_at=view.finished_at,
        nodes=view.nodes,
        ending="" if unfinished else _joined(view.reason, view.message),
        led=not unled,
        unled=unled,
        next=waits.next(),
        reasons=waits.reasons(),
        former=waits.former(),
        reserved=group.reserved,
        position=waits.plan.position,
        ahead=others(waits.plan.ahead, group.namespace),
        ever=waits.ever,
        missing_nodes=waits.missing_nodes(),
        start=waits.start(),
        expected=waits.expected(),
        backfilling=waits.backfilling(),
        spared=waits.spared(),
        queue_share=_queue_share(decided, group.queue) if unfinished else None,
        awaits=view.awaits,
        backoff_until=waits.backs_off_until(),
        evictions=view.evictions.groups,
        evicted="" if view.evicted is None else _joined(view.evicted.reason, view.evicted.message),
        conditions=group.status.conditions,
        waited=waited_for(history, deciding.now_ms),
        history=tuple(history),
        view=view,
        line_ahead=overview.ahead(view),
        restarts=restarts_of(opened, group),
    )


class _WaitReport:
    """Reads one group's result from a decided session; `before` is the group as stored."""

    def __init__(
        self,
        scheduler: Scheduler,
        session: Session,
        group: GroupState,
        before: GroupState,
        *,
        unled: str,
    ) -> None:
        self._scheduler = scheduler
        self._session = session
        self._group = group
        self._before = before
        self._unled = unled
        self.plan: GroupPlan = group_plan(session, group.key)
        self._verdicts = self._current_verdicts()
        #: Why it cannot run with the current nodes and limits; '' if it can.
        self.ever: str = self._never()

    @property
    def _unfinished(self) -> bool:
        return self._before.phase not in TERMINAL

    def _current_verdicts(self) -> tuple[Verdict, ...]:
        """Return the current reasons against it; for a running group, against its other pods."""
        waits = self._unfinished and self.plan.outcome is not Outcome.NOW
        if waits or (self._before.phase in ADMITTED and self._lacks_pods()):
            return verdicts_of(self._session, self._group)
        return ()

    def _lacks_pods(self) -> bool:
        """Return whether some of its pods have no node yet, and have not ended."""
        group = self._group
        settled = sum(pod.status.phase in ON_NODE or group.is_final(pod) for pod in group.current())
        return not group.is_external and settled < group.replicas

    def reasons(self) -> tuple[Explanation, ...]:
        """Return the reasons that apply: also that its pods wait for gates, and that no session
        has seen it.
        """
        gated = gated_pods(self._group) if self._before.phase in ADMITTED else ()
        is_pending = self._before.phase == PodGroupPhase.PENDING
        unseen = is_pending and not self._before.record.status.reasons
        found: list[Explanation] = []
        for verdict in (*self._verdicts, *gated, *((UNSEEN,) if unseen else ())):
            reason = self._explained(verdict)
            # If it can never run, several reasons have the same remedy: show it once.
            repeated = self.ever and any(reason.remedy == other.remedy for other in found)
            found.append(structs.replace(reason, remedy="") if repeated else reason)
        return tuple(found)

    def former(self) -> tuple[Explanation, ...]:
        """Return the stored reasons that no longer apply."""
        if not self._unfinished or self._before.phase not in (
            PodGroupPhase.PENDING,
            PodGroupPhase.IN_QUEUE,
        ):
            return ()
        return tuple(
            structs.replace(self._explained(verdict), remedy="")
            for verdict in self._before.record.status.reasons
            if not any(verdict.same_cause(other) for other in self._verdicts)
        )

    def _explained(self, verdict: Verdict) -> Explanation:
        never = bool(self.ever)
        return Explanation(
            verdict=verdict,
            remedy=remedy_for(self._session, self._group, verdict, unled=self._unled, never=never),
            revision=verdict.revision or self._session.snapshot.revision,
        )

    def next(self) -> str:
        """Return what the next session does with it."""
        before, plan = self._before, self.plan
        if before.phase in TERMINAL:
            return ""
        if self._group.phase in TERMINAL:
            return f"the next session ends it: {plan.ending}"
        if before.phase == PodGroupPhase.PENDING and self._group.phase in ADMITTED:
            return "the next session admits it"
        if before.phase in ADMITTED and self._group.phase == PodGroupPhase.PENDING:
            return "the next session sends it back to Pending"
        if before.phase == PodGroupPhase.PENDING and not before.reserved and self._group.reserved:
            awaits = plan.awaits
            for_whom = f" for when {awaits.pods} pods of others have stopped" if awaits else ""
            return f"the next session reserves its quota{for_whom}"
        if _PLACES not in self._session.actions and before.phase in ADMITTED and self._lacks_pods():
            return f"no session places its pods: the scheduler's actions lack {_PLACES}"
        return ""

    def _never(self) -> str:
        if not self._unfinished:
            return ""
        for verdict in self._verdicts:
            if verdict.reason in UNSATISFIABLE:
                return verdict.message()
        return no_node_ever(self._session, self._group)

    def missing_nodes(self) -> str:
        """Return the nodes without which it cannot start, in words; '' if it can, or never will."""
        lacks_capacity = any(verdict.reason in _LACKS_NODES for verdict in self._verdicts)
        return missing_nodes(self._session, self._group) if lacks_capacity else ""

    @property
    def _is_refused(self) -> bool:
        """Whether it is Pending, and not admitted by the next session."""
        return self._before.phase == PodGroupPhase.PENDING and bool(self._verdicts)

    def start(self) -> ExpectedStart | None:
        """Return when capacity will be free, if no group ahead takes it."""
        if not self._is_refused:
            return None
        if self.ever:
            return ExpectedStart(at=None, why=self.ever)
        return expected_of(earliest_start(self._session, self._group), self._group.namespace)

    def expected(self) -> ExpectedStart | None:
        """Return the expected start of a group that can run some day."""
        if not self._is_refused or self.ever or self._group.phase in TERMINAL:
            return None
        uid = self._group.uid
        estimate = expected_starts(self._session, wanted=[uid]).get(uid)
        return None if estimate is None else expected_of(estimate, self._group.namespace)

    def backfilling(self) -> Backfilling | None:
        """Return the position of a group that waits in a backfilled queue."""
        return None if self.ever else backfilling_of(self._session, self._group)

    def spared(self) -> tuple[Spared, ...]:
        """Return why no action evicts victims for a group that lacks capacity."""
        lacks_capacity = any(verdict.reason in _LACKS_CAPACITY for verdict in self._verdicts)
        if not lacks_capacity or self.ever or self._group.status.pledge.stands:
            return ()
        found: list[Spared] = []
        shown: set[str] = set()
        for action in self._scheduler.actions:
            ask = getattr(action, "spares", None)
            lines = [] if ask is None else ask(self._session, self._group)
            new = tuple(line for line in lines if line not in shown)
            shown.update(new)
            if new:
                found.append(Spared(action=action.name, reasons=new))
        if both := why_both_spared(self._session, self._group):
            found.append(Spared(action=_TOGETHER, reasons=tuple(both)))
        missing = [name for name in _EVICTING_ACTIONS if name not in self._session.actions]
        return (*found, *(Spared(action=name, reasons=(_NOT_CONFIGURED,)) for name in missing))

    def backs_off_until(self) -> int | None:
        until = self._group.status.backoff_until
        later = until is not None and until > self._session.now_ms
        return until if later and self._before.phase == PodGroupPhase.PENDING else None


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def _since(group: GroupState, history: Sequence[Period]) -> int:
    """Return when its phase began, by its own record or else by its events."""
    status, created_at = group.status, group.record.metadata.creation_timestamp or 0
    match group.phase:
        case PodGroupPhase.IN_QUEUE:
            known = status.in_queue_at
        case PodGroupPhase.RUNNING:
            known = status.started_at
        case PodGroupPhase.UNKNOWN:
            known = status.unknown_at
        case PodGroupPhase.PENDING:
            # Since its creation, or its last eviction.
            begun = [period.at for period in history if period.follows_eviction]
            known = max(begun, default=created_at)
        case _:
            known = status.finished_at
    return created_at if known is None else known


def _queue_share(session: Session, name: str) -> QueueShare | None:
    views = queue_views(session)
    view: QueueView | None = next((one for one in views if one.name == name), None)
    if view is None:
        return None
    liens = borrowers(views, session.tree, name)
    return QueueShare(
        name=name,
        share=view.share,
        deserved={one: view.deserved.get(one, 0) for one in view.resources},
        charged={one: view.charged.get(one, 0) for one in view.resources},
        borrowed=view.borrowed,
        borrowers={lien.queue: lien.amounts for lien in liens},
    )


#: How many events of one group are read for its history.
_MOST_OF_HISTORY = 1_000


def explain_stored(store: RedisStore, key: str, *, or_defaults: bool) -> Why:
    """Explain a stored group; see `Client.why`. Raises NotFound, InvalidInput, StoreUnavailable."""
    from batchq.client.connection import schedulers

    find(store, PodGroup, key)
    events = store.events(kind="PodGroup", key=key, most=_MOST_OF_HISTORY)
    deciding = TrialScheduler.open(store, or_defaults=or_defaults)
    explanation = explain(deciding, key, events, unled=schedulers(store).unled)
    if explanation is None:
        raise NotFound(f"PodGroup {key} was deleted just now")
    return explanation


#: Event -> the phase that it begins.
_PHASES = {
    "Submitted": PodGroupPhase.PENDING,
    "Created": PodGroupPhase.PENDING,
    "Waiting": PodGroupPhase.PENDING,
    "QuotaReserved": PodGroupPhase.PENDING,
    "Admitted": PodGroupPhase.IN_QUEUE,
    **{str(phase): phase for phase in PodGroupPhase},
    **{str(reason): PodGroupPhase.PENDING for reason in Leaving},
}


_BEGINS = frozenset({"Submitted", "Created"})
#: Changes no state, but is shown: it says who opened a gate and when.
_OPENED = "GateOpened"


def periods_of(events: Iterable[Event], since: int) -> list[Period]:
    """Return the states of a group created at `since`, from its events, oldest first."""
    found: list[Period] = []
    lost = ""
    for event in _events_of_current(list(events), since):
        before = found[-1] if found else None
        if event.reason == POD_LOST:
            lost = f"{POD_LOST}: {event.message}"
            continue
        phase = _PHASES.get(event.reason)
        if event.reason == _OPENED:
            phase = PodGroupPhase.PENDING if before is None else before.phase
        if phase is None:
            continue
        period = _period(event, phase, before)
        if phase == PodGroupPhase.UNKNOWN:
            period = structs.replace(period, note=lost)
        lost = ""
        if found and found[-1].at == event.at:
            # A state of zero length is left out.
            period = structs.replace(period, note=found[-1].note or period.note)
            found.pop()
        found.append(period)
    return _merged(found)


def _events_of_current(events: list[Event], since: int) -> Iterator[Event]:
    """Leave out events of an earlier group of the same name.

    The clocks of submitter and scheduler may differ by some milliseconds, so an event dated before
    the creation is moved to the creation.
    """
    begins = [place for place, event in enumerate(events) if event.reason in _BEGINS]
    if not begins:
        yield from (event for event in events if event.at >= since)
        return
    for event in events[begins[-1] :]:
        at = max(event.at, since)
        yield event if event.at == at else structs.replace(event, at=at)


def _period(event: Event, phase: PodGroupPhase, before: Period | None) -> Period:
    if event.reason in _BEGINS:
        reasons: tuple[str, ...] = (str(Waiting.PENDING_EVALUATION),)
        return Period(at=event.at, until=None, phase=phase, reasons=reasons)
    if event.reason == "Waiting":
        # An admitted group waits, too, while no node takes its pods.
        phase_before = PodGroupPhase.PENDING if before is None else before.phase
        reasons = tuple(part for part in event.message.split(", ") if part)
        return Period(at=event.at, until=None, phase=phase_before, reasons=reasons)
    if event.reason == _OPENED:
        reasons_before = () if before is None else before.reasons
        note = f"{_OPENED}: {event.message}"
        return Period(at=event.at, until=None, phase=phase, reasons=reasons_before, note=note)
    if event.reason in _LEFT:
        note = f"{event.reason}: {event.message}" if event.message else event.reason
        return Period(at=event.at, until=None, phase=phase, note=note)
    reasons = (str(Waiting.WAITING_FOR_CHECKS),) if event.reason == "QuotaReserved" else ()
    note = event.message if event.reason not in ("Running", "Unknown") else ""
    return Period(at=event.at, until=None, phase=phase, reasons=reasons, note=note)


def _merged(periods: Sequence[Period]) -> list[Period]:
    """End each state where the next begins; merge equal ones, except around an opened gate."""
    found: list[Period] = []
    for period in periods:
        same = bool(found) and (found[-1].phase, found[-1].reasons) == (
            period.phase,
            period.reasons,
        )
        if same and not period.note.startswith(_OPENED):
            continue
        if found:
            found[-1] = structs.replace(found[-1], until=period.at)
        found.append(period)
    return found


def waited_for(periods: Iterable[Period], now_ms: int) -> dict[str, int]:
    """Return the total time waited (milliseconds) by the first reason of each period, the longest
    first. While a group runs, only some of its pods may wait, and the time does not count.
    """
    sums: dict[str, int] = {}
    for period in periods:
        if period.reasons and period.phase != PodGroupPhase.RUNNING:
            sums[period.reasons[0]] = sums.get(period.reasons[0], 0) + period.lasted(now_ms)
    return {name: sums[name] for name in sorted(sums, key=lambda name: (-sums[name], name))}
