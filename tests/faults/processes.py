"""Schedulers and clients as state machines: the daemon's turn, and a user's requests.

A scheduler is the real node-report processor and the real cycle over its own line to the server. It
takes turns as the daemon does: only while it leads, and only when something changed or is due.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from batchq.api.node_report import PodAttempt
from batchq.api.transaction import Transaction, Word
from batchq.errors import BatchqError, StoreUnavailable
from batchq.ports import Clock, IdSource, Reader
from batchq.scheduler.cycle import Cycle, CycleReport, Scheduler, StatusWrites
from batchq.scheduler.node_reports import NodeReportProcessor
from batchq.scheduler.transactions import stopped_on
from tests.faults.server import FaultyStore

_LEADER_LEASE_MS = 6_000
_ASK_MS = 2_000
_APART_MS = 500
_AGAIN_MS = 1_000
_PERIOD_MS = 15_000


class SchedulerProcess:
    """One scheduler daemon; it calls `turned` after every complete turn."""

    def __init__(
        self,
        name: str,
        store: FaultyStore,
        scheduler: Scheduler,
        clock: Clock,
        ids: IdSource,
        *,
        turned: Callable[[bool], None],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.alive = True
        self.due_at = clock.now_ms()
        self._store = store
        self._clock = clock
        self._report_processor = NodeReportProcessor(store, ids)
        self._cycle = Cycle(store, scheduler, clock, ids)
        self._status_writes = StatusWrites()
        self._turned = turned
        self._say = say
        self._epoch: int | None = None
        self._leads_until = -1
        self._ask_at = clock.now_ms()
        self._turn_at = clock.now_ms()
        self._turns = 0
        self._folds = 0
        self._leaves_facts = False

    def hear(self) -> None:
        """Receive a notification that something has changed."""
        if self._epoch is None:
            return
        now_ms = self._clock.now_ms()
        self._turn_at = min(self._turn_at, now_ms + _APART_MS)
        self.due_at = min(self.due_at, self._turn_at)

    def step(self) -> None:
        """Ask for the lease and take a turn, if they are due."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._ask_at:
            self._ask(now_ms)
        if self._epoch is not None and now_ms >= self._leads_until:
            self._epoch = None
        if self._epoch is not None and now_ms >= self._turn_at:
            self._take_turn(now_ms, self._epoch)
        leads = self._epoch is not None
        self.due_at = max(now_ms + 1, min(self._ask_at, self._turn_at) if leads else self._ask_at)

    def _ask(self, now_ms: int) -> None:
        self._ask_at = now_ms + _ASK_MS
        try:
            epoch = self._store.lead(self.name, _LEADER_LEASE_MS)
        except StoreUnavailable:
            return
        if epoch is None:
            self._epoch = None
            self._follow()
            return
        if epoch != self._epoch:
            self._say(f"{self.name} leads, epoch {epoch}")
            self._turn_at = now_ms
        self._epoch, self._leads_until = epoch, now_ms + _LEADER_LEASE_MS

    def _follow(self) -> None:
        """Keep a warm mirror: a standby that takes over knows every change that the server has
        published.
        """
        try:
            self._store.follow()
        except StoreUnavailable:
            return

    def _take_turn(self, now_ms: int, epoch: int) -> None:
        """Take a turn. The report processor is a thread of its own: it applies reports either
        before a session, or in the middle of it, between the read and the write.
        """
        self._turn_at = now_ms + _PERIOD_MS
        self._turns += 1
        self._folds, self._leaves_facts = 0, False
        in_the_midst = self._turns % 2 == 0
        try:
            if in_the_midst:
                self._store.before_commit = lambda: self._apply_reports(now_ms, epoch)
            else:
                self._apply_reports(now_ms, epoch)
            folds_before = self._folds
            report = self._run_cycle(now_ms, epoch)
            with suppress(StoreUnavailable):
                self._store.announce_stops(stopped_on(report.commit.applied))
            if self._store.before_commit is not None:
                self._store.before_commit = None
                self._apply_reports(now_ms, epoch)
            self._deliver()
        except StoreUnavailable:
            self._turn_at = now_ms + _AGAIN_MS
            return
        finally:
            self._store.before_commit = None
        refused = bool(report.commit.refused)
        if refused or self._leaves_facts or report.intents:
            self._turn_at = min(self._turn_at, now_ms + _APART_MS)
        if report.next_due_at is not None:
            self._turn_at = min(self._turn_at, max(report.next_due_at, now_ms + _APART_MS))
        saw_all = self._folds == folds_before
        self._turned(saw_all and not refused and not report.intents)

    def _run_cycle(self, now_ms: int, epoch: int) -> CycleReport:
        writes_status = self._status_writes.is_due(now_ms)
        report = self._cycle.run_once(epoch, writes_status=writes_status)
        if writes_status:
            self._status_writes.note(report, now_ms)
        if (status_in_ms := self._status_writes.due_in_ms(report, now_ms)) is not None:
            self._turn_at = min(self._turn_at, now_ms + max(status_in_ms, _APART_MS))
        return report

    def _apply_reports(self, now_ms: int, epoch: int) -> None:
        """Apply node reports; a server that does not answer the report processor does not fail the
        session.
        """
        try:
            reports = self._store.queued_reports()
            if not reports:
                return
            self._folds += 1
            self._leaves_facts = True
            folded = self._report_processor.apply(reports, now_ms=now_ms, epoch=epoch)
            if folded.done:
                self._store.take_out(folded.done)
        except StoreUnavailable:
            return
        self._leaves_facts = bool(folded.again)

    def _deliver(self) -> None:
        deliveries = self._store.outbox()
        if not deliveries:
            return
        for node in sorted({one.node for one in deliveries}):
            mine = [PodAttempt(one.pod, one.attempt) for one in deliveries if one.node == node]
            self._store.enqueue(node, mine)
        self._store.delivered(deliveries)


