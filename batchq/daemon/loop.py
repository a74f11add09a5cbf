"""The pace of the scheduler: a turn every period, and sooner when something has changed.

One thread decides, that of the executor `session`. All else only moves the time of its next turn:
a change in the store brings it forward (many at once count as one, and two turns are at least
`min_session_interval_ms` apart), and so does an instant that the last turn said something is due
at. Room that has come free is somebody's who waits: then two turns are no further apart than a
quarter of what the last one took. A store that does not answer pushes the next turn back.
APScheduler keeps the grid, and refuses to start a turn while one runs; here stands what it does
not do: wake, back off, and speak up when a turn hangs.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_SUBMITTED,
    JobExecutionEvent,
    SchedulerEvent,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from msgspec import Struct

from batchq.core.session.settings import Settings
from batchq.daemon.services import PATIENCE_S, ThreadService
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage

_log = structlog.get_logger()

#: A turn that takes longer than this many periods is said to hang.
HANGS_AFTER_PERIODS = 10
_SESSION = "session"


class TurnReport(Struct, frozen=True, kw_only=True):
    """What a turn tells the loop."""

    #: How long until something is due, in milliseconds.
    due_in_ms: int | None = None


#: What the loop runs: reads, decides, writes. Raises StoreUnavailable.
Turn = Callable[[], TurnReport]


class Loop:
    """A service that runs `turn` at the pace of `settings`, until `go_by` names others.

    `crashed` is called, from the deciding thread, with whatever left a turn other than
    StoreUnavailable; no further turn is run then. `asking_s` says of a thread for how long it has
    been waiting for the store: a store that hangs is an outage, and not a turn that hangs.
    """

    name = "loop"

    def __init__(
        self,
        turn: Turn,
        *,
        settings: Settings,
        outage: Outage,
        crashed: Callable[[BaseException], None],
        asking_s: Callable[[int], float] = lambda _: 0.0,
        backoff: Backoff | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._turn = turn
        self._outage = outage
        self._crashed = crashed
        self._asking_s = asking_s
        self._backoff = backoff or Backoff()
        self._patience_s = patience_s
        self._period_s = settings.schedule_period_ms / 1000
        self._apart_s = settings.min_session_interval_ms / 1000
        # Guards the fields below. Never held while APScheduler is called: it calls back with
        # locks of its own held.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._started = False
        #: No turn is to begin any more: asked for by `stop`, or after a crash.
        self._stopping = False
        self._ended = False
        self._woken = False
        self._hurried = False
        self._holding_off = False
        #: Touched by APScheduler's own thread alone.
        self._settle_when_planned = False
        self._due_in_s: float | None = None
        self._running_since: float | None = None
        self._ended_at = time.monotonic()
        self._lasted_s = 0.0
        self._decider: threading.Thread | None = None
        self._next_complaint_s = HANGS_AFTER_PERIODS * self._period_s
        self._scheduler = self._make_scheduler()

    # --- the service ------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether a turn runs or another will."""
        return self._running_since is not None or (self._started and not self._stopping)

    def start(self) -> None:
        """Run the first turn at once, and then at its pace."""
        with self._lock:
            if self._started or self._stopping:
                return
            self._started = True
        self._scheduler.add_job(
            self._run_turn,
            "interval",
            seconds=self._period_s,
            id=_SESSION,
            executor=_SESSION,
            # Late is better than not at all, and twice late is once.
            coalesce=True,
            misfire_grace_time=None,
            max_instances=1,
            next_run_time=datetime.now(UTC),
        )
        self._scheduler.start()

    def stop(self) -> None:
        """Let the turn that runs finish, for as long as patience lasts, and run no more."""
        with self._lock:
            first, self._ended = not self._ended, True
            self._stopping = True
            self._changed.notify_all()
            finished = self._changed.wait_for(self._is_idle, self._patience_s)
        if not finished:
            _log.error("service.stuck", service=self.name, waited_s=self._patience_s)
        if first and self._started:
            # APScheduler would wait for the thread with its own locks held, and the end of a turn
            # needs them to move the next one: so it does not wait, and the thread is joined here.
            self._scheduler.shutdown(wait=False)
            if finished and self._decider is not None:
                self._decider.join(self._patience_s)

    # --- what others say --------------------------------------------------------------------

    def wake(self) -> None:
        """Something has changed: take a turn as soon as the interval between turns allows."""
        with self._lock:
            self._woken = True
        self._settle()

    def hurry(self) -> None:
        """Room has come free: as `wake`, but turns may take up to four fifths of the time."""
        with self._lock:
            self._woken = self._hurried = True
            # One that was planned for later may be waiting for its distance already.
            self._changed.notify_all()
        self._settle()

    def keep_pace(self) -> None:
        """To be called about once a period: takes the turn that a clock set back would put off.

        APScheduler goes by the wall clock; this by the monotonic one.
        """
        if self._is_idle() and time.monotonic() - self._ended_at > 2 * self._period_s:
            self.wake()

    def go_by(self, settings: Settings) -> None:
        """Turn at the pace of other settings from now on; a turn may say so itself."""
        with self._lock:
            self._period_s = settings.schedule_period_ms / 1000
            self._apart_s = settings.min_session_interval_ms / 1000
            self._next_complaint_s = HANGS_AFTER_PERIODS * self._period_s
        # Before its start, and after its end, there is no next turn to move.
        with suppress(JobLookupError):
            self._scheduler.reschedule_job(_SESSION, trigger="interval", seconds=self._period_s)

    @property
    def period_s(self) -> float:
        """How far apart turns are when nothing happens."""
        return self._period_s

    @property
    def apart_s(self) -> float:
        """How far apart turns are at least."""
        return self._apart_s

    def hanging_s(self) -> float:
        """For how long the turn that runs has been running, 0 between turns."""
        since = self._running_since
        return time.monotonic() - since if since is not None else 0.0

    def waiting_for_store_s(self) -> float:
        """How long the store call that is under way has taken; its end says what became of it."""
        number = self._decider.ident if self._decider else None
        return 0.0 if number is None else self._asking_s(number)

    def standing_still_s(self) -> float:
        """For how long nothing has moved: a turn runs, and does not wait for the store; or none."""
        since = self._running_since
        if since is None:
            return time.monotonic() - self._ended_at
        return max(0.0, time.monotonic() - since - self.waiting_for_store_s())

    # --- the deciding thread ----------------------------------------------------------------

    def _run_turn(self) -> None:
        with self._lock:
            self._await_distance()
            if self._stopping or self._too_early():
                return
            self._running_since = time.monotonic()
            self._decider = threading.current_thread()
            # What is said from here on may not have been read by this turn: it makes another.
            self._woken = self._hurried = self._holding_off = False
            self._due_in_s = None
        try:
            report = self._turn()
        except StoreUnavailable as error:
            self._outage.failed(error)
            self._due_in_s, self._holding_off = self._backoff.next_ms() / 1000, True
        else:
            self._backoff.reset()
            self._outage.succeeded()
            # What was due already was seen by this very turn; to run again at once is no use.
            if report.due_in_ms is not None and report.due_in_ms > 0:
                self._due_in_s = report.due_in_ms / 1000
        finally:
            with self._lock:
                self._say_if_it_hung()
                self._lasted_s = self.hanging_s()
                self._running_since, self._ended_at = None, time.monotonic()
                self._changed.notify_all()

    def _await_distance(self) -> None:
        """Keep turns apart, whoever asked for this one: a short wait, that a stop ends."""
        while not self._stopping:
            left_s = self._ended_at + self._distance_s() - time.monotonic()
            if left_s <= 0.0:
                return
            self._changed.wait(left_s)

    def _distance_s(self) -> float:
        """How far from the last turn the next one is at least."""
        return min(self._apart_s, self._lasted_s / 4) if self._hurried else self._apart_s

    def _too_early(self) -> bool:
        """Whether a turn planned before the last one failed comes within the wait after it."""
        return self._holding_off and (self._wanted_wait_s() or 0.0) > 0.0

    def _is_idle(self) -> bool:
        return self._running_since is None

    # --- the time of the next turn ----------------------------------------------------------

    def _after_turn(self, event: JobExecutionEvent) -> None:
        """APScheduler counts the turn as ended now, and would start another.

        A turn's own end is too early for that: one brought forward there could be refused.
        """
        if event.exception is not None:
            with self._lock:
                self._stopping = True
            self._crashed(event.exception)
            return
        if threading.current_thread() is self._decider:
            self._settle()
        else:
            # The turn was over before APScheduler had even planned the one after it, and its own
            # thread tells of the end. What is moved now would be planned over.
            self._settle_when_planned = True

    def _after_plan(self, event: SchedulerEvent) -> None:
        if self._settle_when_planned:
            self._settle_when_planned = False
            self._settle()

    def _settle(self) -> None:
        """Move the next turn to where the fields want it."""
        with self._lock:
            wait_s = self._wanted_wait_s()
            firm = self._holding_off
        if wait_s is None:
            return
        wanted_at = datetime.now(UTC) + timedelta(seconds=wait_s)
        planned = self._scheduler.get_job(_SESSION)
        if planned is not None and (firm or wanted_at < planned.next_run_time):
            # The loop may be stopped between these lines; then there is no next turn to move.
            with suppress(JobLookupError):
                self._scheduler.modify_job(_SESSION, next_run_time=wanted_at)

    def _wanted_wait_s(self) -> float | None:
        """How long until the next turn is wanted; None to leave it where the period puts it."""
        if self._stopping or not self._started or not self._is_idle():
            return None
        since_last_s = time.monotonic() - self._ended_at
        if self._woken and not self._holding_off:
            return max(0.0, self._distance_s() - since_last_s)
        return None if self._due_in_s is None else max(0.0, self._due_in_s - since_last_s)

    # --- the watchdog -----------------------------------------------------------------------

    def _say_if_it_hung(self) -> None:
        first_complaint_s = HANGS_AFTER_PERIODS * self._period_s
        if self._next_complaint_s > first_complaint_s:
            _log.warning("session.ended_at_last", lasted_s=round(self.hanging_s(), 1))
        self._next_complaint_s = first_complaint_s

    def _refused(self, event: SchedulerEvent) -> None:
        """A turn was due while another ran: is that one hanging?"""
        # Under the lock, so that the turn cannot be said to have ended before it is said to hang.
        with self._lock:
            lasted_s = self.hanging_s()
            if lasted_s - self.waiting_for_store_s() < self._next_complaint_s:
                return
            # Each complaint waits twice as long as the last: the log says it, and does not fill.
            self._next_complaint_s = 2 * lasted_s
            _log.error("session.hangs", for_s=round(lasted_s, 1), where=self._where())

    def _where(self) -> str:
        """The innermost calls of the deciding thread, as `file:line function`."""
        number = self._decider.ident if self._decider else None
        frame = sys._current_frames().get(number or 0)
        calls = traceback.extract_stack(frame, limit=64)[-4:] if frame else []
        return " > ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls)

    def _make_scheduler(self) -> BackgroundScheduler:
        scheduler = BackgroundScheduler(
            executors={_SESSION: ThreadPoolExecutor(1)}, timezone=UTC, daemon=False
        )
        scheduler.add_listener(self._after_turn, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        scheduler.add_listener(self._after_plan, EVENT_JOB_SUBMITTED)
        scheduler.add_listener(self._refused, EVENT_JOB_MAX_INSTANCES)
        return scheduler


#: How long one wait lasts, and so how long a stop may have to wait for it.
WAIT_MS = 500


class Changes(Protocol):
    """The part of a store that tells of changes."""

    def wait_for_change(self, timeout_ms: int) -> bool:
        """Wait; whether anything was written since the last call. Raises StoreUnavailable."""


def watcher(
    changes: Changes,
    *,
    changed: Callable[[], None],
    unchanged: Callable[[], None],
    apart_s: Callable[[], float],
) -> ThreadService:
    """A service that calls `changed` after changes, `apart_s()` seconds apart at least, and
    `unchanged` after a while without any.
    """

    def watch(stopping: threading.Event) -> None:
        backoff = Backoff()
        while not stopping.is_set():
            try:
                any_change = changes.wait_for_change(WAIT_MS)
            except StoreUnavailable:
                # The deciding thread meets the same outage and says so.
                stopping.wait(backoff.next_ms() / 1000)
                continue
            backoff.reset()
            if any_change:
                changed()
                stopping.wait(apart_s())
            else:
                unchanged()

    return ThreadService("watcher", watch)
