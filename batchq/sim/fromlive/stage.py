"""The loop of a look ahead: the daemon's own sessions on the live state, in virtual time.

First one session on what there is, exactly as the live scheduler would hold it. Then, instant by
instant: what is over ends, and sessions follow until one changes nothing. Idle time is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.objects import Pod, PodGroup
from batchq.api.times import DAY
from batchq.api.transaction import Transaction, Write
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot
from batchq.framework.state import GroupState
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.scheduler.scheduler import Scheduler
from batchq.scheduler.timers import next_due_at
from batchq.sim.clock import CountedIds, VirtualClock, whole_second
from batchq.sim.fromlive.chronicle import Chronicle
from batchq.sim.fromlive.founding import transplanted
from batchq.sim.fromlive.future import Future, Stopped, present_groups
from batchq.sim.fromlive.lasting import Lasting
from batchq.sim.fromlive.work import Work
from batchq.sim.report import outcome_of
from batchq.sim.writing import write

MOST_SESSIONS = 200_000
MOST_SESSIONS_AT_ONCE = 10
#: How far it looks if it is not told, and how long it goes on when nothing starts or ends.
MOST_AHEAD_MS = 366 * DAY
MOST_IDLE_MS = DAY

#: How many groups have ended, and at what instant it is.
Tell = Callable[[int, int], None]


def look_ahead(
    snapshot: Snapshot,
    scheduler: Scheduler,
    *,
    now_ms: int,
    lasting: Lasting | None = None,
    until_ms: int | None = None,
    tell: Tell | None = None,
) -> Future:
    """What becomes of everything in `snapshot`, seen at `now_ms`, under this scheduler.

    Until nothing can change any more, or for `until_ms` of virtual time. `tell` hears of every
    instant.
    """
    stage = _Stage(snapshot, scheduler.wide_awake(), now_ms, lasting or Lasting())
    return stage.run(until_ms, tell or (lambda ended, now_ms: None))


class _Stage:
    """One future while it is played; owns its clock, its store and what is ahead."""

    def __init__(
        self, snapshot: Snapshot, scheduler: Scheduler, now_ms: int, lasting: Lasting
    ) -> None:
        self._scheduler = scheduler
        self._clock = VirtualClock(now_ms)
        self._requests = CountedIds()
        opened = scheduler.open(snapshot, now_ms)
        self._store = transplanted(opened, self._requests)
        self._work = Work(self._store, self._clock, self._requests, lasting)
        self._cycle = Cycle(self._store, scheduler, self._clock, self._requests)
        self._chronicle = Chronicle(present_groups(opened))
        self._needed = _needed(snapshot)
        self._leaving = [key for key, group in opened.by_key.items() if group.phase in TERMINAL]
        self._sessions = 0
        self._refused = 0
        self._moved_at = now_ms

    def run(self, until_ms: int | None, tell: Tell) -> Future:
        """Play to the end."""
        began_at = self._clock.now_ms()
        last_at = began_at + (MOST_AHEAD_MS if until_ms is None else until_ms)
        self._work.take_up(self._session().session)
        while True:
            report = self._settle()
            tell(self._chronicle.ended, self._clock.now_ms())
            due_at = self._next_due_at(report)
            stopped = self._stops(due_at, last_at, asked=until_ms is not None)
            if stopped is not None:
                break
            assert due_at is not None
            self._clock.jump_to(due_at)
            self._work.end_due()
        if stopped is Stopped.UNTIL:
            self._clock.jump_to(last_at)
        return self._future(report, began_at, stopped)

    # ----------------------------------------------------------------------------------------

    def _session(self) -> CycleReport:
        report = self._cycle.run_once()
        self._sessions += 1
        self._refused += len(report.commit.refused)
        if self._chronicle.note(report):
            self._moved_at = self._clock.now_ms()
        return report

    def _settle(self) -> CycleReport:
        """Sessions at this instant, until one decides nothing; the last one's report."""
        for _ in range(MOST_SESSIONS_AT_ONCE):
            report = self._session()
            self._work.follow(report.session, report.intents)
            self._clear_away(report.session)
            if not report.intents:
                break
        return report

    def _next_due_at(self, report: CycleReport) -> int | None:
        """The next instant at which anything is due: never before now."""
        session = report.session
        instants = [
            whole_second(at)
            for at in (next_due_at(session, _with_a_future(session)), self._work.next_end_at())
            if at is not None
        ]
        return max(min(instants), self._clock.now_ms()) if instants else None

    def _stops(self, due_at: int | None, last_at: int, *, asked: bool) -> Stopped | None:
        if due_at is None:
            return Stopped.SETTLED
        if due_at > last_at:
            return Stopped.UNTIL if asked else Stopped.TOO_FAR
        if self._sessions >= MOST_SESSIONS:
            return Stopped.TOO_FAR
        idle = self._work.next_end_at() is None and due_at - self._moved_at > MOST_IDLE_MS
        return Stopped.IDLE if idle and not asked else None

    def _clear_away(self, session: Session) -> None:
        """Take out the groups that have ended and that nothing depends on.

        Each costs every session a look. What they evicted or gave up counts on.
        """
        self._leaving += [
            group.key for group in session.touched.values() if group.phase in TERMINAL
        ]
        if self._leaving:
            pods = self._store.snapshot().pods
            names = dict.fromkeys(self._leaving)
            self._leaving = [key for key in names if not self._is_done_with(key, pods)]

    def _is_done_with(self, key: str, pods_of: Mapping[str, tuple[Pod, ...]]) -> bool:
        """Take a group out, if it can go; False if it has to be looked at again."""
        group = self._store.get("PodGroup", key)
        if not isinstance(group, PodGroup):
            return True
        if group.metadata.uid in self._needed or group.status.evictions.recent:
            return True
        pods = pods_of.get(group.metadata.uid, ())
        runs = group.status.claim.is_open or any(pod.status.phase in ON_NODE for pod in pods)
        if runs or group.status.charge:
            return False
        removed = [Write(kind="PodGroup", key=key, expect=group.metadata.revision, value=None)]
        removed += [
            Write(kind="Pod", key=pod.metadata.uid, expect=pod.metadata.revision, value=None)
            for pod in pods
        ]
        write(self._store, self._requests, Transaction(subject=key, writes=tuple(removed)))
        return True

    def _future(self, report: CycleReport, began_at: int, stopped: Stopped) -> Future:
        self._chronicle.close(outcome_of(self._scheduler, self._store, self._clock, [], report))
        return Future(
            began_at=began_at,
            stopped_at=self._clock.now_ms(),
            stopped=stopped,
            sessions=self._sessions,
            refused=self._refused,
            groups=self._chronicle.groups,
            evictions=tuple(self._chronicle.evictions),
        )


def _needed(snapshot: Snapshot) -> frozenset[str]:
    """The uids of groups whose end others wait for."""
    return frozenset(
        dependency.uid
        for group in snapshot.groups
        if group.status.phase not in TERMINAL
        for dependency in group.spec.depends_on
    )


def _with_a_future(session: Session) -> Iterator[GroupState]:
    """The groups whose clocks count: that ended ones are forgotten in a week changes nothing."""
    return (group for group in session.groups.values() if group.phase not in TERMINAL or group.held)
