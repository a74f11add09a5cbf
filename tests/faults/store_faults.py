"""What can go wrong between one process and the server, in virtual time.

Every process of a simulated cluster reaches the server over a `Line` of its own, which counts its
calls. A line fails a call in one of four ways, because a plan says so for its n-th call or because
chance does; and while it is cut, nothing gets through at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from batchq.errors import StoreUnavailable
from batchq.ports import Clock

T = TypeVar("T")


class Mode(StrEnum):
    """What becomes of a call."""

    #: It does not reach the server.
    BEFORE = "before"
    #: It is carried out; the caller hears that the server does not answer, and gives up.
    AFTER = "after"
    #: It is carried out, its reply is lost, and it is sent once more, as it is.
    LOST = "reply lost"
    #: The caller gives up; the server carries it out some time later. So it looks to the server
    #: when a process is paused between deciding and writing, and when the server itself hangs.
    LATE = "late"


#: What chance has in store for the next call of a line: None for nothing bad.
Chance = Callable[[], Mode | None]


def never() -> Mode | None:
    """Nothing goes wrong by chance."""
    return None


class Line:
    """One caller's way to the server; owns the count of its calls and the times it was cut."""

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
        #: Which of them were to change something.
        self.writes: list[int] = []
        #: Since when every call was answered.
        self.contact_since = clock.now_ms()
        self._broken = False
        self.chance = chance
        self._clock = clock
        self._plan = dict(plan or {})
        self._cut_until = -1
        self._later = later
        self._say = say

    def begin(self) -> None:
        """Another process calls over this line from now on."""
        self._broken, self.contact_since = False, self._clock.now_ms()

    def cut(self, until_ms: int) -> None:
        """Let nothing through before that instant."""
        self._cut_until = max(self._cut_until, until_ms)

    def heal(self) -> None:
        """Let everything through from now on, but what was planned ahead."""
        self._cut_until = -1
        self.chance = never

    def fail_next(self, mode: Mode, *, in_calls: int = 1) -> None:
        """Plan a failure ahead: 1 for the very next call."""
        self._plan[self.calls + in_calls] = mode

    def call(self, what: str, do: Callable[[], T], *, writes: bool = False) -> T:
        """Have `do` carried out by the server, or not. Raises StoreUnavailable."""
        self.calls += 1
        if writes:
            self.writes.append(self.calls)
        if self._clock.now_ms() < self._cut_until:
            raise self._unanswered(what)
        mode = self._plan.pop(self.calls, None) or self.chance()
        if mode is None:
            if self._broken:
                self._broken, self.contact_since = False, self._clock.now_ms()
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
        return StoreUnavailable(f"{self.caller}: {what} was not answered")
