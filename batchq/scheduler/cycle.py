"""The one place where reading, deciding and writing meet.

    snapshot -> session -> transactions -> commit

The daemon runs it over a RedisStore and the server's clock, the simulator over a MemoryStore and
a virtual clock. A refused transaction is normal: the next cycle decides anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchq.api.intents import Intent
from batchq.api.transaction import Commit
from batchq.framework.session import Session
from batchq.ports import Clock, IdSource, Store
from batchq.scheduler.effects import transactions_of
from batchq.scheduler.scheduler import Scheduler
from batchq.scheduler.timers import next_due_at


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle did. `next_due_at` is in milliseconds, None if no clock runs."""

    session: Session
    intents: Sequence[Intent]
    commit: Commit
    duration_ms: int
    next_due_at: int | None


class Cycle:
    """Turns the crank once, whenever it is told to."""

    def __init__(self, store: Store, scheduler: Scheduler, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._scheduler = scheduler
        self._clock = clock
        self._ids = ids

    def run_once(self, epoch: int | None = None) -> CycleReport:
        """One cycle, as the leader of `epoch`.

        Raises StoreUnavailable if the store could not be read or may not have been written; the
        next cycle then sees what became of it.
        """
        started_at = self._clock.now_ms()
        snapshot = self._store.snapshot()
        session = self._scheduler.decide(snapshot, started_at)
        transactions = transactions_of(session)
        commit = Commit()
        if transactions:
            commit = self._store.commit(
                transactions,
                request_id=self._ids.new_uid(),
                epoch=epoch,
                overcommit=self._scheduler.settings.overcommit,
                seen=snapshot.revision,
            )
        return CycleReport(
            session=session,
            intents=tuple(session.intents),
            commit=commit,
            duration_ms=self._clock.now_ms() - started_at,
            next_due_at=next_due_at(session),
        )
