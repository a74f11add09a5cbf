"""The pace of the scheduler: one turn per period, and sooner after a change.

Only the session thread decides. Everything else changes only the time of its next turn. A change in
the store makes the next turn earlier, and so does an instant at which, according to the last turn,
something is due. Many changes at once cause one turn, and two turns begin at least
`min_session_interval_ms` apart. After a long turn the loop pauses for an eighth of its duration,
but no longer than that interval. After resources were freed, a quarter of the last turn's duration
is always enough, because a group may be waiting for them. If the store does not answer, the next
turn is delayed.

APScheduler keeps the period. The turns between, which follow each other within milliseconds on a
busy cluster, are planned without it: moving one of its jobs costs as much as a short turn.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from typing import Protocol

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from msgspec import Struct

from batchq.core.session.snapshot import Settings
from batchq.daemon import PATIENCE_S, ThreadService
from batchq.errors import StoreUnavailable
from batchq.store.outage import Backoff, Outage
from batchq.system import structlog

_log = structlog.get_logger()

#: A turn that takes longer than this many periods is reported as hanging.
HANGS_AFTER_PERIODS = 10
#: How long a change that no decision waits for may wait for a turn. On a busy cluster, another
#: change causes one by then.
SOON_S = 0.1
_PERIOD = "period"


class TurnReport(Struct, frozen=True, kw_only=True):
    """The result of a turn."""

    #: Milliseconds until something is due; None if nothing is.
    due_in_ms: int | None = None


#: What the loop runs: read, decide, write. Raises StoreUnavailable.
Turn = Callable[[], TurnReport]


class Loop:
    """A service that runs `turn` at the pace of `settings`, or of those last passed to `go_by`.

    `crashed` is called from the session thread with any exception of a turn other than
    StoreUnavailable; no turn runs after that. `asking_s` returns how long a thread has been waiting
    for the store, in seconds: a store that hangs is an outage, not a hanging turn.
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
        # Guards the fields below. Never held while APScheduler is called, which holds its own
        # locks.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: No further turn begins; set by `stop`, and after a crash.
        self._stopping = False
        self._ended = False
        self._woken = False
        self._hurried = False
        self._holding_off = False
        self._due_in_s: float | None = None
        #: When a turn is due that `wake_soon` asked for (monotonic clock).
        self._soon_at: float | None = None
        self._running_since: float | None = None
        self._ended_at = time.monotonic()
        self._lasted_s = 0.0
        self._thread = threading.Thread(target=self._run, name="session", daemon=False)
        self._next_complaint_s = HANGS_AFTER_PERIODS * self._period_s
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)}, timezone=UTC, daemon=False
        )

    @property
    def alive(self) -> bool:
        """Whether a turn runs or another will run."""
        return self._running_since is not None or (self._has_started and not self._stopping)

    @property
    def _has_started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        """Run the first turn at once, and further turns at the pace of the settings."""
        with self._lock:
            if self._has_started or self._stopping:
                return
            self._woken = self._hurried = True
            self._thread.start()
        self._scheduler.add_job(
            self._end_period,
            "interval",
            seconds=self._period_s,
            id=_PERIOD,
            # A late end of a period still counts, and several late ones count once.
            coalesce=True,
            misfire_grace_time=None,
            max_instances=1,
        )
        self._scheduler.start()

    def stop(self) -> None:
        """Wait up to the patience for the current turn to finish; no further turn runs."""
        with self._lock:
            first, self._ended = not self._ended, True
            self._stopping = True
            self._changed.notify_all()
            finished = self._changed.wait_for(self._is_idle, self._patience_s)
        if not finished:
            _log.error("service.stuck", service=self.name, waited_s=self._patience_s)
        if first and self._has_started:
            self._scheduler.shutdown(wait=False)
            if finished and self._thread is not threading.current_thread():
                self._thread.join(self._patience_s)

    def wake(self) -> None:
        """Take a turn after a change, as soon as the interval between turns allows."""
        with self._lock:
            self._woken = True
            self._changed.notify_all()

    def wake_soon(self) -> None:
        """Take a turn after a change on which no decision waits; it may wait for the next one."""
        with self._lock:
            if self._soon_at is None:
                self._soon_at = time.monotonic() + SOON_S
                self._changed.notify_all()

    def hurry(self) -> None:
        """Take a turn soon, as resources were freed: turns may then use four fifths of the time."""
        with self._lock:
            self._woken = self._hurried = True
            self._changed.notify_all()

    def keep_pace(self) -> None:
        """Take the turn that a clock set back would delay; call this about once a period.

        APScheduler uses the wall clock, this check the monotonic one.
        """
        if self._is_idle() and time.monotonic() - self._ended_at > 2 * self._period_s:
            self.wake()

    def go_by(self, settings: Settings) -> None:
        """Change the pace from now on; a turn may call this itself."""
        with self._lock:
            self._period_s = settings.schedule_period_ms / 1000
            self._apart_s = settings.min_session_interval_ms / 1000
            self._next_complaint_s = HANGS_AFTER_PERIODS * self._period_s
        # Before the start and after the end, no job exists to reschedule.
        with suppress(JobLookupError):
            self._scheduler.reschedule_job(_PERIOD, trigger="interval", seconds=self._period_s)

    @property
    def period_s(self) -> float:
        """The interval between turns when nothing changes, in seconds."""
        return self._period_s

    @property
    def apart_s(self) -> float:
        """The least interval between the beginnings of turns, in seconds."""
        return self._apart_s

    def hanging_s(self) -> float:
        """Return how long the current turn has been running, in seconds; 0 between turns."""
        since = self._running_since
        return time.monotonic() - since if since is not None else 0.0

    def waiting_for_store_s(self) -> float:
        """Return how long the store call in progress has taken, in seconds; 0 without one."""
        number = self._thread.ident
        return 0.0 if number is None else self._asking_s(number)

    def standing_still_s(self) -> float:
        """Return for how many seconds nothing has progressed: since the last turn ended, or, while
        one runs, its duration less the wait for the store.
        """
        since = self._running_since
        if since is None:
            return time.monotonic() - self._ended_at
        return max(0.0, time.monotonic() - since - self.waiting_for_store_s())

    def _run(self) -> None:
        while self._await_turn():
            try:
                self._take_turn()
            except BaseException as error:  # any error of a turn ends the process
                with self._lock:
                    self._stopping = True
                self._crashed(error)

    def _await_turn(self) -> bool:
        """Wait until a turn is due, and begin it; return False after `stop` or a crash."""
        with self._lock:
            while not self._stopping:
                wait_s = self._wanted_wait_s()
                if wait_s is not None and wait_s <= 0.0:
                    self._running_since = time.monotonic()
                    # A wake-up from here on may concern what this turn no longer reads: it causes
                    # another.
                    self._woken = self._hurried = self._holding_off = False
                    self._due_in_s = self._soon_at = None
                    return True
                self._changed.wait(wait_s)
        return False

    def _take_turn(self) -> None:
        try:
            report = self._turn()
        except StoreUnavailable as error:
            self._outage.failed(error)
            self._due_in_s, self._holding_off = self._backoff.next_ms() / 1000, True
        else:
            self._backoff.reset()
            self._outage.succeeded()
            # This turn has already seen what was due by now; running again at once is useless.
            if report.due_in_ms is not None and report.due_in_ms > 0:
                self._due_in_s = report.due_in_ms / 1000
        finally:
            with self._lock:
                self._log_end_of_hang()
                self._lasted_s = self.hanging_s()
                self._running_since, self._ended_at = None, time.monotonic()
                self._changed.notify_all()

    def _distance_s(self) -> float:
        """Return the least pause between the last turn and the next, in seconds."""
        pause_s = max(self._apart_s - self._lasted_s, min(self._apart_s, self._lasted_s / 8))
        return min(pause_s, self._lasted_s / 4) if self._hurried else pause_s

    def _is_idle(self) -> bool:
        return self._running_since is None

    def _wanted_wait_s(self) -> float | None:
        """Return the wait until the next turn in seconds; None leaves it to the period."""
        since_last_s = time.monotonic() - self._ended_at
        if self._woken and not self._holding_off:
            return max(0.0, self._distance_s() - since_last_s)
        waits_s = []
        if self._due_in_s is not None:
            waits_s.append(max(self._due_in_s, self._distance_s()) - since_last_s)
        if self._soon_at is not None and not self._holding_off:
            soon_s = self._soon_at - time.monotonic()
            waits_s.append(max(soon_s, self._distance_s() - since_last_s))
        return max(0.0, min(waits_s)) if waits_s else None

    def _end_period(self) -> None:
        """Take a turn, or report the one that runs if it hangs."""
        # Under the lock, so that the log reports the hang before the end.
        with self._lock:
            if self._is_idle():
                self._woken = True
                self._changed.notify_all()
            else:
                self._complain()

    def _log_end_of_hang(self) -> None:
        first_complaint_s = HANGS_AFTER_PERIODS * self._period_s
        if self._next_complaint_s > first_complaint_s:
            _log.warning("session.ended_at_last", lasted_s=round(self.hanging_s(), 1))
        self._next_complaint_s = first_complaint_s

    def _complain(self) -> None:
        """Report the current turn if it hangs."""
        lasted_s = self.hanging_s()
        if lasted_s - self.waiting_for_store_s() < self._next_complaint_s:
            return
        # Double the interval between complaints, so that the log does not fill up.
        self._next_complaint_s = 2 * lasted_s
        _log.error("session.hangs", for_s=round(lasted_s, 1), where=self._innermost_calls())

    def _innermost_calls(self) -> str:
        """Return the innermost calls of the session thread, as `file:line function`."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        calls = traceback.extract_stack(frame, limit=64)[-4:] if frame else []
        return " > ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls)


#: The longest single wait for a change, and so the longest delay of a stop, in milliseconds.
WAIT_MS = 500


class Changes(Protocol):
    """The part of a store that reports changes."""

    def wait_for_change(self, timeout_ms: int) -> bool:
        """Wait; return whether anything was written since the last call.

        Raises StoreUnavailable.
        """


def watcher(
    changes: Changes,
    *,
    changed: Callable[[], None],
    unchanged: Callable[[], None],
    apart_s: Callable[[], float],
) -> ThreadService:
    """Return a service that calls `changed` after changes, at least `apart_s()` seconds apart, and
    `unchanged` after each wait without one.
    """

    def watch(stopping: threading.Event) -> None:
        backoff = Backoff()
        while not stopping.is_set():
            try:
                any_change = changes.wait_for_change(WAIT_MS)
            except StoreUnavailable:
                # The session thread meets the same outage and reports it.
                stopping.wait(backoff.next_ms() / 1000)
                continue
            backoff.reset()
            if any_change:
                changed()
                stopping.wait(apart_s())
            else:
                unchanged()

    return ThreadService("watcher", watch)
