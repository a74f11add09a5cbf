"""The scheduling cycle: read a snapshot, decide in a session, commit its transactions.

    snapshot -> session -> transactions -> commit

The daemon runs it over a RedisStore and the server's clock, the simulator over a MemoryStore and a
virtual clock. A refused transaction is normal: the next cycle decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from batchq.api.intents import Intent
from batchq.api.transaction import Commit
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot, says_the_same
from batchq.ports import Clock, IdSource, Store
from batchq.scheduler.scheduler import Scheduler
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
