"""The scheduling cycle: read a snapshot, decide in a session, commit its transactions.

    snapshot -> session -> transactions -> commit

`Scheduler` decides; it is a pure function from a snapshot to a session that has decided. `Cycle`
reads and commits. The daemon runs it over a RedisStore and the server's clock, the simulator over a
MemoryStore and a virtual clock. A refused transaction is normal: the next cycle decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from batchq.api.intents import Intent
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import NEVER_FITS, Verdict
from batchq.api.transaction import Commit
from batchq.core.cache.scheduler_cache import SchedulerCache
from batchq.core.extension.points import PluginPlaces
from batchq.core.pending.inadmissible import InadmissibleGroups
from batchq.core.pending.queue import blockers, out_of_line_refusals, victim_refusals
from batchq.core.placement.kept_places import store_kept_places
from batchq.core.session.open_session import open_session
from batchq.core.session.session import Action, Session
from batchq.core.session.snapshot import Instrument, Settings, Snapshot, says_the_same
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, wanted_ordinals
from batchq.ports import Clock, IdSource, Store
from batchq.scheduler.admission_checks import roll_back_misfits
from batchq.scheduler.pod_controller import settle
from batchq.scheduler.reasons import MOST_WRITTEN, write_reasons
from batchq.scheduler.timers import next_due_at
from batchq.scheduler.transactions import transactions_of


@dataclass(frozen=True, slots=True)
class CycleReport:
    """The result of a cycle. `next_due_at` is in ms, None if no clock runs."""

    session: Session
    intents: Sequence[Intent]
    commit: Commit
    duration_ms: int
    next_due_at: int | None
    #: The cycle was skipped: `session` is the last one, which decided nothing, and nothing changed.
    rested: bool = False


class Cycle:
    """Runs scheduling cycles over one store."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        clock: Clock,
        ids: IdSource,
        *,
        snapshot: Callable[[], Snapshot] | None = None,
    ) -> None:
        """`snapshot` reads the snapshot; by default, the store's whole one."""
        self._store = store
        self._snapshot = snapshot or store.snapshot
        self._scheduler = scheduler
        self._clock = clock
        self._ids = ids
        #: The last cycle and its scheduler, if it decided nothing.
        self._quiet: tuple[Scheduler, CycleReport] | None = None

    def go_by(self, scheduler: Scheduler) -> None:
        """Use another scheduler from the next cycle on; not to be called during a cycle."""
        self._scheduler = scheduler

    def run_once(self, epoch: int | None = None) -> CycleReport:
        """Run one cycle, as the leader of `epoch`.

        Raises StoreUnavailable if the store cannot be read, or it is unknown whether it was
        written; the next cycle then reads what became of that.
        """
        started_at = self._clock.now_ms()
        snapshot = self._snapshot()
        if (last := self._at_rest(snapshot, started_at)) is not None:
            return last
        report = self._commit(self._scheduler.decide(snapshot, started_at), epoch)
        is_quiet = not report.intents and not report.commit.applied and not report.commit.refused
        self._quiet = (self._scheduler, report) if is_quiet else None
        return report

    def settle_once(self, epoch: int | None = None) -> CycleReport:
        """Run a cycle without actions, for a caller that knows that they would decide nothing."""
        self._quiet = None
        session = self._scheduler.follow(self._snapshot(), self._clock.now_ms())
        return self._commit(session, epoch)

    def _commit(self, session: Session, epoch: int | None) -> CycleReport:
        """Commit what a session decided."""
        transactions = transactions_of(session)
        commit = Commit()
        if transactions:
            commit = self._store.commit(
                transactions,
                request_id=self._ids.new_uid(),
                epoch=epoch,
                overcommit=self._scheduler.settings.overcommit,
                seen=session.snapshot.revision,
            )
        return CycleReport(
            session=session,
            intents=tuple(session.intents),
            commit=commit,
            duration_ms=self._clock.now_ms() - session.now_ms,
            next_due_at=next_due_at(session),
        )

    def _at_rest(self, snapshot: Snapshot, now_ms: int) -> CycleReport | None:
        """Return the last report if this cycle would repeat it, else None.

        That is so if the last session decided nothing, nothing has changed since, and nothing is
        due. A plugin whose answers change with time alone must implement `due_at`.
        """
        if self._quiet is None:
            return None
        scheduler, last = self._quiet
        is_due = last.next_due_at is not None and last.next_due_at <= now_ms
        is_late = now_ms < last.session.now_ms
        if scheduler is not self._scheduler or is_due or is_late:
            return None
        if not says_the_same(last.session.snapshot, snapshot):
            return None
        return replace(last, rested=True, duration_ms=self._clock.now_ms() - now_ms)


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Actions in the configured order, the plugins of each extension point, and the settings."""

    actions: tuple[Action, ...]
    plugins: PluginPlaces
    settings: Settings
    #: Wraps the functions that sessions call, to measure them.
    instrument: Instrument | None = field(default=None, repr=False, compare=False)
    #: The most groups whose reasons one session writes; the others follow in later sessions.
    most_written: int = MOST_WRITTEN
    _carried: SchedulerCache = field(default_factory=SchedulerCache, repr=False, compare=False)
    _inadmissible: InadmissibleGroups = field(
        default_factory=InadmissibleGroups, repr=False, compare=False
    )

    def decide(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Run a whole session: controllers, actions, reasons. Pure."""
        session = self._open(snapshot, now_ms, self._inadmissible, self._carried)
        settle(session)
        session.line_up()
        session.begin_actions()
        if "enqueue" not in session.actions:
            _admit_all(session)
        for action in self.actions:
            self._execute(action, session)
        roll_back_misfits(session)
        store_kept_places(session)
        session.close()
        write_reasons(session, self._inadmissible, self.most_written)
        session.end()
        return session

    def follow(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Run a session without actions, which the caller knows would decide nothing. Pure."""
        session = self._open(snapshot, now_ms, self._inadmissible, self._carried)
        settle(session)
        session.line_up()
        session.begin_actions()
        session.close()
        write_reasons(session, self._inadmissible, self.most_written)
        session.end()
        return session

    def without_memory(self) -> Self:
        """Return the same scheduler with an empty inadmissible set: it asks about every group."""
        return replace(self, _inadmissible=InadmissibleGroups(), _carried=SchedulerCache())

    def open(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Open a session that has decided nothing yet, and asks about every group."""
        return self._open(snapshot, now_ms, None, None)

    def _open(
        self,
        snapshot: Snapshot,
        now_ms: int,
        inadmissible: InadmissibleGroups | None,
        carried: SchedulerCache | None,
    ) -> Session:
        names = tuple(action.name for action in self.actions)
        return open_session(
            snapshot,
            now_ms=now_ms,
            settings=self.settings,
            plugins=self.plugins,
            actions=names,
            carried=carried,
            instrument=self.instrument,
            inadmissible=inadmissible,
        )

    def _execute(self, action: Action, session: Session) -> None:
        execute = action.execute
        if self.instrument is not None:
            execute = self.instrument.action(action.name, execute)
        execute(session)


def _admit_all(session: Session) -> None:
    """Admit groups without the action `enqueue`: InQueue, but without a reservation.

    Hard limits then apply at each bind. A group that can never fit stays Pending all the same.
    """
    for group in session.in_order():
        if group.phase != PodGroupPhase.PENDING or group.uid in session.pending.parked:
            continue
        # Nothing of an external group is bound later, so its limits apply now.
        verdicts = (
            list(blockers(session, group))
            if group.is_external
            else [
                *out_of_line_refusals(session, group),
                *victim_refusals(session, group),
                *_unsatisfiable(session, group),
            ]
        )
        if verdicts:
            session.refuse(group, verdicts)
            continue
        with Statement(session) as statement:
            admit(statement, group, reservation=group.reservation if group.is_external else {})
            create_pods(statement, group, wanted_ordinals(group))
            statement.commit()


def _unsatisfiable(session: Session, group: GroupState) -> list[Verdict]:
    """Return only the verdicts that waiting cannot change, or that need a first node."""
    return [
        verdict
        for verdict in session.refusals_at("admissible", group)
        if not session.nodes.by_name or verdict.reason in NEVER_FITS
    ]
