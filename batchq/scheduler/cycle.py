"""The one place where reading, deciding and writing meet.

    snapshot -> session -> transactions -> commit

The daemon runs it over a RedisStore and the server's clock, the simulator over a MemoryStore and
a virtual clock. A refused transaction is normal: the next cycle decides anew.
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
    """What one cycle did. `next_due_at` is in milliseconds, None if no clock runs."""

    session: Session
    intents: Sequence[Intent]
    commit: Commit
    duration_ms: int
    next_due_at: int | None
    #: Nothing had changed since the last session, which had nothing to do: `session` is that one.
    rested: bool = False


class Cycle:
    """Turns the crank once, whenever it is told to."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        clock: Clock,
        ids: IdSource,
        *,
        snapshot: Callable[[], Snapshot] | None = None,
    ) -> None:
        """`snapshot` is what is read of the store, where that is not all of it."""
        self._store = store
        self._snapshot = snapshot or store.snapshot
        self._scheduler = scheduler
        self._clock = clock
        self._ids = ids
        #: The last session, if it had nothing to do, and whose it was.
        self._quiet: tuple[Scheduler, CycleReport] | None = None

    def go_by(self, scheduler: Scheduler) -> None:
        """Let another scheduler decide from the next cycle on; not to be called inside one."""
        self._scheduler = scheduler

    def run_once(self, epoch: int | None = None) -> CycleReport:
        """One cycle, as the leader of `epoch`.

        Raises StoreUnavailable if the store could not be read or may not have been written; the
        next cycle then sees what became of it.
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
        """The same without actions, for who knows that they would decide nothing."""
        self._quiet = None
        session = self._scheduler.follow(self._snapshot(), self._clock.now_ms())
        return self._commit(session, epoch)

    def _commit(self, session: Session, epoch: int | None) -> CycleReport:
        """Write what a session has decided."""
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
        """What the last session came to, if this one would come to the same: it had nothing to
        do, nothing has changed since, and nothing is due.

        A plugin whose answers change by the clock alone says when (`due_at`).
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
