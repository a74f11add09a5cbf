"""Why a group waits, or what became of its wait: everything that decides it, worked out now.

    why = client.why("train")
    why.reasons[0].message      # the most fundamental reason, with its numbers
    why.reasons[0].remedy       # what to do about it
    why.start.at                # when there will be room, as far as walltimes tell
    why.expected.at             # when it is expected to start, those ahead counted

The scheduler's own session is run on how things stand, and read off; nothing is written, and no
rule is written down twice. Instants are in milliseconds, amounts in integer units. Of groups in
other namespaces only the number is told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from batchq.api.lifecycle import ADMITTED, TERMINAL, PodGroupPhase
from batchq.api.objects import DEFAULT, NAMESPACED, Condition, PodGroup
from batchq.api.reasons import NEVER_FITS, UNSEEN, Verdict, Waiting
from batchq.api.resources import Amounts
from batchq.api.transaction import Event
from batchq.changes.object_writes import find
from batchq.client.history import Spell, spells_of, waited_for
from batchq.client.outcomes import GroupPlan, Outcome, group_plan, no_node_ever
from batchq.client.overview import Awaited, GroupView, Overview
from batchq.client.position import Backfilling, Others, backfilling_of, gated_pods, others
from batchq.client.queues import QueueView, borrowers, queue_views
from batchq.client.remedies import remedy_for
from batchq.client.request_fields import key_named
from batchq.client.start_estimates import Deciding, ExpectedStart, expected_of
from batchq.core.forecast.earliest_fit import Forecast, forecast
from batchq.core.forecast.estimates import expected_starts
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.errors import NotFound
from batchq.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore


_IMPOSSIBLE = NEVER_FITS | {Waiting.QUEUE_NOT_FOUND}
_TAKERS = ("preempt", "reclaim")
_NOT_CONFIGURED = "the scheduler is configured without this action"
_LACKS_ROOM = (
    Waiting.WAITING_FOR_QUOTA,
    Waiting.WAITING_FOR_RESOURCES,
    Waiting.WAITING_FOR_PREEMPTION,
)


class Reason(Struct, frozen=True, kw_only=True, rename="camel"):
    """One reason for which a group waits, with what decides it.

    `free` is limit - seen. `revision` is that of the snapshot that the numbers are of; of one that
    is only `stored`, and no longer holds, it is when the scheduler wrote it down.
    """

    reason: Waiting
    message: str
    plugin: str
    subject: str = ""
    resource: str = ""
    need: int | None = None
    limit: int | None = None
    seen: int | None = None
    free: int | None = None
    remedy: str = ""
    revision: int = 0


class Start(Struct, frozen=True, kw_only=True, rename="camel"):
    """When there will be room for a group (`at`), once `ends` have ended; None, and `why` not.

    It goes by walltimes, and holds if nobody ahead of it takes the room.
    """

    at: int | None
    ends: Others = Others()
    why: str = ""


class QueueShare(Struct, frozen=True, kw_only=True, rename="camel"):
    """How the group's queue stands, and which others hold what it deserves: name -> amounts."""

    name: str
    share: float | str
    deserved: Amounts
    charged: Amounts
    borrowed: Amounts
    borrowers: dict[str, Amounts]


class Spared(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why an action evicts nobody for the group."""

    action: str
    reasons: tuple[str, ...]


class Why(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a group is where it is, as of `at`, at a revision of the server's objects.

    `since`: when its phase began. `reasons` hold now, the most fundamental first; `former` are
    those that the scheduler has written down, and that hold no longer. `next`: what the next
    session makes of it, where that is another phase. `reserved`: quota is kept for it. `ever`: ''
    if it can run some day, else why not, as things are. `start`: when there will be room for it by
    itself; `expected`: when it starts, those before it counted. `backfilling`: how it stands in a
    queue that is backfilled. `spared`: why nobody is evicted for it. `waited`: reason -> for how
    long in all, as far as events go back; `history` the same as a time series.
    """

    key: str
    uid: str
    queue: str
    priority: int
    phase: PodGroupPhase
    shown: str
    at: int
    revision: int
    since: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    nodes: tuple[str, ...]
    ending: str
    led: bool
    next: str
    reasons: tuple[Reason, ...]
    former: tuple[Reason, ...]
    reserved: bool
    position: int | None
    ahead: Others
    ever: str
    start: Start | None
    expected: ExpectedStart | None
    backfilling: Backfilling | None
    spared: tuple[Spared, ...]
    queue_share: QueueShare | None
    awaits: Awaited | None
    backoff_until: int | None
    evictions: int
    evicted: str
    conditions: tuple[Condition, ...]
    waited: dict[str, int]
    history: tuple[Spell, ...]


def explain(
    deciding: Deciding, key: str, events: Sequence[Event] = (), *, led: bool = True
) -> Why | None:
    """All about one group's wait, `events` being its own; None if there is no such group."""
    opened = deciding.session()
    group = opened.by_key.get(key)
    if group is None:
        return None
    view = _view(deciding, opened, group)
    decided = deciding.decide()
    waits = _Waits(deciding.scheduler, decided, decided.by_key[key], group, led=led)
    history = spells_of(events, view.created_at)
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
        led=led,
        next=waits.next(),
        reasons=waits.reasons(),
        former=waits.former(),
        reserved=group.reserved,
        position=waits.plan.position,
        ahead=others(waits.plan.ahead, group.namespace),
        ever=waits.ever,
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
    )


