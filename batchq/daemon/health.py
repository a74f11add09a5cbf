"""Whether this scheduler is alive, and whether it is of use: what `/livez` and `/readyz` answer.

*Live* asks for a restart: it fails once the thread that decides hangs, and not while the server is
away, which no restart would mend. *Ready* asks whether decisions are made, or would be at once if
the leader died: the server answers, and a turn has ended well lately.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from batchq.daemon.loop import HANGS_AFTER_PERIODS, Loop, Turn, TurnReport
from batchq.store.outage import Outage

#: So long nothing of the loop may move. A leader that hangs for as long lets its lease run out.
UNFIT_AFTER_PERIODS = 6 * HANGS_AFTER_PERIODS
#: A loop backs off from a server that is away, and turns again before these are over.
_LEAST_STILL_S = 15.0
#: A turn that ended well is recent for so long.
_RECENT_PERIODS = HANGS_AFTER_PERIODS
_LEAST_RECENT_S = 10.0
#: Who has waited for an answer for so long may wait for more.
_SLOW_STORE_S = 3.0


class Health:
    """Answers are "" for yes, or why not, in a sentence. Any thread may ask.

    `ending` says whether this process is to end.
    """

    def __init__(self, *, ending: Callable[[], bool]) -> None:
        self._ending = ending
        # Set once each, what depends on another after it: a question sees all or nothing.
        self._outage: Outage | None = None
        self._loop: Loop | None = None
        self._turned_at: float | None = None

    def watching(self, turn: Turn) -> Turn:
        """The same turn, whose good ends are noted."""

        def watched() -> TurnReport:
            report = turn()
            self._turned_at = time.monotonic()
            return report

        return watched

    def follow(self, loop: Loop, outage: Outage) -> None:
        """From now on, judge by these."""
        self._outage, self._loop = outage, loop

    def why_not_live(self) -> str:
        """Why this process should be started anew."""
        loop = self._loop
        if loop is None or self._ending():
            return ""
        still_s = loop.standing_still_s()
        if still_s > max(UNFIT_AFTER_PERIODS * loop.period_s, _LEAST_STILL_S):
            return f"nothing has moved in the session thread for {still_s:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        """Why nothing is decided here, nor would be if the leader died."""
        if self._ending():
            return "the scheduler is ending"
        loop, outage = self._loop, self._outage
        if loop is None or outage is None:
            return "waits for the server"
        if outage.unavailable:
            return f"the server has not answered for {outage.lasts_s():.0f} s"
        if (waiting_s := loop.waiting_for_store_s()) > _SLOW_STORE_S:
            return f"the server has not answered for {waiting_s:.0f} s"
        if self._turned_at is None:
            return "no session has ended yet"
        since_s = time.monotonic() - self._turned_at
        if since_s > max(_RECENT_PERIODS * loop.period_s, _LEAST_RECENT_S):
            return f"no session has ended well for {since_s:.0f} s"
        return ""