class Request(Struct, frozen=True, kw_only=True):
    """A user's request at an instant; `build` makes the transaction from the current state.

    It raises a BatchqError if the rules refuse the request; None means that nothing is left to
    request.
    """

    at: int
    what: str
    build: Callable[[Reader, int], Transaction | None]
    #: Whether the answer to a repeated try shows that an earlier try was carried out.
    happened: Callable[[Reader], bool] = lambda _: False


class Client:
    """A user's program: sends one request after another, and repeats each until answered."""

    def __init__(
        self,
        store: FaultyStore,
        clock: Clock,
        ids: IdSource,
        requests: list[Request],
        *,
        answered: Callable[[str, bool], None],
        say: Callable[[str], None],
    ) -> None:
        self.alive = True
        self._store = store
        self._clock = clock
        self._ids = ids
        self._requests = sorted(requests, key=lambda request: request.at)
        self._sent: tuple[Transaction, str] | None = None
        self._answered = answered
        self._say = say
        self.due_at = self._requests[0].at if self._requests else _NEVER

    @property
    def waits(self) -> bool:
        """Return whether a request is left."""
        return bool(self._requests)

    def step(self) -> None:
        """Try the first request."""
        now_ms = self._clock.now_ms()
        if not self._requests:
            self.due_at = _NEVER
            return
        self.due_at = now_ms + _AGAIN_MS
        try:
            self._try(self._requests[0], now_ms)
        except StoreUnavailable:
            return

    def _try(self, request: Request, now_ms: int) -> None:
        if self._sent is None:
            try:
                transaction = request.build(self._store, now_ms)
            except StoreUnavailable:
                raise
            except BatchqError as refusal:
                self._done(request, granted=request.happened(self._store), why=str(refusal))
                return
            if transaction is None:
                self._done(request, granted=True)
                return
            self._sent = (transaction, self._ids.new_uid())
        transaction, request_id = self._sent
        commit = self._store.commit([transaction], request_id=request_id)
        self._sent = None
        if not commit.refused:
            self._done(request, granted=True)
        elif commit.refused[0].answer.word not in (Word.CONFLICT, Word.FENCED):
            self._done(request, granted=False, why=str(commit.refused[0].answer.word))

    def _done(self, request: Request, *, granted: bool, why: str = "") -> None:
        self._say(f"client: {request.what}: {'done' if granted else why}")
        self._requests.pop(0)
        self._answered(request.what, granted)
        self.due_at = (
            max(self._clock.now_ms() + 1, self._requests[0].at) if self._requests else _NEVER
        )


_NEVER = 2**60