class _Waits:
    """What a session that has decided says of one group; `before` is the group as it is stored."""

    def __init__(
        self,
        scheduler: Scheduler,
        session: Session,
        group: GroupState,
        before: GroupState,
        *,
        led: bool,
    ) -> None:
        self._scheduler = scheduler
        self._session = session
        self._group = group
        self._before = before
        self._led = led
        self.plan: GroupPlan = group_plan(session, group.key)
        #: Why it cannot run as things are; '' if it can.
        self.ever: str = self._never()

    @property
    def _waited(self) -> bool:
        return self._before.phase not in TERMINAL

    def _verdicts(self) -> tuple[Verdict, ...]:
        """What is said against it now; of what runs, that it lacks pods, if it does."""
        if not self._waited or self.plan.outcome is Outcome.NOW:
            return ()
        if self._group.phase in ADMITTED or self.plan.outcome is Outcome.EVICTS:
            return self._session.refusals.get(self._group.uid, ())
        return self.plan.blockers

    def reasons(self) -> tuple[Reason, ...]:
        found: list[Reason] = []
        for verdict in (*self._verdicts(), *self._gated()):
            reason = self._reason(verdict)
            # Where it can never run, one thing would help against all that time does not end.
            told = self.ever and any(reason.remedy == other.remedy for other in found)
            found.append(structs.replace(reason, remedy="") if told else reason)
        if self._before.phase == PodGroupPhase.PENDING and not self._before.record.status.reasons:
            found.append(self._reason(UNSEEN))
        return tuple(found)

    def _gated(self) -> tuple[Verdict, ...]:
        """Of what has been admitted: which of its pods wait for gates."""
        return gated_pods(self._group) if self._before.phase in ADMITTED else ()

    def former(self) -> tuple[Reason, ...]:
        """What is stored and not said any more."""
        if not self._waited or self._before.phase not in (
            PodGroupPhase.PENDING,
            PodGroupPhase.IN_QUEUE,
        ):
            return ()
        now = self._verdicts()
        return tuple(
            structs.replace(self._reason(verdict), remedy="")
            for verdict in self._before.record.status.reasons
            if not any(verdict.same_cause(other) for other in now)
        )

    def _reason(self, verdict: Verdict) -> Reason:
        seen, limit = verdict.seen, verdict.limit
        return Reason(
            reason=verdict.reason,
            message=verdict.message(),
            plugin=verdict.plugin,
            subject=verdict.subject,
            resource=verdict.resource,
            need=verdict.need,
            limit=limit,
            seen=seen,
            free=None if seen is None or limit is None else max(0, limit - seen),
            remedy=remedy_for(
                self._session, self._group, verdict, led=self._led, never=bool(self.ever)
            ),
            revision=verdict.revision or self._session.snapshot.revision,
        )

    def next(self) -> str:
        """What the next session does with it."""
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
        return ""

    def _never(self) -> str:
        if not self._waited:
            return ""
        for verdict in self._verdicts():
            if verdict.reason in _IMPOSSIBLE:
                return verdict.message()
        return no_node_ever(self._session, self._group)

    def start(self) -> Start | None:
        """Of what waits and is refused."""
        if self._before.phase != PodGroupPhase.PENDING or not self._verdicts():
            return None
        told: Forecast = forecast(self._session, self._group)
        if never := self.ever:
            told = Forecast(at=None, why=never)
        keys = (end.group.key for end in told.ends)
        return Start(at=told.at, ends=others(keys, self._group.namespace), why=told.why)

    def expected(self) -> ExpectedStart | None:
        """Of what waits, is refused, and can run some day."""
        waits = self._before.phase == PodGroupPhase.PENDING and self._verdicts()
        if not waits or self.ever or self._group.phase in TERMINAL:
            return None
        uid = self._group.uid
        told = expected_starts(self._session, wanted=[uid]).get(uid)
        return None if told is None else expected_of(told, self._group.namespace)

    def backfilling(self) -> Backfilling | None:
        """Of what waits in a queue that is backfilled."""
        return None if self.ever else backfilling_of(self._session, self._group)

    def spared(self) -> tuple[Spared, ...]:
        """Of what is refused for want of room: why each action takes nobody."""
        lacks_room = any(verdict.reason in _LACKS_ROOM for verdict in self._verdicts())
        if not lacks_room or self.ever or self._group.status.pledge.stands:
            return ()
        found: list[Spared] = []
        told: set[str] = set()
        for action in self._scheduler.actions:
            ask = getattr(action, "spares", None)
            lines = [] if ask is None else ask(self._session, self._group)
            new = tuple(line for line in lines if line not in told)
            told.update(new)
            if new:
                found.append(Spared(action=action.name, reasons=new))
        missing = [name for name in _TAKERS if name not in self._session.actions]
        return (*found, *(Spared(action=name, reasons=(_NOT_CONFIGURED,)) for name in missing))

    def backs_off_until(self) -> int | None:
        until = self._group.status.backoff_until
        later = until is not None and until > self._session.now_ms
        return until if later and self._before.phase == PodGroupPhase.PENDING else None


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def _view(deciding: Deciding, session: Session, group: GroupState) -> GroupView:
    told = Overview(deciding.snapshot, deciding.now_ms, session).explain(group.key)
    assert told is not None
    return told.group


