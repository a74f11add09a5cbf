"""The failures between one process and the server, in virtual time.

Every process of a simulated cluster reaches the server over a `Line` of its own, which counts the
calls. A line fails a call in one of four ways, because a plan names that call or by chance; a line
that is cut lets nothing through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from batchq.errors import StoreUnavailable
from batchq.ports import Clock
from batchq.store.liveness import Contact

T = TypeVar("T")

#: A third of a pod's lease, as in the daemon.
_LONGEST_GAP_MS = 4_000


class Mode(StrEnum):
    """The outcome of a call."""

    #: The call does not reach the server.
    BEFORE = "before"
    #: The server carries out the call, but the caller sees a server that does not answer, and gives
    #: up.
    AFTER = "after"
    #: The server carries out the call, the reply is lost, and the caller sends the same call again.
    LOST = "reply lost"
    #: The caller gives up; the server carries out the call later. The server sees the same when a
    #: process pauses between a decision and its write, and when the server itself hangs.
    LATE = "late"


#: The outcome that chance gives the next call of a line: None means success.
Chance = Callable[[], Mode | None]


def never() -> Mode | None:
    """Never fail a call by chance."""
    return None


class Line:
    """The connection of one caller to the server; owns the count of its calls and its cuts."""

    def __init__(
        self,
        caller: str,
        clock: Clock,
        *,
        plan: Mapping[int, Mode] | None = None,
        chance: Chance = never,
        later: Callable[[Callable[[], object]], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.caller = caller
        self.calls = 0
        #: The numbers of the calls that were writes.
        self.writes: list[int] = []
        #: Counts only answered calls; a pause without calls breaks it, too.
        self.contact = Contact(clock.now_ms)
        self.contact.allow_gaps(_LONGEST_GAP_MS)
        #: How many connections the caller has opened.
        self.connections = 1
        self._broken = False
        self.chance = chance
        self._clock = clock
        self._plan = dict(plan or {})
        self._cut_until = -1
        self._later = later
        self._say = say

    def now_ms(self) -> int:
        """Return the time at the caller's end."""
        return self._clock.now_ms()

    def begin(self) -> None:
        """Hand the line to another process."""
        self._broken = True
        self.contact.lost()

    def cut(self, until_ms: int) -> None:
        """Let no call through before that instant."""
        self._cut_until = max(self._cut_until, until_ms)

    def heal(self) -> None:
        """Let every call through from now on, except planned failures."""
        self._cut_until = -1
        self.chance = never

    def fail_next(self, mode: Mode, *, in_calls: int = 1) -> None:
        """Plan a failure: 1 means the very next call."""
        self._plan[self.calls + in_calls] = mode

    def call(self, what: str, do: Callable[[], T], *, writes: bool = False) -> T:
        """Let the server carry out `do`, or fail. Raises StoreUnavailable."""
        self.calls += 1
        if writes:
            self.writes.append(self.calls)
        if self._clock.now_ms() < self._cut_until:
            raise self._unanswered(what)
        mode = self._plan.pop(self.calls, None) or self.chance()
        if mode is None:
            if self._broken:
                self._broken = False
                self.connections += 1
            self.contact.made()
            return do()
        if self._say is not None:
            self._say(f"{self.caller}: call {self.calls}, {what}: {mode}")
        if mode == Mode.LOST:
            do()
            return do()
        if mode == Mode.AFTER:
            do()
        elif mode == Mode.LATE and writes and self._later is not None:
            self._later(do)
        raise self._unanswered(what)

    def _unanswered(self, what: str) -> StoreUnavailable:
        self._broken = True
        self.contact.lost()
        return StoreUnavailable(f"{self.caller}: {what} was not answered")