def _since(group: GroupState, history: Sequence[Spell]) -> int:
    """When its phase began: by its own record, else by its events."""
    status, created_at = group.status, group.record.metadata.creation_timestamp or 0
    match group.phase:
        case PodGroupPhase.IN_QUEUE:
            known = status.in_queue_at
        case PodGroupPhase.RUNNING:
            known = status.started_at
        case PodGroupPhase.UNKNOWN:
            known = status.unknown_at
        case PodGroupPhase.PENDING:
            # Since it came, or came back.
            begun = [spell.at for spell in history if spell.came_back]
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


#: So many events of one group are read for its history.
_MOST_OF_HISTORY = 1_000


class Explaining(ABC):
    """Part of `batchq.client.Client`, whose connection it uses."""

    _store: RedisStore

    def why(self, group: str, *, namespace: str = DEFAULT) -> Why:
        """Why a group waits: every reason with the numbers of this moment and what to do about it,
        its place in line, who is ahead, why nobody is evicted for it, whether it could ever run and
        when there will be room; of one that waits no longer, how long it did, and for what.

        The scheduler's own session is run here, on how things stand; nothing is written.
        Raises NotFound, and InvalidInput where the scheduler goes by a configuration that this
        machine cannot follow.
        """
        from batchq.client.cluster import schedulers
        from batchq.client.start_estimates import Deciding

        key = key_named(group, namespace)
        find(self._store, PodGroup, key)
        events = self.events(kind="PodGroup", key=key, most=_MOST_OF_HISTORY)
        led = schedulers(self._store).led
        told = explain(Deciding.open(self._store), key, events, led=led)
        if told is None:
            raise NotFound(f"PodGroup {key} was deleted just now")
        return told

    def events(
        self,
        *,
        kind: str = "",
        key: str = "",
        namespace: str = "",
        reason: str = "",
        since_ms: int = 0,
        most: int = 100,
    ) -> Sequence[Event]:
        """The latest events, oldest first: of a kind, of one object (`key`), of one namespace (what
        is in none is left out), with this reason, not before `since_ms`.

        The server keeps the latest 10,000 of all.
        """
        if not (namespace or reason or since_ms):
            return self._store.events(kind=kind, key=key, most=most)
        from batchq.client.watch import latest_events

        wanted = partial(_is_wanted, kind, key, namespace, reason, since_ms)
        return latest_events(self._store, wanted, most)

    def follow_events(
        self,
        *,
        kind: str = "",
        key: str = "",
        namespace: str = "",
        reason: str = "",
        since_ms: int = 0,
        most: int = 100,
    ) -> Iterator[Sequence[Event]]:
        """The same, then what happens, for ever. Several come at a time, and every few seconds
        none, so that whoever follows may stop; a server that is away is waited for.
        """
        from batchq.client.watch import WATCH_MS, EventWatch

        wanted = partial(_is_wanted, kind, key, namespace, reason, since_ms)
        watch = EventWatch(self._store)
        yield watch.latest(wanted, most)
        while True:
            with self.patiently():
                events = watch.poll(wanted, WATCH_MS)
            yield events

    @abstractmethod
    def patiently(self, timeout_s: float | None = None) -> AbstractContextManager[None]:
        """Wait for a server that is away."""


def _is_wanted(
    kind: str, key: str, namespace: str, reason: str, since_ms: int, event: Event
) -> bool:
    space = event.key.partition("/")[0] if event.kind in NAMESPACED else ""
    return (
        kind in ("", event.kind)
        and key in ("", event.key)
        and namespace in ("", space)
        and reason in ("", event.reason)
        and event.at >= since_ms
    )
